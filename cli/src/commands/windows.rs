//! `allot windows`: quotas of a pool that hold for some hours of the week.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::spec::read_yaml;
use super::versioned::{Why, find, print_removed};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table;

/// Most windows that are listed; a pool has far fewer.
const WINDOWS_MAX: usize = 1_000;

/// See and change what holds in a pool for some hours of the week.
#[derive(Debug, Args)]
pub struct Windows {
    #[command(subcommand)]
    command: WindowsCommand,
}

#[derive(Debug, Subcommand)]
enum WindowsCommand {
    List(List),
    Create(Create),
    Change(Change),
    Delete(Delete),
}

impl Windows {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            WindowsCommand::List(list) => list.run().await,
            WindowsCommand::Create(create) => create.run().await,
            WindowsCommand::Change(change) => change.run().await,
            WindowsCommand::Delete(delete) => delete.run().await,
        }
    }
}

fn path(pool: &str) -> String {
    format!("/pools/{}/windows", part(pool))
}

/// List a pool's weekly windows.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot windows list h100")]
struct List {
    /// The pool
    pool: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let rows = Client::found()?
            .list(&path(&self.pool), &[], WINDOWS_MAX)
            .await?;
        if self.json {
            return table::print_json(&json!({ "items": rows }));
        }
        print(&rows)
    }
}

fn print(rows: &[Value]) -> Result<(), Failure> {
    let columns = [
        ("NAME", "name"),
        ("DAYS", "days"),
        ("FROM", "from"),
        ("TO", "to"),
        ("TIME ZONE", "time_zone"),
        ("OPEN", "open"),
        ("NEXT EDGE", "next_edge_at"),
    ];
    table::print(
        rows,
        &columns,
        "no windows: the same quotas hold at every hour",
    )?;
    let quotas: Vec<Value> = rows.iter().flat_map(quotas).collect();
    if quotas.is_empty() {
        return Ok(());
    }
    let columns = [
        ("WINDOW", "window"),
        ("TEAM", "team"),
        ("GUARANTEED", "quota.guaranteed"),
        ("LIMIT", "quota.limit"),
        ("LEND LIMIT", "quota.lend_limit"),
        ("WEIGHT", "quota.weight"),
        ("PER USER", "quota.max_per_user"),
    ];
    table::print_line("")?;
    table::print(&quotas, &columns, "")
}

/// What a window brings, each row with the window's name.
fn quotas(window: &Value) -> Vec<Value> {
    let rows = window["quotas"].as_array().into_iter().flatten();
    rows.map(|row| {
        let mut row = row.clone();
        row["window"] = window["name"].clone();
        row
    })
    .collect()
}

/// Make a weekly window.
#[derive(Debug, Args)]
#[command(
    after_help = "FILE has keys `days`, `from`, `to`, `time_zone` and `quotas`, such as\n\n  days: [mon, tue, wed, thu, fri]\n  from: \"20:00\"\n  to: \"08:00\"\n  quotas:\n    - {team: vision, quota: {guaranteed: 8}}\n\nExample:\n  allot windows create h100 nights nights.yaml"
)]
struct Create {
    /// The pool
    pool: String,
    /// The window's name
    name: String,
    /// The window, YAML or JSON
    file: PathBuf,
    #[command(flatten)]
    why: Why,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Create {
    async fn run(self) -> Result<(), Failure> {
        let mut body = keys(&self.file)?;
        body["name"] = json!(self.name);
        let made = Client::found()?
            .post_as(&path(&self.pool), &self.why.query(), &body, None)
            .await?;
        if self.json {
            return table::print_json(&made);
        }
        print(&[made])
    }
}

/// The keys of a window's file.
fn keys(file: &std::path::Path) -> Result<Value, Failure> {
    let keys = read_yaml(file)?;
    if keys.is_object() {
        return Ok(keys);
    }
    Err(Failure::Words(format!(
        "{}: a window is a mapping of keys, such as days: [mon]",
        file.display()
    )))
}

/// Change a weekly window; keys that FILE has not stay.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot windows change h100 nights later.yaml")]
struct Change {
    /// The pool
    pool: String,
    /// The window's name
    name: String,
    /// The keys to change, YAML or JSON
    file: PathBuf,
    #[command(flatten)]
    why: Why,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Change {
    async fn run(self) -> Result<(), Failure> {
        let body = keys(&self.file)?;
        let client = Client::found()?;
        let at = path(&self.pool);
        let version = find(&client, &at, "window", &self.name).await?;
        let one = format!("{at}/{}", part(&self.name));
        let changed = client
            .patch(&one, &self.why.query(), &body, version)
            .await?;
        if self.json {
            return table::print_json(&changed);
        }
        print(&[changed])
    }
}

/// Remove a weekly window.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot windows delete h100 nights")]
struct Delete {
    /// The pool
    pool: String,
    /// The window's name
    name: String,
    #[command(flatten)]
    why: Why,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Delete {
    async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let at = path(&self.pool);
        let version = find(&client, &at, "window", &self.name).await?;
        let one = format!("{at}/{}", part(&self.name));
        client.delete(&one, &self.why.query(), version).await?;
        print_removed(&self.name, self.json)
    }
}
