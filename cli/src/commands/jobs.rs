//! `allot jobs`, `job`, `cancel` and `explain`.

use clap::Args;
use serde_json::{Value, json};

use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign::plain;
use crate::table::{self, at, text};

/// Most events of one job that are printed; a job with more has other worries.
const EVENTS_MAX: usize = 10_000;

/// List jobs, newest first.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot jobs --team vision --state running")]
pub struct Jobs {
    /// Only of this team
    #[arg(long, short)]
    team: Option<String>,
    /// Only in this state
    #[arg(long, short)]
    state: Option<String>,
    /// Only of this user
    #[arg(long, short)]
    user: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Jobs {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let filters = [
            ("team", &self.team),
            ("state", &self.state),
            ("user", &self.user),
        ];
        let query: Vec<_> = filters
            .iter()
            .filter_map(|(key, value)| Some((*key, (*value).clone()?)))
            .collect();
        let jobs = Client::found()?
            .list("/jobs", &query, self.limit as usize)
            .await?;
        if self.json {
            return table::print_json(&json!({ "items": jobs }));
        }
        let columns = [
            ("ID", "id"),
            ("NAME", "name"),
            ("TEAM", "team"),
            ("USER", "user"),
            ("STATE", "state"),
            ("REASON", "reason"),
            ("GPU-S", "gpu_seconds"),
            ("COST", "cost"),
            ("CREATED", "created_at"),
        ];
        table::print(&jobs, &columns, "no jobs; submit one with `allot submit`")
    }
}

/// Show one job.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot job 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f")]
pub struct Job {
    /// The job's id
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Job {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let path = format!("/jobs/{}", part(&self.id));
        let job = client.get(&path, &[]).await?;
        if self.json {
            return table::print_json(&job);
        }
        let lines = [
            ("name", "name"),
            ("team", "team"),
            ("user", "user"),
            ("state", "state"),
            ("reason", "reason"),
            ("message", "message"),
            ("attempt", "attempt"),
            ("created", "created_at"),
            ("started", "started_at"),
            ("finished", "finished_at"),
            ("exit code", "exit_code"),
            ("GPU-seconds", "gpu_seconds"),
            ("cost", "cost"),
        ];
        for (label, path) in lines {
            // A line whose sentence is empty says less than no line.
            if at(&job, path) != "" {
                table::print_line(&format!("{label:<12} {}", table::shown(&job, path)))?;
            }
        }
        for worker in job["placement"].as_array().into_iter().flatten() {
            let devices: Vec<String> = worker["devices"]
                .as_array()
                .into_iter()
                .flatten()
                .map(device)
                .collect();
            table::print_line(&format!(
                "worker {:<5} {} {}",
                text(&worker["worker"]),
                text(&worker["node"]),
                devices.join(", ")
            ))?;
        }
        let rows = client
            .list(&format!("{path}/events"), &[], EVENTS_MAX)
            .await?;
        table::print_line("")?;
        let columns = [
            ("AT", "at"),
            ("WHAT", "subject"),
            ("FROM", "from"),
            ("TO", "to"),
            ("BY", "actor"),
            ("REASON", "reason"),
        ];
        table::print(&rows, &columns, "no events")
    }
}

fn device(device: &Value) -> String {
    format!(
        "#{} {} {}",
        text(&device["index"]),
        text(&device["mode"]),
        text(&device["gpus"])
    )
}

/// Cancel jobs.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot cancel 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f")]
pub struct Cancel {
    /// The jobs' ids
    #[arg(required = true)]
    ids: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Cancel {
    /// Runs the command: every job is tried, and one refusal is enough for exit status 1.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let (mut cancelled, mut refused) = (Vec::new(), Vec::new());
        for id in &self.ids {
            match client
                .post(&format!("/jobs/{}/cancel", part(id)), &json!({}))
                .await
            {
                Ok(job) => cancelled.push(job),
                Err(failure) => refused.push(format!("{id}: {failure}")),
            }
        }
        if self.json {
            table::print_json(&json!({ "items": cancelled }))?;
        } else {
            for job in &cancelled {
                table::print_line(&format!("{} {}", text(&job["id"]), text(&job["state"])))?;
            }
        }
        if refused.is_empty() {
            Ok(())
        } else {
            Err(Failure::Refused(refused.join("\n")))
        }
    }
}

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
        for remedy in waiting["remedies"].as_array().into_iter().flatten() {
            let effect = text(&remedy["effect"]).replace('_', " ");
            table::print_line(&format!(
                "would help: {} ({effect})",
                pairs(&remedy["change"])
            ))?;
        }
        Ok(())
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

/// The keys and values of an object, as people read them.
fn pairs(object: &Value) -> String {
    let Some(map) = object.as_object() else {
        return text(object);
    };
    let pairs: Vec<String> = map
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| format!("{} {}", plain(key).replace(['_', '.'], " "), text(value)))
        .collect();
    pairs.join(", ")
}
