//! Changes of its spec that would start a workload now, each tried as the cycle stands at its end.

mod instances;
mod limits;
mod proof;
mod smaller;
mod trial;

use std::collections::BTreeMap;

use domain::spec::NvlinkRule;
use serde_json::{Value, json};

use crate::cycle::Cycle;
use crate::index::Need;
use crate::plan::{Code, Remedy};
use crate::world::{Stopped, Workload};
pub(super) use limits::never;
use trial::Trial;

/// Most changes that are named; the contract's own bound.
const REMEDIES_MAX: usize = 3;
/// Most waiting work for which changes and times are sought: each costs some placements,
/// and who waits behind so many has other worries.
pub(super) const RANKED_MAX: usize = 200;
/// Most numbers of workers that are tried.
const WORKERS_TRIED: usize = 64;
/// The shortest time limit that is proposed, in seconds: hardly anything is done in less.
const LIMIT_LEAST_SECONDS: i64 = 60;

/// Whether a cause is one that another request might avoid.
fn by_request(code: Code) -> bool {
    matches!(
        code,
        Code::OverLimit
            | Code::AncestorOverLimit
            | Code::NonPreemptibleOverGuarantee
            | Code::Topology
            | Code::Fragmented
            | Code::PreemptionNotAllowed
            | Code::InsufficientCapacity
            | Code::HeldForReservation
            | Code::NeverFits
    )
}

/// Up to three changes, each of which alone would start the workload now; where none does and its
/// limits would never let it start, one that they would.
pub(super) fn of(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize, code: Code) -> Vec<Remedy> {
    let cut = matches!(cycle.index.works[work].need, Need::Instances { .. });
    let mends = by_request(code) || cut && code == Code::NoSuchHardware;
    if !mends || cycle.explained > RANKED_MAX || !cycle.usable(work, pool) {
        return Vec::new();
    }
    let index = cycle.index;
    let mut remedies = Vec::new();
    if let Some(mut trial) = Trial::of(cycle, work, pool) {
        remedies.extend(sure(&mut trial, |trial| looser(trial, code)));
        remedies.extend(sure(&mut trial, |trial| shorter(trial, code)));
        remedies.extend(sure(&mut trial, |trial| yielding(trial, code)));
        remedies.extend(sure(&mut trial, fewer_workers));
        match trial.facts().need {
            Need::Whole(count) => {
                remedies.extend(sure(&mut trial, |trial| smaller::of(trial, count)));
            }
            Need::Instances { count, .. } => {
                remedies.extend(sure(&mut trial, |trial| instances::fewer(trial, count)));
                remedies.extend(sure(&mut trial, |trial| instances::other(trial, count)));
            }
            Need::Nothing | Need::Part { .. } => {}
        }
    }
    let over = matches!(
        code,
        Code::OverLimit | Code::AncestorOverLimit | Code::NonPreemptibleOverGuarantee
    );
    if over && remedies.is_empty() {
        remedies.extend(limits::within(index, work, pool));
    }
    remedies.truncate(REMEDIES_MAX);
    remedies
}

/// A change, if it is sure to start the workload: where the end of the cycle does not tell, all is
/// decided anew with it.
fn sure<'c, 'i, 'w>(
    trial: &mut Trial<'c, 'i, 'w>,
    find: impl FnOnce(&mut Trial<'c, 'i, 'w>) -> Option<Remedy>,
) -> Option<Remedy> {
    trial.unsure = false;
    let found = find(trial)?;
    (!trial.unsure || proof::starts(trial, &found)).then_some(found)
}

/// A change of one key that would start the workload now.
fn change(key: &str, value: Value) -> Remedy {
    starts(BTreeMap::from([(key.to_owned(), value)]))
}

fn starts(change: BTreeMap<String, Value>) -> Remedy {
    Remedy {
        change,
        effect: "starts_now",
    }
}

/// Without its demands on domains, links and affinity.
fn looser(trial: &mut Trial<'_, '_, '_>, code: Code) -> Option<Remedy> {
    if code != Code::Topology || !trial.starts_relaxed() {
        return None;
    }
    let row = trial.facts().row;
    let linked = row.nvlink == NvlinkRule::Require;
    let demands = [
        (
            "topology.require",
            row.topology.require.is_some(),
            Value::Null,
        ),
        ("anti_affinity", row.anti_affinity.is_some(), Value::Null),
        ("nvlink", linked, json!("prefer")),
    ];
    let dropped = demands.into_iter().filter(|(_, made, _)| *made);
    let dropped = dropped.map(|(key, _, value)| (key.to_owned(), value));
    Some(starts(dropped.collect()))
}

/// The longest time limit with which it ends before what its room is kept for. Who is predicted to
/// run longer than that would only be stopped by it.
fn shorter(trial: &mut Trial<'_, '_, '_>, code: Code) -> Option<Remedy> {
    let row = trial.facts().row;
    if code != Code::HeldForReservation || row.predicted_seconds.is_some() {
        return None;
    }
    let present = row.time_limit_seconds.unwrap_or(i64::MAX);
    let mut limits = trial.seconds_to_kept();
    limits.retain(|&seconds| (LIMIT_LEAST_SECONDS..present).contains(&seconds));
    // Who ends sooner is in the way of no more.
    let fit = limits.partition_point(|&seconds| trial.starts_for(seconds));
    let longest = limits[..fit].last()?;
    Some(change("time_limit_seconds", json!(longest)))
}

/// As work that may be preempted, and so may borrow.
fn yielding(trial: &mut Trial<'_, '_, '_>, code: Code) -> Option<Remedy> {
    let stopped = trial.team().stopped;
    let lets = code == Code::NonPreemptibleOverGuarantee && stopped == Stopped::None;
    (lets && trial.starts_yielding()).then(|| change("preemptible", json!(true)))
}

/// The most workers under the least that it asks for.
fn fewer_workers(trial: &mut Trial<'_, '_, '_>) -> Option<Remedy> {
    let row = trial.facts().row;
    let fewer = (1..row.workers_least()).rev().take(WORKERS_TRIED);
    let workers = fewer.into_iter().find(|&n| trial.starts_with(n))?;
    Some(change(workers_key(row), json!(workers)))
}

/// The key that says how many workers a workload starts with at least.
fn workers_key(row: &Workload) -> &'static str {
    match row.min_workers {
        Some(_) => "min_workers",
        None => "workers",
    }
}
