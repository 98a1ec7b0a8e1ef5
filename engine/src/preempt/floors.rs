//! What room on the devices of a node costs at least, from some moment on: kept while time moves on.

use std::cell::RefCell;

use chrono::TimeDelta;
use domain::Timestamp;

use super::herd::{Berth, Herd};
use super::single::{device_least, holder_least};
use crate::index::DEVICE;
use crate::ledger::{Ledger, View};

/// For how long what was told is kept, in seconds: what runs costs more with each, so that it is true for
/// ever, but further and further from what room costs.
const KEPT_SECONDS: i64 = 30;

/// What room costs at least on one node, whoever may leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Floor {
    /// For a whole device; nothing where none can be had.
    pub device: Option<i128>,
    /// The most that is left of any device.
    pub left: i64,
    /// Of the steps that free something of a device the cheapest.
    pub step: Option<i128>,
}

impl Floor {
    fn of(ledger: &Ledger<'_, '_>, herd: &Herd, node: usize, at: Timestamp) -> Self {
        let loads = ledger.spaces[node].loads[View::Later as usize].iter();
        let cost = |berth: &Berth| berth.cost_from(at);
        Self {
            device: device_least(ledger, herd, node, &cost, &|_| true),
            left: loads.map(|load| DEVICE - load.milli).max().unwrap_or(0),
            step: holder_least(ledger, herd, node, &cost, &|_| true),
        }
    }
}

/// The same of all nodes, where somebody has asked since something changed there.
#[derive(Debug)]
pub(super) struct Floors {
    at: Timestamp,
    nodes: RefCell<Vec<Option<Floor>>>,
}

impl Floors {
    /// Nothing is known yet.
    pub fn of(at: Timestamp, nodes: usize) -> Self {
        let nodes = RefCell::new(vec![None; nodes]);
        Self { at, nodes }
    }

    /// Time has moved on, or back.
    pub fn turn(&mut self, now: Timestamp) {
        if now < self.at || now - self.at > TimeDelta::seconds(KEPT_SECONDS) {
            self.at = now;
            self.nodes.get_mut().fill(None);
        }
    }

    /// Something was put on a node or taken from it.
    pub fn spoil(&self, node: usize) {
        self.nodes.borrow_mut()[node] = None;
    }

    /// Nodes of a herd with what is told of their floors, where that is anything, the least first.
    pub fn sites(
        &self,
        ledger: &Ledger<'_, '_>,
        herd: &Herd,
        tell: impl Fn(Floor) -> Option<i128>,
    ) -> Vec<(i128, usize)> {
        let mut known = self.nodes.borrow_mut();
        let there = known.iter_mut().enumerate();
        let there = there.filter(|(node, _)| !herd.on(*node).is_empty());
        let mut sites: Vec<(i128, usize)> = there
            .filter_map(|(node, known)| {
                let floor = known.get_or_insert_with(|| Floor::of(ledger, herd, node, self.at));
                Some((tell(*floor)?, node))
            })
            .collect();
        sites.sort_unstable();
        sites
    }

    /// Whether all that is known is what would be found.
    pub fn are_like(&self, ledger: &Ledger<'_, '_>, herd: &Herd) -> bool {
        let known = self.nodes.borrow();
        let told = |(node, floor): (usize, &Option<Floor>)| {
            floor.is_none_or(|floor| floor == Floor::of(ledger, herd, node, self.at))
        };
        known.iter().enumerate().all(told)
    }
}
