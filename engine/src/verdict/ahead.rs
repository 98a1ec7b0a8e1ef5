//! Who starts by what is known to change later: a booking that begins, quotas that other hours bring.

use chrono::TimeDelta;
use domain::Timestamp;
use rustc_hash::FxHashMap;

use crate::cycle::{self, Cycle};
use crate::cycles;
use crate::plan::{Nomination, Once};
use crate::world::{Team, World};

/// Most moments at which all is decided anew: each costs as much as the cycle's decisions, and what
/// lies behind so many changes is no estimate.
const MOMENTS_MAX: usize = 4;

/// Most rows for which all is decided anew: beyond that one decision takes longer than is worth a
/// sentence to somebody who may not read it.
const ROWS_MAX: usize = 2_000;

/// When work starts by what changes later, by its number.
pub(crate) type Starts = FxHashMap<usize, (Timestamp, Once)>;

/// When a workload starts by a booking that begins, or by quotas that hold later; as far as that
/// is tried.
pub(super) fn start_of(cycle: &mut Cycle<'_, '_>, work: usize) -> Option<(Timestamp, Once)> {
    if cycle.ahead.is_none() {
        cycle.ahead = Some(tried(cycle));
    }
    let (at, once) = cycle.ahead.as_ref()?.get(&work).copied()?;
    let index = cycle.index;
    let path = &index.teams[index.works[work].team].path;
    let begins = |team: &str| {
        path.iter()
            .any(|&above| index.teams[above].row.name == team)
    };
    let own = once != Once::BookingBegins
        || (index.world.bookings.iter())
            .any(|b| b.from > index.world.now && b.from <= at && begins(&b.team));
    own.then_some((at, once))
}

/// Each moment ahead in turn: what has ended by then is gone, and who has its turn then starts.
fn tried(cycle: &Cycle<'_, '_>) -> Starts {
    let index = cycle.index;
    let mut starts = Starts::default();
    let moments = moments(cycle);
    if moments.is_empty() || index.nodes.len() + index.count() > ROWS_MAX {
        return starts;
    }
    let mut world = index.rows().to_world();
    cycles::apply(&mut world, &cycle.plan);
    for (at, once) in moments {
        cycles::advance(&mut world, Some(at));
        hold(&mut world);
        let made = cycle::decide(&world);
        let mut found = |name: &str, at: Timestamp| {
            if let Some(work) = index.work(name) {
                starts.entry(work).or_insert((at, once));
            }
        };
        for start in &made.starts {
            found(&start.workload, world.now);
        }
        for kept in &made.nominations {
            found(&kept.workload, world.now + grace(&world, kept));
        }
        cycles::apply(&mut world, &made);
    }
    starts
}

fn moments(cycle: &Cycle<'_, '_>) -> Vec<(Timestamp, Once)> {
    let known = cycle.index.world;
    let begin = known.bookings.iter().map(|b| (b.from, Once::BookingBegins));
    let change = known.ahead.iter().map(|q| (q.from, Once::QuotasChange));
    let mut moments: Vec<(Timestamp, Once)> = begin
        .chain(change)
        .filter(|(at, _)| *at > known.now)
        .collect();
    moments.sort_unstable();
    moments.dedup_by_key(|(at, _)| *at);
    moments.truncate(MOMENTS_MAX);
    moments
}

/// Puts in place what quotas hold by now.
fn hold(world: &mut World) {
    let known = world.ahead.iter().filter(|quotas| quotas.from <= world.now);
    let Some(quotas) = known.max_by_key(|quotas| quotas.from) else {
        return;
    };
    for team in &mut world.teams {
        let then = quotas.teams.iter().find(|then| then.name == team.name);
        if let Some(Team {
            quotas,
            max_per_user,
            ..
        }) = then
        {
            team.quotas.clone_from(quotas);
            team.max_per_user.clone_from(max_per_user);
        }
    }
}

/// How long those have who leave the pool of some room.
fn grace(world: &World, kept: &Nomination) -> TimeDelta {
    let node = kept.placement.first().map(|place| place.node.as_str());
    let node = world
        .nodes
        .iter()
        .find(|row| Some(row.name.as_str()) == node);
    let pool = node.and_then(|node| world.pools.iter().find(|pool| pool.name == node.pool));
    TimeDelta::seconds(pool.map_or(0, |pool| pool.preemption.grace_seconds))
}
