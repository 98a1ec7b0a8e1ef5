//! `allot pools`: pools and how their devices are shared.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::tried::{self, flatten};
use super::versioned::{Kind, Shape, Why};
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table::{self, text};

const NOUN: &str = "pool";

/// See and change pools and their policies.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot pools show h100")]
pub struct Pools {
    #[command(subcommand)]
    command: PoolsCommand,
}

#[derive(Debug, Subcommand)]
enum PoolsCommand {
    List(List),
    Show(Show),
    Create(Create),
    Change(Change),
}

impl Pools {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            PoolsCommand::List(list) => list.run().await,
            PoolsCommand::Show(show) => show.run().await,
            PoolsCommand::Create(create) => create.run().await,
            PoolsCommand::Change(change) => change.run().await,
        }
    }
}

/// List the pools.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot pools list")]
struct List {
    #[command(flatten)]
    shape: Shape,
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let rows = Kind::at("/pools", NOUN)?.rows(&[]).await?;
        self.shape.print_all(&rows, |rows| {
            let columns = [
                ("NAME", "name"),
                ("STATE", "state"),
                ("SHARING", "sharing"),
                ("STRATEGY", "strategy"),
                ("BACKFILL", "backfill"),
                ("RECLAIM", "preemption.reclaim"),
                ("VERSION", "version"),
            ];
            table::print(
                rows,
                &columns,
                "no pools; make one with `allot pools create`",
            )
        })
    }
}

/// Show a pool with each key of its policy.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot pools show h100")]
struct Show {
    /// The pool
    pool: String,
    #[command(flatten)]
    shape: Shape,
}

impl Show {
    async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let pool = read(&client, &self.pool).await?;
        self.shape.print(&pool, print)
    }
}

async fn read(client: &Client, pool: &str) -> Result<Value, Failure> {
    client.get(&format!("/pools/{}", part(pool)), &[]).await
}

fn print(pool: &Value) -> Result<(), Failure> {
    let mut values = Vec::new();
    flatten(pool, "", &mut values);
    let longest = values.iter().map(|(key, _)| key.chars().count()).max();
    let width = longest.unwrap_or_default();
    for (key, value) in values {
        table::print_line(&format!("{key:<width$} {}", text(value)))?;
    }
    Ok(())
}

/// Make a pool; keys of its policy that are not said have their defaults.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot pools create h200 sharing='[exclusive, mig]'")]
struct Create {
    /// The pool
    pool: String,
    /// What its policy has otherwise than by default
    #[arg(value_name = "KEY=VALUE")]
    keys: Vec<String>,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Create {
    async fn run(self) -> Result<(), Failure> {
        let mut body = keys(&self.keys)?;
        body["name"] = json!(self.pool);
        let made = Kind::at("/pools", NOUN)?.create(&self.why, &body).await?;
        self.shape.print(&made, print)
    }
}

/// Change a pool's policy; keys that are not said stay.
#[derive(Debug, Args)]
#[command(
    after_help = "The keys are those that `allot pools show` lists; a list is written [a, b], what is to have no value null.\n\nExamples:\n  allot pools change h100 backfill=conservative preemption.reclaim=never --dry-run\n  allot pools change h100 state=closed --reason 'new drivers'"
)]
struct Change {
    /// The pool
    pool: String,
    /// What its policy is to have
    #[arg(value_name = "KEY=VALUE", required = true)]
    keys: Vec<String>,
    /// Only tell what would come of it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Change {
    async fn run(self) -> Result<(), Failure> {
        let keys = keys(&self.keys)?;
        let kind = Kind::at("/pools", NOUN)?;
        let present = read(kind.client(), &self.pool).await?;
        let of = Map::from_iter([("pool".to_owned(), json!(self.pool))]);
        let changes = tried::changes(&of, &present, &keys);
        if self.dry_run {
            let draft = json!({ "pools": [{ "pool": self.pool, "policy": keys }] });
            return tried::run(kind.client(), self.shape, &draft, &changes).await;
        }
        let changed = kind.change_row(&present, &self.why, &keys).await?;
        self.shape
            .print(&changed, |_| tried::print_changes(&changes))
    }
}

/// The keys of a policy, one in another as their places say.
fn keys(said: &[String]) -> Result<Value, Failure> {
    let mut keys = Map::new();
    for said in said {
        let (place, value) = said.split_once('=').ok_or_else(|| wrong(said))?;
        let value: Value = serde_saphyr::from_str(value).map_err(|_| wrong(said))?;
        let mut parts: Vec<&str> = place.split('.').collect();
        let last = parts.pop().filter(|key| !key.is_empty());
        let last = last.ok_or_else(|| wrong(said))?;
        let mut into = &mut keys;
        for part in parts {
            let below = into.entry(part).or_insert_with(|| json!({}));
            into = below.as_object_mut().ok_or_else(|| wrong(said))?;
        }
        into.insert(last.to_owned(), value);
    }
    Ok(Value::Object(keys))
}

fn wrong(said: &str) -> Failure {
    Failure::Words(format!(
        "{} sets no key; write KEY=VALUE, such as preemption.reclaim=never",
        domain::error::quote(said)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_said_by_their_places_and_values_as_in_a_file() {
        let said = [
            "sharing=[exclusive, mps]",
            "preemption.reclaim=never",
            "preemption.max_per_day=null",
            "ageing_per_hour=1.5",
            "whole_node_guarantees=true",
        ];
        assert_eq!(
            keys(&said.map(str::to_owned)).ok(),
            Some(json!({
                "sharing": ["exclusive", "mps"],
                "preemption": {"reclaim": "never", "max_per_day": null},
                "ageing_per_hour": 1.5,
                "whole_node_guarantees": true,
            }))
        );
        for wrong in ["backfill", "=1", "preemption.=1", "sharing=[exclusive"] {
            let refused = keys(&[wrong.to_owned()]);
            assert!(matches!(refused, Err(Failure::Words(_))), "{refused:?}");
        }
        let both = [
            "preemption=1".to_owned(),
            "preemption.reclaim=any".to_owned(),
        ];
        assert!(keys(&both).is_err());
    }
}
