//! How an attempt ends, what its job does then, and workers whose node is gone.

use std::collections::BTreeSet;

use domain::Timestamp;
use domain::ids::{AssignmentId, JobId, NodeId};
use domain::spec::{JobSpec, RetryOn};
use domain::state::{AssignmentPhase, AttemptEnd, AttemptState, JobState, Reachability};
use serde_json::json;

use super::gang::Gang;
use super::report::settle;
use super::resize::go_on_without;
use super::{Actor, LifecycleError, Steps, Stop, step_worker, stop};
use crate::accounting::meter;
use crate::config::Timers;
use crate::store::assignments::{self, Assignment};
use crate::store::attempts::{self, AttemptRow, AttemptStep};
use crate::store::jobs::{self, JobRow, JobStep};
use crate::store::{self, Tx, evictions, nodes};

/// Most requeues that were nobody's fault; after them something is wrong with the job or the
/// fleet, and a person should look.
pub const REQUEUES_MAX: i32 = 5;
/// Longest back-off before a retry.
const BACKOFF_MS_MAX: i64 = 600_000;

/// Ends an attempt all of whose workers have left, and decides in the same transaction what
/// its job does next. The gang is locked.
pub(super) async fn end(
    tx: &mut Tx,
    timers: &Timers,
    gang: &mut Gang,
    steps: &mut Steps,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let Gang {
        job,
        attempt,
        workers,
    } = gang;
    // What its gang went on without counts for nothing.
    let well = workers
        .iter()
        .filter(|worker| worker.dismissed_at.is_none())
        .all(|worker| worker.exit_code == Some(0) && !worker.exit_asked);
    let cancelled = matches!(job.state, JobState::Cancelling | JobState::Cancelled)
        || attempt.reason == Some(AttemptEnd::Cancelled);
    // Every worker ended well by itself before the stop reached it: it is done, and running
    // it again would do its work twice. A cancel stands, since it was promised.
    if well && !cancelled {
        if attempt.reason.is_some() {
            steps.write(tx).await?;
            attempts::amend_as_done(tx, attempt.id).await?;
            evictions::nothing_lost(tx, attempt.id).await?;
            attempt.reason = None;
        }
        let step = AttemptStep {
            exit_code: Some(0),
            ..AttemptStep::to(AttemptState::Ended).because(AttemptEnd::Exit, "")
        };
        steps.attempt(attempt, step, actor, json!({}))?;
    } else {
        let step = AttemptStep::to(AttemptState::Ended)
            .because(AttemptEnd::NodeLost, "it ended without a reason");
        steps.attempt(attempt, step, actor, json!({}))?;
    }
    let now = store::clock(tx).await?;
    if let Some(step) = next_step(timers, job, attempt, now) {
        steps.job(job, step, actor, json!({ "attempt": attempt.number }))?;
    }
    Ok(())
}

/// What a job does after its attempt ended; nothing when it stays where it is.
fn next_step(
    timers: &Timers,
    job: &JobRow,
    attempt: &AttemptRow,
    now: Timestamp,
) -> Option<JobStep> {
    let done = is_done(attempt);
    match job.state {
        // Whatever stopped its attempt before, it is the cancel that ends the job.
        JobState::Cancelling => {
            let because = AttemptEnd::Cancelled.as_str();
            let cancelled =
                step_to(JobState::Cancelled, attempt).because(because, job.message.clone());
            return Some(cancelled);
        }
        // It was suspended, or resumed again since; it waits as people want it, unless there is
        // nothing left to run. What had failed already before that has failed, though, where no
        // retry is left: else a suspension in the grace of a time limit would buy another run.
        JobState::Suspended | JobState::Queued if !done => {
            let ended = after_run(timers, job, attempt, now);
            return (ended.to == JobState::Failed).then_some(ended);
        }
        // It was cancelled while it waited; only its last attempt still had to leave.
        state if state.terminal() => return None,
        _ => {}
    }
    Some(after_run(timers, job, attempt, now))
}

/// What the end of a job's attempt makes of the job, where nobody wishes otherwise.
fn after_run(timers: &Timers, job: &JobRow, attempt: &AttemptRow, now: Timestamp) -> JobStep {
    let end = attempt.reason.unwrap_or(AttemptEnd::NodeLost);
    let step = |to: JobState| step_to(to, attempt);
    if is_done(attempt) {
        return step(JobState::Succeeded);
    }
    match end {
        AttemptEnd::Exit | AttemptEnd::Signal | AttemptEnd::Oom => {
            retry(timers, job, now, RetryOn::Failure, step)
        }
        AttemptEnd::TimeLimit => retry(timers, job, now, RetryOn::TimeLimit, step),
        AttemptEnd::NodeLost | AttemptEnd::StartRefused if job.requeues < REQUEUES_MAX => JobStep {
            counts_requeue: true,
            // The same node may refuse again at once; a lost one will not be asked.
            not_before: (end == AttemptEnd::StartRefused)
                .then(|| backoff(timers, job.requeues, now)),
            ..step(JobState::Queued)
        },
        AttemptEnd::NodeLost | AttemptEnd::StartRefused => {
            let mut last = step(JobState::Failed);
            last.message = format!("{}, after {REQUEUES_MAX} requeues", attempt.message);
            last
        }
        AttemptEnd::Preempted => step(JobState::Queued),
        AttemptEnd::Cancelled => step(JobState::Cancelled),
        AttemptEnd::Invalid => step(JobState::Failed),
    }
}

/// Whether all of an attempt's work was done.
fn is_done(attempt: &AttemptRow) -> bool {
    attempt.reason == Some(AttemptEnd::Exit) && attempt.exit_code == Some(0)
}

/// A step of a job for the reason of its attempt's end.
fn step_to(to: JobState, attempt: &AttemptRow) -> JobStep {
    let end = attempt.reason.unwrap_or(AttemptEnd::NodeLost);
    JobStep::to(to)
        .because(end.as_str(), attempt.message.clone())
        .exited(attempt.exit_code, attempt.exit_signal)
}

/// Queues a job again where its spec pays for that, else fails it.
fn retry(
    timers: &Timers,
    job: &JobRow,
    now: Timestamp,
    on: RetryOn,
    step: impl Fn(JobState) -> JobStep,
) -> JobStep {
    // A spec that cannot be read was written by something else; it is not tried again.
    let retries = job.spec().ok().map(|spec: JobSpec| spec.retries);
    let allowed = retries.is_some_and(|retries| {
        retries.on.contains(&on) && i64::from(job.retries_used) < i64::from(retries.limit)
    });
    if !allowed {
        return step(JobState::Failed);
    }
    JobStep {
        spends_retry: true,
        not_before: Some(backoff(timers, job.retries_used, now)),
        ..step(JobState::Queued)
    }
}

/// The first back-off, doubled for each time before.
pub(super) fn backoff(timers: &Timers, times_before: i32, now: Timestamp) -> Timestamp {
    let doublings = times_before.clamp(0, 30).unsigned_abs();
    let ms = timers
        .retry_backoff_ms
        .saturating_mul(1_i64 << doublings)
        .clamp(0, BACKOFF_MS_MAX);
    now + chrono::TimeDelta::milliseconds(ms)
}

/// What is to happen to the workers of a job on a node that is gone.
#[derive(Debug, Clone)]
pub struct Loss {
    /// The node.
    pub node_id: NodeId,
    /// Its last heartbeat: what came after it, the operator pays.
    pub last_heartbeat_at: Option<Timestamp>,
    /// Why, in words.
    pub message: String,
    /// Which of them are left as they are.
    pub spared: Spared,
}

/// Which workers on a node that has lost work are left as they are.
#[derive(Debug, Clone)]
pub enum Spared {
    /// None: the node is gone with all that it had.
    Nobody,
    /// Those that the node says it holds, and those that it had not taken yet: it will be told
    /// of them again.
    HeldOrNotTaken(BTreeSet<AssignmentId>),
}

impl Spared {
    fn spares(&self, worker: &Assignment) -> bool {
        match self {
            Self::Nobody => false,
            Self::HeldOrNotTaken(held) => {
                worker.phase == AssignmentPhase::Granted || held.contains(&worker.id)
            }
        }
    }
}

/// Fences a job's workers on a node that is gone, stops the rest of its gang unless that may go on
/// without them, and ends the attempt when nobody is left. Nothing happens when none of its live workers is there.
pub async fn lose_workers(
    tx: &mut Tx,
    timers: &Timers,
    job: JobId,
    loss: &Loss,
    actor: &Actor,
) -> Result<bool, LifecycleError> {
    let Some(mut job) = jobs::lock(tx, job).await? else {
        return Ok(false);
    };
    let Some(attempt) = attempts::lock_live(tx, job.id).await? else {
        return Ok(false);
    };
    let mut lost = Vec::new();
    for mut worker in assignments::lock_of_attempt(tx, attempt.id).await? {
        let spared = loss.spared.spares(&worker);
        if worker.node_id != loss.node_id || worker.phase.terminal() || spared {
            continue;
        }
        // Its process had ended and was reported, or its gang goes on without it: nothing was lost.
        if worker.phase != AssignmentPhase::Cleaning && worker.dismissed_at.is_none() {
            lost.push(worker.id);
        }
        let now = store::clock(tx).await?;
        meter::fence(tx, worker.id, loss.last_heartbeat_at, now).await?;
        step_worker(
            tx,
            &mut worker,
            AssignmentPhase::Fenced,
            actor,
            AttemptEnd::NodeLost.as_str(),
        )
        .await?;
    }
    let goes_on = lost.is_empty()
        || go_on_without(tx, &mut job, &attempt, &lost, &loss.message, actor).await?;
    if !goes_on {
        let wish = Stop::because(AttemptEnd::NodeLost, loss.message.clone());
        stop(tx, &mut job, &wish, actor).await?;
    }
    settle(tx, timers, &mut job, actor).await?;
    Ok(true)
}

/// Fences a job's workers on a node that is still lost; whether it was. A node that has answered
/// meanwhile keeps its work. `why` says it of the node, for people.
pub async fn lose_node(
    tx: &mut Tx,
    timers: &Timers,
    job: JobId,
    node: &str,
    why: String,
    actor: &Actor,
) -> Result<bool, LifecycleError> {
    // The job first, as everywhere; then the node is looked at again.
    jobs::lock(tx, job).await?;
    let Some(node) = nodes::lock_by_name(tx, node)
        .await?
        .filter(|node| node.reachability == Reachability::Lost)
    else {
        return Ok(false);
    };
    let loss = Loss {
        node_id: node.id,
        // As it is now: up to there the hold was shown as charged.
        last_heartbeat_at: node.last_heartbeat_at,
        message: why,
        spared: Spared::Nobody,
    };
    lose_workers(tx, timers, job, &loss, actor).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_ten_minutes() {
        let timers = Timers::default();
        let now = Timestamp::UNIX_EPOCH;
        let seconds = |before| (backoff(&timers, before, now) - now).num_seconds();
        assert_eq!(
            [seconds(0), seconds(1), seconds(2), seconds(6), seconds(99)],
            [10, 20, 40, 600, 600]
        );
    }
}
