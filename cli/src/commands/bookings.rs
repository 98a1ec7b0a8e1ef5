//! `allot bookings`: what is booked of a pool ahead.

use clap::{Args, Subcommand};
use domain::{MilliGpu, words};
use serde_json::{Map, Value, json};

use super::versioned::{Why, find, print_removed};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table;

/// Most bookings that are listed; a pool with more is not read by people.
const BOOKINGS_MAX: usize = 10_000;

/// See and change what is booked of a pool ahead.
#[derive(Debug, Args)]
pub struct Bookings {
    #[command(subcommand)]
    command: BookingsCommand,
}

#[derive(Debug, Subcommand)]
enum BookingsCommand {
    List(List),
    Create(Create),
    Change(Change),
    Delete(Delete),
}

impl Bookings {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            BookingsCommand::List(list) => list.run().await,
            BookingsCommand::Create(create) => create.run().await,
            BookingsCommand::Change(change) => change.run().await,
            BookingsCommand::Delete(delete) => delete.run().await,
        }
    }
}

fn path(pool: &str) -> String {
    format!("/pools/{}/bookings", part(pool))
}

/// List a pool's bookings, with what is in their way.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot bookings list h100 --from 2026-12-01T00:00:00Z")]
struct List {
    /// The pool
    pool: String,
    /// Only those that end after this (RFC 3339)
    #[arg(long)]
    from: Option<String>,
    /// Only those that begin before this (RFC 3339)
    #[arg(long)]
    to: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let said = [("from", self.from), ("to", self.to)];
        let query: Vec<_> = said
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        let rows = Client::found()?
            .list(&path(&self.pool), &query, BOOKINGS_MAX)
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
        ("TEAM", "team"),
        ("GPUS", "gpus"),
        ("FROM", "from"),
        ("TO", "to"),
        ("STATE", "state"),
    ];
    table::print(rows, &columns, "nothing is booked")?;
    for booking in rows {
        for conflict in booking["conflicts"].as_array().into_iter().flatten() {
            let said = |key: &str| table::text(&conflict[key]);
            table::print_line(&format!(
                "{}: {} more {} promised than {} has, from {} to {}: {} guaranteed and {} booked of {}",
                table::text(&booking["name"]),
                table::gpus(&conflict["excess"]),
                table::amount(&conflict["excess"])
                    .map_or("are", |gpus| words::form_of(gpus, words::IS)),
                table::text(&booking["pool"]),
                said("from"),
                said("to"),
                said("guaranteed"),
                said("booked"),
                said("capacity"),
            ))?;
        }
    }
    Ok(())
}

/// An amount of GPUs, as JSON has it.
fn gpus(amount: &str) -> Result<Value, Failure> {
    let amount: MilliGpu = amount
        .parse()
        .map_err(|error: domain::FieldError| Failure::Words(error.to_string()))?;
    serde_json::to_value(amount).map_err(|error| Failure::Words(error.to_string()))
}

/// Book GPUs of a pool for a team and a time, beyond its guarantee.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  allot bookings create h100 demo --team vision --gpus 4 --from 2026-12-01T09:00:00Z --to 2026-12-01T17:00:00Z"
)]
struct Create {
    /// The pool
    pool: String,
    /// The booking's name
    name: String,
    /// The team that it is for
    #[arg(long)]
    team: String,
    /// How many GPUs, beyond the team's guarantee
    #[arg(long)]
    gpus: String,
    /// When it begins (RFC 3339)
    #[arg(long)]
    from: String,
    /// When it ends (RFC 3339)
    #[arg(long)]
    to: String,
    #[command(flatten)]
    why: Why,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Create {
    async fn run(self) -> Result<(), Failure> {
        let body = json!({
            "name": self.name,
            "team": self.team,
            "gpus": gpus(&self.gpus)?,
            "from": self.from,
            "to": self.to,
        });
        let made = Client::found()?
            .post_as(&path(&self.pool), &self.why.query(), &body, None)
            .await?;
        if self.json {
            return table::print_json(&made);
        }
        print(&[made])
    }
}

/// Change a booking; what is not said stays.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot bookings change h100 demo --gpus 2")]
struct Change {
    /// The pool
    pool: String,
    /// The booking's name
    name: String,
    /// The team that it is for
    #[arg(long)]
    team: Option<String>,
    /// How many GPUs, beyond the team's guarantee
    #[arg(long)]
    gpus: Option<String>,
    /// When it begins (RFC 3339)
    #[arg(long)]
    from: Option<String>,
    /// When it ends (RFC 3339)
    #[arg(long)]
    to: Option<String>,
    #[command(flatten)]
    why: Why,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Change {
    async fn run(self) -> Result<(), Failure> {
        let mut body = Map::new();
        for (key, value) in [("team", &self.team), ("from", &self.from), ("to", &self.to)] {
            if let Some(value) = value {
                body.insert(key.to_owned(), json!(value));
            }
        }
        if let Some(amount) = &self.gpus {
            body.insert("gpus".to_owned(), gpus(amount)?);
        }
        let client = Client::found()?;
        let at = path(&self.pool);
        let version = find(&client, &at, "booking", &self.name).await?;
        let changed = client
            .patch(
                &format!("{at}/{}", part(&self.name)),
                &self.why.query(),
                &Value::Object(body),
                version,
            )
            .await?;
        if self.json {
            return table::print_json(&changed);
        }
        print(&[changed])
    }
}

/// Remove a booking.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot bookings delete h100 demo --reason 'no demo this year'")]
struct Delete {
    /// The pool
    pool: String,
    /// The booking's name
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
        let version = find(&client, &at, "booking", &self.name).await?;
        let one = format!("{at}/{}", part(&self.name));
        client.delete(&one, &self.why.query(), version).await?;
        print_removed(&self.name, self.json)
    }
}
