//! `allot explain`: why a job waits, what would start it, and what it has waited for so far.

use clap::Args;
use serde_json::Value;

use super::remedies::{self, pairs};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign::plain;
use crate::table::{self, at, text};

/// Say why a job waits, and what would start it.
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
        table::print_line(&text(&verdict["message"]))?;
        let waiting = &verdict["waiting"];
        let lines = [
            ("code", "code"),
            ("scope", "scope"),
            ("needs", "need"),
            ("has", "have"),
            ("rank", "rank"),
            ("expected", "expected_start"),
        ];
        for (label, path) in lines {
            if !at(waiting, path).is_null() {
                table::print_line(&format!("{label:<10} {}", table::shown(waiting, path)))?;
            }
        }
        if let Some(counts) = waiting["counts"].as_object() {
            for (filter, count) in sifted(counts) {
                table::print_line(&format!(
                    "{:>8}  {}",
                    text(count),
                    plain(filter).replace('_', " ")
                ))?;
            }
        }
        if verdict["accuracy"].is_object() {
            table::print_line(&accuracy(&verdict["accuracy"]))?;
        }
        if !waiting.is_null() {
            table::print_line(&format!("held by    {}", pairs(&verdict["holders"])))?;
        }
        remedies::print(&waiting["remedies"], Some(&self.id))
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
        let stretches = [
            ("FROM", "from"),
            ("TO", "to"),
            ("CAUSE", "code"),
            ("SCOPE", "scope"),
            ("TIMES", "stretches"),
            ("SECONDS", "seconds"),
        ];
        table::print(&rows("items"), &stretches, "it has waited for nothing")?;
        if waits["items"].as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        table::print_line("")?;
        let causes = [
            ("CAUSE", "code"),
            ("TIMES", "stretches"),
            ("SECONDS", "seconds"),
        ];
        table::print(&rows("causes"), &causes, "")?;
        table::print_line(&format!("in all {} s", text(&waits["waited_seconds"])))
    }
}

/// How far expected starts were out, in one sentence.
pub fn accuracy(known: &Value) -> String {
    format!(
        "           of {} starts in {} days {} came within ten minutes of what was first told; half were out by {} s at the most",
        text(&known["cases"]),
        text(&known["days"]),
        text(&known["within_ten_minutes"]),
        text(&known["median_error_seconds"])
    )
}

/// Counts of nodes: all that were looked at first, then what ruled most of them out.
fn sifted(counts: &serde_json::Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|(key, count)| {
        let most = std::cmp::Reverse(count.as_u64());
        (key.as_str() != "nodes", most)
    });
    counts
}
