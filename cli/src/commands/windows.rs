//! `allot windows`: quotas of a pool that hold for some hours of the week.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::spec::read_yaml;
use super::tried::{self, Tried};
use super::versioned::{DeleteOfPool, Kind, Shape, Try, Why};
use crate::failure::Failure;
use crate::table;

const NOUN: &str = "window";
/// What is said of a window.
const KEYS: [&str; 5] = ["days", "from", "to", "time_zone", "quotas"];

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
    /// Remove a weekly window
    #[command(after_help = "Example:\n  allot windows delete h100 nights")]
    Delete(DeleteOfPool),
}

impl Windows {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            WindowsCommand::List(list) => list.run().await,
            WindowsCommand::Create(create) => create.run().await,
            WindowsCommand::Change(change) => change.run().await,
            WindowsCommand::Delete(delete) => delete.run(NOUN).await,
        }
    }
}

/// List a pool's weekly windows.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot windows list h100")]
struct List {
    /// The pool
    pool: String,
    #[command(flatten)]
    shape: Shape,
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let rows = Kind::of_pool(&self.pool, NOUN)?.rows(&[]).await?;
        self.shape.print_all(&rows, print)
    }
}

fn print_one(window: &Value) -> Result<(), Failure> {
    print(std::slice::from_ref(window))
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
    after_help = "FILE has keys `days`, `from`, `to`, `time_zone` and `quotas`, such as\n\n  days: [mon, tue, wed, thu, fri]\n  from: \"20:00\"\n  to: \"08:00\"\n  quotas:\n    - {team: vision, quota: {guaranteed: 8}}\n\nExample:\n  allot windows create h100 nights nights.yaml --dry-run"
)]
struct Create {
    /// The pool
    pool: String,
    /// The window's name
    name: String,
    /// The window, YAML or JSON
    file: PathBuf,
    #[command(flatten)]
    tried: Try,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Create {
    async fn run(self) -> Result<(), Failure> {
        let mut body = keys(&self.file)?;
        let kind = Kind::of_pool(&self.pool, NOUN)?;
        if self.tried.dry_run {
            let tried = Tried {
                kind: "windows",
                pool: &self.pool,
                name: &self.name,
                present: &Value::Null,
                said: &body,
            };
            return try_one(&kind, self.shape, &tried).await;
        }
        body["name"] = json!(self.name);
        let made = kind.create(&self.why, &body).await?;
        self.shape.print(&made, print_one)
    }
}

/// Tells what would come of a window, planned as if it were open.
async fn try_one(kind: &Kind, shape: Shape, tried: &Tried<'_>) -> Result<(), Failure> {
    let of = Map::from_iter([(NOUN.to_owned(), json!(tried.name))]);
    let changes = tried::changes(&of, &by_team(tried.present), &by_team(tried.said));
    tried::run(kind.client(), shape, &tried.draft(&KEYS), &changes).await
}

/// A window whose quotas are known by their teams, so that each is compared with its own.
fn by_team(window: &Value) -> Value {
    let mut window = window.clone();
    if let Some(rows) = window["quotas"].as_array() {
        let quotas = rows.iter().filter_map(|row| {
            let team = row["team"].as_str()?;
            Some((team.to_owned(), row["quota"].clone()))
        });
        window["quotas"] = Value::Object(quotas.collect());
    }
    window
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
    tried: Try,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Change {
    async fn run(self) -> Result<(), Failure> {
        let body = keys(&self.file)?;
        let kind = Kind::of_pool(&self.pool, NOUN)?;
        let present = kind.find(&self.name).await?;
        if self.tried.dry_run {
            let tried = Tried {
                kind: "windows",
                pool: &self.pool,
                name: &self.name,
                present: &present,
                said: &body,
            };
            return try_one(&kind, self.shape, &tried).await;
        }
        let changed = kind.change_row(&present, &self.why, &body).await?;
        self.shape.print(&changed, print_one)
    }
}
