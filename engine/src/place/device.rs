//! Which devices of a node a worker gets.

use domain::sharing::SharingMode;
use domain::spec::NvlinkRule;

use super::instance::{self, Ease};
use super::{Query, devices_free, host_free, modes};
use crate::index::{DEVICE, Need, bit};
use crate::ledger::{Ledger, Load, Part};

/// Whether one worker may fit on a node: a cheap test before devices are chosen.
pub(super) fn room(ledger: &Ledger<'_, '_>, query: Query<'_>, node: usize) -> bool {
    let facts = &ledger.index.works[query.work];
    let (cpus, memory) = host_free(ledger, node, query.sight);
    if cpus < facts.cpus || memory < facts.memory {
        return false;
    }
    match facts.need {
        Need::Nothing => true,
        Need::Whole(count) => devices_free(ledger, node, query.sight).count_ones() >= count,
        // A fraction has no cheaper test than the choice itself.
        Need::Part { .. } => true,
        Need::Instances { count, profile } => {
            let profile = ledger.index.profile(profile, node);
            profile.is_some_and(|p| {
                instance::instances_free(ledger, node, p, query.sight, count) >= count
            })
        }
    }
}

/// The devices for one worker.
pub(super) struct Chosen {
    pub parts: Vec<Part>,
    /// Whether they are several, and linked with one another.
    pub linked: bool,
    /// What has to be changed on them first.
    pub ease: Ease,
}

/// What decides between nodes of the devices for one worker.
pub(super) struct Told<'p> {
    /// Only where placements have costs.
    pub parts: &'p [Part],
    pub linked: bool,
    pub ease: Ease,
}

impl Chosen {
    pub fn told(&self) -> Told<'_> {
        Told {
            parts: &self.parts,
            linked: self.linked,
            ease: self.ease,
        }
    }
}

/// What decides of the devices that [`choose`] chooses, where placements have no costs.
pub(super) fn tell(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    node: usize,
) -> Option<Told<'static>> {
    let (linked, ease) = match ledger.index.works[query.work].need {
        Need::Nothing => (false, Ease::Existing),
        Need::Whole(count) => {
            let (devices, linked) = whole_devices(ledger, query, node, count)?;
            (linked, ease(devices, ledger.index.nodes[node].mig))
        }
        Need::Part { milli, memory } => {
            let (choice, _) = best_part(ledger, query, node, milli, memory)?;
            (false, choice.ease())
        }
        Need::Instances { .. } => {
            let chosen = choose(ledger, query, node)?;
            (chosen.linked, chosen.ease)
        }
    };
    Some(Told {
        parts: &[],
        linked,
        ease,
    })
}

/// The best devices of a node for one worker, if it has enough.
pub(super) fn choose(ledger: &Ledger<'_, '_>, query: Query<'_>, node: usize) -> Option<Chosen> {
    match ledger.index.works[query.work].need {
        Need::Nothing => Some(Chosen {
            parts: Vec::new(),
            linked: false,
            ease: Ease::Existing,
        }),
        Need::Whole(count) => whole(ledger, query, node, count),
        Need::Part { milli, memory } => part(ledger, query, node, milli, memory),
        Need::Instances { count, profile } => {
            let profile = ledger.index.profile(profile, node)?;
            instance::choose(ledger, query, node, profile, count)
        }
    }
}

fn whole(ledger: &Ledger<'_, '_>, query: Query<'_>, node: usize, count: u32) -> Option<Chosen> {
    let machine = &ledger.index.nodes[node];
    let (devices, linked) = whole_devices(ledger, query, node, count)?;
    let indices = (0..u64::BITS).filter(|&i| devices & bit(i) != 0);
    let parts = indices.map(|index| Part {
        index,
        mode: SharingMode::Exclusive,
        milli: DEVICE,
        memory: machine.row.gpu_memory_mib,
        slice: None,
    });
    Some(Chosen {
        parts: parts.collect(),
        ease: ease(devices, machine.mig),
        linked,
    })
}

/// Whole devices as bits, and whether they are several and linked.
fn whole_devices(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    node: usize,
    count: u32,
) -> Option<(u64, bool)> {
    let machine = ledger.index.nodes[node].row;
    let free = devices_free(ledger, node, query.sight);
    if free.count_ones() < count {
        return None;
    }
    let rule = ledger.index.works[query.work].row.nvlink;
    let cliques = if rule == NvlinkRule::Any {
        &[][..]
    } else {
        &machine.nvlink[..]
    };
    // An idle device in MIG mode can be switched back, which is left for when it is needed.
    let mig = ledger.index.nodes[node].mig;
    let plain = free & !mig;
    let mut linked = tightest(cliques, plain, count);
    if linked.is_none() && count > 1 && plain != free {
        linked = tightest(cliques, free, count);
    }
    if rule == NvlinkRule::Require && count > 1 && !query.relaxed && linked.is_none() {
        return None;
    }
    let left = if plain.count_ones() >= count {
        plain
    } else {
        free
    };
    // One device breaks a clique as little as possible; several want links, then one socket.
    let chosen = linked
        .or_else(|| tightest(&machine.numa, left, count))
        .unwrap_or(left);
    Some((lowest(chosen, count), count > 1 && linked.is_some()))
}

/// So many of the lowest devices of a set.
fn lowest(set: u64, count: u32) -> u64 {
    let (mut left, mut taken) = (set, 0);
    for _ in 0..count.min(set.count_ones()) {
        taken |= left & left.wrapping_neg();
        left &= left - 1;
    }
    taken
}

/// Whether any of these devices has to leave MIG mode first.
fn ease(devices: u64, mig: u64) -> Ease {
    if devices & mig != 0 {
        Ease::Switching
    } else {
        Ease::Existing
    }
}

/// The free devices of the set with the fewest that still has enough.
pub(super) fn tightest(sets: &[Vec<u32>], free: u64, count: u32) -> Option<u64> {
    let bits = sets
        .iter()
        .map(|set| set.iter().fold(0, |all, &i| all | bit(i)) & free);
    // The lowest devices among equals: the first set whose lowest bit is lowest.
    bits.filter(|set| set.count_ones() >= count)
        .min_by_key(|set| (set.count_ones(), set.trailing_zeros()))
}

fn part(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    node: usize,
    milli: i64,
    memory: Option<i64>,
) -> Option<Chosen> {
    let (choice, part) = best_part(ledger, query, node, milli, memory)?;
    Some(Chosen {
        ease: choice.ease(),
        parts: vec![part],
        linked: false,
    })
}

/// The best device for a fraction, and the part of it.
fn best_part(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    node: usize,
    milli: i64,
    memory: Option<i64>,
) -> Option<(Choice, Part)> {
    let machine = &ledger.index.nodes[node];
    let memory = memory.unwrap_or(machine.row.gpu_memory_mib * milli / DEVICE);
    let out = machine.shut(ledger.is_bare());
    let costs = ledger.costs[query.pool].as_ref();
    let cost = |part: &Part| {
        costs.map_or(0, |p| {
            p.cost(ledger, query, node, std::slice::from_ref(part))
        })
    };
    let mut best: Option<(Choice, Part)> = None;
    for (rank, mode) in modes(ledger.index, query.work, node).enumerate() {
        for index in (0..machine.row.gpus).filter(|&i| out & bit(i) == 0) {
            let mut left = DEVICE;
            let mut fresh = true;
            let part = Part {
                index,
                mode,
                milli,
                memory,
                slice: None,
            };
            let fits = query.sight.views().iter().all(|&view| {
                let load = &ledger.spaces[node].loads[view as usize][index as usize];
                left = left.min(DEVICE - load.milli);
                fresh &= load.sharers == 0;
                joins(ledger, query.work, node, load, &part)
            });
            if !fits {
                continue;
            }
            let choice = Choice {
                switched: machine.mig & bit(index) != 0 && fresh,
                cost: cost(&part),
                fresh,
                left,
                rank,
                index,
            };
            if best.as_ref().is_none_or(|(least, _)| choice < *least) {
                best = Some((choice, part));
            }
        }
    }
    best
}

/// A device for a fraction; the least is taken: not one that has to leave MIG mode, where
/// least is wasted, shared already, the fullest, the mode that the workload likes best, the
/// lowest index.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    switched: bool,
    cost: i64,
    fresh: bool,
    left: i64,
    rank: usize,
    index: u32,
}

impl Choice {
    fn ease(&self) -> Ease {
        if self.switched {
            Ease::Switching
        } else {
            Ease::Existing
        }
    }
}

/// Whether a part can join what stands on its device in one view.
pub(crate) fn joins(
    ledger: &Ledger<'_, '_>,
    work: usize,
    node: usize,
    load: &Load,
    part: &Part,
) -> bool {
    let index = ledger.index;
    let machine = &index.nodes[node];
    if load.sharers > 0 {
        let pool = index.pools[machine.pool].row;
        let full = part.mode == SharingMode::TimeSlice && load.sharers >= pool.time_slices;
        let foreign = part.mode == SharingMode::Mps
            && !(pool.mps_across_teams && machine.row.mps_across_teams)
            && load.team != index.works[work].team;
        // All parts of a device have one size, so that as many fit as its memory holds of them.
        let odd = part.mode == SharingMode::Vgpu && load.size != part.memory;
        let other = part.mode == SharingMode::Exclusive || load.mode != Some(part.mode);
        if other || full || foreign || odd {
            return false;
        }
    }
    if part.slice.is_some_and(|slice| !load.cut.admits(slice)) {
        return false;
    }
    load.milli + part.milli <= DEVICE && load.memory + part.memory <= machine.row.gpu_memory_mib
}
