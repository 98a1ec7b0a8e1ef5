//! `allot prices`: the price book, its versions, and what a draft would have charged.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::said;
use crate::client::Client;
use crate::failure::Failure;
use crate::table::{self, text};

/// Most rows of a list that is not paged for people.
const ROWS_MAX: usize = 10_000;
/// Largest draft that is read: a thousand lines are a tenth of it.
const DRAFT_BYTES_MAX: u64 = 4 << 20;

/// See the price book, draft a version of it, try that, and put it in force.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot prices preview 3")]
pub struct Prices {
    #[command(subcommand)]
    command: PricesCommand,
}

#[derive(Debug, Subcommand)]
enum PricesCommand {
    /// List the prices of GPUs, the latest first
    #[command(after_help = "Example:\n  allot prices list")]
    List(Shape),
    /// List the versions of the price book
    #[command(after_help = "Example:\n  allot prices books")]
    Books(Shape),
    /// Show a version with its lines
    #[command(after_help = "Example:\n  allot prices show 3")]
    Show(One),
    /// Draft a version from a JSON file with reason, effective_from, prices and factors
    #[command(after_help = "Example:\n  allot prices draft book.json")]
    Draft(Draft),
    /// Say what a version would have charged for what was used: last month, unless told otherwise
    #[command(
        after_help = "Example:\n  allot prices preview 3 --from 2026-10-01T00:00:00Z --to 2026-11-01T00:00:00Z"
    )]
    Preview(Preview),
    /// Put a draft in force
    #[command(after_help = "Example:\n  allot prices activate 3")]
    Activate(One),
    /// Give a draft up
    #[command(after_help = "Example:\n  allot prices discard 3")]
    Discard(One),
}

#[derive(Debug, Args)]
struct Shape {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct One {
    /// The version's number
    number: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Draft {
    /// The file
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Preview {
    /// The version's number
    number: i64,
    /// From this time (RFC 3339)
    #[arg(long, value_parser = said::time)]
    from: Option<String>,
    /// Up to this time (RFC 3339)
    #[arg(long, value_parser = said::time)]
    to: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Prices {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        match self.command {
            PricesCommand::List(shape) => list(&client, shape.json).await,
            PricesCommand::Books(shape) => books(&client, shape.json).await,
            PricesCommand::Show(one) => {
                let book = client.get(&path(one.number), &[]).await?;
                show(&book, one.json)
            }
            PricesCommand::Draft(draft) => {
                let body = read(&draft.file)?;
                let book = client.post("/price-books", &body).await?;
                show(&book, draft.json)
            }
            PricesCommand::Preview(asked) => preview(&client, &asked).await,
            PricesCommand::Activate(one) => step(&client, &one, "activate").await,
            PricesCommand::Discard(one) => step(&client, &one, "discard").await,
        }
    }
}

fn path(number: i64) -> String {
    format!("/price-books/{number}")
}

async fn list(client: &Client, as_json: bool) -> Result<(), Failure> {
    let rows = client.list("/prices", &[], ROWS_MAX).await?;
    if as_json {
        return table::print_json(&json!({ "items": rows }));
    }
    let columns = [
        ("POOL", "pool"),
        ("MODE", "mode"),
        ("PER GPU-HOUR", "per_gpu_hour"),
        ("FROM", "effective_from"),
    ];
    table::print(&rows, &columns, "no prices")
}

async fn books(client: &Client, as_json: bool) -> Result<(), Failure> {
    let rows = client.list("/price-books", &[], ROWS_MAX).await?;
    if as_json {
        return table::print_json(&json!({ "items": rows }));
    }
    let columns = [
        ("NUMBER", "number"),
        ("STATE", "state"),
        ("FROM", "effective_from"),
        ("BY", "created_by"),
        ("REASON", "reason"),
    ];
    table::print(
        &rows,
        &columns,
        "no versions: allot prices draft FILE makes one",
    )
}

fn show(book: &Value, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return table::print_json(book);
    }
    table::print_line(&format!(
        "version {} {} from {}: {}",
        text(&book["number"]),
        text(&book["state"]),
        table::shown(book, "effective_from"),
        text(&book["reason"]),
    ))?;
    let rows = |key: &str| book[key].as_array().cloned().unwrap_or_default();
    let prices = [
        ("POOL", "pool"),
        ("OF", "resource"),
        ("MODE", "mode"),
        ("PROFILE", "mig_profile"),
        ("PER HOUR", "per_hour"),
        ("LIST", "list_per_hour"),
        ("EFFECTIVE", "effective_per_hour"),
    ];
    table::print(&rows("prices"), &prices, "no prices")?;
    let factors = [
        ("POOL", "pool"),
        ("KIND", "kind"),
        ("FACTOR", "factor"),
        ("WINDOW", "window.name"),
        ("FROM", "window.from"),
        ("TO", "window.to"),
        ("ZONE", "window.time_zone"),
    ];
    table::print(&rows("factors"), &factors, "no factors")
}

fn read(file: &PathBuf) -> Result<Value, Failure> {
    let shown = file.display();
    let words = |what: String| Failure::Words(format!("{shown}: {what}"));
    let length = std::fs::metadata(file)
        .map_err(|e| words(e.to_string()))?
        .len();
    if length > DRAFT_BYTES_MAX {
        return Err(words(format!(
            "more than {DRAFT_BYTES_MAX} bytes: draft fewer lines"
        )));
    }
    let body = std::fs::read_to_string(file).map_err(|e| words(e.to_string()))?;
    serde_json::from_str(&body).map_err(|e| words(format!("is not JSON: {e}")))
}

async fn step(client: &Client, one: &One, what: &str) -> Result<(), Failure> {
    let path = format!("{}/{what}", path(one.number));
    let book = client.post(&path, &json!({})).await?;
    if one.json {
        return table::print_json(&book);
    }
    table::print_line(&format!(
        "version {} {}",
        text(&book["number"]),
        text(&book["state"])
    ))
}

async fn preview(client: &Client, asked: &Preview) -> Result<(), Failure> {
    let said = [("from", &asked.from), ("to", &asked.to)];
    let query: Vec<_> = said
        .iter()
        .filter_map(|(key, value)| Some((*key, value.as_ref()?.clone())))
        .collect();
    let path = format!("{}/preview", path(asked.number));
    let answer = client.get(&path, &query).await?;
    if asked.json {
        return table::print_json(&answer);
    }
    let mut rows = answer["items"].as_array().cloned().unwrap_or_default();
    rows.push(json!({"team": "total", "pool": "", "now": answer["now"], "then": answer["then"]}));
    let columns = [
        ("TEAM", "team"),
        ("POOL", "pool"),
        ("CHARGED", "now"),
        ("WOULD BE", "then"),
    ];
    table::print(&rows, &columns, "nothing was used")
}
