//! What codes mean, in the words that the pages have for them.

use chrono::{DateTime, Utc};
use serde_json::Value;
use web::messages::{Messages, Phrase};
use web::views::{Accuracy, BeyondQuota, DryRunElements, Remedy, Wait, policy_word, scope};

use crate::table::text;

/// The words.
fn words() -> Messages {
    Messages::english()
}

/// Why work waits, in sentences: what binds, in figures where they say more, and what happens next.
/// Nothing where a code has no word.
pub fn wait(waiting: &Value, beyond_quota: &Value, accuracy: &Value) -> Option<Vec<String>> {
    let t = words();
    let mut wait = Wait::told(waiting);
    wait.beyond_quota = BeyondQuota::told(beyond_quota);
    wait.accuracy = Accuracy::told(accuracy);
    if !t.knows("waiting", &wait.code) {
        return None;
    }
    let mut said = vec![wait.explain(&t).plain()];
    said.extend(wait.figures(&t).map(|figures| figures.plain()));
    said.push(wait.next_by(&t, moment).plain());
    Some(said)
}

fn moment(at: &DateTime<Utc>) -> Phrase {
    Phrase::literal(&domain::time::format(*at))
}

/// The nodes that were looked at, and how many of them each cause ruled out, as lines.
pub fn counts(waiting: &Value) -> Vec<String> {
    let t = words();
    let wait = Wait::told(waiting);
    let line =
        |(code, count): &(String, i64)| format!("{count:>8}  {}", t.word("count_of", code).plain());
    wait.sifted().into_iter().map(line).collect()
}

/// A cause in a few words, for a cell of a table.
pub fn cause(code: &Value) -> String {
    said("waiting_short", code)
}

/// Why work waits, in a few words: `bound` has the cause with what binds.
pub fn short(bound: &Value) -> String {
    match bound["code"].as_str() {
        Some(_) => Wait::told(bound).short(&words()).plain(),
        None => "–".to_owned(),
    }
}

/// What binds.
pub fn bound(text: &Value) -> String {
    let text = text.as_str().unwrap_or_default();
    scope(&words(), text).map_or_else(|| text.to_owned(), |said| said.plain())
}

/// The quota that binds where one never admits a job.
pub fn binds(beyond_quota: &Value) -> Option<String> {
    Some(BeyondQuota::told(beyond_quota)?.binds(&words()).plain())
}

/// A remedy: what to change, and what that would bring.
pub fn remedy(remedy: &Value) -> (Vec<String>, String) {
    let t = words();
    let remedy = Remedy::told(remedy);
    let changes = remedy.changes(&t);
    (
        changes.iter().map(Phrase::plain).collect(),
        t.word("effect", &remedy.effect).plain(),
    )
}

/// What would happen to the elements of an array, as lines; none of any other job.
pub fn elements(array: &Value) -> Vec<String> {
    let told = DryRunElements::told(array).map(|elements| elements.lines(&words()));
    told.iter().flatten().map(Phrase::plain).collect()
}

/// How far expected starts were out, beside one: or that none was measured.
pub fn spread(known: &Value) -> String {
    Accuracy::spread(Accuracy::told(known).as_ref(), &words()).plain()
}

/// How far expected starts were out.
pub fn accuracy(known: &Value) -> Option<String> {
    Some(Accuracy::told(known)?.say(&words()).plain())
}

/// What changed policies mean to a job.
pub fn effect(code: &Value) -> String {
    said("effect_of", code)
}

/// What a plan makes of a job, and why.
pub fn fate(fate: &Value) -> String {
    let outcome = said("fate", &fate["outcome"]);
    let reason = &fate["reason"];
    let why = match fate["outcome"].as_str() {
        _ if reason.is_null() => return outcome,
        Some("waits") if !fate["beyond_quota"].is_null() => {
            said("waiting_short", &"beyond_quota".into())
        }
        Some("waits") => cause(reason),
        _ => said("preempted_by", reason),
    };
    format!("{outcome}: {why}")
}

/// By which rule work gave way; nothing where a code has no word.
pub fn eviction_rule(rule: &Value) -> Option<String> {
    let rule = rule.as_str()?;
    let t = words();
    t.knows("eviction_rule", rule)
        .then(|| t.word("eviction_rule", rule).plain())
}

/// What was done to an object of policy.
pub fn change_kind(code: &str) -> String {
    words().word("change_kind", code).plain()
}

/// A value of a key of policy; where there is none, what that means there.
pub fn policy_value(key: &Value, value: &Value) -> String {
    let key = key.as_str().unwrap_or_default();
    match value {
        Value::Null => policy_word(&words(), key, "null").plain(),
        value => text(value),
    }
}

/// That a version was gone back to.
pub fn went_back(version: i64) -> String {
    words()
        .say("changes.went_back")
        .with("version", version)
        .plain()
}

fn said(family: &str, code: &Value) -> String {
    match code.as_str() {
        Some(code) => words().word(family, code).plain(),
        None => "–".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wait_is_told_in_the_sentences_of_its_page() {
        let waiting = json!({
            "code": "insufficient_capacity", "scope": "pool h100", "need": 4, "have": 1.5,
            "counts": {"nodes": 2, "too_few_free_gpus": 2}, "rank": 3, "remedies": [],
            "expected_start": "2026-11-30T12:00:00Z",
        });
        let said = wait(&waiting, &Value::Null, &Value::Null)
            .expect("known")
            .join(" ");
        for words in [
            "Not enough GPUs are free.",
            "It needs 4 GPUs; free in pool h100: 1.5 GPUs.",
            "Expected to start about 2026-11-30T12:00:00Z (no starts measured yet),",
        ] {
            assert!(said.contains(words), "{words} in {said}");
        }
        assert_eq!(
            counts(&waiting),
            ["       2  Nodes looked at", "       2  Too few free GPUs"]
        );
        assert_eq!(
            wait(
                &json!({"code": "of_a_newer_server"}),
                &Value::Null,
                &Value::Null
            ),
            None
        );
    }

    #[test]
    fn a_fate_is_told_with_its_cause() {
        let fate_of =
            |outcome: &str, reason: Value| fate(&json!({"outcome": outcome, "reason": reason}));
        assert_eq!(fate_of("runs", Value::Null), "runs on");
        assert_eq!(
            fate_of("waits", json!("over_limit")),
            "waits: Limit reached"
        );
        assert!(fate_of("stops", json!("reclaim")).contains("took back its guarantee"));
        assert_eq!(effect(&json!("waits_otherwise")), "waits for another cause");
    }
}
