//! The beginning of a connection: the node's voice passes to it, and what it holds is looked at.

use std::collections::BTreeSet;

use domain::ids::{AssignmentId, NodeId};
use domain::state::{NodeIntent, Reachability};
use protocol::report::Hello;
use serde_json::json;

use super::authority::NodeCertificate;
use super::inventory;
use super::losses::{self, Losses};
use crate::app::App;
use crate::lifecycle::LifecycleError;
use crate::lifecycle::nodes::set_reachability;
use crate::store::events::{self, Actor, NewEvent, Subject};
use crate::store::nodes::{self, NodeRow, Voice};
use crate::store::{Tx, assignments};

/// What a connection knows of its node once it has begun.
#[derive(Debug)]
pub struct Begun {
    /// The node's name.
    pub name: String,
    /// Facts up to this number are known.
    pub last_fact: u64,
    /// Facts up to this number were outstanding as it began.
    pub outstanding: u64,
    /// What the node holds as its connection begins, until it says that it has let go.
    pub held: BTreeSet<AssignmentId>,
    /// What becomes of that which it does not hold.
    pub losses: Losses,
}

/// Why a connection did not begin.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The node is retired, unknown, or enrolled anew by another machine.
    #[error("the node is retired or unknown, or another machine has enrolled as it")]
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

/// Begins a connection: its word on the node counts from now on. What the node has lost is ended
/// later, by [`Losses`], when all that it had yet to say was heard.
pub async fn begin(
    app: &App,
    certificate: &NodeCertificate,
    hello: &Hello,
) -> Result<Begun, HelloError> {
    let node_id = certificate.node_id;
    let mut tx = app.db.begin_system().await?;
    let node = nodes::lock(&mut tx, node_id)
        .await?
        .filter(|node| node.intent != NodeIntent::Retired)
        .ok_or(HelloError::Unwelcome)?;
    let actor = Actor::Agent(node.name.clone());
    let before = nodes::voice(&mut tx, node_id).await?;
    if before.enrolment_id != certificate.enrolment_id {
        return Err(HelloError::Unwelcome);
    }
    let last_fact = last_fact(&before, hello, &node);
    let voice = Voice {
        incarnation: Some(hello.incarnation),
        replica: Some(app.replica),
        journal_id: Some(hello.journal_id),
        last_fact,
        ..before.clone()
    };
    let connection =
        nodes::begin_connection(&mut tx, node_id, &voice, &hello.agent_version).await?;
    inventory::apply(&mut tx, node_id, &actor, &hello.inventory).await?;
    tx.commit().await?;

    let rebooted = rebooted(&before, hello);
    if rebooted {
        losses::end_charges(app, &node).await?;
    }
    note_orphans(app, &node, hello, &actor).await?;
    app.wake.all();
    Ok(Begun {
        last_fact: u64::try_from(last_fact).unwrap_or(0),
        outstanding: hello.next_fact - 1,
        held: hello.held.iter().map(|held| held.assignment).collect(),
        losses: Losses {
            node_id,
            connection,
            boot_id: hello.boot_id.clone(),
            // Of a machine that was restarted the charges have ended already.
            last_heartbeat_at: node.last_heartbeat_at.filter(|_| !rebooted),
            message: cause(&before, hello, &node.name),
        },
        name: node.name,
    })
}

/// Up to which fact all are known. What the node says it was told is known, too: where this
/// database does not have it, it was restored to an older state, and the facts are gone.
fn last_fact(before: &Voice, hello: &Hello, node: &NodeRow) -> i64 {
    let number = |fact: u64| i64::try_from(fact).expect("checked on receipt");
    let told = number(hello.first_fact - 1);
    if !goes_on(before, hello) {
        return told;
    }
    if told > before.last_fact {
        tracing::error!(
            node.id = %node.id, node = %node.name, known = before.last_fact, told,
            "facts were acknowledged that this database does not have"
        );
    }
    before.last_fact.max(told)
}

/// Whether the node's journal is the one that it had, and not an older copy of it.
fn goes_on(before: &Voice, hello: &Hello) -> bool {
    before.journal_id == Some(hello.journal_id)
        && u64::try_from(before.last_fact).is_ok_and(|last| last < hello.next_fact)
}

/// Whether the machine was restarted, so that nothing survived on it.
fn rebooted(before: &Voice, hello: &Hello) -> bool {
    !before.boot_id.is_empty() && before.boot_id != hello.boot_id
}

/// Why the node does not have what was on it.
fn cause(before: &Voice, hello: &Hello, name: &str) -> String {
    if rebooted(before, hello) {
        format!("node {name} was restarted")
    } else if before.journal_id.is_some() && !goes_on(before, hello) {
        format!("the agent of node {name} lost its journal")
    } else {
        format!("node {name} does not have it any more, and how it ended there was lost")
    }
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
