//! `allot classes`: priority classes.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::tried;
use super::versioned::{Delete, Kind, Shape, Try, Why};
use crate::failure::Failure;
use crate::table;

/// See and change priority classes.
#[derive(Debug, Args)]
pub struct Classes {
    #[command(subcommand)]
    command: ClassesCommand,
}

#[derive(Debug, Subcommand)]
enum ClassesCommand {
    List(List),
    Show(Show),
    Create(Create),
    Change(Change),
    /// Remove a priority class that no job names
    #[command(after_help = "Example:\n  allot classes delete urgent")]
    Delete(Delete),
}

impl Classes {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            ClassesCommand::List(list) => list.run().await,
            ClassesCommand::Show(show) => show.run().await,
            ClassesCommand::Create(create) => create.run().await,
            ClassesCommand::Change(change) => change.run().await,
            ClassesCommand::Delete(delete) => delete.run(&kind()?).await,
        }
    }
}

fn kind() -> Result<Kind, Failure> {
    Kind::at("/classes", "class")
}

/// List the priority classes.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot classes list")]
struct List {
    #[command(flatten)]
    shape: Shape,
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let rows = kind()?.rows(&[]).await?;
        self.shape.print_all(&rows, print)
    }
}

fn print(rows: &[Value]) -> Result<(), Failure> {
    let columns = [
        ("NAME", "name"),
        ("PRIORITY", "priority"),
        ("PREEMPTIBLE", "preemptible"),
        ("DEFAULT", "default"),
        ("VERSION", "version"),
    ];
    table::print(rows, &columns, "no classes")
}

fn print_one(class: &Value) -> Result<(), Failure> {
    print(std::slice::from_ref(class))
}

/// Show a priority class.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot classes show normal")]
struct Show {
    /// The class
    name: String,
    #[command(flatten)]
    shape: Shape,
}

impl Show {
    async fn run(self) -> Result<(), Failure> {
        let class = kind()?.find(&self.name).await?;
        self.shape.print(&class, print_one)
    }
}

/// Make a priority class.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  allot classes create urgent --priority 200 --preemptible false"
)]
struct Create {
    /// The class
    name: String,
    /// Higher goes first within a team
    #[arg(long, allow_negative_numbers = true)]
    priority: i32,
    /// Whether its work may be preempted: true or false
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    preemptible: bool,
    #[command(flatten)]
    tried: Try,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Create {
    async fn run(self) -> Result<(), Failure> {
        let body = json!({
            "name": self.name,
            "priority": self.priority,
            "preemptible": self.preemptible,
        });
        let kind = kind()?;
        if self.tried.dry_run {
            let of = Map::from_iter([("class".to_owned(), json!(self.name))]);
            let keys = json!({ "priority": self.priority, "preemptible": self.preemptible });
            let changes = tried::changes(&of, &Value::Null, &keys);
            let draft = json!({ "classes": [body] });
            return tried::run(kind.client(), self.shape, &draft, &changes).await;
        }
        let made = kind.create(&self.why, &body).await?;
        self.shape.print(&made, print_one)
    }
}

/// Change a priority class; work that waits is ordered by it at once.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot classes change normal --priority 50 --dry-run")]
struct Change {
    /// The class
    name: String,
    #[command(flatten)]
    keys: Keys,
    /// Only tell what would come of it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

/// What is to be changed of a class.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Keys {
    /// Higher goes first within a team
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// Whether its work may be preempted: true or false
    #[arg(long, value_name = "BOOL")]
    preemptible: Option<bool>,
}

impl Change {
    async fn run(self) -> Result<(), Failure> {
        let said = [
            ("priority", self.keys.priority.map(Value::from)),
            ("preemptible", self.keys.preemptible.map(Value::from)),
        ];
        let said = said
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)));
        let keys = Value::Object(said.collect());
        let kind = kind()?;
        let present = kind.find(&self.name).await?;
        let of = Map::from_iter([("class".to_owned(), json!(self.name))]);
        let changes = tried::changes(&of, &present, &keys);
        if self.dry_run {
            let mut class = json!({ "name": self.name });
            for key in ["priority", "preemptible"] {
                class[key] = keys.get(key).unwrap_or(&present[key]).clone();
            }
            let draft = json!({ "classes": [class] });
            return tried::run(kind.client(), self.shape, &draft, &changes).await;
        }
        let changed = kind.change_row(&present, &self.why, &keys).await?;
        self.shape.print(&changed, print_one)
    }
}
