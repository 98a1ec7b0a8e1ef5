//! `allot queue`: what waits in a pool, in the order in which it is looked at.

use clap::Args;
use domain::words::counted;
use serde_json::{Value, json};

use super::explain::needed;
use super::listed;
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table::{self, text};
use crate::words;

/// Rows asked for at a time.
const PAGE_ROWS: usize = 200;

/// List what waits in a pool, the next one first
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot queue --pool h100")]
pub struct Queue {
    /// Only of this pool; else of each in turn
    #[arg(long)]
    pool: Option<String>,
    /// At most so many jobs of each pool
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Queue {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let pools = match &self.pool {
            Some(pool) => vec![pool.clone()],
            None => {
                let pools = client.list("/pools", &[], PAGE_ROWS).await?;
                pools.iter().map(|pool| text(&pool["name"])).collect()
            }
        };
        let mut queues = Vec::new();
        for pool in pools {
            queues.push((pool.clone(), self.read(&client, &pool).await?));
        }
        if self.json {
            let queues = queues.into_iter().map(|(pool, mut queue)| {
                queue["pool"] = json!(pool);
                queue
            });
            return table::print_json(&json!({ "items": queues.collect::<Vec<_>>() }));
        }
        for (pool, queue) in &queues {
            print(pool, queue)?;
            listed::note(self.limit, left_out(queue), false);
        }
        Ok(())
    }

    /// A queue up to the limit, its pages put together.
    async fn read(&self, client: &Client, pool: &str) -> Result<Value, Failure> {
        let path = format!("/pools/{}/queue", part(pool));
        let most = self.limit as usize;
        let mut items: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut query = vec![("limit", PAGE_ROWS.min(most - items.len()).to_string())];
            query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let mut page = client.get(&path, &query).await?;
            items.extend(page["items"].as_array().cloned().unwrap_or_default());
            match page["next_cursor"].as_str() {
                Some(next) if items.len() < most => cursor = Some(next.to_owned()),
                _ => {
                    page["items"] = Value::Array(items);
                    return Ok(page);
                }
            }
        }
    }
}

fn print(pool: &str, queue: &Value) -> Result<(), Failure> {
    let all = &queue["all"];
    table::print_line(&format!(
        "pool {pool}: {} waiting for {}",
        text(&all["jobs"]),
        table::gpus(&all["gpus"])
    ))?;
    if let Some(said) = words::accuracy(&queue["accuracy"]) {
        table::print_line(&said)?;
    }
    let mut rows = Vec::new();
    for item in queue["items"].as_array().into_iter().flatten() {
        rows.extend(others(&item["others_before"]));
        let mut row = item.clone();
        row["waiting"]["code"] = match item["beyond_quota"].is_null() {
            true => words::short(&item["waiting"]),
            false => words::cause(&json!("beyond_quota")),
        }
        .into();
        row["gpus"] = needed(&item["waiting"]);
        rows.push(row);
    }
    rows.extend(others(&queue["others_after"]));
    let columns = [
        ("PLACE", "rank"),
        ("ID", "job"),
        ("NAME", "name"),
        ("TEAM", "team"),
        ("USER", "user"),
        ("GPUS", "gpus"),
        ("WAITS FOR", "waiting.code"),
        ("EXPECTED", "waiting.expected_start"),
    ];
    if !rows.is_empty() {
        table::print(&rows, &columns, "")?;
    }
    table::print_line("")
}

/// How many jobs wait behind those that are listed or told in sum.
fn left_out(queue: &Value) -> u64 {
    if queue["next_cursor"].is_null() {
        return 0;
    }
    let items = queue["items"].as_array().into_iter().flatten();
    let told = items.map(|item| 1 + item["others_before"]["jobs"].as_u64().unwrap_or(0));
    let all = queue["all"]["jobs"].as_u64().unwrap_or(0);
    all.saturating_sub(told.sum())
}

/// The row of jobs that are told in sum; none where there are none.
fn others(others: &Value) -> Option<Value> {
    let jobs = others["jobs"].as_u64().filter(|jobs| *jobs > 0)?;
    Some(json!({
        "job": format!("{} of other teams", counted(jobs, "job")),
        "gpus": others["gpus"],
    }))
}
