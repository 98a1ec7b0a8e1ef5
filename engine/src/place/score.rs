//! The score of a node for one worker: what the pool's strategy prefers, finer criteria, the node.

use std::cmp::Reverse;

use super::Query;
use crate::index::{DEVICE, Need};
use crate::ledger::Ledger;
use crate::world::Strategy;

/// Points of a node that is full.
const FULL: i64 = 100;
/// Points for several devices that are linked by NVLink.
const LINKED: i64 = 20;
/// Finer than a point: parts of a full node.
const FINE: i64 = 1_000_000;

/// The larger is better.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    /// Replicas of the same service there, where the pool spreads.
    together: Reverse<usize>,
    /// Work without GPUs keeps off nodes with devices.
    plain: bool,
    points: i64,
    devices: i64,
    cores: i64,
    node: Reverse<usize>,
}

pub(super) fn score(ledger: &Ledger<'_, '_>, query: Query<'_>, node: usize, linked: bool) -> Score {
    let index = ledger.index;
    let machine = index.nodes[node].row;
    let space = &ledger.spaces[node];
    let views = || query.sight.views().iter().map(|&v| v as usize);
    let usable = i64::from(machine.gpus) - i64::from(index.nodes[node].failed.count_ones());
    let given = views().map(|v| space.given[v]).max().unwrap_or(0);
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
    let plain = index.works[query.work].need == Need::Nothing;
    let full = if plain { cores } else { devices };
    let bonus = if linked { LINKED } else { 0 };
    let spread = index.pools[query.pool].row.strategy == Strategy::Spread;
    let sign = if spread { -1 } else { 1 };
    Score {
        together: Reverse(if spread {
            replicas_there(ledger, query.work, node)
        } else {
            0
        }),
        plain: plain && machine.gpus == 0,
        points: if spread {
            FULL * (FINE - full) / FINE + bonus
        } else {
            (FULL * full / FINE + bonus).min(FULL)
        },
        devices: sign * devices,
        cores: sign * cores,
        node: Reverse(node),
    }
}

fn replicas_there(ledger: &Ledger<'_, '_>, work: usize, node: usize) -> usize {
    let Some(service) = ledger.index.works[work].service else {
        return 0;
    };
    let others = ledger.index.services[service]
        .replicas
        .iter()
        .filter(|&&other| other != work);
    others
        .flat_map(|&other| ledger.slots(other))
        .filter(|slot| slot.node == node)
        .count()
}
