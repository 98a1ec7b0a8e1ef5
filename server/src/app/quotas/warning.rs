//! What does not keep a change of quotas or windows from holding, and should be known.

use std::collections::{BTreeMap, BTreeSet};

use domain::ids::PoolId;
use domain::name::Name;
use domain::words;
use domain::{MilliGpu, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::tree::Promises;
use crate::app::promises::Overpromised;
use crate::app::{AppError, pools};
use crate::scheduler::windows;
use crate::store::windows::Window;
use crate::store::{self, Tx};

/// Teams that a sentence names; of more it says how many.
const TEAMS_NAMED_MAX: usize = 5;

/// Something to be known of a change that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Warning {
    /// More is guaranteed of a pool than it has: all guarantees there shrink in proportion.
    Overpromised {
        /// The same as a sentence.
        message: String,
        /// The pool that it is about.
        pool: Name,
        /// The windows that are open together when that is so; none while it is always so.
        windows: Vec<Name>,
        /// What is guaranteed of it in all.
        guaranteed: MilliGpu,
        /// What it has.
        capacity: MilliGpu,
    },
    /// Two windows are open together and give the same teams other quotas. The one that opened
    /// last holds; of two that opened at once the one whose name comes last.
    WindowsOverlap {
        /// The same as a sentence.
        message: String,
        /// The pool that it is about.
        pool: Name,
        /// The two windows, by name.
        windows: Vec<Name>,
        /// The teams that have a quota of both.
        teams: Vec<Name>,
    },
    /// A window is open and sets what teams have in place of the quota that is changed: the change
    /// is felt once it has closed.
    WindowInPlace {
        /// The same as a sentence.
        message: String,
        /// The pool that it is about.
        pool: Name,
        /// The window.
        window: Name,
        /// The teams whose quota is changed and that have another one of the window.
        teams: Vec<Name>,
        /// When the window closes.
        #[schema(value_type = String, format = DateTime)]
        until: Timestamp,
    },
}

impl Warning {
    fn overpromised(pool: &Name, windows: Vec<Name>, over: Overpromised) -> Self {
        let while_open = while_open(&windows);
        Self::Overpromised {
            message: format!(
                "the guarantees in pool {pool}{while_open} are {} and it has {}: all of them shrink in proportion until it has more",
                words::gpus(over.guaranteed),
                over.capacity
            ),
            pool: pool.clone(),
            windows,
            guaranteed: over.guaranteed,
            capacity: over.capacity,
        }
    }

    fn overlap(pool: &Name, (one, other): (&Name, &Name), teams: Vec<Name>) -> Self {
        let named = named(&teams);
        Self::WindowsOverlap {
            message: format!(
                "windows {one} and {other} of pool {pool} are open together and both set the quota of {named}: the one that opened last holds, of two that opened at once {other}"
            ),
            pool: pool.clone(),
            windows: vec![one.clone(), other.clone()],
            teams,
        }
    }

    fn in_place(pool: &Name, window: &Name, until: Timestamp, teams: Vec<Name>) -> Self {
        Self::WindowInPlace {
            message: format!(
                "window {window} of pool {pool} is open until {} and sets the quota of {}: what is set here in its place holds once it has closed",
                domain::time::format(until),
                named(&teams)
            ),
            pool: pool.clone(),
            window: window.clone(),
            teams,
            until,
        }
    }
}

/// Teams by name, and how many more there are than a sentence names.
fn named(teams: &[Name]) -> String {
    let names = teams.iter().take(TEAMS_NAMED_MAX).map(Name::as_str);
    let named = names.collect::<Vec<_>>().join(", ");
    match teams.len().saturating_sub(TEAMS_NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// In which windows something is so, as a part of a sentence.
pub(super) fn while_open(windows: &[Name]) -> String {
    let names: Vec<&str> = windows.iter().map(Name::as_str).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => format!(" while window {one} is open"),
        several => format!(" while windows {} are open", several.join(" and ")),
    }
}

/// What is to be known of quotas that were changed, by pool, by the rows of this transaction: the
/// world in memory may not have them yet.
pub(super) async fn warnings(
    tx: &mut Tx,
    changed: &BTreeMap<&Name, BTreeSet<&Name>>,
) -> Result<Vec<Warning>, AppError> {
    let now = store::clock(tx).await?;
    let mut warnings = Vec::new();
    for (pool, teams) in changed {
        let id = pools::find(tx, pool).await?.id;
        let promises = Promises::load(tx, (id, pool)).await?;
        warnings.extend(of_pool(capacity(tx, id).await?, &promises, now));
        warnings.extend(in_place(&promises, teams, now));
    }
    Ok(warnings)
}

/// The windows that are open at a moment and hold in place of the quotas of these teams.
pub fn in_place(promises: &Promises, teams: &BTreeSet<&Name>, at: Timestamp) -> Vec<Warning> {
    let mut by_window: BTreeMap<&Name, (Timestamp, Vec<Name>)> = BTreeMap::new();
    for found in windows::in_place(&promises.windows, at).into_values() {
        let team = &found.quota.team;
        if teams.contains(team) {
            let told = by_window.entry(&found.window.name);
            told.or_insert((found.until, Vec::new()))
                .1
                .push(team.clone());
        }
    }
    let told = by_window.into_iter();
    told.map(|(window, (until, teams))| Warning::in_place(&promises.pool, window, until, teams))
        .collect()
}

/// What a pool has that promises are made of, whether they are guaranteed or booked: also what is away
/// for now, since promises hold for longer than a node restarts.
pub async fn capacity(tx: &mut Tx, pool: PoolId) -> Result<MilliGpu, AppError> {
    let milli = store::pools::capacity_milli(tx, pool).await?;
    Ok(MilliGpu::from_milli(milli))
}

/// Says so where these promises are more than the pool has: while no window is open, and where
/// windows make it more, for each of them the time when it is most.
pub fn of_pool(capacity: MilliGpu, promises: &Promises, now: Timestamp) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = Vec::new();
    warnings.extend(at(capacity, promises, &[]));
    let mut most = vec![(Vec::new(), promises.sum(&[]))];
    let mut sets: Vec<(Vec<usize>, i64)> = worst(promises, now).into_values().collect();
    sets.sort_by_key(|(open, _)| open.len());
    for (open, sum) in sets {
        // What fewer windows make of it is not told of more.
        let within = |set: &[usize]| set.iter().all(|window| open.contains(window));
        if most.iter().all(|(set, known)| sum > *known || !within(set)) {
            add(&mut warnings, at(capacity, promises, &open));
            most.push((open, sum));
        }
    }
    warnings
}

/// What is to be known of each window: that more is promised than the pool has while it is open,
/// and which other windows give the same teams other quotas at the same time.
pub fn of_windows(
    capacity: MilliGpu,
    promises: &Promises,
    now: Timestamp,
) -> BTreeMap<Name, Vec<Warning>> {
    let mut warnings: BTreeMap<Name, Vec<Warning>> = BTreeMap::new();
    for (window, (open, _)) in worst(promises, now) {
        let name = &promises.windows[window].name;
        let found = at(capacity, promises, &open);
        warnings.entry(name.clone()).or_default().extend(found);
    }
    for (one, other) in together(promises, now) {
        let (one, other) = (&promises.windows[one], &promises.windows[other]);
        let teams = quarrelled(one, other);
        if teams.is_empty() {
            continue;
        }
        let warning = Warning::overlap(&promises.pool, (&one.name, &other.name), teams);
        for name in [&one.name, &other.name] {
            warnings
                .entry(name.clone())
                .or_default()
                .push(warning.clone());
        }
    }
    warnings
}

/// Says so where these promises, while these windows are open, are more than the pool has.
pub fn at(capacity: MilliGpu, promises: &Promises, open: &[usize]) -> Option<Warning> {
    let guaranteed = MilliGpu::from_milli(promises.sum(open));
    if guaranteed <= capacity {
        return None;
    }
    let over = Overpromised {
        guaranteed,
        capacity,
    };
    let names = open.iter().map(|i| promises.windows[*i].name.clone());
    Some(Warning::overpromised(&promises.pool, names.collect(), over))
}

/// Adds what is not told yet.
pub fn add(warnings: &mut Vec<Warning>, more: impl IntoIterator<Item = Warning>) {
    for warning in more {
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
}

/// For each window the set of open windows with it in which most is guaranteed, and how much.
fn worst(promises: &Promises, now: Timestamp) -> BTreeMap<usize, (Vec<usize>, i64)> {
    let mut worst: BTreeMap<usize, (Vec<usize>, i64)> = BTreeMap::new();
    let mut sets = Vec::from_iter(windows::combinations(&promises.windows, now));
    // Of two sets in which the same is guaranteed the smaller one says more.
    sets.sort_by_key(Vec::len);
    for open in sets {
        let sum = promises.sum(&open);
        for window in &open {
            let known = worst.get(window).is_some_and(|(_, most)| *most >= sum);
            if !known {
                worst.insert(*window, (open.clone(), sum));
            }
        }
    }
    worst
}

/// Which windows are open together, two by two in the order of their names.
fn together(promises: &Promises, now: Timestamp) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for open in windows::combinations(&promises.windows, now) {
        for one in &open {
            for other in &open {
                if promises.windows[*one].name < promises.windows[*other].name {
                    pairs.push((*one, *other));
                }
            }
        }
    }
    pairs.sort_by_key(|(one, other)| {
        let name = |window: &usize| promises.windows[*window].name.clone();
        (name(one), name(other))
    });
    pairs.dedup();
    pairs
}

/// The teams to which two windows give different quotas.
fn quarrelled(one: &Window, other: &Window) -> Vec<Name> {
    let differs = one.quotas.iter().filter(|quota| {
        let same = other.quotas.iter().find(|q| q.team_id == quota.team_id);
        same.is_some_and(|same| same.amounts != quota.amounts)
    });
    differs.map(|quota| quota.team.clone()).collect()
}
