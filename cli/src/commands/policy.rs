//! `allot policy diff`, `allot policy history` and `allot policy restore`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::spec::read_yaml;
use super::tried;
use crate::client::{Client, Presumed};
use crate::failure::Failure;
use crate::table;
use crate::words;

/// Changes that are listed.
const CHANGES_MAX: usize = 100;
/// Changes among which one is looked for that is to be gone back to: years of them.
const LOOKED_THROUGH_MAX: usize = 10_000;

/// Try changed policies, and see what was changed.
#[derive(Debug, Args)]
pub struct Policy {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    Diff(Diff),
    History(History),
    Restore(Restore),
}

impl Policy {
    /// Runs the command.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            PolicyCommand::Diff(diff) => diff.run().await,
            PolicyCommand::History(history) => history.run().await,
            PolicyCommand::Restore(restore) => restore.run().await,
        }
    }
}

/// Plan the live world by changed policies beside the present ones; nothing is changed.
#[derive(Debug, Args)]
#[command(
    after_help = "FILE has keys `pools`, `classes`, `quotas`, `bookings` and `windows`, `versions` for\nnumbers of changes to go back to, and `windows_at` for the moment by whose windows quotas are taken, such as\n\n  pools:\n    - {pool: h100, policy: {backfill: conservative}}\n  quotas:\n    - {team: vision, pool: h100, quota: {guaranteed: 6, limit: 12}}\n\nExample:\n  allot policy diff tighter.yaml"
)]
struct Diff {
    /// The changed policies, YAML or JSON
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Diff {
    async fn run(self) -> Result<(), Failure> {
        let draft = read_yaml(&self.file)?;
        let diff = Client::found()?
            .post("/planning/policy-diff", &draft)
            .await?;
        if self.json {
            return table::print_json(&diff);
        }
        tried::print_effect(&diff)
    }
}

/// List what was changed of pools, classes, quotas, bookings and windows.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  allot policy history quota/vision/h100")]
struct History {
    /// Only of this object, such as pool/h100 [default: of all]
    object: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl History {
    async fn run(self) -> Result<(), Failure> {
        let query: Vec<_> = self
            .object
            .map(|object| ("object", object))
            .into_iter()
            .collect();
        let client = Client::found()?;
        let changes = client.list("/policy-versions", &query, CHANGES_MAX).await?;
        if self.json {
            return table::print_json(&json!({ "items": changes }));
        }
        let columns = [
            ("CHANGE", "id"),
            ("AT", "at"),
            ("OBJECT", "object"),
            ("WHAT", "what"),
            ("WHO", "actor"),
            ("WHY", "reason"),
            ("VERSION", "version"),
        ];
        let told = changes.into_iter().map(with_what).collect::<Vec<_>>();
        table::print(&told, &columns, "nothing was changed")
    }
}

/// A change with what it was: the keys that became other ones, each from what to what.
fn with_what(mut change: Value) -> Value {
    let kind = match (change["before"].is_null(), change["after"].is_null()) {
        (_, true) => "removed",
        (false, false) => "changed",
        // What was there before anybody changed it has nobody who made it.
        (true, false) if change["actor"] == "" => "first",
        (true, false) => "made",
    };
    let mut what = words::change_kind(kind);
    let new = change["before"].is_null();
    // Of a pool that was made all is new: `allot pools show` tells it better.
    let whole = ["made", "first"].contains(&kind) && change["noun"] == "pool";
    let keys = change["changes"].as_array().into_iter().flatten();
    let told: Vec<String> = keys
        .filter(|_| !whole)
        .map(|change| key(change, new))
        .collect();
    if !told.is_empty() {
        what = format!("{what}: {}", told.join("; "));
    }
    if let Some(version) = change["restored_version"].as_i64() {
        what = format!("{}; {what}", words::went_back(version));
    }
    change["what"] = what.into();
    change
}

/// A key that became another one; of an object that was not there before only what it is.
fn key(change: &Value, new: bool) -> String {
    let team = change["team"].as_str().map(|team| format!("{team} "));
    let team = team.unwrap_or_default();
    let key = table::text(&change["key"]);
    let value = |side: &str| words::policy_value(&change["key"], &change[side]);
    let (from, to) = (value("from"), value("to"));
    if new {
        format!("{team}{key} {to}")
    } else {
        format!("{team}{key} {from} → {to}")
    }
}

/// Set an object back to how it was after a change; it is checked as any change is.
#[derive(Debug, Args)]
#[command(
    after_help = "CHANGE is a number that `allot policy history` lists.\n\nExamples:\n  allot policy restore 17 --dry-run\n  allot policy restore 17 --reason 'too hasty'"
)]
struct Restore {
    /// The number of the change
    change: i64,
    /// Why, kept with the change
    #[arg(long)]
    reason: Option<String>,
    /// Show what would come of it, and change nothing
    #[arg(long, conflicts_with = "reason")]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Restore {
    async fn run(self) -> Result<(), Failure> {
        let client = Client::found()?;
        if self.dry_run {
            let draft = json!({"versions": [self.change]});
            let diff = client.post("/planning/policy-diff", &draft).await?;
            if self.json {
                return table::print_json(&diff);
            }
            return tried::print_effect(&diff);
        }
        // The newest come first: of each object the first one tells how it is.
        let changes = client
            .list("/policy-versions", &[], LOOKED_THROUGH_MAX)
            .await?;
        let presumes = presumed(&changes, self.change)?;
        let query: Vec<_> = self.reason.map(|why| ("reason", why)).into_iter().collect();
        let path = format!("/policy-versions/{}/restore", self.change);
        let made = client
            .post_as(&path, &query, &json!({}), Some(presumes))
            .await?;
        if self.json {
            return table::print_json(&made);
        }
        table::print_line(&format!(
            "{} is as it was after change {}: version {}",
            table::text(&made["object"]),
            self.change,
            table::text(&made["version"])
        ))
    }
}

/// How the object of a change is now, by the list of all changes.
fn presumed(changes: &[Value], change: i64) -> Result<Presumed, Failure> {
    let found = changes.iter().find(|row| row["id"] == change);
    let object = found.map(|row| &row["object"]).ok_or_else(|| {
        Failure::Refused(format!(
            "no change {change} is here: `allot policy history` lists them"
        ))
    })?;
    let newest = changes.iter().find(|row| row["object"] == *object);
    Ok(match newest.filter(|row| !row["after"].is_null()) {
        Some(row) => Presumed::Version(row["version"].as_i64().unwrap_or_default()),
        None => Presumed::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_with_its_keys_and_the_version_that_it_went_back_to() {
        let told = |change: Value| table::text(&with_what(change)["what"]);
        let key = |team: Value, from: Value, to: Value| json!({"team": team, "key": "limit", "from": from, "to": to});
        let changed = json!({
            "before": {}, "after": {}, "restored_version": 3,
            "changes": [key(Value::Null, json!(8), Value::Null), key(json!("speech"), json!(1), json!(2.5))],
        });
        assert_eq!(
            told(changed),
            "Went back to version 3; changed: limit 8 → none; speech limit 1 → 2.5"
        );
        assert_eq!(
            told(json!({"before": {}, "after": null, "changes": []})),
            "removed"
        );
        let gone = json!({"key": "lend_limit", "from": 2, "to": null});
        let gone = told(json!({"before": {}, "after": {}, "changes": [gone]}));
        assert_eq!(gone, "changed: lend_limit 2 → all");
        let lends = json!({"key": "lend_limit", "from": null, "to": 2});
        let told_of = |actor: &str| {
            told(json!({"before": null, "after": {}, "actor": actor, "changes": [lends]}))
        };
        assert_eq!(told_of("root"), "made: lend_limit 2");
        assert_eq!(told_of(""), "how it began: lend_limit 2");
    }

    #[test]
    fn what_is_gone_back_to_presupposes_how_its_object_is_now() {
        let row = |id: i64, object: &str, version: i64, there: bool| {
            let after = if there { json!({}) } else { Value::Null };
            json!({"id": id, "object": object, "version": version, "after": after})
        };
        let changes = [
            row(9, "class/spare", 3, false),
            row(8, "pool/h100", 5, true),
            row(7, "pool/h100", 4, true),
            row(6, "class/spare", 2, true),
        ];
        assert_eq!(presumed(&changes, 7).ok(), Some(Presumed::Version(5)));
        assert_eq!(presumed(&changes, 6).ok(), Some(Presumed::Nothing));
        assert!(presumed(&changes, 1).is_err());
    }
}
