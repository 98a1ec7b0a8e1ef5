//! `allot policy diff` and `allot policy history`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::spec::read_yaml;
use crate::client::Client;
use crate::failure::Failure;
use crate::table;

/// Changes that are listed.
const CHANGES_MAX: usize = 100;

/// Try changed policies, and see what was changed.
#[derive(Debug, Args)]
pub struct Policy {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    Diff(Diff),
    History(History),
}

impl Policy {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            PolicyCommand::Diff(diff) => diff.run().await,
            PolicyCommand::History(history) => history.run().await,
        }
    }
}

/// Plan the live world by changed policies beside the present ones; nothing is changed.
#[derive(Debug, Args)]
#[command(
    after_help = "FILE has keys `pools`, `classes`, `quotas` and `bookings`, such as\n\n  pools:\n    - {pool: h100, policy: {backfill: conservative}}\n  quotas:\n    - {team: vision, pool: h100, quota: {guaranteed: 6, limit: 12}}\n\nExample:\n  allot policy diff tighter.yaml"
)]
struct Diff {
    /// The changed policies, YAML or JSON
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Diff {
    async fn run(self) -> Result<(), Failure> {
        let draft = read_yaml(&self.file)?;
        let diff = Client::found()?
            .post("/planning/policy-diff", &draft)
            .await?;
        if self.json {
            return table::print_json(&diff);
        }
        print_jobs(&diff)?;
        print_shares(&diff)?;
        print_cuts(&diff)?;
        for warning in items(&diff, "warnings") {
            table::print_line(&format!("\n{}", table::text(&warning["message"])))?;
        }
        Ok(())
    }
}

fn items(diff: &Value, key: &str) -> Vec<Value> {
    diff[key].as_array().cloned().unwrap_or_default()
}

fn print_jobs(diff: &Value) -> Result<(), Failure> {
    let columns = [
        ("JOB", "job"),
        ("TEAM", "team"),
        ("EFFECT", "effect"),
        ("NOW", "before.outcome"),
        ("BY", "before.reason"),
        ("THEN", "after.outcome"),
        ("BY", "after.reason"),
        ("EXPECTED START", "after.expected_start"),
    ];
    let none = "no job would fare otherwise";
    table::print(&items(diff, "jobs"), &columns, none)?;
    match diff["jobs_left_out"].as_u64() {
        Some(more) if more > 0 => table::print_line(&format!("and {more} jobs more")),
        _ => Ok(()),
    }
}

fn print_shares(diff: &Value) -> Result<(), Failure> {
    let columns = [
        ("TEAM", "team"),
        ("POOL", "pool"),
        ("GUARANTEED", "before.guaranteed"),
        ("THEN", "after.guaranteed"),
        ("HELD", "before.used"),
        ("THEN", "after.used"),
        ("BORROWED", "before.borrowed"),
        ("THEN", "after.borrowed"),
        ("FAIR SHARE", "before.fair_share"),
        ("THEN", "after.fair_share"),
    ];
    table::print_line("")?;
    let none = "no team's share would change";
    table::print(&items(diff, "shares"), &columns, none)
}

fn print_cuts(diff: &Value) -> Result<(), Failure> {
    let cuts = items(diff, "cuts");
    if cuts.is_empty() {
        return Ok(());
    }
    let columns = [
        ("TEAM", "team"),
        ("POOL", "pool"),
        ("HOLDS", "held"),
        ("GUARANTEED", "guaranteed_before"),
        ("THEN", "guaranteed_after"),
        ("BECOMES BORROWED", "becomes_borrowed"),
        ("RECLAIMABLE", "reclaimable"),
        ("OVER LIMIT", "over_limit"),
    ];
    table::print_line("")?;
    table::print(&cuts, &columns, "")
}

/// List what was changed of pools, classes, quotas, bookings and windows.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot policy history quota/vision/h100")]
struct History {
    /// Only of this object, such as pool/h100 [default: of all]
    object: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl History {
    async fn run(self) -> Result<(), Failure> {
        let query: Vec<_> = self
            .object
            .map(|object| ("object", object))
            .into_iter()
            .collect();
        let client = Client::found()?;
        let changes = client.list("/policy-versions", &query, CHANGES_MAX).await?;
        if self.json {
            return table::print_json(&json!({ "items": changes }));
        }
        let columns = [
            ("CHANGE", "id"),
            ("AT", "at"),
            ("OBJECT", "object"),
            ("VERSION", "version"),
            ("WHO", "actor"),
            ("WHY", "reason"),
        ];
        table::print(&changes, &columns, "nothing was changed")
    }
}
