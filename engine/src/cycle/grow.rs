//! Growth of running elastic work, once all that waits has been tried: what is in the guarantee first.

use std::rc::Rc;

use super::Cycle;
use crate::ledger::{Slot, Standing};
use crate::order::Picker;
use crate::place::{self, Query};
use crate::plan::Resize;
use crate::start;
use crate::world::PoolState;

impl Cycle<'_, '_> {
    /// Lets running elastic work grow back, as far as limits and room allow.
    pub(super) fn grow(&mut self) {
        for pool in 0..self.index.pools.len() {
            if self.index.pools[pool].row.state == PoolState::Closed || self.heads[pool].is_some() {
                continue;
            }
            let small: Vec<usize> = (self.index.elastic.iter().copied())
                .filter(|&w| {
                    let slots = self.ledger.slots(w);
                    self.ledger.standing(w) == Standing::Running
                        && slots
                            .first()
                            .is_some_and(|s| self.index.nodes[s.node].pool == pool)
                        && slots.len() < self.index.works[w].row.workers as usize
                        && slots.len() == self.index.works[w].row.placed.len()
                })
                .collect();
            // What is in the guarantee goes first, as with starts.
            for inside in [true, false] {
                let mut picker = Picker::of(self.index, pool, &small);
                while let Some(work) = picker.next(&self.ledger) {
                    self.grow_one(work, pool, inside);
                }
            }
        }
    }

    /// Lets a workload grow as far as it may, or only as far as its team stays in its guarantee.
    fn grow_one(&mut self, work: usize, pool: usize, inside: bool) {
        let from = self.ledger.slots(work).len() as u32;
        let row = self.index.works[work].row;
        let mates = self.mates(work, pool);
        let gains = place::gains(&self.ledger, work, pool, &mates);
        let gained = gains.largest(|more| {
            let slots = self.gain(work, pool, &mates, more)?;
            (!inside || self.inside(work, pool, &slots)).then_some(slots)
        });
        let Some(slots) = gained else {
            return;
        };
        self.settle_kept(work, pool, &slots);
        let placement = self.places(&slots);
        self.ledger.grow(work, &slots);
        let to = from + slots.len() as u32;
        let mut told = self.plan.resizes.iter_mut();
        match told.find(|told| told.workload == row.name) {
            Some(told) => {
                told.to = to;
                told.placement.extend(placement);
            }
            None => self.plan.resizes.push(Resize {
                workload: row.name.clone(),
                from,
                to,
                placement,
            }),
        }
    }

    /// The nodes on which more workers may join those that work has.
    pub(super) fn mates(&self, work: usize, pool: usize) -> Vec<usize> {
        let nodes = &self.index.pools[pool].nodes;
        let Some(label) = &self.index.works[work].row.topology.require else {
            return nodes.clone();
        };
        let home = self.ledger.slots(work)[0].node;
        let domains = place::domains_of(self.index, nodes, label);
        let own = domains.into_iter().find(|domain| domain.contains(&home));
        own.unwrap_or_default()
    }

    /// Room for so many workers more on these nodes, within what limits, bookings and kept starts
    /// let work gain.
    fn gain(
        &mut self,
        work: usize,
        pool: usize,
        nodes: &[usize],
        more: u32,
    ) -> Option<Vec<Rc<Slot>>> {
        let query = Query::start(self.index, work, pool)
            .workers(more)
            .only(nodes);
        let slots = start::place_within(&mut self.ledger, query)?;
        self.growth_holds(work, pool, &slots).then_some(slots)
    }
}
