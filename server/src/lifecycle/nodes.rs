//! Steps of nodes: their reachability and what people want of them, each with its event and
//! the capacity of its devices.

use domain::notice::NoticeKind;
use domain::state::Reachability;
use serde_json::{Value, json};

use super::{Actor, LifecycleError};
use crate::store::events::{self, NewEvent, Subject};
use crate::store::nodes::{self, NodeRow, Wanted};
use crate::store::outbox::{self, Notice};
use crate::store::{self, Tx, capacity};

/// Steps the reachability of a node whose row is locked; nothing happens when it stands
/// elsewhere by now.
pub async fn set_reachability(
    tx: &mut Tx,
    node: &NodeRow,
    to: Reachability,
    reason: &str,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    node.reachability.step(to)?;
    if !nodes::step_reachability(tx, node.id, node.reachability, to).await? {
        return Ok(());
    }
    if to == Reachability::Lost {
        tell_lost(tx, node).await?;
    }
    let from = node.reachability.as_str();
    let data = json!({ "node": node.name });
    note(tx, node, (from, to.as_str()), reason, data, actor).await
}

/// Tells who asked to hear of lost nodes.
async fn tell_lost(tx: &mut Tx, node: &NodeRow) -> Result<(), LifecycleError> {
    let now = store::clock(tx).await?;
    let at = domain::time::format(now);
    let notice = Notice {
        kind: NoticeKind::NodeLost,
        team: None,
        key: &format!("node_lost/{}/{at}", node.id),
        about: &format!("node/{}", node.id),
        payload: &json!({ "node": node.name, "at": at }),
    };
    outbox::tell(tx, &notice).await?;
    Ok(())
}

/// Steps what people want of a node whose row is locked, and says why; its new version. Where they
/// want the same for another reason, that is noted.
pub async fn set_intent(
    tx: &mut Tx,
    node: &NodeRow,
    wanted: Wanted<'_>,
    actor: &Actor,
) -> Result<i64, LifecycleError> {
    let Wanted {
        intent,
        reason,
        deadline_at,
    } = wanted;
    if node.intent != intent {
        node.intent.step(intent)?;
    }
    let version = nodes::step_intent(tx, node.id, node.version, wanted)
        .await?
        .ok_or_else(|| LifecycleError::Missed(format!("node {}", node.name)))?;
    let from = node.intent.as_str();
    let data = json!({ "node": node.name, "deadline_at": deadline_at });
    note(tx, node, (from, intent.as_str()), reason, data, actor).await?;
    Ok(version)
}

async fn note(
    tx: &mut Tx,
    node: &NodeRow,
    (from, to): (&'static str, &'static str),
    reason: &str,
    data: Value,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let event = NewEvent {
        subject: Subject::Node(node.id),
        job: None,
        node_id: Some(node.id),
        from: Some(from),
        to,
        actor,
        reason,
        data,
    };
    events::insert(tx, &event).await?;
    Ok(capacity::refresh(tx, node.id).await?)
}
