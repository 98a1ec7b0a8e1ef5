//! `allot periods`, `statements`, `commitments` and `reconciliations`: what is billed, and whether it adds up.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table::{self, text};

/// Most rows of a list that is not paged for people.
const ROWS_MAX: usize = 10_000;

/// See billing periods, close and issue them.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot periods close 2026-10")]
pub struct Periods {
    #[command(subcommand)]
    command: PeriodsCommand,
}

#[derive(Debug, Subcommand)]
enum PeriodsCommand {
    /// List the billing periods, the latest first
    #[command(after_help = "Example:\n  allot periods list")]
    List(Shape),
    /// Close a period that is over: its statements are made
    #[command(after_help = "Example:\n  allot periods close 2026-10")]
    Close(Month),
    /// Issue a closed period's statements
    #[command(after_help = "Example:\n  allot periods issue 2026-10")]
    Issue(Month),
    /// List what a closed period bills each team
    #[command(after_help = "Example:\n  allot periods statements 2026-10")]
    Statements(Month),
}

#[derive(Debug, Args)]
struct Shape {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Month {
    /// The period, such as 2026-10
    period: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Periods {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        match self.command {
            PeriodsCommand::List(shape) => {
                let rows = client.list("/billing-periods", &[], ROWS_MAX).await?;
                if shape.json {
                    return table::print_json(&json!({ "items": rows }));
                }
                let columns = [
                    ("PERIOD", "name"),
                    ("STATE", "state"),
                    ("FROM", "from"),
                    ("TO", "to"),
                ];
                table::print(&rows, &columns, "no periods: one opens with the first use")
            }
            PeriodsCommand::Close(month) => step(&client, &month, "close").await,
            PeriodsCommand::Issue(month) => step(&client, &month, "issue").await,
            PeriodsCommand::Statements(month) => {
                let path = format!("/billing-periods/{}/statements", part(&month.period));
                let answer = client.get(&path, &[]).await?;
                if month.json {
                    return table::print_json(&answer);
                }
                let rows = answer["items"].as_array().cloned().unwrap_or_default();
                let columns = [
                    ("TEAM", "team"),
                    ("TOTAL", "total"),
                    ("VERIFIED", "verified"),
                    ("SHA-256", "sha256"),
                ];
                table::print(
                    &rows,
                    &columns,
                    "no statements: the period is not closed, or bills nothing",
                )
            }
        }
    }
}

async fn step(client: &Client, month: &Month, what: &str) -> Result<(), Failure> {
    let path = format!("/billing-periods/{}/{what}", part(&month.period));
    let period = client.post(&path, &json!({})).await?;
    if month.json {
        return table::print_json(&period);
    }
    table::print_line(&format!(
        "{} {}",
        text(&period["name"]),
        text(&period["state"])
    ))
}

/// Show a team's statements, or one with its lines.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot statements vision 2026-10")]
pub struct Statements {
    /// The team
    team: String,
    /// The period, such as 2026-10 [default: all]
    period: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Statements {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let path = format!("/teams/{}/statements", part(&self.team));
        let Some(period) = &self.period else {
            let answer = client.get(&path, &[]).await?;
            if self.json {
                return table::print_json(&answer);
            }
            let rows = answer["items"].as_array().cloned().unwrap_or_default();
            let columns = [
                ("PERIOD", "period"),
                ("TOTAL", "total"),
                ("VERIFIED", "verified"),
            ];
            return table::print(&rows, &columns, "no statements: no period is closed yet");
        };
        let path = format!("{path}/{}", part(period));
        let statement = client.get(&path, &[]).await?;
        if self.json {
            return table::print_json(&statement);
        }
        let mut rows = statement["lines"].as_array().cloned().unwrap_or_default();
        rows.push(
            json!({"kind": "total", "pool": "", "mode": "", "resource": "", "gpu_seconds": "",
                         "amount": statement["total"]}),
        );
        let columns = [
            ("LINE", "kind"),
            ("POOL", "pool"),
            ("MODE", "mode"),
            ("OF", "resource"),
            ("GPU-SECONDS", "gpu_seconds"),
            ("AMOUNT", "amount"),
        ];
        table::print(&rows, &columns, "no lines")?;
        table::print_line(&format!("sha256 {}", text(&statement["sha256"])))
    }
}

/// List capacity that teams pay for whether they use it or not.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot commitments")]
pub struct Commitments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Commitments {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let answer = Client::found()?.get("/commitments", &[]).await?;
        if self.json {
            return table::print_json(&answer);
        }
        let rows = answer["items"].as_array().cloned().unwrap_or_default();
        let columns = [
            ("TEAM", "team"),
            ("POOL", "pool"),
            ("GPUS", "gpus"),
            ("PER GPU-HOUR", "per_gpu_hour"),
            ("FROM", "from"),
            ("TO", "to"),
        ];
        table::print(&rows, &columns, "no commitments")
    }
}

/// List the days that were reconciled, or the devices of one, those that are off first.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot reconciliations 2026-10-15")]
pub struct Reconciliations {
    /// The day [default: all]
    day: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Reconciliations {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let path = match &self.day {
            Some(day) => format!("/reconciliations/{}", part(day)),
            None => "/reconciliations".to_owned(),
        };
        let rows = client.list(&path, &[], ROWS_MAX).await?;
        if self.json {
            return table::print_json(&json!({ "items": rows }));
        }
        match &self.day {
            Some(_) => {
                let columns = [
                    ("NODE", "node"),
                    ("DEVICE", "index"),
                    ("WALL µs", "wall_micros"),
                    ("HELD µs", "held_micros"),
                    ("IDLE µs", "idle_micros"),
                    ("DOWN µs", "down_micros"),
                    ("OFF µs", "difference_micros"),
                ];
                table::print(&rows, &columns, "no devices were there")
            }
            None => {
                let columns = [("DAY", "day"), ("DEVICES", "devices"), ("OFF", "off")];
                table::print(
                    &rows,
                    &columns,
                    "no days: each is reconciled an hour after its end",
                )
            }
        }
    }
}
