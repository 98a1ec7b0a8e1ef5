//! `allot quotas`: what teams are promised, and may at most hold, in pools.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::amount;
use super::spec::read_yaml;
use super::tried;
use super::versioned::{Kind, Shape, Why};
use crate::client::{Client, Presumed, part};
use crate::failure::Failure;
use crate::table;

const NOUN: &str = "quota";
/// What a quota says.
const KEYS: [&str; 5] = [
    "guaranteed",
    "limit",
    "lend_limit",
    "weight",
    "max_per_user",
];

/// See and change what teams are promised in pools.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot quotas set vision h100 --limit 16 --dry-run")]
pub struct Quotas {
    #[command(subcommand)]
    command: QuotasCommand,
}

#[derive(Debug, Subcommand)]
enum QuotasCommand {
    List(List),
    Set(Set),
    Apply(Apply),
}

impl Quotas {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            QuotasCommand::List(list) => list.run().await,
            QuotasCommand::Set(set) => set.run().await,
            QuotasCommand::Apply(apply) => apply.run().await,
        }
    }
}

/// List quotas: of all teams that you may see, of one team, or of one pool.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  allot quotas list --pool h100\n  allot quotas list --team vision"
)]
struct List {
    /// Only of this team
    #[arg(long)]
    team: Option<String>,
    /// Only of this pool
    #[arg(long)]
    pool: Option<String>,
    #[command(flatten)]
    shape: Shape,
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        let kind = match &self.team {
            Some(team) => of_team(team)?,
            None => Kind::at("/quotas", NOUN)?,
        };
        let mut rows = kind.rows(&[]).await?;
        if let Some(pool) = &self.pool {
            rows.retain(|row| row["pool"] == pool.as_str());
        }
        self.shape.print_all(&rows, print)
    }
}

fn of_team(team: &str) -> Result<Kind, Failure> {
    Kind::at(format!("/teams/{}/quotas", part(team)), NOUN)
}

fn print(rows: &[Value]) -> Result<(), Failure> {
    let columns = [
        ("TEAM", "team"),
        ("POOL", "pool"),
        ("GUARANTEED", "guaranteed"),
        ("LIMIT", "limit"),
        ("LEND LIMIT", "lend_limit"),
        ("WEIGHT", "weight"),
        ("PER USER", "max_per_user"),
    ];
    table::print(rows, &columns, "no quotas: nobody may use a pool")
}

/// Set a team's quota in a pool; what is not said stays.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  allot quotas set vision h100 --guaranteed 8 --limit 16 --dry-run\n  allot quotas set vision h100 --limit none --reason 'nights are free'"
)]
struct Set {
    /// The team
    team: String,
    /// The pool
    pool: String,
    #[command(flatten)]
    amounts: Amounts,
    /// Only tell what would come of it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

/// What is to be changed of a quota.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Amounts {
    /// GPUs that the team can have at any time
    #[arg(long, value_name = "GPUS")]
    guaranteed: Option<String>,
    /// The most that it may hold; none for no limit
    #[arg(long, value_name = "GPUS")]
    limit: Option<String>,
    /// What others may use of its idle guarantee; none for all of it
    #[arg(long, value_name = "GPUS")]
    lend_limit: Option<String>,
    /// Its claim on spare capacity; 0 is none
    #[arg(long)]
    weight: Option<String>,
    /// The most that one of its users may hold; none for no limit
    #[arg(long, value_name = "GPUS")]
    max_per_user: Option<String>,
}

impl Amounts {
    /// The keys that are said.
    fn keys(&self) -> Result<Map<String, Value>, Failure> {
        let said = [
            ("guaranteed", &self.guaranteed),
            ("limit", &self.limit),
            ("lend_limit", &self.lend_limit),
            ("weight", &self.weight),
            ("max_per_user", &self.max_per_user),
        ];
        let mut keys = Map::new();
        for (key, said) in said {
            let value = match said.as_deref() {
                None => continue,
                Some("none") => Value::Null,
                Some(text) => amount(text)?,
            };
            keys.insert(key.to_owned(), value);
        }
        Ok(keys)
    }
}

impl Set {
    async fn run(self) -> Result<(), Failure> {
        let said = self.amounts.keys()?;
        let kind = of_team(&self.team)?;
        let rows = kind.rows(&[]).await?;
        let present = rows.iter().find(|row| row["pool"] == self.pool.as_str());
        let quota = with(present, said);
        let row = json!({ "team": self.team, "pool": self.pool, "quota": quota });
        let changes = changes(&rows, &row);
        if self.dry_run {
            let draft = json!({ "quotas": [row] });
            return tried::run(kind.client(), self.shape, &draft, &changes).await;
        }
        let version = present.and_then(|row| row["version"].as_i64());
        let presumed = version.map_or(Presumed::Nothing, Presumed::Version);
        let (team, pool) = (part(&self.team), part(&self.pool));
        let path = format!("/teams/{team}/quotas/{pool}");
        let set = kind
            .client()
            .put(&path, &self.why.query(), &quota, presumed)
            .await?;
        self.shape.print(&set, |set| {
            tried::print_changes(&changes)?;
            tried::print_warnings(set)
        })
    }
}

/// A quota as it is, changed by what is said.
fn with(present: Option<&Value>, said: Map<String, Value>) -> Value {
    let mut quota = Map::new();
    if let Some(present) = present {
        quota.extend(KEYS.map(|key| (key.to_owned(), present[key].clone())));
    }
    quota.extend(said);
    Value::Object(quota)
}

/// Set many quotas at once, all of them or none.
#[derive(Debug, Args)]
#[command(
    after_help = "FILE has the key `quotas`, as `allot policy diff` takes it. A quota is said whole: what is left out of it has\nits default.\n\n  quotas:\n    - {team: vision, pool: h100, quota: {guaranteed: 6, limit: 12}}\n    - {team: speech, pool: h100, quota: {guaranteed: 2}}\n\nExamples:\n  allot quotas apply quarter.yaml --dry-run\n  allot quotas apply quarter.yaml --reason 'the new quarter'"
)]
struct Apply {
    /// The quotas, YAML or JSON
    file: PathBuf,
    /// Only tell what would come of it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    why: Why,
    #[command(flatten)]
    shape: Shape,
}

impl Apply {
    async fn run(self) -> Result<(), Failure> {
        let draft = self.read()?;
        let wanted = draft["quotas"].as_array().cloned().unwrap_or_default();
        let client = Client::found()?;
        let present = Kind::at("/quotas", NOUN)?.rows(&[]).await?;
        let changes: Vec<Value> = wanted
            .iter()
            .flat_map(|row| changes(&present, row))
            .collect();
        if self.dry_run {
            return tried::run(&client, self.shape, &draft, &changes).await;
        }
        let rows: Vec<Value> = wanted
            .into_iter()
            .map(|mut row| {
                let version =
                    find(&present, &row).map_or(Value::Null, |row| row["version"].clone());
                row["version"] = version;
                row
            })
            .collect();
        let body = json!({ "quotas": rows });
        let set = client
            .post_as("/quotas/batch", &self.why.query(), &body, None)
            .await?;
        self.shape.print(&set, |set| {
            tried::print_changes(&changes)?;
            tried::print_warnings(set)
        })
    }

    /// The file: quotas and nothing else.
    fn read(&self) -> Result<Value, Failure> {
        let wrong = |what: &str| Failure::Words(format!("{}: {what}", self.file.display()));
        let draft = read_yaml(&self.file)?;
        let keys = draft
            .as_object()
            .ok_or_else(|| wrong("write the key quotas, with a list of them"))?;
        if let Some(key) = keys.keys().find(|key| *key != "quotas") {
            return Err(wrong(&format!(
                "{key}: only quotas are set by this command"
            )));
        }
        let rows = keys.get("quotas").and_then(Value::as_array);
        let rows = rows.ok_or_else(|| wrong("quotas: this is no list; begin each with -"))?;
        let other = rows.iter().position(|row| !row["quota"].is_object());
        match other {
            Some(at) => Err(wrong(&format!(
                "quotas[{at}]: write team, pool and quota, such as {{team: vision, pool: h100, quota: {{guaranteed: 6}}}}"
            ))),
            None => Ok(draft),
        }
    }
}

/// The quota that is there of the same team and pool.
fn find<'a>(present: &'a [Value], row: &Value) -> Option<&'a Value> {
    let same = |there: &&Value| there["team"] == row["team"] && there["pool"] == row["pool"];
    present.iter().find(same)
}

/// What a row that says a quota whole changes of what is there.
fn changes(present: &[Value], row: &Value) -> Vec<Value> {
    let mut whole = Map::new();
    for key in KEYS {
        let value = match (&row["quota"][key], key) {
            (Value::Null, "weight") => json!(1),
            // Written as amounts are, so that 4.0 is no other than 4.
            (value @ Value::Number(number), _) => {
                amount(&number.to_string()).unwrap_or_else(|_| value.clone())
            }
            (value, _) => value.clone(),
        };
        whole.insert(key.to_owned(), value);
    }
    let of = ["team", "pool"].map(|key| (key.to_owned(), row[key].clone()));
    let none = Value::Null;
    let there = find(present, row).unwrap_or(&none);
    tried::changes(&Map::from_iter(of), there, &Value::Object(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_its_quota_whole_and_changes_only_what_becomes_another_amount() {
        let present = [json!({
            "team": "vision", "pool": "h100", "guaranteed": 4, "limit": 8, "lend_limit": null,
            "weight": 2, "max_per_user": null, "version": 3,
        })];
        let row =
            json!({"team": "vision", "pool": "h100", "quota": {"guaranteed": 4.0, "limit": 12}});
        let told: Vec<(Value, Value, Value)> = changes(&present, &row)
            .into_iter()
            .map(|row| (row["key"].clone(), row["from"].clone(), row["to"].clone()))
            .collect();
        let change = |key: &str, from: i32, to: i32| (json!(key), json!(from), json!(to));
        assert_eq!(told, [change("limit", 8, 12), change("weight", 2, 1)]);
    }

    #[test]
    fn what_is_not_said_of_a_quota_stays() {
        let present = json!({
            "team": "vision", "pool": "h100", "guaranteed": 4, "limit": 8, "lend_limit": null,
            "weight": 2, "max_per_user": 1.5, "version": 3,
        });
        let said = Map::from_iter([("limit".to_owned(), Value::Null)]);
        assert_eq!(
            with(Some(&present), said),
            json!({"guaranteed": 4, "limit": null, "lend_limit": null, "weight": 2, "max_per_user": 1.5})
        );
    }
}
