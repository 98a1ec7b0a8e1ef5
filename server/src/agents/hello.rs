//! The beginning of a session: the node's voice passes to it, and what did not survive is ended.

use std::collections::BTreeSet;

use domain::ids::{AssignmentId, NodeId};
use domain::state::{NodeIntent, Reachability};
use protocol::report::Hello;
use serde_json::json;

use super::inventory;
use crate::app::App;
use crate::lifecycle::LifecycleError;
use crate::lifecycle::end::{Loss, lose_workers};
use crate::lifecycle::nodes::set_reachability;
use crate::store::events::{self, Actor, NewEvent, Subject};
use crate::store::nodes::{self, NodeRow, Voice};
use crate::store::{Tx, assignments};

/// What a session knows of its node once it has begun.
#[derive(Debug)]
pub struct Begun {
    /// The node's name.
    pub name: String,
    /// Facts up to this number are known.
    pub last_fact: u64,
    /// What the node holds as its session begins, until it says that it has let go.
    pub held: BTreeSet<AssignmentId>,
}

/// Why a session did not begin.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The node is retired or unknown.
    #[error("the node is retired or unknown")]
    Unwelcome,
    /// The database refused or was away, or a step was not possible.
    #[error(transparent)]
    Lifecycle(#[from] LifecycleError),
}

impl From<sqlx::Error> for HelloError {
    fn from(error: sqlx::Error) -> Self {
        Self::Lifecycle(error.into())
    }
}

/// Begins a session: its word on the node counts from now on.
pub async fn begin(app: &App, node_id: NodeId, hello: &Hello) -> Result<Begun, HelloError> {
    let mut tx = app.db.begin_system().await?;
    let node = nodes::lock(&mut tx, node_id)
        .await?
        .filter(|node| node.intent != NodeIntent::Retired)
        .ok_or(HelloError::Unwelcome)?;
    let actor = Actor::Agent(node.name.clone());
    let before = nodes::voice(&mut tx, node_id).await?;
    let same_journal = before.journal_id == Some(hello.journal_id);
    let last_fact = if same_journal { before.last_fact } else { 0 };
    let voice = Voice {
        incarnation: Some(hello.incarnation),
        replica: Some(app.replica),
        boot_id: hello.boot_id.clone(),
        journal_id: Some(hello.journal_id),
        last_fact,
    };
    nodes::begin_session(&mut tx, node_id, &voice, &hello.agent_version).await?;
    inventory::apply(&mut tx, node_id, &actor, &hello.inventory).await?;
    tx.commit().await?;

    if let Some(message) = nothing_survived(&before, hello, &node.name) {
        lose_everything(app, &node, hello, message, &actor).await?;
    }
    note_orphans(app, &node, hello, &actor).await?;
    app.wake.all();
    Ok(Begun {
        name: node.name,
        last_fact: u64::try_from(last_fact).unwrap_or(0),
        held: hello.held.iter().map(|held| held.assignment).collect(),
    })
}

/// Why nothing that ran on the node before can still be there, if so.
fn nothing_survived(before: &Voice, hello: &Hello, name: &str) -> Option<String> {
    let rebooted = !before.boot_id.is_empty() && before.boot_id != hello.boot_id;
    let journal_lost = before.journal_id.is_some() && before.journal_id != Some(hello.journal_id);
    if rebooted {
        Some(format!("node {name} was restarted"))
    } else if journal_lost {
        Some(format!("the agent of node {name} lost its journal"))
    } else {
        None
    }
}

/// Ends what had been handed to a node that does not have it any more. What the agent says it
/// still holds is left: after a lost journal alone it can hold nothing that it knows of.
async fn lose_everything(
    app: &App,
    node: &NodeRow,
    hello: &Hello,
    message: String,
    actor: &Actor,
) -> Result<(), HelloError> {
    let mut tx = app.db.begin_system().await?;
    let mut jobs: Vec<_> = assignments::live_on_node(&mut tx, node.id)
        .await?
        .into_iter()
        .map(|assignment| assignment.job_id)
        .collect();
    tx.commit().await?;
    jobs.dedup();
    let loss = Loss {
        node_id: node.id,
        last_heartbeat_at: node.last_heartbeat_at,
        message,
        spare_granted: true,
    };
    for job in jobs {
        let mut tx = app.db.begin_system().await?;
        lose_workers(&mut tx, &app.config.timers, job, &loss, actor).await?;
        tx.commit().await?;
    }
    tracing::warn!(
        node.id = %node.id, node = %node.name, held = hello.held.len(), message = %loss.message,
        "work on a node was lost"
    );
    Ok(())
}

/// Writes down what the node holds although it has ended, or never was, for us. Its devices are
/// not free before the node says so, whatever our rows say: it is not ready until then.
async fn note_orphans(
    app: &App,
    node: &NodeRow,
    hello: &Hello,
    actor: &Actor,
) -> Result<(), HelloError> {
    let held: BTreeSet<AssignmentId> = hello.held.iter().map(|held| held.assignment).collect();
    let mut tx = app.db.begin_system().await?;
    let orphans = orphans_of(&mut tx, node.id, &held).await?;
    if orphans.is_empty() {
        return Ok(());
    }
    for (id, unknown) in orphans {
        note_orphan(&mut tx, node, id, unknown, actor).await?;
    }
    let present = nodes::lock(&mut tx, node.id)
        .await?
        .ok_or(HelloError::Unwelcome)?;
    if present.reachability == Reachability::Ready {
        let to = Reachability::Unreachable;
        set_reachability(&mut tx, &present, to, "cleaning_up", actor).await?;
    }
    Ok(tx.commit().await?)
}

/// Which of these assignments are not live ones of the node, and whether nobody knows them.
async fn orphans_of(
    tx: &mut Tx,
    node: NodeId,
    held: &BTreeSet<AssignmentId>,
) -> Result<Vec<(AssignmentId, bool)>, sqlx::Error> {
    let ids: Vec<AssignmentId> = held.iter().copied().collect();
    let known = assignments::find(tx, &ids).await?;
    let orphan = |id: &AssignmentId| match known.iter().find(|row| row.id == *id) {
        Some(row) if row.node_id == node && row.phase.live() => None,
        Some(_) => Some((*id, false)),
        None => Some((*id, true)),
    };
    Ok(ids.iter().filter_map(orphan).collect())
}

async fn note_orphan(
    tx: &mut Tx,
    node: &NodeRow,
    id: AssignmentId,
    unknown: bool,
    actor: &Actor,
) -> Result<(), sqlx::Error> {
    tracing::warn!(node.id = %node.id, assignment.id = %id, unknown, "a node holds work that has ended for us");
    let event = NewEvent {
        subject: Subject::Node(node.id),
        job: None,
        node_id: Some(node.id),
        from: None,
        to: "orphan",
        actor,
        reason: if unknown { "unknown" } else { "ended" },
        data: json!({ "assignment": id }),
    };
    events::insert(tx, &event).await
}

/// Counts a node as ready, where it is not: its lease runs, and of what it still holds nothing
/// has ended for us. The node's lock serialises this with who fences work on lost nodes.
pub async fn mark_ready(
    app: &App,
    node_id: NodeId,
    held: &BTreeSet<AssignmentId>,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let Some(node) = nodes::lock(&mut tx, node_id).await? else {
        return Ok(());
    };
    if node.reachability == Reachability::Ready || node.intent == NodeIntent::Retired {
        return Ok(());
    }
    if !orphans_of(&mut tx, node_id, held).await?.is_empty() {
        return Ok(());
    }
    set_reachability(&mut tx, &node, Reachability::Ready, "answers", actor).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(())
}
