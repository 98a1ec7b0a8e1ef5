//! What commands share that change something that has a version: they send the version that they read.

use clap::Args;
use serde_json::{Value, json};

use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table;

/// Most rows that are listed, and among which one is looked for; more are not read by people.
const ROWS_MAX: usize = 10_000;

/// Why something is changed.
#[derive(Debug, Args)]
pub struct Why {
    /// Why, kept with the change
    #[arg(long)]
    reason: Option<String>,
}

impl Why {
    /// The reason as the server takes it.
    pub fn query(&self) -> Vec<(&'static str, String)> {
        let reason = self.reason.iter();
        reason.map(|why| ("reason", why.clone())).collect()
    }
}

/// Whether something is tried in place of done.
#[derive(Debug, Clone, Copy, Args)]
pub struct Try {
    /// Only tell what would come of it
    #[arg(long)]
    pub dry_run: bool,
}

/// How an answer is printed.
#[derive(Debug, Clone, Copy, Args)]
pub struct Shape {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Shape {
    /// Prints an answer: as it came, or as `told` tells it.
    pub fn print(
        self,
        answer: &Value,
        told: impl Fn(&Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.json {
            return table::print_json(answer);
        }
        told(answer)
    }

    /// Prints rows, by `told` where they are for people.
    pub fn print_all(
        self,
        rows: &[Value],
        told: impl Fn(&[Value]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.json {
            return table::print_json(&json!({ "items": rows }));
        }
        told(rows)
    }

    /// Says that something is gone.
    pub fn print_removed(self, name: &str) -> Result<(), Failure> {
        if self.json {
            return table::print_json(&json!({ "removed": name }));
        }
        table::print_line(&format!("{name} is removed"))
    }
}

/// The objects of one noun, where they are listed.
pub struct Kind {
    client: Client,
    path: String,
    noun: &'static str,
}

impl Kind {
    /// The bookings, windows … of a pool.
    pub fn of_pool(pool: &str, noun: &'static str) -> Result<Self, Failure> {
        Self::at(format!("/pools/{}/{noun}s", part(pool)), noun)
    }

    /// Those that are listed at a path.
    pub fn at(path: impl Into<String>, noun: &'static str) -> Result<Self, Failure> {
        Ok(Self {
            client: Client::found()?,
            path: path.into(),
            noun,
        })
    }

    /// Who asks.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Lists them.
    pub async fn rows(&self, query: &[(&str, String)]) -> Result<Vec<Value>, Failure> {
        self.client.list(&self.path, query, ROWS_MAX).await
    }

    /// The one of this name.
    pub async fn find(&self, name: &str) -> Result<Value, Failure> {
        let rows = self.rows(&[]).await?;
        let row = rows.into_iter().find(|row| row["name"] == name);
        row.ok_or_else(|| {
            let name = domain::error::quote(name);
            Failure::Refused(format!("no {} {name} is here", self.noun))
        })
    }

    /// Makes one.
    pub async fn create(&self, why: &Why, body: &Value) -> Result<Value, Failure> {
        self.client
            .post_as(&self.path, &why.query(), body, None)
            .await
    }

    /// Changes one that was read; keys that `body` has not stay.
    pub async fn change_row(&self, row: &Value, why: &Why, body: &Value) -> Result<Value, Failure> {
        let path = self.one(row);
        self.client
            .patch(&path, &why.query(), body, version(row)?)
            .await
    }

    /// Removes the one of this name.
    pub async fn delete(&self, name: &str, why: &Why) -> Result<(), Failure> {
        let row = self.find(name).await?;
        let path = self.one(&row);
        self.client
            .delete(&path, &why.query(), version(&row)?)
            .await
    }

    fn one(&self, row: &Value) -> String {
        let name = row["name"].as_str().unwrap_or_default();
        format!("{}/{}", self.path, part(name))
    }
}

/// The version that was read.
fn version(row: &Value) -> Result<i64, Failure> {
    row["version"]
        .as_i64()
        .ok_or_else(|| Failure::Refused("the answer has no version".into()))
}

/// One of a pool's bookings or windows, to be removed.
#[derive(Debug, Args)]
pub struct DeleteOfPool {
    /// The pool
    pool: String,
    #[command(flatten)]
    one: Delete,
}

impl DeleteOfPool {
    /// Removes it.
    pub async fn run(self, noun: &'static str) -> Result<(), Failure> {
        self.one.run(&Kind::of_pool(&self.pool, noun)?).await
    }
}

/// One of those that have names, to be removed.
#[derive(Debug, Args)]
pub struct Delete {
    /// Its name
    name: String,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Delete {
    /// Removes it.
    pub async fn run(self, kind: &Kind) -> Result<(), Failure> {
        kind.delete(&self.name, &self.why).await?;
        self.shape.print_removed(&self.name)
    }
}
