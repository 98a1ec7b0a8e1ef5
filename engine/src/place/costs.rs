//! What a placement wastes in pools of the strategy `least_fragmentation`: `fragmentation` applied to nodes and work.

use std::collections::{BTreeMap, HashMap};

use domain::spec::PerWorker;

use super::{Query, devices_free, host_free};
use crate::fragmentation::{Ground, Kind, Mix, PricedNode, Tables};
use crate::index::{DEVICE, Index, bit};
use crate::ledger::{Ledger, Part, Sight};
use crate::mig::{self, Profile};
use crate::world::{NodeState, Strategy};

/// What a pool's placements cost, by the mix of what waits, runs and has been there.
#[derive(Debug)]
pub(crate) struct PlacementCosts {
    tables: Tables,
    /// The set of hardware of each node.
    sets: Vec<usize>,
    /// The demands on hardware that each set meets.
    met: Vec<Vec<bool>>,
}

/// What work demands of a node beyond amounts: model, device memory, labels.
type Hardware<'w> = (Option<&'w str>, Option<i64>, &'w BTreeMap<String, String>);

impl PlacementCosts {
    /// The costs of all pools that have the strategy; nothing for the others.
    pub fn of(index: &Index<'_>) -> Vec<Option<Self>> {
        let wasting_little =
            |pool: &usize| index.pools[*pool].row.strategy == Strategy::LeastFragmentation;
        (0..index.pools.len())
            .map(|pool| {
                Some(pool)
                    .filter(wasting_little)
                    .map(|pool| Self::of_pool(index, pool))
            })
            .collect()
    }

    fn of_pool(index: &Index<'_>, pool: usize) -> Self {
        let nodes = &index.pools[pool].nodes;
        let counted = counted(index, pool);
        let mut numbers: BTreeMap<Hardware<'_>, usize> = counted
            .iter()
            .map(|(_, hardware, _)| (*hardware, 0))
            .collect();
        for (number, place) in numbers.values_mut().enumerate() {
            *place = number;
        }
        let mut mix = Mix::new();
        for (kind, hardware, workers) in &counted {
            let hardware = numbers[hardware];
            *mix.entry(Kind { hardware, ..*kind }).or_default() += workers;
        }
        let mut sets = vec![0; index.nodes.len()];
        let mut met: Vec<Vec<bool>> = Vec::new();
        let mut found: HashMap<Vec<bool>, usize> = HashMap::new();
        for &node in nodes {
            let meets: Vec<bool> = numbers.keys().map(|h| meets(index, node, h)).collect();
            sets[node] = *found.entry(meets).or_insert_with_key(|meets| {
                met.push(meets.clone());
                met.len() - 1
            });
        }
        let machines = || {
            nodes
                .iter()
                .map(|&n| &index.nodes[n])
                .filter(|n| n.counts())
        };
        let ground = Ground {
            devices: machines()
                .map(|n| i64::from(n.row.gpus - n.failed.count_ones()))
                .sum(),
            cpus: machines().map(|n| n.row.cpus.milli()).sum(),
            devices_max: machines().map(|n| i64::from(n.row.gpus)).max().unwrap_or(0),
            cpus_max: machines().map(|n| n.row.cpus.milli()).max().unwrap_or(0),
        };
        Self {
            tables: Tables::of(&mix, ground, &met),
            sets,
            met,
        }
    }

    /// The set of hardware of a node.
    pub fn set(&self, node: usize) -> usize {
        self.sets[node]
    }

    /// What a worker on these devices of a node adds to what serves nobody, in thousandths of a GPU.
    pub fn cost(
        &self,
        ledger: &Ledger<'_, '_>,
        query: Query<'_>,
        node: usize,
        parts: &[Part],
    ) -> i64 {
        let before = self.standing(ledger, query.sight, node);
        let mut after = before;
        after.cpus -= ledger.index.works[query.work].cpus;
        for part in parts {
            let hole = hole(ledger, query.sight, node, part.index);
            let left = (hole - size(ledger.index, node, part)).max(0);
            self.tables.turn(&mut after, hole, left);
        }
        self.tables.cost(&before, &after)
    }

    fn standing(&self, ledger: &Ledger<'_, '_>, sight: Sight, node: usize) -> PricedNode {
        let (cpus, _) = host_free(ledger, node, sight);
        let devices = 0..ledger.index.nodes[node].row.gpus;
        let holes = devices.map(|device| hole(ledger, sight, node, device));
        self.tables.stand(self.sets[node], cpus, holes)
    }

    /// The thousandths of devices that are free on a node.
    pub fn idle(&self, ledger: &Ledger<'_, '_>, node: usize) -> i64 {
        if ledger.index.nodes[node].row.state != NodeState::Ready {
            return 0;
        }
        let devices = 0..ledger.index.nodes[node].row.gpus;
        devices
            .map(|device| hole(ledger, Sight::Start, node, device))
            .sum()
    }

    /// How often a node has room for each request for several devices.
    pub fn room(&self, ledger: &Ledger<'_, '_>, node: usize) -> Vec<i64> {
        self.room_less(ledger, node, 0, 0, 0)
    }

    fn room_less(
        &self,
        ledger: &Ledger<'_, '_>,
        node: usize,
        devices: i64,
        cpus: i64,
        memory: i64,
    ) -> Vec<i64> {
        let ready = ledger.index.nodes[node].row.state == NodeState::Ready;
        let free = i64::from(devices_free(ledger, node, Sight::Start).count_ones());
        let host = host_free(ledger, node, Sight::Start);
        let requests = self.tables.reserve.requests.iter().enumerate();
        let room = requests.map(|(at, request)| {
            if ready && self.met[self.sets[node]][request.hardware] {
                let reserve = &self.tables.reserve;
                reserve.room(at, free - devices, host.0 - cpus, host.1 - memory)
            } else {
                0
            }
        });
        room.collect()
    }

    /// The requests, as bits, that a worker on these devices takes room from, though it is
    /// not one of them or larger.
    pub fn takes_room(
        &self,
        ledger: &Ledger<'_, '_>,
        query: Query<'_>,
        node: usize,
        parts: &[Part],
    ) -> u64 {
        let index = ledger.index;
        let facts = &index.works[query.work];
        let free = devices_free(ledger, node, Sight::Start);
        let opened = parts
            .iter()
            .filter(|part| free & bit(part.index) != 0)
            .count();
        let before = self.room(ledger, node);
        let after = self.room_less(ledger, node, opened as i64, facts.cpus, facts.memory);
        let lower = before.iter().zip(&after).enumerate();
        let lower = lower.filter(|(_, (before, after))| after < before);
        let taken: u64 = lower.fold(0, |mask, (at, _)| mask | 1 << at);
        let kind = kind(index, query.work, index.nodes[node].pool);
        taken & !self.tables.reserve.covered_by(&kind.request())
    }

    /// The requests, as bits, that have little room left.
    pub fn scarce(&self, room: &[i64], idle: i64) -> u64 {
        self.tables.reserve.scarce(room, idle)
    }
}

/// What is free of a device, in thousandths; its memory counts too.
fn hole(ledger: &Ledger<'_, '_>, sight: Sight, node: usize, device: u32) -> i64 {
    let machine = &ledger.index.nodes[node];
    if machine.failed & bit(device) != 0 {
        return 0;
    }
    let taken = sight.views().iter().map(|&view| {
        let load = &ledger.spaces[node].loads[view as usize][device as usize];
        load.milli
            .max(share(load.memory, machine.row.gpu_memory_mib))
    });
    (DEVICE - taken.max().unwrap_or(0)).clamp(0, DEVICE)
}

fn size(index: &Index<'_>, node: usize, part: &Part) -> i64 {
    part.milli
        .max(share(part.memory, index.nodes[node].row.gpu_memory_mib))
}

fn share(memory: i64, of: i64) -> i64 {
    if of > 0 {
        (memory * DEVICE + of - 1) / of
    } else {
        0
    }
}

/// All work that the world knows of, by kind and hardware: waiting, running, and gone. Work
/// of one shape is counted together.
fn counted<'w>(index: &Index<'w>, pool: usize) -> Vec<(Kind, Hardware<'w>, i64)> {
    let mut shapes: HashMap<usize, (usize, i64)> = HashMap::new();
    for (work, facts) in index.works.iter().enumerate() {
        if facts.pools.contains(&pool) {
            shapes.entry(facts.shape).or_insert((work, 0)).1 += i64::from(facts.row.workers);
        }
    }
    let known = shapes.into_values().map(|(work, workers)| {
        let row = index.works[work].row;
        let hardware = hardware(&row.per_worker, &row.selector);
        (kind(index, work, pool), hardware, workers)
    });
    let here = index
        .world
        .history
        .iter()
        .filter(|past| past.pool == index.pools[pool].row.name);
    let past = here.map(|past| {
        let hardware = hardware(&past.per_worker, &past.selector);
        (
            kind_of(index, pool, &past.per_worker),
            hardware,
            past.workers,
        )
    });
    known.chain(past).collect()
}

fn hardware<'w>(asked: &'w PerWorker, selector: &'w BTreeMap<String, String>) -> Hardware<'w> {
    (asked.gpu_model.as_deref(), asked.gpu_memory_mib, selector)
}

fn meets(index: &Index<'_>, node: usize, hardware: &Hardware<'_>) -> bool {
    let machine = index.nodes[node].row;
    let (model, memory, selector) = hardware;
    model.is_none_or(|model| machine.gpu_model.as_deref() == Some(model))
        && memory.is_none_or(|least| machine.gpu_memory_mib >= least)
        && selector
            .iter()
            .all(|(key, value)| machine.labels.get(key) == Some(value))
}

fn kind(index: &Index<'_>, work: usize, pool: usize) -> Kind {
    kind_of(index, pool, &index.works[work].row.per_worker)
}

/// A kind without its hardware. Parts and instances count as on the pool's first node.
fn kind_of(index: &Index<'_>, pool: usize, asked: &PerWorker) -> Kind {
    let first = index.pools[pool].nodes.first();
    let first = first.map(|&node| index.nodes[node].row);
    let milli = match &asked.mig_profile {
        Some(name) => {
            let model = first.and_then(|node| node.gpu_model.as_deref());
            let profile = model.and_then(|model| mig::profile(model, name));
            let count = asked.gpus().milli() / DEVICE;
            profile.map_or(DEVICE, Profile::milli) * count
        }
        None if asked.fraction() => {
            let of = first.map_or(0, |node| node.gpu_memory_mib);
            let memory = share(asked.gpu_memory_mib.unwrap_or(0), of);
            asked.gpus().milli().max(memory).min(DEVICE)
        }
        None => asked.gpus().milli(),
    };
    let (devices, milli) = match milli {
        0 => (0, 0),
        1..=DEVICE => (1, milli),
        _ => ((milli + DEVICE - 1) / DEVICE, DEVICE),
    };
    Kind {
        devices,
        milli,
        cpus: asked.cpus.milli(),
        memory: asked.memory_mib,
        hardware: 0,
    }
}
