//! What binds work that waits, as the engine names it, in words.

use crate::messages::{Messages, Phrase};

/// Limits that the engine names with the team or the service whose they are.
const LIMITS: [&str; 3] = ["lend_limit", "max_per_user", "max_replicas"];

/// Rules of policy by their keys, and the pool whose they are, where such bind.
pub(super) fn rules(text: &str) -> Option<(&str, &str)> {
    text.split_once(" of ")
        .filter(|(keys, _)| keys.starts_with("preemption."))
}

/// The pool whose bookings bind, where such do.
pub(super) fn bookings(text: &str) -> Option<&str> {
    text.strip_prefix("bookings of ")
}

/// What binds, in words; nothing where it is the job itself.
pub fn scope(t: &Messages, text: &str) -> Option<Phrase> {
    for limit in LIMITS {
        let of = text
            .strip_prefix(limit)
            .and_then(|rest| rest.strip_prefix(" of "));
        if let Some(team) = of {
            return Some(t.word("scope", limit).nest("team", scope(t, team)?));
        }
    }
    if let Some((keys, pool)) = rules(text) {
        let named = keys
            .split(", ")
            .map(|key| match t.knows("policy_key", key) {
                true => t.word("policy_key", key),
                false => Phrase::literal(key),
            });
        let rules = Phrase::list(named);
        let said = t.word("scope", "rules").nest("rules", rules);
        return Some(said.nest("pool", scope(t, pool)?));
    }
    if let Some(pool) = bookings(text) {
        return Some(t.word("scope", "bookings").nest("pool", scope(t, pool)?));
    }
    let (kind, name) = text.split_once(' ').unwrap_or((text, ""));
    match (kind, name) {
        ("workload", "") => None,
        ("array", _) => Some(t.word("scope", "array")),
        _ if t.knows("scope", kind) => Some(t.word("scope", kind).with("name", name)),
        _ => Some(Phrase::literal(text)),
    }
}
