//! What an e-mail says of what it tells.

use domain::notice::DeliveryKind;
use serde_json::Value;

use crate::store::outbox::Claimed;

/// A subject and a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// One line.
    pub subject: String,
    /// Some lines.
    pub text: String,
}

/// Longest subject; more is cut by what shows it.
const SUBJECT_CHARS_MAX: usize = 150;

/// The words of a delivery.
pub fn of(claimed: &Claimed) -> Told {
    let data = &claimed.payload;
    let say = |key: &str| line(&data[key]);
    let (subject, lines) = match claimed.kind {
        DeliveryKind::JobEnded => (
            format!("Job {} {}", say("name"), say("state")),
            listed(
                data,
                &[
                    "job",
                    "name",
                    "team",
                    "user",
                    "state",
                    "reason",
                    "message",
                    "exit_code",
                    "ended_at",
                ],
            ),
        ),
        DeliveryKind::NodeLost => (
            format!("Node {} is lost", say("node")),
            listed(data, &["node", "at"]),
        ),
        DeliveryKind::BudgetThreshold => (
            format!(
                "Budget {} of team {} passed {} %",
                say("budget"),
                say("team"),
                say("percent")
            ),
            listed(
                data,
                &[
                    "team",
                    "budget",
                    "percent",
                    "measure",
                    "measured",
                    "amount",
                    "unit",
                    "action",
                    "period_start",
                    "period_end",
                ],
            ),
        ),
        DeliveryKind::Report => (
            format!("Report {} of team {}", say("schedule"), say("team")),
            listed(
                data,
                &[
                    "team",
                    "schedule",
                    "from",
                    "to",
                    "total_gpu_hours",
                    "total_cost",
                ],
            ),
        ),
    };
    Told {
        subject: subject.chars().take(SUBJECT_CHARS_MAX).collect(),
        text: format!(
            "{lines}\nDelivery {}. Who asked for it can end it: allot subscriptions.\n",
            claimed.id
        ),
    }
}

/// Those of the keys that say something, one a line.
fn listed(data: &Value, keys: &[&str]) -> String {
    let said = keys.iter().filter(|key| !data[**key].is_null());
    said.map(|key| format!("{key}: {}\n", line(&data[*key])))
        .collect()
}

/// A value on one line.
fn line(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    text.chars()
        .map(|c| if domain::error::printable(c) { c } else { ' ' })
        .collect()
}
