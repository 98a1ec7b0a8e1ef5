//! Changed policies tried on the live world: what is changed of them, and what would come of it.

use serde_json::{Map, Value, json};

use super::versioned::Shape;
use crate::client::Client;
use crate::failure::Failure;
use crate::table::{self, Column, at};
use crate::words;

/// Tries a draft and prints what is changed by it and what would come of that.
pub async fn run(
    client: &Client,
    shape: Shape,
    draft: &Value,
    changes: &[Value],
) -> Result<(), Failure> {
    let effect = client.post("/planning/policy-diff", draft).await?;
    let answer = json!({ "changes": changes, "effect": effect });
    shape.print(&answer, |_| {
        print_changes(changes)?;
        table::print_line("")?;
        print_effect(&effect)
    })
}

/// An object of a pool, as it is and as it would be.
#[derive(Debug)]
pub struct Tried<'a> {
    /// The draft's key for its kind, such as `bookings`.
    pub kind: &'a str,
    /// The pool.
    pub pool: &'a str,
    /// Its name.
    pub name: &'a str,
    /// As it is; null of one that is to be made.
    pub present: &'a Value,
    /// The keys that are said of it.
    pub said: &'a Value,
}

impl Tried<'_> {
    /// The object whole, of these keys: what is not said of it is as it is.
    pub fn draft(&self, keys: &[&str]) -> Value {
        let mut object = json!({ "pool": self.pool, "name": self.name });
        for key in keys {
            let value = self.said.get(key).unwrap_or(&self.present[key]);
            if !value.is_null() {
                object[key] = value.clone();
            }
        }
        json!({ self.kind: [object] })
    }
}

/// What `keys` change of an object as it is: a row for each key whose value becomes another one.
pub fn changes(of: &Map<String, Value>, present: &Value, keys: &Value) -> Vec<Value> {
    let mut values = Vec::new();
    flatten(keys, "", &mut values);
    let changed = values
        .into_iter()
        .filter(|(key, to)| at(present, key) != *to)
        .map(|(key, to)| {
            let mut row = of.clone();
            let from = at(present, &key).clone();
            row.extend([
                ("key".to_owned(), json!(key)),
                ("from".to_owned(), from),
                ("to".to_owned(), to.clone()),
            ]);
            Value::Object(row)
        });
    changed.collect()
}

/// Every value of an object with its place, such as `preemption.reclaim`.
pub fn flatten<'a>(value: &'a Value, place: &str, into: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let below = match place {
                    "" => key.clone(),
                    place => format!("{place}.{key}"),
                };
                flatten(value, &below, into);
            }
        }
        value => into.push((place.to_owned(), value)),
    }
}

/// Prints what is changed, or that nothing is.
pub fn print_changes(rows: &[Value]) -> Result<(), Failure> {
    let told: [Column; 8] = [
        ("TEAM", "team"),
        ("POOL", "pool"),
        ("CLASS", "class"),
        ("BOOKING", "booking"),
        ("WINDOW", "window"),
        ("KEY", "key"),
        ("FROM", "from"),
        ("TO", "to"),
    ];
    let there = |column: &&Column| rows.iter().any(|row| row.get(column.1).is_some());
    let columns: Vec<Column> = told.iter().filter(there).copied().collect();
    let rows = rows.iter().cloned().map(|mut row| {
        for side in ["from", "to"] {
            row[side] = words::policy_value(&row["key"], &row[side]).into();
        }
        row
    });
    table::print(&rows.collect::<Vec<_>>(), &columns, "nothing is changed")
}

/// Prints what would come of changed policies.
pub fn print_effect(diff: &Value) -> Result<(), Failure> {
    if !diff["windows_at"].is_null() {
        let at = table::shown(diff, "windows_at");
        table::print_line(&format!("by the windows that are open at {at}:"))?;
    }
    print_jobs(diff)?;
    print_shares(diff)?;
    print_cuts(diff)?;
    print_conflicts(diff)?;
    if items(diff, "warnings").is_empty() {
        return Ok(());
    }
    table::print_line("")?;
    print_warnings(diff)
}

/// The bookings that would be marked in their calendar, a row for each time.
fn print_conflicts(diff: &Value) -> Result<(), Failure> {
    let rows = items(diff, "conflicts").into_iter().flat_map(|booking| {
        let times = items(&booking, "conflicts").into_iter();
        let row = |time| {
            let mut row = booking.clone();
            row["time"] = time;
            row
        };
        times.map(row).collect::<Vec<_>>()
    });
    let rows: Vec<Value> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    let columns = [
        ("BOOKING", "booking"),
        ("POOL", "pool"),
        ("TEAM", "team"),
        ("FROM", "time.from"),
        ("TO", "time.to"),
        ("TOO MUCH", "time.excess"),
        ("GUARANTEED", "time.guaranteed"),
        ("BOOKED", "time.booked"),
        ("THERE", "time.capacity"),
        ("WITH", "time.with"),
    ];
    table::print_line("")?;
    table::print(&rows, &columns, "")?;
    match diff["conflicts_left_out"].as_u64() {
        Some(more) if more > 0 => table::print_line(&format!(
            "and {} more",
            domain::words::counted(more, "booking")
        )),
        _ => Ok(()),
    }
}

/// Prints what does not keep policies from holding, and should be known.
pub fn print_warnings(answer: &Value) -> Result<(), Failure> {
    let mut warnings = items(answer, "warnings").into_iter();
    warnings.try_for_each(|warning| table::print_line(&table::text(&warning["message"])))
}

fn items(diff: &Value, key: &str) -> Vec<Value> {
    diff[key].as_array().cloned().unwrap_or_default()
}

fn print_jobs(diff: &Value) -> Result<(), Failure> {
    let columns = [
        ("JOB", "job"),
        ("NAME", "name"),
        ("TEAM", "team"),
        ("EFFECT", "effect"),
        ("NOW", "before.fate"),
        ("THEN", "after.fate"),
        ("EXPECTED START", "after.expected_start"),
    ];
    let mut jobs = items(diff, "jobs");
    for job in &mut jobs {
        job["effect"] = words::effect(&job["effect"]).into();
        for side in ["before", "after"] {
            job[side]["fate"] = words::fate(&job[side]).into();
        }
    }
    let none = "no job would fare otherwise";
    table::print(&jobs, &columns, none)?;
    match diff["jobs_left_out"].as_u64() {
        Some(more) if more > 0 => {
            table::print_line(&format!("and {} more", domain::words::counted(more, "job")))
        }
        _ => Ok(()),
    }
}

fn print_shares(diff: &Value) -> Result<(), Failure> {
    let columns = [
        ("TEAM", "team"),
        ("POOL", "pool"),
        ("GUARANTEED", "before.guaranteed"),
        ("THEN", "after.guaranteed"),
        ("HELD", "before.used"),
        ("THEN", "after.used"),
        ("BORROWED", "before.borrowed"),
        ("THEN", "after.borrowed"),
        ("FAIR SHARE", "before.fair_share"),
        ("THEN", "after.fair_share"),
    ];
    table::print_line("")?;
    let none = "no team's share would change";
    table::print(&items(diff, "shares"), &columns, none)
}

fn print_cuts(diff: &Value) -> Result<(), Failure> {
    let cuts = items(diff, "cuts");
    if cuts.is_empty() {
        return Ok(());
    }
    let columns = [
        ("TEAM", "team"),
        ("POOL", "pool"),
        ("HOLDS", "held"),
        ("GUARANTEED", "guaranteed_before"),
        ("THEN", "guaranteed_after"),
        ("BECOMES BORROWED", "becomes_borrowed"),
        ("RECLAIMABLE", "reclaimable"),
        ("OVER LIMIT", "over_limit"),
    ];
    table::print_line("")?;
    table::print(&cuts, &columns, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_tried_whole_with_what_is_not_said_of_it_as_it_is() {
        let present = json!({"team": "vision", "gpus": 4, "state": "ahead", "version": 2});
        let tried = |present: &Value| {
            let said = json!({"gpus": 2});
            let tried = Tried {
                kind: "bookings",
                pool: "h100",
                name: "demo",
                present,
                said: &said,
            };
            tried.draft(&["team", "gpus"])
        };
        let whole = json!({"pool": "h100", "name": "demo", "team": "vision", "gpus": 2});
        assert_eq!(tried(&present), json!({"bookings": [whole]}));
        let new = json!({"pool": "h100", "name": "demo", "gpus": 2});
        assert_eq!(tried(&Value::Null), json!({"bookings": [new]}));
    }

    #[test]
    fn only_what_becomes_another_value_is_a_change() {
        let present =
            json!({"strategy": "pack", "preemption": {"reclaim": "any", "delay_seconds": 0}});
        let keys = json!({"strategy": "pack", "preemption": {"reclaim": "never"}});
        let of = Map::from_iter([("pool".to_owned(), json!("h100"))]);
        assert_eq!(
            changes(&of, &present, &keys),
            [json!({"pool": "h100", "key": "preemption.reclaim", "from": "any", "to": "never"})]
        );
    }
}
