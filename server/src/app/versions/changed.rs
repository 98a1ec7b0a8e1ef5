//! What a change of an object changed: its keys, each with the value before and after.

use std::collections::{BTreeMap, BTreeSet};

use domain::name::Name;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A key whose value a change made another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyChange {
    /// The team whose it is, in an object that has it for several.
    pub team: Option<Name>,
    /// The key, such as `preemption.grace_seconds`.
    pub key: String,
    /// Its value before; null where it had none.
    pub from: Option<Value>,
    /// Its value after, likewise.
    pub to: Option<Value>,
}

/// The keys that have other values after a change; none where the object was removed.
pub fn between(before: Option<&Value>, after: Option<&Value>) -> Vec<KeyChange> {
    let Some(after) = after else {
        return Vec::new();
    };
    let (mut old, mut new) = (Values::new(), Values::new());
    if let Some(before) = before {
        flatten(before, "", None, &mut old);
    }
    flatten(after, "", None, &mut new);
    let places: BTreeSet<&Place> = old.keys().chain(new.keys()).collect();
    let changed = places.into_iter().filter(|p| old.get(p) != new.get(p));
    changed
        .map(|place| KeyChange {
            team: place.0.clone(),
            key: place.1.clone(),
            from: old.get(place).copied().cloned(),
            to: new.get(place).copied().cloned(),
        })
        .collect()
}

/// A team, where a value is of one of several, and the key.
type Place = (Option<Name>, String);
type Values<'a> = BTreeMap<Place, &'a Value>;

/// Every value of a state, by its place; what is null is not there.
fn flatten<'a>(value: &'a Value, key: &str, team: Option<&Name>, into: &mut Values<'a>) {
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            for (name, value) in fields {
                let below = match key {
                    "" => name.clone(),
                    key => format!("{key}.{name}"),
                };
                flatten(value, &below, team, into);
            }
        }
        Value::Array(items) if items.iter().any(|item| item["team"].is_string()) => {
            for item in items {
                let team = item["team"].as_str().and_then(|name| name.parse().ok());
                flatten(&item["quota"], "", team.as_ref(), into);
            }
        }
        value => {
            into.insert((team.cloned(), key.to_owned()), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_keys_that_became_other_ones_are_told_and_those_of_teams_by_team() {
        let before = json!({
            "days": ["mon"], "from": "20:00",
            "quotas": [{"team": "vision", "quota": {"guaranteed": 4, "limit": null}}],
        });
        let after = json!({
            "days": ["mon", "tue"], "from": "20:00",
            "quotas": [{"team": "vision", "quota": {"guaranteed": 4, "limit": 8}}],
        });
        let told = between(Some(&before), Some(&after));
        let change = |team: Option<&str>, key: &str, from: Value, to: Value| KeyChange {
            team: team.map(|name| name.parse().expect("a name")),
            key: key.to_owned(),
            from: Some(from).filter(|from| !from.is_null()),
            to: Some(to),
        };
        assert_eq!(
            told,
            [
                change(None, "days", json!(["mon"]), json!(["mon", "tue"])),
                change(Some("vision"), "limit", Value::Null, json!(8)),
            ]
        );
        assert_eq!(between(Some(&before), None), []);
        assert_eq!(between(None, Some(&json!({"priority": 1}))).len(), 1);
    }
}
