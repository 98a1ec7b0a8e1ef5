//! The subcommands that speak to a server, one file per thing that people do.

pub mod attach;
pub mod billing;
pub mod bookings;
pub mod budgets;
pub mod change;
pub mod classes;
pub mod dry_run;
pub mod exec;
pub mod explain;
pub mod forward;
pub mod jobs;
mod listed;
pub mod login;
pub mod logs;
pub mod nodes;
pub mod notices;
pub mod platform;
pub mod policy;
pub mod pools;
pub mod prices;
pub mod queue;
pub mod quotas;
pub mod remedies;
pub mod results;
mod said;
pub mod spec;
pub mod submit;
pub mod telemetry;
mod terminal;
mod tried;
mod versioned;
pub mod windows;

use domain::MilliGpu;
use serde_json::Value;

use crate::client::Client;
use crate::failure::Failure;

/// The team that a command is about: as said, which `how` tells how to do, else the only one that the
/// asker belongs to.
pub async fn team(client: &Client, said: Option<String>, how: &str) -> Result<String, Failure> {
    if let Some(team) = said {
        return Ok(team);
    }
    let asker = client.get("/auth/whoami", &[]).await?;
    let teams: Vec<&str> = asker["teams"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|t| t["team"].as_str())
        .collect();
    match teams.as_slice() {
        [only] => Ok((*only).to_owned()),
        [] => Err(Failure::Words(format!(
            "say which team with {how}; you belong to none"
        ))),
        several => Err(Failure::Words(format!(
            "say which team with {how}: {}",
            several.join(", ")
        ))),
    }
}

/// An amount of at most three decimals, as JSON has it.
fn amount(text: &str) -> Result<Value, Failure> {
    let amount: MilliGpu = text
        .parse()
        .map_err(|error: domain::FieldError| Failure::Words(error.to_string()))?;
    serde_json::to_value(amount).map_err(|error| Failure::Words(error.to_string()))
}
