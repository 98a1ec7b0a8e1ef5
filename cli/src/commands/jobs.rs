//! `allot jobs`, `job` and `cancel`.

use clap::Args;
use serde_json::{Value, json};

use crate::client::{Client, part};
use crate::failure::Failure;
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
