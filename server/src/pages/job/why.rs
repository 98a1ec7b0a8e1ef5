//! Why a job waits or how it ended, as its page tells it.

use domain::spec::JobSpec;
use domain::state::{AttemptEnd, JobState};
use serde_json::Value;
use web::format::Size;
use web::messages::{Messages, Phrase};
use web::views::{Accuracy, BeyondQuota, Ending, Wait, Why};

use crate::app::jobs::{self, Attempt, Event, Job};
use crate::app::planning;

/// Changes that are offered: more would be a list, not advice.
const REMEDIES_MAX: usize = 3;

/// The same in a few words, for lists.
pub fn short(t: &Messages, job: &Job) -> Option<Phrase> {
    match job.state {
        JobState::Queued | JobState::Suspended => {
            let code = job.reason.as_ref()?;
            // What was found last is of this wait only where its cause is the same.
            let found = job.waiting.as_ref();
            let found = found.filter(|found| found["code"].as_str() == Some(code));
            Some(wait(job, found).explain(t))
        }
        JobState::Failed => {
            if let Some(array) = &job.array {
                let failed = array.elements.in_state(JobState::Failed);
                let told = t.count("array.failed", array.count);
                return Some(told.with("failed", t.number(failed)));
            }
            if let Some(code) = never_ran(job) {
                return Some(t.word("never_ran", code));
            }
            let end = job.reason.as_deref()?.parse().ok()?;
            let ending = Ending {
                end,
                exit_code: job.exit_code,
                signal: job.exit_signal,
                message: None,
                suspended_by: None,
                memory_mib: memory(job),
            };
            Some(ending.explain(t))
        }
        _ => None,
    }
}

/// Why a job is as it is: `waiting` is the engine's verdict where there is one.
pub fn explain(job: &Job, waiting: Option<&Value>, last: Option<&Attempt>) -> Why {
    match job.state {
        JobState::Queued | JobState::Suspended => Why::Waits(Box::new(wait(job, waiting))),
        JobState::Failed if let Some(code) = never_ran(job) => Why::NeverRan(code.to_owned()),
        JobState::Succeeded | JobState::Failed | JobState::Cancelled => {
            let fallback = if job.state == JobState::Cancelled {
                AttemptEnd::Cancelled
            } else {
                AttemptEnd::Exit
            };
            let end = job.reason.as_deref().and_then(|reason| reason.parse().ok());
            let end = end
                .or(last.and_then(|attempt| attempt.reason))
                .unwrap_or(fallback);
            Why::Ended(Ending {
                end,
                exit_code: job.exit_code,
                signal: job.exit_signal,
                message: said(&job.message),
                suspended_by: None,
                memory_mib: memory(job),
            })
        }
        _ => Why::Nothing,
    }
}

/// Why a job failed that was never started, as a code.
fn never_ran(job: &Job) -> Option<&str> {
    let failed = job.state == JobState::Failed && job.attempt == 0;
    job.reason.as_deref().filter(|_| failed)
}

/// How an attempt of a job ended, `steps` being those of the job.
pub fn ending_of(attempt: &Attempt, job: &Job, steps: &[Event]) -> Option<Ending> {
    let end = attempt.reason.filter(|_| attempt.ended_at.is_some())?;
    Some(Ending {
        end,
        exit_code: attempt.exit_code,
        signal: attempt.exit_signal,
        message: said(&attempt.message),
        suspended_by: suspender(attempt, steps),
        memory_mib: memory(job),
    })
}

/// Who suspended the job while an attempt ran. One that policy had stopped already was preempted,
/// whatever came after.
fn suspender(attempt: &Attempt, steps: &[Event]) -> Option<String> {
    let ended_at = attempt.ended_at?;
    let stopped = |step: &&Event| {
        let ran = [JobState::Starting, JobState::Running].map(|state| state.as_str());
        step.to == JobState::Suspended.as_str()
            && step.from.as_deref().is_some_and(|from| ran.contains(&from))
            && (attempt.created_at..=ended_at).contains(&step.at)
    };
    if attempt.reason != Some(AttemptEnd::Preempted) {
        return None;
    }
    steps.iter().find(stopped).map(|step| step.actor.clone())
}

/// The memory that each of a job's workers asked for, where it asked for any.
fn memory(job: &Job) -> Option<i64> {
    let mib = job.spec.as_ref()?.per_worker.memory_mib;
    Some(mib).filter(|mib| *mib > 0)
}

fn said(message: &str) -> Option<String> {
    Some(message.to_owned()).filter(|message| !message.is_empty())
}

fn wait(job: &Job, waiting: Option<&Value>) -> Wait {
    match waiting {
        Some(waiting) => verdict(waiting),
        None => Wait {
            code: job.reason.clone().unwrap_or_else(|| "not_looked_at".into()),
            ..Wait::default()
        },
    }
}

/// The engine's verdict on work that waits, as pages tell it.
pub fn verdict(waiting: &Value) -> Wait {
    let mut wait = Wait::told(waiting);
    wait.remedies.truncate(REMEDIES_MAX);
    wait
}

/// A cause that held for a stretch of a wait, as pages tell it. What is kept of it is what the job
/// needed at the least; its spec says how much more it would have taken.
pub fn past(wait: jobs::Wait, spec: Option<&JobSpec>) -> Wait {
    let least_milli = wait.need.milli();
    let most_milli = match spec.map(|spec| (spec.workers, spec.min_workers)) {
        Some((workers, Some(least))) if least > 0 => {
            least_milli / i64::from(least) * i64::from(workers)
        }
        _ => least_milli,
    };
    Wait {
        code: wait.code,
        scope: said(&wait.scope),
        need: Some(Size {
            least_milli,
            most_milli,
        }),
        have_milli: Some(wait.have.milli()),
        ..Wait::default()
    }
}

/// How far expected starts were out, as pages tell it.
pub fn accuracy(known: &planning::Accuracy) -> Accuracy {
    Accuracy {
        days: known.days,
        cases: known.cases,
        near: known.within_ten_minutes,
        median_seconds: known.median_error_seconds,
    }
}

/// What a quota never admits, as pages tell it.
pub fn beyond(beyond: &jobs::BeyondQuota) -> BeyondQuota {
    BeyondQuota {
        bound: beyond.bound,
        team: beyond.team.clone(),
        pool: beyond.pool.clone(),
        need_milli: beyond.need.milli(),
        have_milli: beyond.have.milli(),
        instances: beyond.instances,
        preemptible_admitted: beyond.preemptible_admitted,
    }
}
