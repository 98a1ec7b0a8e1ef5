//! Resizing: a gang that runs goes on with fewer workers, or with more of them.

use domain::ids::{AssignmentId, AttemptId};
use domain::state::{AssignmentPhase, AttemptEnd, AttemptState};
use serde_json::{Value, json};

use super::end::backoff;
use super::grant::{Ports, Seated, place_workers, seats};
use super::{Actor, Eviction, Grant, LifecycleError, evict, step_worker};
use crate::config::Timers;
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

/// Tells the workers that `leaves` picks to leave a gang that goes on without them; whether there
/// were any, and any that stay. Job and attempt are locked. What of them has ended by itself stays
/// as it is.
pub async fn shrink(
    tx: &mut Tx,
    job: &mut JobRow,
    attempt: &AttemptRow,
    leaves: impl Fn(&Assignment) -> bool,
    why: &Dismissal,
    actor: &Actor,
) -> Result<bool, LifecycleError> {
    let now = store::clock(tx).await?;
    let (leaving, staying): (Vec<_>, Vec<_>) = members(tx, attempt.id)
        .await?
        .into_iter()
        .filter(|worker| worker.exited_at.is_none())
        .partition(leaves);
    if leaving.is_empty() || staying.is_empty() {
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

/// A gang that was to grow goes on without the workers to grow by that have not begun, from the rank
/// `from` on, since a node would not start one; it is not grown again for a while, each time longer.
pub async fn refuse_growth(
    tx: &mut Tx,
    timers: &Timers,
    job: &mut JobRow,
    attempt: &AttemptRow,
    from: i32,
    message: String,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let before = assignments::growth_refusals(tx, attempt.id).await?;
    let before = i32::try_from(before).unwrap_or(i32::MAX);
    let leaves = |worker: &Assignment| worker.worker >= from && joins(worker);
    let why = Dismissal::refused(message);
    if shrink(tx, job, attempt, leaves, &why, actor).await? {
        let now = store::clock(tx).await?;
        attempts::hold_growth(tx, attempt.id, backoff(timers, before, now)).await?;
    }
    Ok(())
}

/// Lets an elastic gang go on without workers that were lost with their node, where enough of it
/// runs; whether it does. What was lost is fenced or has been told of as ended already.
pub(super) async fn go_on_without(
    tx: &mut Tx,
    job: &mut JobRow,
    attempt: &AttemptRow,
    lost: &[AssignmentId],
    message: &str,
    actor: &Actor,
) -> Result<bool, LifecycleError> {
    let members = members(tx, attempt.id).await?;
    let (gone, left): (Vec<_>, Vec<_>) = members
        .into_iter()
        .partition(|worker| lost.contains(&worker.id));
    if gone.is_empty() || !enough(job, attempt, &left) {
        return Ok(false);
    }
    let rule = AttemptEnd::NodeLost.as_str();
    let now = store::clock(tx).await?;
    for worker in &gone {
        assignments::dismiss(tx, worker.id, rule, None, now).await?;
    }
    let sizes = (gone.len() + left.len(), left.len());
    let data = json!({ "rule": rule, "message": message });
    note(tx, job, "shrunk", sizes, data, actor).await?;
    Ok(true)
}

/// Tells the workers of an elastic gang that hold what has failed to leave it, where enough of it
/// runs without them; whether it goes on so. Job and attempt are locked.
pub async fn give_up(
    tx: &mut Tx,
    job: &mut JobRow,
    attempt: &AttemptRow,
    failed: &[AssignmentId],
    message: String,
    actor: &Actor,
) -> Result<bool, LifecycleError> {
    let mut left = members(tx, attempt.id).await?;
    left.retain(|worker| !failed.contains(&worker.id));
    if !enough(job, attempt, &left) {
        return Ok(false);
    }
    let why = Dismissal {
        rule: AttemptEnd::NodeLost.as_str(),
        message,
        evicted: None,
        grace_ms: None,
    };
    let leaves = |worker: &Assignment| failed.contains(&worker.id);
    shrink(tx, job, attempt, leaves, &why, actor).await
}

/// Whether a running gang may go on with these workers: as many of them run as its spec says that
/// it needs, and none has come to its end.
fn enough(job: &JobRow, attempt: &AttemptRow, left: &[Assignment]) -> bool {
    let least = job.spec().ok().and_then(|spec| spec.min_workers);
    let runs = |worker: &&Assignment| worker.phase == AssignmentPhase::Running;
    let running = left.iter().filter(runs).count();
    attempt.state == AttemptState::Running
        && left.iter().all(|worker| worker.exited_at.is_none())
        && least.is_some_and(|least| running >= least as usize)
}

/// Whether a worker is to join a gang that runs, and has not begun.
fn joins(worker: &Assignment) -> bool {
    matches!(
        worker.phase,
        AssignmentPhase::Granted | AssignmentPhase::HandedOver
    )
}

/// Adds the workers of a grant to the running attempt of a job whose row is locked: they take the
/// lowest ranks that nobody has, and start once their nodes have taken all of them.
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
    let seats = seats(&members, &grant.workers);
    let seated = Seated {
        job: (job.team_id, job.id),
        attempt: attempt.id,
        seats: &seats,
        grant,
    };
    place_workers(tx, &[seated], actor).await?;
    // Rank 0 was lost with its node: those that join meet where it is now.
    let first = seats
        .iter()
        .zip(&grant.workers)
        .find(|(seat, _)| seat.worker == 0);
    if let Some((_, place)) = first {
        let mut ports = Ports::taken(tx, &[place.node_id]).await?;
        let port = ports.take(place.node_id, attempt.id)?;
        attempts::move_master(tx, attempt.id, place.node_id, port).await?;
    }
    let sizes = (members.len(), members.len() + grant.workers.len());
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
