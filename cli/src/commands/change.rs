//! `allot change`: what may still be changed of a job that waits.

use clap::Args;
use serde_json::{Map, Value, json};

use super::spec::seconds;
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table::{self, text};

/// Change a job while it waits: its class, its time limit, whether it may be preempted.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  allot change 0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f --time-limit 2h"
)]
pub struct Change {
    /// The job's id
    id: String,
    /// Priority class
    #[arg(long)]
    class: Option<String>,
    /// Longest run, such as 90s, 30m, 12h, 2d; none for no limit
    #[arg(long, value_name = "DURATION")]
    time_limit: Option<String>,
    /// Whether it may be preempted: true, false, or class for as its class says
    #[arg(long, value_name = "BOOL", value_parser = ["true", "false", "class"])]
    preemptible: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Change {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let patch = self.patch()?;
        let client = Client::found()?;
        let path = format!("/jobs/{}", part(&self.id));
        let version = client.get(&path, &[]).await?["version"].as_i64();
        let version = version.ok_or_else(|| Failure::Refused("the job has no version".into()))?;
        let job = client
            .patch(&path, &[], &Value::Object(patch), version)
            .await?;
        if self.json {
            return table::print_json(&job);
        }
        table::print_line(&format!("{} {}", text(&job["id"]), text(&job["state"])))
    }

    fn patch(&self) -> Result<Map<String, Value>, Failure> {
        let mut patch = Map::new();
        if let Some(class) = &self.class {
            patch.insert("class".into(), json!(class));
        }
        match self.time_limit.as_deref() {
            Some("none") => _ = patch.insert("time_limit_seconds".into(), Value::Null),
            Some(limit) => {
                patch.insert(
                    "time_limit_seconds".into(),
                    json!(seconds("--time-limit", limit)?),
                );
            }
            None => {}
        }
        if let Some(preemptible) = &self.preemptible {
            // What is neither is null: as the class says.
            let value = preemptible.parse::<bool>().ok();
            patch.insert("preemptible".into(), json!(value));
        }
        if patch.is_empty() {
            return Err(Failure::Words(
                "say what to change: --class, --time-limit or --preemptible".into(),
            ));
        }
        Ok(patch)
    }
}
