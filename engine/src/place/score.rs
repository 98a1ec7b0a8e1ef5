//! The merit of a node for one worker: what the pool's strategy prefers, then finer criteria.

use std::cmp::Reverse;

use domain::spec::WorkloadKind;

use super::Query;
use super::device::Told;
use super::instance::Ease;
use crate::index::{DEVICE, Need};
use crate::ledger::Ledger;
use crate::world::Strategy;

/// Points of a node that is full.
const FULL: i64 = 100;
/// Points for several devices that are linked by NVLink.
const LINKED: i64 = 20;
/// Points for an instance that is there, idle, for work that serves.
const SLICE: i64 = 15;
/// Finer than a point: parts of a full node.
const FINE: i64 = 1_000_000;

/// What a node is worth to a worker, but for which node it is; the larger is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Merit {
    /// Work without GPUs keeps off nodes with devices.
    plain: bool,
    /// Parts of a point, or of a GPU that is not wasted.
    pub points: i64,
    /// What has to be changed on the devices first.
    ease: Reverse<Ease>,
    linked: bool,
    devices: i64,
    cores: i64,
}

/// The merit of a node for one worker on these devices of it.
pub(super) fn merit(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    node: usize,
    chosen: &Told<'_>,
) -> Merit {
    let index = ledger.index;
    let machine = index.nodes[node].row;
    let space = &ledger.spaces[node];
    let views = || query.sight.views().iter().map(|&v| v as usize);
    let usable = i64::from(machine.gpus) - i64::from(index.nodes[node].failed.count_ones());
    let given = views().map(|v| space.given[v]).max().unwrap_or(0);
    let plain = index.works[query.work].need == Need::Nothing;
    if let Some(costs) = &ledger.costs[query.pool] {
        let taken: i64 = chosen.parts.iter().map(|part| part.milli).sum();
        return Merit {
            plain: plain && machine.gpus == 0,
            points: -costs.cost(ledger, query, node, chosen.parts),
            ease: Reverse(chosen.ease),
            linked: chosen.linked,
            devices: given + taken - usable * DEVICE,
            cores: 0,
        };
    }
    let cores = views()
        .map(|v| machine.cpus.milli() - space.cpus[v])
        .max()
        .unwrap_or(0);
    let fill = |part: i64, whole: i64| {
        if whole <= 0 {
            0
        } else {
            part.clamp(0, whole) * FINE / whole
        }
    };
    let devices = fill(given, usable * DEVICE);
    let cores = fill(cores, machine.cpus.milli());
    let full = if plain { cores } else { devices };
    let serves = index.works[query.work].row.kind == WorkloadKind::Inference;
    let slice = matches!(index.works[query.work].need, Need::Instances { .. })
        && chosen.ease == Ease::Existing;
    let bonus = if chosen.linked {
        LINKED * FINE
    } else if serves && slice {
        SLICE * FINE
    } else {
        0
    };
    let spread = index.pools[query.pool].row.strategy == Strategy::Spread;
    let sign = if spread { -1 } else { 1 };
    Merit {
        plain: plain && machine.gpus == 0,
        points: if spread {
            FULL * (FINE - full) + bonus
        } else {
            (FULL * full + bonus).min(FULL * FINE)
        },
        ease: Reverse(chosen.ease),
        linked: false,
        devices: sign * devices,
        cores: sign * cores,
    }
}

/// How many replicas of the same service a node has, where the pool spreads them.
pub(super) fn together(ledger: &Ledger<'_, '_>, query: Query<'_>, node: usize) -> usize {
    let spread = ledger.index.pools[query.pool].row.strategy == Strategy::Spread;
    match ledger.index.works[query.work].service {
        Some(service) if spread => {
            let others = ledger.index.services[service].replicas.iter();
            others
                .filter(|&&other| other != query.work)
                .flat_map(|&other| ledger.slots(other))
                .filter(|slot| slot.node == node)
                .count()
        }
        _ => 0,
    }
}
