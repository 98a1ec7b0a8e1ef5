//! Why a job waits or how it ended, as its page tells it.

use domain::MilliGpu;
use domain::state::{AttemptEnd, JobState};
use serde_json::Value;
use web::draw::plain_text;
use web::messages::Messages;
use web::views::{Ending, Remedy, Wait, Why};

use crate::app::jobs::{Attempt, Job};

/// Changes that are offered: more would be a list, not advice.
const REMEDIES_MAX: usize = 3;

/// The same in a few words, for lists.
pub fn short(t: &Messages, job: &Job) -> Option<String> {
    match job.state {
        JobState::Queued | JobState::Suspended => {
            job.reason.as_ref()?;
            Some(plain_text(&wait(job, None).explain(t)))
        }
        JobState::Failed => {
            let end = job.reason.as_deref()?.parse().ok()?;
            Some(plain_text(&ending(end, job.exit_code, None, "").explain(t)))
        }
        _ => None,
    }
}

/// Why a job is as it is: `waiting` is the engine's verdict where there is one.
pub fn explain(job: &Job, waiting: Option<&Value>, last: Option<&Attempt>) -> Why {
    match job.state {
        JobState::Queued | JobState::Suspended => Why::Waits(wait(job, waiting)),
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
            let signal = last.and_then(|attempt| attempt.exit_signal);
            Why::Ended(ending(end, job.exit_code, signal, &job.message))
        }
        _ => Why::Nothing,
    }
}

/// How an attempt ended.
pub fn ending_of(attempt: &Attempt) -> Option<Ending> {
    let end = attempt.reason.filter(|_| attempt.ended_at.is_some())?;
    Some(ending(
        end,
        attempt.exit_code,
        attempt.exit_signal,
        &attempt.message,
    ))
}

fn ending(end: AttemptEnd, exit_code: Option<i32>, signal: Option<i32>, message: &str) -> Ending {
    Ending {
        end,
        exit_code,
        signal,
        message: Some(message.to_owned()).filter(|message| !message.is_empty()),
    }
}

fn wait(job: &Job, waiting: Option<&Value>) -> Wait {
    match waiting {
        Some(waiting) => verdict(waiting),
        None => Wait {
            code: job.reason.clone().unwrap_or_else(|| "not_looked_at".into()),
            message: Some(job.message.clone()).filter(|message| !message.is_empty()),
            ..Wait::default()
        },
    }
}

/// The engine's verdict on work that waits, as pages tell it.
pub fn verdict(waiting: &Value) -> Wait {
    let text = |key: &str| {
        waiting[key]
            .as_str()
            .map(str::to_owned)
            .filter(|text| !text.is_empty())
    };
    let counts = waiting["counts"].as_object().into_iter().flatten();
    let remedies = waiting["remedies"].as_array().into_iter().flatten();
    Wait {
        code: text("code").unwrap_or_default(),
        message: text("message"),
        scope: text("scope"),
        need_milli: milli(&waiting["need"]),
        have_milli: milli(&waiting["have"]),
        counts: counts
            .filter_map(|(code, count)| Some((code.clone(), count.as_i64()?)))
            .collect(),
        rank: waiting["rank"].as_i64(),
        expected_start: waiting["expected_start"]
            .as_str()
            .and_then(|at| at.parse().ok()),
        remedies: remedies.take(REMEDIES_MAX).map(remedy).collect(),
    }
}

/// A change that the engine proposes.
fn remedy(value: &Value) -> Remedy {
    let changes = value["change"].as_object().into_iter().flatten();
    Remedy {
        change: changes.map(|(key, new)| (key.clone(), bare(new))).collect(),
        effect: value["effect"].as_str().unwrap_or_default().to_owned(),
    }
}

fn bare(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn milli(value: &Value) -> Option<i64> {
    serde_json::from_value::<MilliGpu>(value.clone())
        .ok()
        .map(MilliGpu::milli)
}
