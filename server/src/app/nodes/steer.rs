//! What people may do with a node: cordon, drain, open, retire and label it, and declare it dead.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use domain::name::Name;
use domain::state::{DRAIN_SECONDS_MAX, NodeIntent, Reachability};
use domain::{FieldError, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::view::labels;
use super::{Node, lock, read};
use crate::app::audit::{self, Change};
use crate::app::authorise::{Action, Target, authorise};
use crate::app::idempotency::{self, Answer, Repeat};
use crate::app::reason::check_reason;
use crate::app::{App, AppError, Asker, RefusalCode, change};
use crate::lifecycle::end::lose_node;
use crate::lifecycle::nodes as steps;
use crate::store::assignments;
use crate::store::events::Actor;
use crate::store::nodes::{self, NodeRow, Wanted};
use crate::store::{self, Tx};

/// Most labels of a node; topology, a few classes of hardware, and room.
const LABELS_MAX: usize = 64;
/// Longest key or value of a label, in characters; as in the scenario files.
const LABEL_CHARS_MAX: usize = 63;

/// Why a person does something to a node; it is shown there.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Reason {
    /// In words; at most 200 characters.
    pub reason: String,
}

/// How a node is to be emptied.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Drain {
    /// Why, in words; at most 200 characters.
    pub reason: String,
    /// How long running work may stay, in seconds from now; what still runs then is preempted, also what
    /// may not be preempted otherwise. Without it what may be preempted leaves at once, and the rest ends
    /// by itself.
    #[schema(minimum = 0, maximum = 2592000)]
    pub deadline_seconds: Option<i64>,
}

/// What is wanted of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeWish {
    /// New work stays away; what runs stays.
    Cordon,
    /// New work may come again.
    Uncordon,
    /// New work stays away; what may be preempted leaves, and the rest ends by itself.
    Drain,
    /// New work stays away; what runs may stay for so many seconds, and leaves then.
    DrainWithin(i64),
    /// It is gone for good.
    Retire,
}

impl NodeWish {
    fn action(self) -> Action {
        match self {
            Self::Cordon => Action::CordonNode,
            Self::Uncordon => Action::UncordonNode,
            Self::Drain | Self::DrainWithin(_) => Action::DrainNode,
            Self::Retire => Action::RetireNode,
        }
    }

    fn intent(self) -> NodeIntent {
        match self {
            Self::Cordon => NodeIntent::Cordoned,
            Self::Uncordon => NodeIntent::Open,
            Self::Drain | Self::DrainWithin(_) => NodeIntent::Draining,
            Self::Retire => NodeIntent::Retired,
        }
    }

    /// Until when running work may stay, where there is an end to that.
    async fn deadline_at(self, tx: &mut Tx) -> Result<Option<Timestamp>, AppError> {
        let Self::DrainWithin(seconds) = self else {
            return Ok(None);
        };
        if !(0..=DRAIN_SECONDS_MAX).contains(&seconds) {
            let remedy = format!("0 to {DRAIN_SECONDS_MAX}");
            return Err(AppError::invalid("deadline_seconds", seconds, remedy));
        }
        Ok(Some(store::clock(tx).await? + TimeDelta::seconds(seconds)))
    }
}

/// Empties a node, by a deadline or without one. The last word on it holds: another deadline takes the
/// place of the one before, and without one there is none any more.
pub async fn drain(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    name: &Name,
    how: Drain,
) -> Result<Answer<Node>, AppError> {
    let wish = how
        .deadline_seconds
        .map_or(NodeWish::Drain, NodeWish::DrainWithin);
    let why = Reason { reason: how.reason };
    set_intent(app, asker, repeat, name, wish, why).await
}

/// Sets what is wanted of a node. What it is already changes nothing, but another reason for it
/// takes the place of the one before, and so does another deadline.
pub async fn set_intent(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    name: &Name,
    wish: NodeWish,
    why: Reason,
) -> Result<Answer<Node>, AppError> {
    let action = wish.action();
    authorise(asker, action, Target::Platform)?;
    check_reason(&why.reason)?;
    let mut reason = why.reason;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let row = lock(&mut work.tx, name).await?;
    let to = wish.intent();
    let deadline_at = wish.deadline_at(&mut work.tx).await?;
    let said_anew = !reason.is_empty() && reason != row.intent_reason;
    if row.intent == to && !said_anew {
        reason.clone_from(&row.intent_reason);
    }
    if row.intent != to || said_anew || deadline_at != row.drain_deadline_at {
        if to == NodeIntent::Retired {
            check_empty(&mut work.tx, &row).await?;
        }
        let actor = Actor::User(asker.name.to_string());
        let wanted = Wanted {
            intent: to,
            deadline_at,
            reason: &reason,
        };
        steps::set_intent(&mut work.tx, &row, wanted, &actor).await?;
        let said = |intent: NodeIntent, reason: &str, deadline_at: Option<Timestamp>| json!({ "intent": intent, "reason": reason, "drain_deadline_at": deadline_at });
        let before = said(row.intent, &row.intent_reason, row.drain_deadline_at);
        let change = Change {
            reason: &reason,
            before: Some(before),
            after: Some(said(to, &reason, deadline_at)),
            ..Change::of(action, format!("node/{name}"))
        };
        audit::record(&mut work.tx, asker, change).await?;
    }
    let node = read(&mut work.tx, asker, name).await?;
    let version = node.version;
    let answer = work.finish(app, Answer::done(node, version)).await?;
    app.wake.all();
    Ok(answer)
}

async fn check_empty(tx: &mut Tx, row: &NodeRow) -> Result<(), AppError> {
    let live = assignments::live_on_node(tx, row.id).await?;
    if live.is_empty() {
        return Ok(());
    }
    let held = match live.len() {
        1 => "1 assignment".to_owned(),
        several => format!("{several} assignments"),
    };
    let remedy = "drain it, or declare it lost, and retire it then";
    Err(AppError::conflict(
        RefusalCode::NodeInUse,
        format!("node {} still holds {held}", row.name),
        FieldError::new("assignments", live.len(), remedy),
    ))
}

/// Declares a node dead that does not answer: the person vouches that nothing runs on it any
/// more. All its work is fenced, also what was to be kept.
pub async fn declare_lost(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    name: &Name,
    why: Reason,
) -> Result<Answer<Node>, AppError> {
    authorise(asker, Action::DeclareNodeLost, Target::Platform)?;
    check_reason(&why.reason)?;
    let reason = why.reason;
    let actor = Actor::User(asker.name.to_string());
    let mut work = idempotency::begin(app, asker, repeat).await?;
    let repeated = work.repeated().await?;
    let row = lock(&mut work.tx, name).await?;
    if let Some(answer) = repeated {
        drop(work);
        // The first may have been cut off between its commit and the fencing.
        fence_all(app, &row, &actor).await?;
        return Ok(answer);
    }
    let tx = &mut work.tx;
    if row.reachability == Reachability::Ready {
        let remedy = "cordon or drain it instead";
        return Err(AppError::conflict(
            RefusalCode::NodeAnswers,
            format!("node {name} answers"),
            FieldError::new("reachability", row.reachability, remedy),
        ));
    }
    if row.reachability != Reachability::Lost {
        steps::set_reachability(tx, &row, Reachability::Lost, "declared_lost", &actor).await?;
    }
    let change = Change {
        reason: &reason,
        before: Some(json!({ "reachability": row.reachability })),
        after: Some(json!({ "reachability": Reachability::Lost })),
        ..Change::of(Action::DeclareNodeLost, format!("node/{name}"))
    };
    audit::record(tx, asker, change).await?;
    let node = read(tx, asker, name).await?;
    let version = node.version;
    let answer = work.finish(app, Answer::done(node, version)).await?;
    fence_all(app, &row, &actor).await?;
    app.wake.all();
    Ok(answer)
}

/// Fences everything on a node that was declared dead, job by job; jobs are locked before nodes.
async fn fence_all(app: &App, row: &NodeRow, actor: &Actor) -> Result<(), AppError> {
    let mut tx = app.db.begin_system().await?;
    let mut held: Vec<_> = assignments::live_on_node(&mut tx, row.id)
        .await?
        .into_iter()
        .map(|assignment| assignment.job_id)
        .collect();
    tx.commit().await?;
    held.dedup();
    for job in held {
        let mut tx = app.db.begin_system().await?;
        let why = format!("node {} was declared dead by {}", row.name, actor.name());
        if !lose_node(&mut tx, &app.config.timers, job, &row.name, why, actor).await? {
            return Ok(());
        }
        tx.commit().await?;
    }
    Ok(())
}

/// A change of a node; what is absent stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodePatch {
    /// All its labels, in place of those it has.
    #[serde(default, deserialize_with = "crate::app::some")]
    #[schema(nullable = false)]
    pub labels: Option<BTreeMap<String, String>>,
}

/// Changes a node's labels.
pub async fn update(
    app: &App,
    asker: &Asker,
    name: &Name,
    version: i64,
    patch: NodePatch,
) -> Result<Node, AppError> {
    authorise(asker, Action::UpdateNode, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = lock(&mut tx, name).await?;
    let before = labels(&row.labels);
    let new = patch.labels.unwrap_or_else(|| before.clone());
    if !change::leaves((version, row.version), &before, &new)? {
        check_labels(&new)?;
        nodes::set_labels(&mut tx, row.id, version, &json!(new))
            .await?
            .ok_or_else(|| AppError::Stale {
                given: version.to_string(),
                present: row.version,
            })?;
        let change = Change {
            before: Some(json!({ "labels": before })),
            after: Some(json!({ "labels": new })),
            ..Change::of(Action::UpdateNode, format!("node/{name}"))
        };
        audit::record(&mut tx, asker, change).await?;
    }
    let node = read(&mut tx, asker, name).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(node)
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), AppError> {
    if labels.len() > LABELS_MAX {
        return Err(AppError::invalid(
            "labels",
            format!("{} labels", labels.len()),
            format!("at most {LABELS_MAX}"),
        ));
    }
    let plain = |text: &str| {
        text.len() <= LABEL_CHARS_MAX
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/'))
    };
    for (key, value) in labels {
        if key.is_empty() || !plain(key) || !plain(value) {
            return Err(AppError::invalid(
                &format!("labels.{}", domain::error::quote(key)),
                value,
                "keys and values of at most 63 letters, digits, '-', '_', '.' and '/'",
            ));
        }
    }
    Ok(())
}
