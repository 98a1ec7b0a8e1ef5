//! What a changed workload would meet after the decisions of a cycle; nothing is changed by asking.

use std::rc::Rc;

use domain::Timestamp;
use domain::sharing::SharingMode;

use super::Cycle;
use crate::backfill::{NEVER, Timeline};
use crate::index::Amount;
use crate::ledger::Slot;
use crate::plan::WorkerPlace;
use crate::quota;

impl Cycle<'_, '_> {
    /// Whether work meets at the end of the cycle what it met at its turn, or less: nobody gives way
    /// in the pool, and nothing was placed there by a mix of requests that it is part of itself.
    pub fn undisturbed(&self, pool: usize) -> bool {
        let index = self.index;
        let here = |node: &String| {
            let nodes = &index.pools[pool].nodes;
            let name = |&node: &usize| &index.nodes[node].row.name;
            nodes.binary_search_by_key(&node, name).is_ok()
        };
        let was_here = |name: &String| {
            let work = index.work(name);
            let placed = work.map(|work| &index.works[work].row.placed);
            placed.is_some_and(|placed| placed.iter().any(|place| here(&place.node)))
        };
        let victims = self.plan.preemptions.iter().map(|v| &v.workload);
        let movers = self.plan.migrations.iter().map(|m| &m.workload);
        let gives_way = victims.chain(movers).any(was_here);
        let placed = self.plan.starts.iter().flat_map(|start| &start.placement);
        let mut placed = placed.map(|place| &place.node);
        let by_mix = self.ledger.costs[pool].is_some() && placed.any(here);
        !(gives_way || by_mix)
    }

    /// Whether a part of a device was started in the pool in this cycle.
    pub fn shared_now(&self, pool: usize) -> bool {
        let here = |node: &str| {
            let node = self.index.node(node);
            node.is_some_and(|node| self.index.nodes[node].pool == pool)
        };
        let starts = self.plan.starts.iter().flat_map(|start| &start.placement);
        let shared = |place: &WorkerPlace| {
            let mut devices = place.devices.iter();
            devices.any(|device| device.mode != SharingMode::Exclusive)
        };
        starts
            .into_iter()
            .any(|place| shared(place) && here(&place.node))
    }

    /// Whether nobody who waits in the pool can come before a workload of the team that was looked
    /// at after it, were it able to start so much: by what is borrowed the order turns on who can start
    /// something.
    pub fn comes_as_before(&self, work: usize, pool: usize, amount: Amount) -> bool {
        let team = self.index.works[work].team;
        let mut waits = self.passed[pool].iter();
        self.index.teams[team].parent.is_none()
            || quota::in_guarantee(&self.ledger, pool, team, amount)
            || waits.all(|&other| self.index.works[other].team == team)
    }

    /// Whether a booking or a kept start may be in the way of a workload that starts now and ends
    /// then, wherever it stands.
    pub fn binds(&self, work: usize, pool: usize, end: Timestamp) -> bool {
        let span = (self.index.world.now, end);
        let booked = !self
            .bookings
            .let_stand(self.index, work, pool, span, i64::MAX);
        let kept = self.timelines[pool].as_ref();
        booked || kept.is_some_and(|timeline| timeline.binds(work, end, false))
    }

    /// When the starts and bookings begin that room in a pool is kept for.
    pub fn kept_moments(&self, work: usize, pool: usize) -> Vec<Timestamp> {
        let kept = self.timelines[pool].iter().flat_map(Timeline::reserved);
        let starts = kept.filter(|r| r.work != work).map(|r| r.start());
        let mut moments = self.bookings.edges(self.index, work, pool);
        moments.extend(starts.filter(|start| *start != NEVER));
        moments
    }

    /// Whether another's start is kept on a node.
    pub fn kept_on(&self, work: usize, pool: usize, node: usize) -> bool {
        let kept = self.timelines[pool].iter().flat_map(Timeline::reserved);
        let mut slots = kept.filter(|r| r.work != work).flat_map(|r| &r.slots);
        slots.any(|slot| slot.node == node)
    }

    /// Whether work on these devices until then would be let pass, had it no start of its own.
    pub fn would_pass(
        &mut self,
        work: usize,
        pool: usize,
        slots: Vec<Rc<Slot>>,
        end: Timestamp,
    ) -> bool {
        let before = self.timelines[pool].as_ref().map(Timeline::kept);
        if let Some(timeline) = self.timelines[pool].as_mut() {
            timeline.give_up(work);
        }
        let passes = self.let_pass(work, pool, slots, end).is_some();
        if let Some((timeline, before)) = self.timelines[pool].as_mut().zip(before) {
            timeline.keep_as(before);
        }
        passes
    }
}
