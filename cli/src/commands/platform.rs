//! `allot teams`, `quota` and `usage`.

use clap::Args;
use domain::MilliGpu;
use serde_json::{Value, json};

use super::said;
use crate::client::{Client, part};
use crate::failure::Failure;
use crate::table::{self, Column, text};

/// Most rows of a list that is not paged for people.
const ROWS_MAX: usize = 10_000;

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

/// Show a team's quotas, and what it holds, borrows and lends now.
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
        let team = super::team(&client, self.team, "allot quota NAME").await?;
        let path = format!("/teams/{}", part(&team));
        let quotas = client.get(&format!("{path}/quotas"), &[]).await?;
        let statement = client.get(&format!("{path}/quota-statement"), &[]).await?;
        let lines: Vec<&Value> = statement["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|line| line["team"] == team.as_str())
            .collect();
        if self.json {
            return table::print_json(&json!({ "items": quotas["items"], "statement": lines }));
        }
        let rows = quota_rows(&quotas, &lines);
        let columns = [
            ("POOL", "pool"),
            ("GUARANTEED", "statement.guaranteed"),
            ("WINDOW", "statement.window"),
            ("LIMIT", "statement.limit"),
            ("HELD", "statement.held"),
            ("BORROWED", "statement.borrowed"),
            ("LENT", "statement.lent"),
            ("CAN TAKE BACK", "statement.reclaimable"),
            ("LEND LIMIT", "quota.lend_limit"),
            ("WEIGHT", "quota.weight"),
            ("PER USER", "quota.max_per_user"),
        ];
        table::print(&rows, &columns, "no quotas: the team may use no pool")?;
        for line in &lines {
            for said in notes(line) {
                table::print_line(&said)?;
            }
        }
        Ok(())
    }
}

/// A row for each pool in which the team has a part: its quota, where it has one of its own, and
/// what it has now.
fn quota_rows(quotas: &Value, lines: &[&Value]) -> Vec<Value> {
    let quotas = quotas["items"].as_array().cloned().unwrap_or_default();
    let row = |line: &&Value| {
        let own = quotas.iter().find(|quota| quota["pool"] == line["pool"]);
        json!({ "pool": line["pool"], "statement": line, "quota": own })
    };
    lines.iter().map(row).collect()
}

/// What figures alone do not tell: a guarantee that is another one now, and a shortage.
fn notes(line: &Value) -> Vec<String> {
    let (pool, said) = (text(&line["pool"]), |key: &str| text(&line[key]));
    let mut notes = Vec::new();
    if line["promised"] != line["guaranteed"] {
        notes.push(format!(
            "{pool}: {} guaranteed now, {} given",
            said("guaranteed"),
            said("promised")
        ));
    }
    if table::amount(&line["over_limit"]).is_some_and(|over| over > MilliGpu::ZERO) {
        notes.push(format!(
            "{pool}: {} held above the limit: it stays, and nothing more starts",
            table::gpus(&line["over_limit"])
        ));
    }
    if !line["starved_since"].is_null() {
        notes.push(format!(
            "{pool}: less than guaranteed while jobs wait, since {}",
            table::shown(line, "starved_since")
        ));
    }
    notes
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
    #[arg(long, value_parser = said::time)]
    from: Option<String>,
    /// Up to this time (RFC 3339)
    #[arg(long, value_parser = said::time)]
    to: Option<String>,
    /// team, user, job, pool, mode, day or hour; several by commas
    #[arg(long, value_parser = said::groups)]
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
pub(super) const GROUPS: [(&str, Column); 7] = [
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
    fn a_quota_is_told_with_what_is_held_and_a_shortage_in_words() {
        let quotas = json!({"items": [{"pool": "a", "weight": 2}]});
        let line = |pool: &str| json!({"pool": pool, "held": 3, "promised": 4, "guaranteed": 4, "starved_since": null});
        let (own, inherited) = (line("a"), line("b"));
        let rows = quota_rows(&quotas, &[&own, &inherited]);
        assert_eq!(rows[0]["quota"]["weight"], 2);
        assert_eq!(rows[1]["quota"], Value::Null);
        assert_eq!(rows[1]["statement"]["held"], 3);
        assert!(notes(&own).is_empty());
        let mut short = own;
        short["guaranteed"] = json!(3.5);
        short["starved_since"] = json!("2026-01-05T00:00:00Z");
        assert_eq!(
            notes(&short),
            [
                "a: 3.5 guaranteed now, 4 given",
                "a: less than guaranteed while jobs wait, since 2026-01-05T00:00:00Z"
            ]
        );
    }

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
