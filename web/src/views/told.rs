//! Verdicts as REST tells them, read into what says them in words: for pages and for the command line.

use domain::MilliGpu;
use serde_json::Value;

use crate::format::Size;

use super::{Accuracy, BeyondQuota, Remedy, Wait};

impl Wait {
    /// A verdict on work that waits, as it stands in an explanation.
    pub fn told(waiting: &Value) -> Self {
        let counts = waiting["counts"].as_object().into_iter().flatten();
        let remedies = waiting["remedies"].as_array().into_iter().flatten();
        Self {
            code: text(&waiting["code"]).unwrap_or_default(),
            scope: text(&waiting["scope"]),
            need: milli(&waiting["need"]).map(|least_milli| Size {
                least_milli,
                most_milli: milli(&waiting["need_max"]).unwrap_or(least_milli),
            }),
            have_milli: milli(&waiting["have"]),
            counts: counts
                .filter_map(|(code, count)| Some((code.clone(), count.as_i64()?)))
                .collect(),
            rank: waiting["rank"].as_i64(),
            expected_start: waiting["expected_start"]
                .as_str()
                .and_then(|at| at.parse().ok()),
            expected_once: text(&waiting["expected_once"]),
            beyond_quota: BeyondQuota::told(&waiting["beyond_quota"]),
            remedies: remedies.map(Remedy::told).collect(),
            ..Self::default()
        }
    }
}

impl Remedy {
    /// A change that the engine proposes.
    pub fn told(remedy: &Value) -> Self {
        let changes = remedy["change"].as_object().into_iter().flatten();
        Self {
            change: changes.map(|(key, new)| (key.clone(), bare(new))).collect(),
            effect: text(&remedy["effect"]).unwrap_or_default(),
        }
    }
}

impl BeyondQuota {
    /// What a quota never admits; nothing where none is in the way.
    pub fn told(beyond: &Value) -> Option<Self> {
        Some(Self {
            bound: serde_json::from_value(beyond["bound"].clone()).ok()?,
            team: text(&beyond["team"]),
            pool: text(&beyond["pool"])?,
            need_milli: milli(&beyond["need"])?,
            have_milli: milli(&beyond["have"])?,
            instances: beyond["instances"].as_i64(),
            preemptible_admitted: beyond["preemptible_admitted"].as_bool().unwrap_or(false),
        })
    }
}

impl Accuracy {
    /// How far expected starts were out; nothing where that is not known.
    pub fn told(accuracy: &Value) -> Option<Self> {
        Some(Self {
            days: accuracy["days"].as_i64()?,
            cases: accuracy["cases"].as_i64()?,
            near: accuracy["within_ten_minutes"].as_i64()?,
            median_seconds: accuracy["median_error_seconds"].as_i64()?,
        })
    }
}

fn text(value: &Value) -> Option<String> {
    let text = value.as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned)
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
