//! Nodes by the first reason for which they do not do, and what is free in sum.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use domain::sharing::SharingMode;
use rustc_hash::FxHashMap;

use super::told::KnownWords;
use crate::cycle::Cycle;
use crate::index::{Amount, DEVICE, Need, bit};
use crate::ledger::{Sight, View};
use crate::mig::Profile;
use crate::place::{self, devices_free, host_free, instances_free, slices_free};
use crate::plan::Code;

/// Reasons for which a node that could do has too little left.
const GPUS: &str = "too_few_free_gpus";
const CPUS: &str = "too_few_free_cpus";
const MEMORY: &str = "too_little_free_memory";

/// What has been counted, by pool and form: equal workers meet equal nodes.
#[derive(Default)]
pub(crate) struct Counted {
    nodes: FxHashMap<(usize, usize, bool), Arc<BTreeMap<String, u64>>>,
    free: FxHashMap<(usize, usize), (i64, i64, i64)>,
    /// What is free on each node, once somebody has asked.
    glances: Option<Rc<Vec<Glance>>>,
    /// What is said of the nodes that are out.
    pub(super) out: FxHashMap<(usize, usize), Rc<str>>,
    /// Each pool as what binds.
    pub(super) scopes: FxHashMap<usize, Arc<str>>,
    pub(super) words: KnownWords,
}

/// What of a node other than its devices is too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Host {
    Cpus,
    Memory,
}

/// What binds on each node that could do but for what is free there, where that is no device.
pub(super) fn host_binds(counts: &BTreeMap<String, u64>) -> Option<Host> {
    let any = |reason: &str| counts.get(reason).is_some_and(|count| *count > 0);
    match (any(GPUS), any(CPUS), any(MEMORY)) {
        (true, _, _) | (_, false, false) => None,
        (_, true, _) => Some(Host::Cpus),
        (_, _, true) => Some(Host::Memory),
    }
}

/// Each node of the pool is counted once, under the first reason that holds for one worker.
pub(super) fn of(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    pool: usize,
    code: Code,
) -> Arc<BTreeMap<String, u64>> {
    let held = code == Code::HeldForReservation;
    let key = (pool, cycle.index.works[work].form, held);
    if let Some(known) = cycle.counted.nodes.get(&key) {
        return Arc::clone(known);
    }
    let counts = Arc::new(count(cycle, work, pool, code));
    cycle.counted.nodes.insert(key, Arc::clone(&counts));
    counts
}

/// What is free on a node: to a start, and as if no room were kept for others.
#[derive(Debug, Clone, Copy)]
struct Glance {
    /// Whole devices.
    whole: (u32, u32),
    /// The most that is left of a device that is free or given out in parts, and of all such.
    part: i64,
    parts: i64,
    cpus: (i64, i64),
    memory: (i64, i64),
}

impl Glance {
    fn of(cycle: &Cycle<'_, '_>, node: usize) -> Self {
        let (ledger, now) = (&cycle.ledger, View::Now as usize);
        let space = &ledger.spaces[node];
        let (cpus, memory) = host_free(ledger, node, Sight::Start);
        let parts = || parts_free(cycle, node, Sight::Start);
        Self {
            whole: (
                devices_free(ledger, node, Sight::Start).count_ones(),
                space.free[now].count_ones(),
            ),
            part: parts().max().unwrap_or(i64::MIN),
            parts: parts().map(|free| free.max(0)).sum(),
            cpus: (cpus, space.cpus[now]),
            memory: (memory, space.memory[now]),
        }
    }
}

/// What is free on each node: it is looked at for each form of work.
fn glances(cycle: &mut Cycle<'_, '_>) -> Rc<Vec<Glance>> {
    if let Some(known) = &cycle.counted.glances {
        return Rc::clone(known);
    }
    let nodes = 0..cycle.index.nodes.len();
    let glances: Rc<Vec<Glance>> = Rc::new(nodes.map(|node| Glance::of(cycle, node)).collect());
    cycle.counted.glances = Some(Rc::clone(&glances));
    glances
}

fn count(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize, code: Code) -> BTreeMap<String, u64> {
    let index = cycle.index;
    let nodes = &index.pools[pool].nodes;
    let glances = glances(cycle);
    let able = place::nodes_able(&mut cycle.ledger, work, pool);
    let mut able = able.iter().copied().peekable();
    let mut counts: Vec<(&str, u64)> = vec![("nodes", nodes.len() as u64)];
    for &node in nodes {
        let reason = match able.next_if_eq(&node) {
            None => match place::fit(index, work, node, false) {
                Err(unfit) => Some(unfit.as_str()),
                Ok(()) => None,
            },
            Some(_) => short_of(cycle, work, node, &glances[node]).or_else(|| {
                // There is room, and it is kept for another.
                (code == Code::HeldForReservation).then_some("held_by_reservation")
            }),
        };
        let Some(reason) = reason else { continue };
        match counts.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => counts.push((reason, 1)),
        }
    }
    let counts = counts.into_iter();
    counts
        .map(|(reason, count)| (reason.to_owned(), count))
        .collect()
}

fn short_of(
    cycle: &Cycle<'_, '_>,
    work: usize,
    node: usize,
    glance: &Glance,
) -> Option<&'static str> {
    let facts = &cycle.index.works[work];
    let reason = if devices_short(cycle, work, node, glance) {
        GPUS
    } else if glance.cpus.0 < facts.cpus {
        CPUS
    } else if glance.memory.0 < facts.memory {
        MEMORY
    } else {
        return None;
    };
    if lacks_only_later(cycle, work, node, glance) {
        Some("held_by_reservation")
    } else {
        Some(reason)
    }
}

/// Whether only room that is kept for others stands in the way.
fn lacks_only_later(cycle: &Cycle<'_, '_>, work: usize, node: usize, glance: &Glance) -> bool {
    let facts = &cycle.index.works[work];
    let devices = match facts.need {
        Need::Whole(count) => glance.whole.1 >= count,
        Need::Instances { .. } => !lacks_instances(cycle, work, node, Sight::Now),
        _ => false,
    };
    devices && glance.cpus.1 >= facts.cpus && glance.memory.1 >= facts.memory
}

fn devices_short(cycle: &Cycle<'_, '_>, work: usize, node: usize, glance: &Glance) -> bool {
    match cycle.index.works[work].need {
        Need::Nothing => false,
        Need::Whole(count) => glance.whole.0 < count,
        Need::Part { milli, .. } => glance.part < milli,
        Need::Instances { .. } => lacks_instances(cycle, work, node, Sight::Start),
    }
}

fn lacks_instances(cycle: &Cycle<'_, '_>, work: usize, node: usize, sight: Sight) -> bool {
    let Need::Instances { count, profile } = cycle.index.works[work].need else {
        return false;
    };
    let profile = cycle.index.profile(profile, node);
    profile.is_none_or(|p| instances_free(&cycle.ledger, node, p, sight, count) < count)
}

/// What is left of each device that is free or given out in parts.
fn parts_free<'a>(
    cycle: &'a Cycle<'_, '_>,
    node: usize,
    sight: Sight,
) -> impl Iterator<Item = i64> + 'a {
    let machine = &cycle.index.nodes[node];
    let out = machine.shut(false);
    (0..machine.row.gpus)
        .filter(move |&i| out & bit(i) == 0)
        .map(move |i| {
            let loads = sight.views().iter().map(|&v| {
                let load = &cycle.ledger.spaces[node].loads[v as usize][i as usize];
                // What is left of a device that is cut is nothing to a fraction.
                if load.mode == Some(SharingMode::Mig) {
                    DEVICE
                } else {
                    load.milli
                }
            });
            DEVICE - loads.max().unwrap_or(0)
        })
}

/// What is free in a pool on nodes that could do, in the pool's units.
pub(super) fn free(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize) -> Amount {
    let (milli, ..) = free_in_all(cycle, work, pool);
    Amount::from(milli) * cycle.index.pools[pool].unit
}

/// Thousandths of devices, cores and memory that are free in a pool on nodes that could do.
fn free_in_all(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize) -> (i64, i64, i64) {
    let key = (pool, cycle.index.works[work].form);
    if let Some(known) = cycle.counted.free.get(&key) {
        return *known;
    }
    let able = place::nodes_able(&mut cycle.ledger, work, pool);
    let glances = glances(cycle);
    let (mut milli, mut cpus, mut memory) = (0, 0, 0);
    for &node in able.iter() {
        let glance = &glances[node];
        milli += free_milli(cycle, work, node, glance);
        cpus += glance.cpus.0.max(0);
        memory += glance.memory.0.max(0);
    }
    cycle.counted.free.insert(key, (milli, cpus, memory));
    (milli, cpus, memory)
}

fn free_milli(cycle: &Cycle<'_, '_>, work: usize, node: usize, glance: &Glance) -> i64 {
    match cycle.index.works[work].need {
        Need::Nothing => 0,
        Need::Whole(_) => i64::from(glance.whole.0) * DEVICE,
        Need::Part { .. } => glance.parts,
        Need::Instances { .. } => slices_free(&cycle.ledger, node, Sight::Start),
    }
}

/// Whether the free amounts, added up over the pool, would do.
pub(super) fn enough_in_sum(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    pool: usize,
    workers: u32,
) -> bool {
    if place::nodes_able(&mut cycle.ledger, work, pool).is_empty() {
        return false;
    }
    let (milli, cpus, memory) = free_in_all(cycle, work, pool);
    let index = cycle.index;
    let facts = &index.works[work];
    let workers = i64::from(workers);
    let devices = match facts.need {
        Need::Nothing => 0,
        Need::Whole(count) => i64::from(count) * DEVICE,
        Need::Part { milli, .. } => milli,
        Need::Instances { count, profile } => {
            let able = place::nodes_able(&mut cycle.ledger, work, pool);
            let of = |n: &usize| index.profile(profile, *n).map(Profile::milli);
            let each = able.iter().filter_map(of).min().unwrap_or(DEVICE);
            each * i64::from(count)
        }
    };
    milli >= devices * workers && cpus >= facts.cpus * workers && memory >= facts.memory * workers
}
