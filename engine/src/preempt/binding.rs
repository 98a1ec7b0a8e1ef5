//! Which rules of a pool's policy keep a workload from making room, by their keys, and until when.

use std::rc::Rc;

use super::Rules;
use super::outlook::Outlooks;
use super::search::could_make_room;
use crate::ledger::Ledger;

/// Makes a rule as another set of rules has it.
type Take = fn(&mut Rules, &Rules);

/// The rules by their keys: of several ways out the first is told, which changes least.
const RULES: [(&str, Take); 8] = [
    ("preemption.delay_seconds", |to, of| to.delay = of.delay),
    ("preemption.min_runtime_seconds", |to, of| {
        to.min_runtime = of.min_runtime;
    }),
    ("preemption.min_runtime_reclaim_seconds", |to, of| {
        to.min_runtime_reclaim = of.min_runtime_reclaim;
    }),
    ("preemption.max_per_day", |to, of| {
        to.max_per_day = of.max_per_day;
    }),
    ("preemption.max_per_team_hour", |to, of| {
        to.max_per_team_hour = of.max_per_team_hour;
    }),
    ("preemption.reclaim", |to, of| to.reclaim = of.reclaim),
    ("preemption.within_team", |to, of| {
        to.within_team = of.within_team;
    }),
    ("preemption.across_borrowers", |to, of| {
        to.across_borrowers = of.across_borrowers;
    }),
];

/// The fewest rules that would have to give way together; none where they alone are not it.
pub(crate) fn binding_rules(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
) -> Vec<&'static str> {
    let own = Rules::of(ledger.index, pool);
    let mut rules = own.lifted_too();
    let mut binding = Vec::new();
    for (key, take) in RULES.into_iter().rev() {
        let mut stricter = rules.clone();
        take(&mut stricter, &own);
        if stricter == rules {
            continue;
        }
        if could_make_room(ledger, work, pool, &stricter) {
            rules = stricter;
        } else {
            binding.push(key);
        }
    }
    binding.reverse();
    binding
}

/// The seconds from now after which a workload could make room, had it waited for long enough itself:
/// whoever is protected now is so no longer then.
pub(crate) fn once_protected_ran(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
) -> Option<i64> {
    let mut rules = Rules::of(ledger.index, pool);
    rules.delay = 0;
    let waits = match Outlooks::now(ledger).waits.get(&pool) {
        Some(known) => Rc::clone(known),
        None => {
            let waits = Rc::new(rules.waits(ledger, pool));
            ledger.outlooks.waits.insert(pool, Rc::clone(&waits));
            waits
        }
    };
    let mut could = |seconds: i64| {
        rules.later = seconds;
        could_make_room(ledger, work, pool, &rules)
    };
    // Who has run for long enough once has so for ever: the later, the more room can be made.
    if !could(*waits.last()?) {
        return None;
    }
    let first = waits.partition_point(|seconds| !could(*seconds));
    waits.get(first).copied()
}
