//! Stopping: an attempt is told to end, and its end is recorded before any process knows.

use domain::state::{AttemptEnd, AttemptState, JobState};
use serde_json::json;

use super::{Actor, Eviction, LifecycleError, evict, step_attempt, step_job};
use crate::store::Tx;
use crate::store::attempts::{self, AttemptStep};
use crate::store::events::{self, NewEvent, Subject};
use crate::store::jobs::{JobRow, JobStep};

/// Why and how an attempt is to stop.
#[derive(Debug, Clone)]
pub struct Stop {
    /// The end that it will have.
    pub end: AttemptEnd,
    /// The same in words.
    pub message: String,
    /// The exit code or signal that decided it, where one did.
    pub exit: Option<(Option<i32>, Option<i32>)>,
    /// Where policy takes its place: for whom, and by which rule.
    pub evicted: Option<Eviction>,
    /// Another time between SIGTERM and SIGKILL than the attempt was granted with.
    pub grace_ms: Option<i64>,
    /// The state that the job goes to meanwhile; `None` leaves it where it is until the end.
    pub job_to: Option<JobState>,
}

impl Stop {
    /// A stop for one reason, with the attempt's own grace, that leaves the job's state.
    pub fn because(end: AttemptEnd, message: impl Into<String>) -> Self {
        Self {
            end,
            message: message.into(),
            exit: None,
            evicted: None,
            grace_ms: None,
            job_to: None,
        }
    }
}

/// Stops the live attempt of a job whose row is locked: the attempt is `stopping` with its end
/// recorded, every worker that runs or was to run is `stopping`. An attempt that is stopping
/// already keeps the end it has; only the job's state follows the new wish.
///
/// Says whether there was a live attempt. When the last worker has left, `lifecycle::end`
/// decides by the job's state first (`cancelling` ends as cancelled, `suspended` stays) and
/// by the attempt's end then.
pub async fn stop(
    tx: &mut Tx,
    job: &mut JobRow,
    wish: &Stop,
    actor: &Actor,
) -> Result<bool, LifecycleError> {
    let Some(mut attempt) = attempts::lock_live(tx, job.id).await? else {
        return Ok(false);
    };
    let mut told = json!({});
    if attempt.state != AttemptState::Stopping {
        if let Some(evicted) = &wish.evicted {
            told = evict::record(tx, job, &attempt, None, evicted).await?;
        }
        let mut step =
            AttemptStep::to(AttemptState::Stopping).because(wish.end, wish.message.clone());
        (step.exit_code, step.exit_signal) = wish.exit.unwrap_or_default();
        step.grace_ms = wish.grace_ms;
        step_attempt(tx, &mut attempt, &step, actor, told.clone()).await?;
        for worker in attempts::stop_workers(tx, attempt.id).await? {
            let event = NewEvent {
                subject: Subject::Assignment(worker.id),
                job: Some((job.team_id, job.id)),
                node_id: Some(worker.node_id),
                from: Some(worker.phase.as_str()),
                to: "stopping",
                actor,
                reason: wish.end.as_str(),
                data: json!({ "worker": worker.worker }),
            };
            events::insert(tx, &event).await?;
        }
    }
    if let Some(to) = wish.job_to
        && to != job.state
    {
        let reason = if to == JobState::Suspended {
            "suspended"
        } else {
            wish.end.as_str()
        };
        let step = JobStep::to(to).because(reason, wish.message.clone());
        step_job(tx, job, &step, actor, told).await?;
    }
    Ok(true)
}

/// Cancels a job that has no live attempt: it ends at once.
pub async fn cancel_waiting(
    tx: &mut Tx,
    job: &mut JobRow,
    message: &str,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let step = JobStep::to(JobState::Cancelled).because(AttemptEnd::Cancelled.as_str(), message);
    step_job(tx, job, &step, actor, json!({})).await
}
