//! A pool's policy as the fields of a form: every key, in groups, with what is wrong with it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use domain::FieldError;
use domain::policy::{
    AGEING_PER_HOUR_MAX, Backfill, Charge, HALF_LIFE_SECONDS, MigMode, PREEMPTIONS, PoolPolicy,
    PoolState, Reclaim, SECONDS, Strategy, TIME_SLICES, WithinTeam,
};
use domain::quantity::Points;
use domain::sharing::SharingMode;
use web::messages::Messages;
use web::views::{FieldKind, PolicyField, PolicyGroup, Refusal};

use super::fields::Fields;
use super::refusal;
use crate::app::AppError;

/// The groups, each with its keys, in the order in which they stand on the page.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "starts",
        &[
            "state",
            "strategy",
            "backfill",
            "ageing_per_hour",
            "usage_half_life_seconds",
        ],
    ),
    (
        "quota",
        &[
            "charge",
            "non_preemptible_borrowing",
            "whole_node_guarantees",
        ],
    ),
    (
        "sharing",
        &["sharing", "time_slices", "mps_across_teams", "mig_mode"],
    ),
    (
        "preemption",
        &[
            "preemption.within_team",
            "preemption.reclaim",
            "preemption.across_borrowers",
            "preemption.delay_seconds",
            "preemption.min_runtime_seconds",
            "preemption.min_runtime_reclaim_seconds",
            "preemption.max_per_day",
            "preemption.max_per_team_hour",
            "preemption.grace_seconds",
            "preemption.consolidate",
        ],
    ),
];

/// Every key of a policy with its value as text, as a form shows it.
type Texts = BTreeMap<&'static str, String>;

/// A policy as somebody fills it in.
pub struct Filled {
    texts: Texts,
    errors: BTreeMap<&'static str, Refusal>,
    policy: PoolPolicy,
}

impl Filled {
    /// The form of a policy as it is kept.
    pub fn kept(policy: &PoolPolicy) -> Self {
        Self {
            texts: texts(policy),
            errors: BTreeMap::new(),
            policy: policy.clone(),
        }
    }

    /// What a form has; a key that it lacks altogether is as it is kept.
    pub fn typed(fields: &Fields, present: &PoolPolicy) -> Self {
        let mut reader = Reader {
            fields,
            texts: texts(present),
            errors: BTreeMap::new(),
        };
        let mut policy = present.clone();
        reader.read(&mut policy);
        Self {
            texts: reader.texts,
            errors: reader.errors,
            policy,
        }
    }

    /// The policy, where nothing is wrong with it.
    pub fn policy(&mut self) -> Option<PoolPolicy> {
        if let Err(fault) = self.policy.check() {
            self.note(&fault);
        }
        self.errors.is_empty().then(|| self.policy.clone())
    }

    /// Notes a refusal at its key; one that is about none comes back.
    pub fn refuse(&mut self, error: AppError) -> Result<Option<Refusal>, AppError> {
        match error {
            AppError::Invalid(fault) => {
                let key = fault.field.rsplit("policy.").next().unwrap_or_default();
                let fault = FieldError {
                    field: key.to_owned(),
                    ..fault
                };
                Ok(self.note(&fault))
            }
            other => refusal::of(other, str::to_owned).map(Some),
        }
    }

    fn note(&mut self, fault: &FieldError) -> Option<Refusal> {
        let refused = refusal::of_value(fault, fault.field.clone());
        let Some(key) = keys().find(|key| *key == fault.field) else {
            return Some(refused);
        };
        self.errors.entry(key).or_insert(Refusal {
            told: Some(told(key, &fault.value)),
            ..refused
        });
        None
    }

    /// The groups of the form, beside what is kept.
    pub fn groups(&self, kept: &PoolPolicy) -> Vec<PolicyGroup> {
        let kept = texts(kept);
        let field = |key: &&'static str| {
            let value = self.texts[key].clone();
            PolicyField {
                key,
                kind: kind(key),
                was: (value != kept[key]).then(|| kept[key].clone()),
                value,
                error: self.errors.get(key).cloned(),
            }
        };
        GROUPS
            .iter()
            .map(|(code, keys)| PolicyGroup {
                code,
                fields: keys.iter().map(field).collect(),
            })
            .collect()
    }
}

fn keys() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().flat_map(|(_, keys)| keys.iter().copied())
}

fn texts(policy: &PoolPolicy) -> Texts {
    let flag = |on: bool| if on { "true" } else { "" }.to_owned();
    let some = |number: Option<String>| number.unwrap_or_default();
    let modes: Vec<&str> = SharingMode::ALL
        .iter()
        .filter(|mode| policy.sharing.contains(mode))
        .map(|mode| mode.as_str())
        .collect();
    let preemption = &policy.preemption;
    BTreeMap::from([
        ("state", policy.state.to_string()),
        ("strategy", policy.strategy.to_string()),
        ("backfill", policy.backfill.to_string()),
        ("ageing_per_hour", policy.ageing_per_hour.to_string()),
        (
            "usage_half_life_seconds",
            some(policy.usage_half_life_seconds.map(|s| s.to_string())),
        ),
        ("charge", policy.charge.to_string()),
        (
            "non_preemptible_borrowing",
            flag(policy.non_preemptible_borrowing),
        ),
        ("whole_node_guarantees", flag(policy.whole_node_guarantees)),
        ("sharing", modes.join(", ")),
        ("time_slices", policy.time_slices.to_string()),
        ("mps_across_teams", flag(policy.mps_across_teams)),
        ("mig_mode", policy.mig_mode.to_string()),
        ("preemption.within_team", preemption.within_team.to_string()),
        ("preemption.reclaim", preemption.reclaim.to_string()),
        (
            "preemption.across_borrowers",
            flag(preemption.across_borrowers),
        ),
        (
            "preemption.delay_seconds",
            preemption.delay_seconds.to_string(),
        ),
        (
            "preemption.min_runtime_seconds",
            preemption.min_runtime_seconds.to_string(),
        ),
        (
            "preemption.min_runtime_reclaim_seconds",
            some(
                preemption
                    .min_runtime_reclaim_seconds
                    .map(|s| s.to_string()),
            ),
        ),
        (
            "preemption.max_per_day",
            some(preemption.max_per_day.map(|n| n.to_string())),
        ),
        (
            "preemption.max_per_team_hour",
            some(preemption.max_per_team_hour.map(|n| n.to_string())),
        ),
        (
            "preemption.grace_seconds",
            preemption.grace_seconds.to_string(),
        ),
        ("preemption.consolidate", flag(preemption.consolidate)),
    ])
}

macro_rules! words {
    ($kind:ident) => {
        $kind::ALL.iter().map(|word| word.as_str()).collect()
    };
}

fn kind(key: &str) -> FieldKind {
    match key {
        "state" => FieldKind::Choice(words!(PoolState)),
        "strategy" => FieldKind::Choice(words!(Strategy)),
        "backfill" => FieldKind::Choice(words!(Backfill)),
        "charge" => FieldKind::Choice(words!(Charge)),
        "mig_mode" => FieldKind::Choice(words!(MigMode)),
        "preemption.within_team" => FieldKind::Choice(words!(WithinTeam)),
        "preemption.reclaim" => FieldKind::Choice(words!(Reclaim)),
        "sharing" => FieldKind::Several(words!(SharingMode)),
        "usage_half_life_seconds"
        | "preemption.min_runtime_reclaim_seconds"
        | "preemption.max_per_day"
        | "preemption.max_per_team_hour" => FieldKind::Number { optional: true },
        "ageing_per_hour"
        | "time_slices"
        | "preemption.delay_seconds"
        | "preemption.min_runtime_seconds"
        | "preemption.grace_seconds" => FieldKind::Number { optional: false },
        _ => FieldKind::Switch,
    }
}

/// What would be accepted at a key.
fn told(key: &str, value: &str) -> web::messages::Phrase {
    let t = Messages::english();
    let whole = |least: String, most: String| {
        t.say("refused_policy.whole")
            .with("least", least)
            .with("most", most)
    };
    let range =
        |range: &RangeInclusive<i64>| whole(range.start().to_string(), range.end().to_string());
    let count =
        |range: &RangeInclusive<u32>| whole(range.start().to_string(), range.end().to_string());
    let rule = match key {
        "sharing" => return t.say("refused_policy.sharing"),
        "ageing_per_hour" => t
            .say("refused_policy.points")
            .with("most", AGEING_PER_HOUR_MAX),
        "time_slices" => count(&TIME_SLICES),
        "preemption.max_per_day" | "preemption.max_per_team_hour" => count(&PREEMPTIONS),
        "usage_half_life_seconds" => range(&HALF_LIFE_SECONDS),
        _ if matches!(kind(key), FieldKind::Number { .. }) => range(&SECONDS),
        _ => t.say("refused_policy.choice"),
    };
    t.say("refusal.value")
        .with("value", value)
        .nest("rule", rule)
}

/// Reads a form, key by key.
struct Reader<'f> {
    fields: &'f Fields,
    texts: Texts,
    errors: BTreeMap<&'static str, Refusal>,
}

impl Reader<'_> {
    fn read(&mut self, policy: &mut PoolPolicy) {
        self.value("state", &mut policy.state);
        self.value("strategy", &mut policy.strategy);
        self.value("backfill", &mut policy.backfill);
        self.value::<Points>("ageing_per_hour", &mut policy.ageing_per_hour);
        self.optional(
            "usage_half_life_seconds",
            &mut policy.usage_half_life_seconds,
        );
        self.value("charge", &mut policy.charge);
        self.flag(
            "non_preemptible_borrowing",
            &mut policy.non_preemptible_borrowing,
        );
        self.flag("whole_node_guarantees", &mut policy.whole_node_guarantees);
        self.modes(&mut policy.sharing);
        self.value("time_slices", &mut policy.time_slices);
        self.flag("mps_across_teams", &mut policy.mps_across_teams);
        self.value("mig_mode", &mut policy.mig_mode);
        let p = &mut policy.preemption;
        self.value("preemption.within_team", &mut p.within_team);
        self.value("preemption.reclaim", &mut p.reclaim);
        self.flag("preemption.across_borrowers", &mut p.across_borrowers);
        self.value("preemption.delay_seconds", &mut p.delay_seconds);
        self.value("preemption.min_runtime_seconds", &mut p.min_runtime_seconds);
        self.optional(
            "preemption.min_runtime_reclaim_seconds",
            &mut p.min_runtime_reclaim_seconds,
        );
        self.optional("preemption.max_per_day", &mut p.max_per_day);
        self.optional("preemption.max_per_team_hour", &mut p.max_per_team_hour);
        self.value("preemption.grace_seconds", &mut p.grace_seconds);
        self.flag("preemption.consolidate", &mut p.consolidate);
    }

    /// Takes a value, where it is one of its key.
    fn value<T: FromStr + Display>(&mut self, key: &'static str, into: &mut T) {
        if !self.fields.has(key) {
            return;
        }
        let text = self.fields.text(key);
        match text.parse::<T>() {
            Ok(value) => {
                self.texts.insert(key, value.to_string());
                *into = value;
            }
            Err(_) => self.refuse(key, text),
        }
    }

    /// The same of a key that may be empty.
    fn optional<T: FromStr + Display>(&mut self, key: &'static str, into: &mut Option<T>) {
        if !self.fields.has(key) {
            return;
        }
        let text = self.fields.text(key);
        if text.is_empty() {
            *into = None;
            self.texts.insert(key, String::new());
            return;
        }
        match text.parse::<T>() {
            Ok(value) => {
                self.texts.insert(key, value.to_string());
                *into = Some(value);
            }
            Err(_) => self.refuse(key, text),
        }
    }

    /// A box that is not ticked is not sent.
    fn flag(&mut self, key: &'static str, into: &mut bool) {
        *into = self.fields.has(key);
        self.texts
            .insert(key, if *into { "true" } else { "" }.to_owned());
    }

    fn modes(&mut self, into: &mut Vec<SharingMode>) {
        let chosen = SharingMode::ALL
            .iter()
            .filter(|mode| self.fields.has(&format!("sharing.{mode}")));
        let chosen: Vec<SharingMode> = chosen.copied().collect();
        let words: Vec<&str> = chosen.iter().map(|mode| mode.as_str()).collect();
        self.texts.insert("sharing", words.join(", "));
        // The order in which they were given is kept where they are the same ones.
        let same = chosen.len() == into.len() && chosen.iter().all(|mode| into.contains(mode));
        if !same {
            *into = chosen;
        }
    }

    fn refuse(&mut self, key: &'static str, text: &str) {
        let fault = FieldError::new(key, text, "");
        self.texts.insert(key, text.to_owned());
        self.errors.insert(
            key,
            Refusal {
                told: Some(told(key, &fault.value)),
                ..refusal::of_value(&fault, key.to_owned())
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every key of a policy as the API has it, by the paths that the form uses.
    fn every_key() -> BTreeSet<String> {
        let policy = serde_json::to_value(PoolPolicy::default()).expect("plain data");
        let mut keys = BTreeSet::new();
        for (key, value) in policy.as_object().expect("an object") {
            match value.as_object() {
                Some(below) => keys.extend(below.keys().map(|name| format!("{key}.{name}"))),
                None => drop(keys.insert(key.clone())),
            }
        }
        keys
    }

    #[test]
    fn every_key_of_a_policy_has_a_field_and_words_that_explain_it() {
        let fields: BTreeSet<String> = keys().map(str::to_owned).collect();
        assert_eq!(fields, every_key());
        let t = Messages::english();
        let mut silent: Vec<String> = Vec::new();
        for key in keys() {
            for family in ["policy_key", "policy_hint"] {
                if !t.knows(family, key) {
                    silent.push(format!("{family}.{key}"));
                }
            }
            if let FieldKind::Choice(words) | FieldKind::Several(words) = kind(key) {
                silent.extend(
                    words
                        .iter()
                        .filter(|word| !t.knows("policy_value", word))
                        .map(|word| format!("policy_value.{word}")),
                );
                silent.extend(
                    words
                        .iter()
                        .map(|word| format!("{key}.{word}"))
                        .filter(|code| !t.knows("policy_choice", code)),
                );
            }
        }
        assert!(silent.is_empty(), "{silent:?}");
    }

    #[test]
    fn a_form_that_is_sent_back_as_it_was_changes_nothing() {
        let policy = PoolPolicy {
            sharing: vec![SharingMode::Mig, SharingMode::Exclusive],
            usage_half_life_seconds: Some(3600),
            non_preemptible_borrowing: true,
            ..PoolPolicy::default()
        };
        let mut sent = serde_json::Map::new();
        for (key, value) in texts(&policy) {
            match kind(key) {
                FieldKind::Switch if value.is_empty() => {}
                FieldKind::Several(_) => {
                    for word in value.split(", ") {
                        sent.insert(format!("{key}.{word}"), word.into());
                    }
                }
                _ => drop(sent.insert(key.to_owned(), value.into())),
            }
        }
        let fields: Fields = serde_json::from_value(sent.into()).expect("texts");
        let mut filled = Filled::typed(&fields, &policy);
        assert_eq!(filled.policy(), Some(policy));
    }
}
