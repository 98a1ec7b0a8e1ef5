//! The one home of state changes of jobs, attempts and assignments.
//!
//! Every change locks the job's row first, then its live attempt, then the assignments in the
//! order of their ids: two callers never wait for each other in a circle. Who locks nodes as
//! well locks all its jobs before. Each step is checked by its state machine, guarded by the
//! state that it was decided upon, and leaves one event. Devices and usage segments change in the same transaction, so that metering
//! cannot drift from state.

pub mod end;
mod evict;
mod grant;
pub mod nodes;
pub mod report;
mod resize;
mod stop;
pub mod words;

use domain::state::{IllegalStep, JobState};
use serde_json::Value;

use crate::store::attempts::{AttemptRow, AttemptStep};
use crate::store::events::{self, NewEvent, Subject};
use crate::store::jobs::{self, JobGuard, JobRow, JobStep};
use crate::store::{Tx, attempts, waits};

pub use crate::store::events::Actor;
pub use crate::store::evictions::Gainer;
pub use evict::Eviction;
pub use grant::{Grant, GrantDevice, GrantWorker, grant};
pub use resize::{Dismissal, give_up, grow, refuse_growth, shrink};
pub use stop::{Stop, cancel_waiting, stop};

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// The object changed since it was looked at: read it again and decide again.
    #[error("{0} changed meanwhile")]
    Missed(String),
    /// The state machine has no such step.
    #[error(transparent)]
    Illegal(#[from] IllegalStep),
    /// What was to be held is held by somebody else.
    #[error("{0}")]
    Held(String),
    /// The database refused or was away.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Takes one step of a job whose row is locked, brings `job` up to date, and writes the event.
pub async fn step_job(
    tx: &mut Tx,
    job: &mut JobRow,
    step: &JobStep,
    actor: &Actor,
    data: Value,
) -> Result<(), LifecycleError> {
    job.state.step(step.to)?;
    let guard = JobGuard {
        id: job.id,
        state: job.state,
        version: job.version,
    };
    let version = jobs::step(tx, guard, step)
        .await?
        .ok_or_else(|| LifecycleError::Missed(format!("job {}", job.id)))?;
    let event = NewEvent {
        subject: Subject::Job(job.id),
        job: Some((job.team_id, job.id)),
        node_id: None,
        from: Some(job.state.as_str()),
        to: step.to.as_str(),
        actor,
        reason: step.reason.as_deref().unwrap_or_default(),
        data: with_message(data, &step.message),
    };
    events::insert(tx, &event).await?;
    if job.state == JobState::Queued {
        waits::end(tx, job.team_id, job.id).await?;
    }
    job.state = step.to;
    job.version = version;
    job.reason.clone_from(&step.reason);
    job.message.clone_from(&step.message);
    job.exit_code = step.exit_code;
    job.exit_signal = step.exit_signal;
    job.not_before = step.not_before;
    job.attempt += i32::from(step.begins_attempt);
    job.retries_used += i32::from(step.spends_retry);
    job.requeues += i32::from(step.counts_requeue);
    Ok(())
}

/// Takes one step of an attempt whose row is locked, brings it up to date, and writes the event.
pub async fn step_attempt(
    tx: &mut Tx,
    attempt: &mut AttemptRow,
    step: &AttemptStep,
    actor: &Actor,
    data: Value,
) -> Result<(), LifecycleError> {
    attempt.state.step(step.to)?;
    if !attempts::step(tx, attempt.id, attempt.state, step).await? {
        return Err(LifecycleError::Missed(format!("attempt {}", attempt.id)));
    }
    if attempt.reason.is_none() {
        attempt.reason = step.reason;
        attempt.message.clone_from(&step.message);
        attempt.exit_code = step.exit_code;
        attempt.exit_signal = step.exit_signal;
    }
    let event = NewEvent {
        subject: Subject::Attempt(attempt.id),
        job: Some((attempt.team_id, attempt.job_id)),
        node_id: None,
        from: Some(attempt.state.as_str()),
        to: step.to.as_str(),
        actor,
        reason: attempt.reason.map_or("", |end| end.as_str()),
        data: with_message(data, &attempt.message),
    };
    events::insert(tx, &event).await?;
    attempt.state = step.to;
    attempt.version += 1;
    Ok(())
}

/// Puts a sentence into an event's data, which is an object or nothing.
fn with_message(data: Value, message: &str) -> Value {
    let mut object = match data {
        Value::Object(object) => object,
        _ => serde_json::Map::new(),
    };
    if !message.is_empty() {
        object.insert("message".to_owned(), Value::String(message.to_owned()));
    }
    Value::Object(object)
}
