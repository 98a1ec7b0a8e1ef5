//! Resizing: a gang that runs goes on with fewer workers, or with more of them.

use domain::ids::{AssignmentId, AttemptId, NodeId};
use domain::state::{AssignmentPhase, AttemptState};
use serde_json::{Value, json};

use super::grant::place_workers;
use super::report::step_worker;
use super::{Actor, Eviction, Grant, LifecycleError, evict};
use crate::store::assignments::{self, Assignment};
use crate::store::attempts::AttemptRow;
use crate::store::events::{self, NewEvent, Subject};
use crate::store::jobs::{self, JobGuard, JobRow};
use crate::store::{self, Tx, attempts};

/// Why workers have to leave a gang that goes on without them.
#[derive(Debug, Clone)]
pub struct Dismissal {
    /// The rule, as a stable word.
    pub rule: &'static str,
    /// The same in words.
    pub message: String,
    /// Where policy takes their places: for whom, and by which rule.
    pub evicted: Option<Eviction>,
    /// Another time between SIGTERM and SIGKILL than the attempt was granted with.
    pub grace_ms: Option<i64>,
}

impl Dismissal {
    /// Workers to grow by that could not be had, which destroys nothing.
    pub fn refused(message: String) -> Self {
        Self {
            rule: "start_refused",
            message,
            evicted: None,
            grace_ms: None,
        }
    }
}

/// Tells the workers of the rank `from` and above to leave a gang that goes on without them;
/// whether there were any. Job and attempt are locked. What of them has ended by itself stays as it is.
pub async fn shrink(
    tx: &mut Tx,
    job: &mut JobRow,
    attempt: &AttemptRow,
    from: i32,
    why: &Dismissal,
    actor: &Actor,
) -> Result<bool, LifecycleError> {
    let now = store::clock(tx).await?;
    let members = members(tx, attempt.id).await?;
    let (leaving, staying): (Vec<_>, Vec<_>) = members
        .into_iter()
        .filter(|worker| worker.exited_at.is_none())
        .partition(|worker| worker.worker >= from);
    if leaving.is_empty() {
        return Ok(false);
    }
    let sizes = (staying.len() + leaving.len(), staying.len());
    let mut data = json!({ "rule": why.rule });
    if let Some(evicted) = &why.evicted {
        let ids: Vec<AssignmentId> = leaving.iter().map(|worker| worker.id).collect();
        data = evict::record(tx, job, attempt, Some(&ids), evicted).await?;
    }
    data["message"] = json!(why.message);
    for mut worker in leaving {
        step_worker(tx, &mut worker, AssignmentPhase::Stopping, actor, why.rule).await?;
        assignments::dismiss(tx, worker.id, why.rule, why.grace_ms, now).await?;
    }
    note(tx, job, "shrunk", sizes, data, actor).await?;
    Ok(true)
}

/// Adds the workers of a grant to the running attempt of a job whose row is locked: they take the
/// next ranks, and start once their nodes have taken all of them.
pub async fn grow(
    tx: &mut Tx,
    job: &mut JobRow,
    grant: &Grant,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let missed = || LifecycleError::Missed(format!("the gang of job {}", job.id));
    let attempt = attempts::lock_live(tx, job.id)
        .await?
        .filter(|attempt| attempt.state == AttemptState::Running)
        .ok_or_else(missed)?;
    let members = members(tx, attempt.id).await?;
    if members.iter().any(|worker| worker.exited_at.is_some()) {
        return Err(missed());
    }
    let nodes: Vec<NodeId> = members.iter().map(|worker| worker.node_id).collect();
    place_workers(tx, job, attempt.id, &nodes, grant, actor).await?;
    let sizes = (nodes.len(), nodes.len() + grant.workers.len());
    note(tx, job, "grown", sizes, json!({}), actor).await
}

/// The workers of an attempt that it has not given up, by rank.
async fn members(tx: &mut Tx, attempt: AttemptId) -> Result<Vec<Assignment>, sqlx::Error> {
    let mut workers = assignments::lock_of_attempt(tx, attempt).await?;
    workers.retain(|worker| worker.dismissed_at.is_none());
    Ok(workers)
}

/// Raises the job's version, so that nothing is decided on the size that it had, and writes the event.
async fn note(
    tx: &mut Tx,
    job: &mut JobRow,
    reason: &str,
    (before, after): (usize, usize),
    mut data: Value,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let guard = JobGuard {
        id: job.id,
        state: job.state,
        version: job.version,
    };
    job.version = jobs::touch(tx, guard)
        .await?
        .ok_or_else(|| LifecycleError::Missed(format!("job {}", job.id)))?;
    data["workers_before"] = json!(before);
    data["workers"] = json!(after);
    let event = NewEvent {
        subject: Subject::Job(job.id),
        job: Some((job.team_id, job.id)),
        node_id: None,
        from: Some(job.state.as_str()),
        to: job.state.as_str(),
        actor,
        reason,
        data,
    };
    Ok(events::insert(tx, &event).await?)
}
