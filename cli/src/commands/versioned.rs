//! What commands share that change something that has a version: they send the version that they read.

use clap::Args;
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::table;

/// Most rows that one is looked for among.
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

/// The version that a named row of a list has now.
pub async fn find(client: &Client, list: &str, noun: &str, name: &str) -> Result<i64, Failure> {
    let rows = client.list(list, &[], ROWS_MAX).await?;
    let row = rows.iter().find(|row| row["name"] == name);
    row.and_then(|row| row["version"].as_i64()).ok_or_else(|| {
        Failure::Refused(format!("no {noun} {} is here", domain::error::quote(name)))
    })
}

/// Says that something is gone.
pub fn print_removed(name: &str, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return table::print_json(&json!({ "removed": name }));
    }
    table::print_line(&format!("{name} is removed"))
}
