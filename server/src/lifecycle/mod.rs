//! The one home of state changes of jobs, attempts and assignments.
//!
//! Every change locks the job's row first, then its live attempt, then the assignments in the
//! order of their ids: two callers never wait for each other in a circle. Who locks nodes as
//! well locks all its jobs before. Each step is checked by its state machine, guarded by the
//! state that it was decided upon, and leaves one event. Devices and usage segments change in the same transaction, so that metering
//! cannot drift from state.

pub mod end;
mod evict;
mod gang;
mod grant;
pub mod nodes;
pub mod report;
mod resize;
mod steps;
mod stop;
pub mod words;

use domain::state::{AssignmentPhase, IllegalStep};
use serde_json::Value;

use crate::store::assignments::Assignment;
use crate::store::attempts::{AttemptRow, AttemptStep};
use crate::store::jobs::{JobRow, JobStep};
use crate::store::{self, Tx};

use steps::{Process, Steps};

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
    let mut steps = Steps::default();
    steps.job(job, step.clone(), actor, data)?;
    steps.write(tx).await
}

/// Takes one step of an attempt whose row is locked, brings it up to date, and writes the event.
pub async fn step_attempt(
    tx: &mut Tx,
    attempt: &mut AttemptRow,
    step: &AttemptStep,
    actor: &Actor,
    data: Value,
) -> Result<(), LifecycleError> {
    let mut steps = Steps::default();
    steps.attempt(attempt, step.clone(), actor, data)?;
    steps.write(tx).await
}

/// Takes one step of a worker whose job is locked, and writes its event.
async fn step_worker(
    tx: &mut Tx,
    worker: &mut Assignment,
    to: AssignmentPhase,
    actor: &Actor,
    reason: &str,
) -> Result<(), LifecycleError> {
    let mut steps = Steps::default();
    let now = store::clock(tx).await?;
    steps.worker(worker, to, Process::default(), (actor, reason), now)?;
    steps.write(tx).await
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
