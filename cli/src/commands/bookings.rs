//! `allot bookings`: what is booked of a pool ahead.

use clap::{Args, Subcommand};
use domain::words::{IS, form_of};
use serde_json::{Map, Value, json};

use super::amount;
use super::tried::{self, Tried};
use super::versioned::{DeleteOfPool, Kind, Shape, Try, Why};
use crate::failure::Failure;
use crate::table;

const NOUN: &str = "booking";
/// What is said of a booking.
const KEYS: [&str; 4] = ["team", "gpus", "from", "to"];

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
    /// Remove a booking
    #[command(
        after_help = "Example:\n  allot bookings delete h100 demo --reason 'no demo this year'"
    )]
    Delete(DeleteOfPool),
}

impl Bookings {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            BookingsCommand::List(list) => list.run().await,
            BookingsCommand::Create(create) => create.run().await,
            BookingsCommand::Change(change) => change.run().await,
            BookingsCommand::Delete(delete) => delete.run(NOUN).await,
        }
    }
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
    #[command(flatten)]
    shape: Shape,
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let said = [("from", self.from), ("to", self.to)];
        let query: Vec<_> = said
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        let rows = Kind::of_pool(&self.pool, NOUN)?.rows(&query).await?;
        self.shape.print_all(&rows, print)
    }
}

fn print_one(booking: &Value) -> Result<(), Failure> {
    print(std::slice::from_ref(booking))
}

fn print(rows: &[Value]) -> Result<(), Failure> {
    let columns = [
        ("NAME", "name"),
        ("TEAM", "team"),
        ("GPUS", "gpus"),
        ("FROM", "from"),
        ("TO", "to"),
        ("STATE", "state"),
        ("IN CONFLICT SINCE", "conflict_since"),
    ];
    table::print(rows, &columns, "nothing is booked")?;
    for booking in rows {
        for conflict in booking["conflicts"].as_array().into_iter().flatten() {
            let said = |key: &str| table::text(&conflict[key]);
            table::print_line(&format!(
                "{}: {} more {} promised than {} has, from {} to {}: {} guaranteed and {} booked of {}",
                table::text(&booking["name"]),
                table::gpus(&conflict["excess"]),
                table::amount(&conflict["excess"]).map_or("are", |gpus| form_of(gpus, IS)),
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

/// Book GPUs of a pool for a team and a time, beyond its guarantee.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  allot bookings create h100 demo --team vision --gpus 4 --from 2026-12-01T09:00:00Z --to 2026-12-01T17:00:00Z --dry-run"
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
    tried: Try,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Create {
    async fn run(self) -> Result<(), Failure> {
        let mut body = json!({
            "team": self.team,
            "gpus": amount(&self.gpus)?,
            "from": self.from,
            "to": self.to,
        });
        let kind = Kind::of_pool(&self.pool, NOUN)?;
        if self.tried.dry_run {
            let tried = Tried {
                kind: "bookings",
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

/// Tells what would come of a booking.
async fn try_one(kind: &Kind, shape: Shape, tried: &Tried<'_>) -> Result<(), Failure> {
    let of = Map::from_iter([(NOUN.to_owned(), json!(tried.name))]);
    let changes = tried::changes(&of, tried.present, tried.said);
    tried::run(kind.client(), shape, &tried.draft(&KEYS), &changes).await
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
    tried: Try,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Change {
    async fn run(self) -> Result<(), Failure> {
        let mut body = Map::new();
        for (key, value) in [("team", &self.team), ("from", &self.from), ("to", &self.to)] {
            if let Some(value) = value {
                body.insert(key.to_owned(), json!(value));
            }
        }
        if let Some(gpus) = &self.gpus {
            body.insert("gpus".to_owned(), amount(gpus)?);
        }
        let kind = Kind::of_pool(&self.pool, NOUN)?;
        let body = Value::Object(body);
        let present = kind.find(&self.name).await?;
        if self.tried.dry_run {
            let tried = Tried {
                kind: "bookings",
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
