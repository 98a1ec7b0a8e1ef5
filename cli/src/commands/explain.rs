//! `allot explain`: why a job waits, what would start it, and what it has waited for so far.

use clap::Args;
use serde_json::Value;

use super::jobs::workers;
use super::remedies::{self, pairs};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table::{self, at, text};
use crate::words;

/// Say why a job waits and what would start it, or how it ended.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  allot explain 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f\n  allot explain 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f --history"
)]
pub struct Explain {
    /// The job's id
    id: String,
    /// Say instead what it has waited for so far, and for how long
    #[arg(long)]
    history: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Explain {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        if self.history {
            return self.tell_history(&client).await;
        }
        let verdict = client
            .get(&format!("/jobs/{}/explanation", part(&self.id)), &[])
            .await?;
        if self.json {
            return table::print_json(&verdict);
        }
        for line in told(&verdict) {
            table::print_line(&line)?;
        }
        remedies::print(&verdict["waiting"]["remedies"], Some(&self.id))
    }
}

impl Explain {
    /// Prints each stretch of its waits, and how long each cause held in all.
    async fn tell_history(&self, client: &Client) -> Result<(), Failure> {
        let waits = client
            .get(&format!("/jobs/{}/waits", part(&self.id)), &[])
            .await?;
        if self.json {
            return table::print_json(&waits);
        }
        let rows = |key: &str| waits[key].as_array().cloned().unwrap_or_default();
        let mut stretches = rows("items");
        for stretch in &mut stretches {
            stretch["code"] = words::short(stretch).into();
            stretch["scope"] = words::bound(&stretch["scope"]).into();
        }
        let columns = [
            ("FROM", "from"),
            ("TO", "to"),
            ("CAUSE", "code"),
            ("LIMITED BY", "scope"),
            ("TIMES", "stretches"),
            ("SECONDS", "seconds"),
        ];
        table::print(
            &stretches,
            &columns,
            "nothing is known yet that it waits for",
        )?;
        if stretches.is_empty() {
            return Ok(());
        }
        table::print_line("")?;
        let columns = [
            ("CAUSE", "code"),
            ("TIMES", "stretches"),
            ("SECONDS", "seconds"),
        ];
        table::print(&in_words(rows("causes")), &columns, "")?;
        table::print_line(&format!("in all {} s", text(&waits["waited_seconds"])))
    }
}

/// Rows with the words of their codes.
fn in_words(mut rows: Vec<Value>) -> Vec<Value> {
    for row in &mut rows {
        row["code"] = words::cause(&row["code"]).into();
    }
    rows
}

/// An explanation in lines: its sentences first, then what stands behind them.
fn told(verdict: &Value) -> Vec<String> {
    let message = || vec![text(&verdict["message"])];
    let said = words::wait(
        &verdict["waiting"],
        &verdict["beyond_quota"],
        &verdict["accuracy"],
    );
    let mut lines = said.unwrap_or_else(message);
    let facts = |of: &Value, facts: &[(&str, &str)]| -> Vec<String> {
        let known = facts.iter().filter(|(_, path)| !at(of, path).is_null());
        let line = |(label, path): &(&str, &str)| format!("{label:<10} {}", table::shown(of, path));
        known.map(line).collect()
    };
    let ended = &verdict["ended"];
    if !ended.is_null() {
        lines.push(format!("{:<10} {}", "state", text(&verdict["state"])));
        let ended = said_once_beside(ended, &verdict["state"]);
        lines.extend(facts(&ended, &ENDED));
        lines.extend(workers(&ended["placement"]));
    }
    let waiting = &verdict["waiting"];
    if waiting.is_null() {
        return lines;
    }
    let mut said = waiting.clone();
    said["need"] = needed(waiting);
    let beyond = &verdict["beyond_quota"];
    said["scope"] = words::binds(beyond)
        .unwrap_or_else(|| words::bound(&waiting["scope"]))
        .into();
    if !beyond.is_null() {
        said["have"] = beyond["have"].clone();
    }
    lines.extend(facts(&said, &WAITING));
    lines.extend(words::counts(waiting));
    lines.extend(words::accuracy(&verdict["accuracy"]));
    if !verdict["holders"].is_null() {
        lines.push(format!("{:<10} {}", "GPUs", pairs(&verdict["holders"])));
    }
    lines
}

/// The GPUs that a job needs which waits: of one whose size may change a range.
pub fn needed(waiting: &Value) -> Value {
    let (least, most) = (&waiting["need"], &waiting["need_max"]);
    if most.is_null() {
        return least.clone();
    }
    format!("{} to {}", text(least), text(most)).into()
}

/// What is told of a wait.
const WAITING: [(&str, &str); 5] = [
    ("limited by", "scope"),
    ("needs", "need"),
    ("has", "have"),
    ("rank", "rank"),
    ("expected", "expected_start"),
];

/// What is told of an end.
const ENDED: [(&str, &str); 6] = [
    ("reason", "reason"),
    ("exit code", "exit_code"),
    ("signal", "exit_signal"),
    ("ended", "finished_at"),
    ("attempts", "attempts"),
    ("cost", "cost"),
];

/// What ended, without its reason where that is its state's word.
fn said_once_beside(ended: &Value, state: &Value) -> Value {
    let mut ended = ended.clone();
    if ended["reason"] == *state {
        ended["reason"] = Value::Null;
    }
    ended
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_that_has_ended_tells_how_why_where_and_at_what_cost() {
        let verdict = json!({
            "state": "failed", "message": "worker 0 was ended by signal 9 (SIGKILL)", "waiting": null,
            "holders": {"capacity": 0, "own_team": 0, "other_teams": 0, "free": 0},
            "ended": {
                "reason": "signal", "exit_code": null, "exit_signal": 9, "attempts": 2,
                "finished_at": "2026-11-30T13:16:27.082278Z", "cost": {"amount": "1.2345", "currency": "CNY"},
                "placement": [{"worker": 0, "node": "n1", "devices": [{"index": 3, "mode": "exclusive", "gpus": 1}]}],
            },
        });
        let lines = told(&verdict).join("\n");
        for words in [
            "signal 9 (SIGKILL)",
            "state      failed",
            "reason     signal",
            "ended      2026-11-30T13:16:27Z",
            "attempts   2",
            "cost       ¥1.23",
            "worker 0     n1 #3 exclusive 1",
        ] {
            assert!(lines.contains(words), "{words} in {lines}");
        }
        assert!(
            !lines.contains("exit code") && !lines.contains("GPUs"),
            "{lines}"
        );
    }

    #[test]
    fn a_wait_tells_who_holds_what_it_could_use() {
        let verdict = json!({
            "state": "queued", "message": "it waits", "ended": null,
            "waiting": {"code": "insufficient_capacity", "scope": "pool h100", "need": 2, "have": 1, "counts": {}, "remedies": []},
            "holders": {"capacity": 8, "own_team": 2, "other_teams": 5, "free": 1},
        });
        let lines = told(&verdict).join("\n");
        for words in [
            "Not enough GPUs are free.",
            "free in pool h100: 1 GPU",
            "other teams 5",
            "own team 2",
            "free 1",
        ] {
            assert!(lines.contains(words), "{words} in {lines}");
        }
    }

    #[test]
    fn what_binds_a_job_that_a_quota_never_admits_is_told_by_that_quota() {
        let verdict = json!({
            "state": "queued", "message": "it waits", "ended": null, "accuracy": null,
            "waiting": {"code": "over_limit", "scope": "team org", "need": 4, "have": 3, "counts": {}, "remedies": []},
            "beyond_quota": {"code": "non_preemptible_over_guarantee", "bound": "guarantee", "team": "vision", "pool": "h100",
                             "need": 4, "have": 1, "instances": null, "preemptible_admitted": true, "remedy": ""},
            "holders": {"capacity": 8, "own_team": 2, "other_teams": 5, "free": 1},
        });
        let lines = told(&verdict).join("\n");
        for words in [
            "Its quota never admits it as it is.",
            "Let it be preempted,",
            "limited by the guarantee of team vision in pool h100",
            "has        1",
        ] {
            assert!(lines.contains(words), "{words} in {lines}");
        }
        assert!(!lines.contains("org"), "{lines}");
    }

    #[test]
    fn a_job_whose_size_may_change_needs_from_least_to_most() {
        assert_eq!(needed(&json!({"need": 1, "need_max": 2.5})), "1 to 2.5");
        assert_eq!(needed(&json!({"need": 1})), 1);
    }
}
