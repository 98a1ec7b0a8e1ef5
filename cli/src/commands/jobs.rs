//! `allot jobs`, `job` and `cancel`.

use clap::Args;
use domain::state::JobState;
use serde_json::{Value, json};

use super::{listed, said};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::foreign::plain;
use crate::table::{self, at, text};
use crate::words;

/// Most events of one job that are printed; a job with more has other worries.
const EVENTS_MAX: usize = 10_000;

/// List jobs, newest first.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot jobs --team vision --state running")]
pub struct Jobs {
    /// Only of this team
    #[arg(long, short, value_parser = said::name)]
    team: Option<String>,
    /// Only in this state; several by commas
    #[arg(long, short, value_parser = said::words::<JobState>)]
    state: Option<String>,
    /// Only of this user
    #[arg(long, short, value_parser = said::name)]
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
        let client = Client::found()?;
        let jobs = listed::up_to(&client, "/jobs", &query, self.limit).await?;
        if self.json {
            return table::print_json(&json!({ "items": jobs }));
        }
        let jobs: Vec<Value> = jobs
            .into_iter()
            .map(|job| with_elements(said_once(job, "state")))
            .collect();
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

/// An array has no reason of its own: where its elements stand is told in that place.
fn with_elements(mut job: Value) -> Value {
    if let Some(told) = elements(&job) {
        job["reason"] = told.into();
    }
    job
}

/// How many elements of an array stand where, as people read it; nothing of any other job.
fn elements(job: &Value) -> Option<String> {
    let counts = job["array"]["elements"].as_object()?;
    let told = counts
        .iter()
        .map(|(state, count)| format!("{} {}", text(count), plain(state)));
    Some(told.collect::<Vec<_>>().join(", "))
}

/// Show one job, an array or an element of one.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  allot job 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f\n  allot job 0190b6f2-5c1e-8cc3-98c4-dc0c0c000000.3"
)]
pub struct Job {
    /// The job's id; of an element its array's with its index, as ID.3
    id: String,
    /// Of an array, at most so many elements
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
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
        let job = said_once(job, "state");
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
            ("signal", "exit_signal"),
            ("GPU-seconds", "gpu_seconds"),
            ("cost", "cost"),
        ];
        for (label, path) in lines {
            // A line whose sentence is empty says less than no line.
            if at(&job, path) != "" {
                table::print_line(&format!("{label:<12} {}", table::shown(&job, path)))?;
            }
        }
        if let Some(told) = elements(&job) {
            table::print_line(&format!("{:<12} {told}", "elements"))?;
            if !at(&job, "array.at_most").is_null() {
                let most = table::shown(&job, "array.at_most");
                table::print_line(&format!("{:<12} {most}", "at most"))?;
            }
            return self.show_elements(&client, &path).await;
        }
        for line in workers(&job["placement"]) {
            table::print_line(&line)?;
        }
        let evictions = client
            .list(&format!("{path}/evictions"), &[], EVENTS_MAX)
            .await?;
        for eviction in evictions.iter().rev() {
            table::print_line(&gave_way(eviction))?;
        }
        let rows = client
            .list(&format!("{path}/events"), &[], EVENTS_MAX)
            .await?;
        let rows: Vec<Value> = rows.into_iter().map(|row| said_once(row, "to")).collect();
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

    async fn show_elements(&self, client: &Client, path: &str) -> Result<(), Failure> {
        let path = format!("{path}/elements");
        let rows = listed::up_to(client, &path, &[], self.limit).await?;
        table::print_line("")?;
        let columns = [
            ("ELEMENT", "id"),
            ("STATE", "state"),
            ("REASON", "reason"),
            ("ATTEMPT", "attempt"),
            ("STARTED", "started_at"),
            ("EXIT", "exit_code"),
            ("GPU-S", "gpu_seconds"),
        ];
        table::print(&rows, &columns, "no elements")
    }
}

/// A row without its reason where that is the word of its state once more.
fn said_once(mut row: Value, state: &str) -> Value {
    if let Some(changes) = row["data"]["changes"].as_object() {
        let said = changes.iter().map(|(key, change)| {
            let (from, to) = (text(&change["from"]), text(&change["to"]));
            format!("{key} from {from} to {to}")
        });
        let said: Vec<String> = said.collect();
        row["reason"] = json!(format!("changed {}", said.join(", ")));
    }
    if let Some(rule) = words::eviction_rule(&row["data"]["rule"]) {
        row["reason"] = json!(rule);
    }
    if row["reason"] == row[state] {
        row["reason"] = json!("");
    }
    row
}

/// A line for each worker: where it is, and on which devices.
pub fn workers(placement: &Value) -> Vec<String> {
    let line = |worker: &Value| {
        let devices = worker["devices"].as_array().into_iter().flatten();
        let devices: Vec<String> = devices.map(device).collect();
        format!(
            "worker {:<5} {} {}",
            text(&worker["worker"]),
            text(&worker["node"]),
            devices.join(", ")
        )
    };
    placement
        .as_array()
        .into_iter()
        .flatten()
        .map(line)
        .collect()
}

/// A time that a job gave way, in a line.
fn gave_way(eviction: &Value) -> String {
    let said = |key: &str| text(&eviction[key]);
    let gainer = &eviction["for"];
    let named = |key: &str| Some(text(at(gainer, key))).filter(|_| !at(gainer, key).is_null());
    let whom = match (named("team"), named("job"), named("booking")) {
        _ if gainer.is_null() => String::new(),
        (Some(team), Some(job), _) => format!(" for job {job} of team {team}"),
        (Some(team), None, Some(name)) => format!(" for booking {name} of team {team}"),
        (Some(team), None, None) => format!(" for team {team}"),
        (None, ..) => " for another team".to_owned(),
    };
    format!(
        "gave way     {} {} by {}{whom}: {} given up, {} lost",
        table::shown(eviction, "at"),
        said("kind"),
        said("rule"),
        table::gpus(&eviction["gpus"]),
        table::counted(&eviction["lost_gpu_seconds"], "GPU-second"),
    )
}

fn device(device: &Value) -> String {
    format!(
        "#{} {} {}",
        text(&device["index"]),
        text(&device["mode"]),
        text(&device["gpus"])
    )
}

/// Cancel jobs, arrays and elements of them.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  allot cancel 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f\n  allot cancel 0190b6f2-5c1e-8cc3-98c4-dc0c0c000000.0-9,12"
)]
pub struct Cancel {
    /// The jobs' ids; ID.3 is an element of an array, ID.0-9,12 are several
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
            let (job, body) = asked(id);
            let path = format!("/jobs/{}/cancel", part(job));
            match client.post(&path, &body).await {
                Ok(job) => cancelled.push(job),
                Err(failure) => refused.push(format!("{id}: {failure}")),
            }
        }
        if self.json {
            table::print_json(&json!({ "items": cancelled }))?;
        } else {
            for job in &cancelled {
                let (id, state) = (text(&job["id"]), text(&job["state"]));
                let of = elements(job).map_or_else(String::new, |told| format!(" ({told})"));
                table::print_line(&format!("{id} {state}{of}"))?;
            }
        }
        if refused.is_empty() {
            Ok(())
        } else {
            Err(Failure::Refused(refused.join("\n")))
        }
    }
}

/// The job that is named, and which of its elements: `ID.3` is the id of one of them already, of
/// `ID.0-9,12` the array's id stands before the point.
fn asked(id: &str) -> (&str, Value) {
    match id.split_once('.') {
        Some((array, elements)) if elements.contains(['-', ',']) => {
            (array, json!({ "elements": elements }))
        }
        _ => (id, json!({})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_job_says_so_once() {
        let job = said_once(
            json!({"state": "cancelled", "reason": "cancelled"}),
            "state",
        );
        assert_eq!(job["reason"], "");
        let failed = said_once(json!({"state": "failed", "reason": "oom"}), "state");
        assert_eq!(failed["reason"], "oom");
    }

    #[test]
    fn an_eviction_is_told_with_whom_it_was_for_as_far_as_that_may_be_known() {
        let eviction = |gainer: Value| {
            json!({"at": "2026-01-05T12:00:00.5Z", "kind": "preemption", "rule": "reclaim", "for": gainer,
                   "gpus": 4, "lost_gpu_seconds": 1200})
        };
        let told = |gainer: Value| gave_way(&eviction(gainer));
        assert_eq!(
            told(Value::Null),
            "gave way     2026-01-05T12:00:00Z preemption by reclaim: 4 GPUs given up, 1200 GPU-seconds lost"
        );
        let other = json!({"team": null, "job": null, "booking": null});
        assert!(told(other).contains("reclaim for another team:"));
        let own = json!({"team": "vision", "job": "0190", "booking": null});
        assert!(told(own).contains("for job 0190 of team vision:"));
        let booked = json!({"team": "vision", "job": null, "booking": "demo"});
        assert!(told(booked).contains("for booking demo of team vision:"));
    }

    #[test]
    fn several_elements_are_named_behind_their_array() {
        assert_eq!(asked("A"), ("A", json!({})));
        assert_eq!(asked("A.3"), ("A.3", json!({})));
        assert_eq!(asked("A.0-9"), ("A", json!({ "elements": "0-9" })));
        assert_eq!(asked("A.1,5"), ("A", json!({ "elements": "1,5" })));
    }

    #[test]
    fn an_array_is_told_by_its_elements() {
        let array =
            json!({ "array": { "elements": { "queued": 90, "running": 10 } }, "reason": null });
        assert_eq!(with_elements(array)["reason"], "90 queued, 10 running");
        let job = json!({ "array": null, "reason": "exit" });
        assert_eq!(with_elements(job)["reason"], "exit");
    }
}
