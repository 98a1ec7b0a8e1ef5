//! `allot budgets`: what teams may spend, and how that stands.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::spec::read_yaml;
use super::versioned::{Delete, Kind, Shape, Why};
use crate::client::part;
use crate::failure::Failure;
use crate::table;

const NOUN: &str = "budget";

/// See and change budgets of teams.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot budgets list vision")]
pub struct Budgets {
    #[command(subcommand)]
    command: BudgetsCommand,
}

#[derive(Debug, Subcommand)]
enum BudgetsCommand {
    List(List),
    Create(Create),
    Change(Change),
    /// Remove a budget; what it stopped goes on
    #[command(after_help = "Example:\n  allot budgets delete vision monthly")]
    Delete(DeleteOfTeam),
}

impl Budgets {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            BudgetsCommand::List(list) => list.run().await,
            BudgetsCommand::Create(create) => create.run().await,
            BudgetsCommand::Change(change) => change.run().await,
            BudgetsCommand::Delete(delete) => delete.run(NOUN).await,
        }
    }
}

/// Those of a team of one noun.
pub fn of_team(team: &str, noun: &'static str) -> Result<Kind, Failure> {
    Kind::at(format!("/teams/{}/{noun}s", part(team)), noun)
}

/// The keys that a file says of something.
pub fn keys(file: &Path, what: &str) -> Result<Value, Failure> {
    let keys = read_yaml(file)?;
    if keys.is_object() {
        return Ok(keys);
    }
    let file = file.display();
    Err(Failure::Words(format!(
        "{file}: {what} is a mapping of keys, as `--help` shows"
    )))
}

/// One of a team's, to be removed.
#[derive(Debug, Args)]
pub struct DeleteOfTeam {
    /// The team
    team: String,
    #[command(flatten)]
    one: Delete,
}

impl DeleteOfTeam {
    /// Removes it.
    pub async fn run(self, noun: &'static str) -> Result<(), Failure> {
        self.one.run(&of_team(&self.team, noun)?).await
    }
}

/// List budgets, each with what is used, committed and left of it.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot budgets list vision")]
struct List {
    /// The team [default: all that you may see]
    team: Option<String>,
    #[command(flatten)]
    shape: Shape,
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let kind = match &self.team {
            Some(team) => of_team(team, NOUN)?,
            None => Kind::at("/budgets", NOUN)?,
        };
        let rows = kind.rows(&[]).await?;
        self.shape.print_all(&rows, print)
    }
}

fn print(rows: &[Value]) -> Result<(), Failure> {
    let columns = [
        ("TEAM", "team"),
        ("NAME", "name"),
        ("AMOUNT", "amount"),
        ("UNIT", "unit"),
        ("CURRENCY", "currency"),
        ("PERIOD", "period"),
        ("USED", "now.used"),
        ("COMMITTED", "now.committed"),
        ("LEFT", "now.left"),
        ("ENDS", "now.to"),
        ("HARD", "hard"),
        ("STOPS", "stopped"),
    ];
    table::print(rows, &columns, "no budgets")?;
    let forecasts: Vec<Value> = rows.iter().flat_map(forecasts).collect();
    if forecasts.is_empty() {
        return Ok(());
    }
    table::print_line("")?;
    let columns = [
        ("TEAM", "team"),
        ("BUDGET", "budget"),
        ("FORECAST", "rule"),
        ("AMOUNT", "amount"),
    ];
    table::print(&forecasts, &columns, "")
}

/// The forecasts of a budget, each with its name.
fn forecasts(budget: &Value) -> Vec<Value> {
    let rows = budget["now"]["forecasts"].as_array().into_iter().flatten();
    rows.map(|row| {
        json!({ "team": budget["team"], "budget": budget["name"], "rule": row["rule"], "amount": row["amount"] })
    })
    .collect()
}

fn print_one(budget: &Value) -> Result<(), Failure> {
    print(std::slice::from_ref(budget))
}

/// Give a team a budget.
#[derive(Debug, Args)]
#[command(
    after_help = "FILE has keys `unit`, `currency`, `amount`, `period`, `starts_at`, `ends_at`, `thresholds` and `hard`, such as\n\n  unit: money\n  currency: CNY\n  amount: \"5000\"\n  period: month\n  thresholds:\n    - {measure: forecast, percent: 100, action: notify}\n    - {measure: actual, percent: 100, action: stop_borrowing}\n\nExample:\n  allot budgets create vision monthly budget.yaml"
)]
struct Create {
    /// The team
    team: String,
    /// The budget's name
    name: String,
    /// The budget, YAML or JSON
    file: PathBuf,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Create {
    async fn run(self) -> Result<(), Failure> {
        let mut body = keys(&self.file, "a budget")?;
        body["name"] = json!(self.name);
        let made = of_team(&self.team, NOUN)?.create(&self.why, &body).await?;
        self.shape.print(&made, print_one)
    }
}

/// Change a budget's amount, thresholds, or whether it is hard.
#[derive(Debug, Args)]
#[command(
    after_help = "FILE has those of the keys `amount`, `thresholds` and `hard` that change.\n\nExample:\n  allot budgets change vision monthly more.yaml --reason \"second quarter\""
)]
struct Change {
    /// The team
    team: String,
    /// The budget's name
    name: String,
    /// What changes, YAML or JSON
    file: PathBuf,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Change {
    async fn run(self) -> Result<(), Failure> {
        let body = keys(&self.file, "a change")?;
        let kind = of_team(&self.team, NOUN)?;
        let row = kind.find(&self.name).await?;
        let changed = kind.change_row(&row, &self.why, &body).await?;
        self.shape.print(&changed, print_one)
    }
}
