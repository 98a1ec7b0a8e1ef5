//! `allot nodes`, `teams`, `quota` and `usage`.

use clap::Args;
use serde_json::{Value, json};

use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table::{self, Column};

/// Most rows of a list that is not paged for people.
const ROWS_MAX: usize = 10_000;

/// List nodes.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot nodes")]
pub struct Nodes {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Nodes {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let nodes = Client::found()?.list("/nodes", &[], ROWS_MAX).await?;
        if self.json {
            return table::print_json(&json!({ "items": nodes }));
        }
        let rows: Vec<Value> = nodes.into_iter().map(count_devices).collect();
        let columns = [
            ("NAME", "name"),
            ("POOL", "pool"),
            ("INTENT", "intent"),
            ("REACHABILITY", "reachability"),
            ("MODEL", "model"),
            ("DEVICES", "count"),
            ("FREE", "free"),
            ("OUT", "out"),
        ];
        table::print(
            &rows,
            &columns,
            "no nodes; enrol one with `allotment-agent enrol`",
        )
    }
}

fn count_devices(mut node: Value) -> Value {
    let devices = node["devices"].as_array().cloned().unwrap_or_default();
    let out = devices.iter().filter(|d| d["health"] != "healthy").count();
    let free = devices
        .iter()
        .filter(|d| d["health"] == "healthy" && d["in_use"].as_i64() == Some(0))
        .count();
    node["model"] = devices.first().map_or(Value::Null, |d| d["model"].clone());
    node["count"] = json!(devices.len());
    node["free"] = json!(free);
    node["out"] = json!(out);
    node
}

/// List teams.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot teams")]
pub struct Teams {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Teams {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let teams = Client::found()?.list("/teams", &[], ROWS_MAX).await?;
        if self.json {
            return table::print_json(&json!({ "items": teams }));
        }
        table::print(
            &teams,
            &[
                ("NAME", "name"),
                ("PARENT", "parent"),
                ("CREATED", "created_at"),
            ],
            "no teams",
        )
    }
}

/// Show a team's quotas.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot quota vision")]
pub struct Quota {
    /// The team [default: yours]
    team: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Quota {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        let team = super::team(&client, self.team).await?;
        let answer = client
            .get(&format!("/teams/{}/quotas", part(&team)), &[])
            .await?;
        if self.json {
            return table::print_json(&answer);
        }
        let rows = answer["items"].as_array().cloned().unwrap_or_default();
        let columns = [
            ("POOL", "pool"),
            ("GUARANTEED", "guaranteed"),
            ("LIMIT", "limit"),
            ("LEND LIMIT", "lend_limit"),
            ("WEIGHT", "weight"),
            ("PER USER", "max_per_user"),
        ];
        table::print(&rows, &columns, "no quotas: the team may use no pool")
    }
}

/// Show what was used, and what it cost.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  allot usage vision --from 2026-11-01T00:00:00Z --to 2026-12-01T00:00:00Z --group-by user"
)]
pub struct Usage {
    /// The team with its children [default: all that you may see]
    team: Option<String>,
    /// From this time (RFC 3339)
    #[arg(long)]
    from: Option<String>,
    /// Up to this time (RFC 3339)
    #[arg(long)]
    to: Option<String>,
    /// team, user, job, pool, mode, day or hour; several by commas
    #[arg(long)]
    group_by: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Usage {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        let path = match &self.team {
            Some(team) => format!("/teams/{}/usage", part(team)),
            None => "/usage".into(),
        };
        let said = [
            ("from", &self.from),
            ("to", &self.to),
            ("group_by", &self.group_by),
        ];
        let query: Vec<_> = said
            .iter()
            .filter_map(|(key, value)| Some((*key, value.as_ref()?.clone())))
            .collect();
        let answer = Client::found()?.get(&path, &query).await?;
        if self.json {
            return table::print_json(&answer);
        }
        let mut rows = answer["items"].as_array().cloned().unwrap_or_default();
        // Without groups the only item is the total itself.
        rows.retain(|row| {
            row["group"]
                .as_object()
                .is_some_and(|group| !group.is_empty())
        });
        let mut columns = groups(self.group_by.as_deref().unwrap_or_default());
        if !answer["total"].is_null() {
            rows.push(total(&answer["total"], &columns));
        }
        if columns.is_empty() {
            columns.push(("GROUP", "group"));
        }
        columns.extend([("GPU-SECONDS", "gpu_seconds"), ("COST", "cost")]);
        table::print(&rows, &columns, "nothing was used")
    }
}

/// What usage is grouped by, with the column of each.
const GROUPS: [(&str, Column); 7] = [
    ("team", ("TEAM", "group.team")),
    ("user", ("USER", "group.user")),
    ("job", ("JOB", "group.job")),
    ("pool", ("POOL", "group.pool")),
    ("mode", ("MODE", "group.mode")),
    ("day", ("DAY", "group.day")),
    ("hour", ("HOUR", "group.hour")),
];

/// A column for each group, in the order in which they were asked for.
fn groups(asked: &str) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for word in asked.split(',') {
        let column = GROUPS.iter().find(|(group, _)| *group == word);
        columns.extend(column.map(|(_, column)| *column));
    }
    columns.dedup();
    columns
}

/// The last row: `total` in its first column, and nothing in those of the other groups.
fn total(sum: &Value, columns: &[Column]) -> Value {
    let mut row = sum.clone();
    row["group"] = match columns {
        [] => json!("total"),
        columns => columns
            .iter()
            .zip(std::iter::once("total").chain(std::iter::repeat("")))
            .map(|((_, path), said)| (path.trim_start_matches("group.").to_owned(), json!(said)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    };
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_stand_in_the_order_in_which_they_were_asked_for() {
        let columns = groups("pool,mode");
        assert_eq!(columns, [("POOL", "group.pool"), ("MODE", "group.mode")]);
        assert_eq!(groups("mode,pool")[0], columns[1]);
        let row = total(&json!({"gpu_seconds": 5}), &columns);
        assert_eq!(row["group"], json!({"pool": "total", "mode": ""}));
        assert_eq!(row["gpu_seconds"], 5);
    }
}
