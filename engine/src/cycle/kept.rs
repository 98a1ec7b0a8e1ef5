//! Room that earlier plans keep for waiting work: who can start does, the others keep it.

use std::collections::BTreeSet;
use std::rc::Rc;

use domain::sharing::SharingMode;

use super::Cycle;
use crate::cycles::told_name;
use crate::index::{Amount, Need};
use crate::ledger::{Ledger, Part, Sight, Slot, Standing};
use crate::place::stands_free;
use crate::plan::Nomination;
use crate::quota;
use crate::world::WorkloadState;

impl Cycle<'_, '_> {
    /// Room that earlier plans keep: who can start does, the others keep it.
    pub(super) fn keep_room(&mut self) {
        let index = self.index;
        let now = index.world.now;
        // Who moves first: it has left for its place. Then work that may not borrow: beside it others
        // of its team borrow, as they did when the room was made.
        let leaves = |ledger: &Ledger<'_, '_>, work| ledger.standing(work) == Standing::Leaving;
        let mut order: Vec<usize> = index.nominated.iter().copied().collect();
        order.sort_by_key(|&work| (!leaves(&self.ledger, work), index.works[work].preemptible));
        for work in order {
            let Some(kept) = index.works[work]
                .row
                .nominated
                .as_ref()
                .filter(|kept| kept.until > now)
            else {
                continue;
            };
            let slots: Vec<Rc<Slot>> = kept
                .placement
                .iter()
                .filter_map(|p| {
                    let node = index.node(&p.node)?;
                    Some(Rc::new(crate::ledger::slot(index, work, p, node)))
                })
                .collect();
            let leaving = leaves(&self.ledger, work);
            if slots.len() != kept.placement.len()
                || !(index.ready(work) || leaving)
                || !self.keeps(work, &slots)
            {
                continue;
            }
            let amount: Amount = slots.iter().map(|s| s.amount).sum();
            let pool = index.nodes[slots[0].node].pool;
            // Who moves goes on there whatever its team may hold by now: nobody else may stand there.
            if !leaving && quota::allowed(&self.ledger, work, pool, amount).is_err() {
                continue;
            }
            let starts = !leaving
                && self.firm_lets(work, pool, &slots)
                && stands_free(&mut self.ledger, work, &slots, Sight::Start);
            if starts {
                self.start(work, slots);
            } else if stands_free(&mut self.ledger, work, &slots, Sight::Later) {
                if leaving {
                    self.stands_later(work, pool, &slots);
                    self.ledger.nominate(work, slots);
                    continue;
                }
                let waits_for = self.leavers_on(&slots, work);
                let placement = self.places(&slots);
                self.keep_for(work, pool, slots);
                self.plan.nominations.push(Nomination {
                    workload: index.works[work].row.name.clone(),
                    placement,
                    waits_for,
                });
            }
        }
    }

    /// Whether kept room is still where work may start.
    fn keeps(&self, work: usize, slots: &[Rc<Slot>]) -> bool {
        let index = self.index;
        self.asked(work, slots)
            && slots.iter().all(|slot| {
                let node = &index.nodes[slot.node];
                self.usable(work, node.pool)
                    && crate::place::fit(index, work, slot.node, false).is_ok()
                    && slot.parts.iter().all(|part| match part.slice {
                        Some(slice) => {
                            node.failed & crate::index::bit(part.index) == 0
                                && node.can_have(part.index, slice, false)
                        }
                        None => node.shut(false) & crate::index::bit(part.index) == 0,
                    })
            })
    }

    /// Whether room is what a workload asks for: its request may be another by now.
    fn asked(&self, work: usize, slots: &[Rc<Slot>]) -> bool {
        let facts = &self.index.works[work];
        let row = facts.row;
        let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        let each = |slot: &Rc<Slot>| {
            let parts = slot.parts.len();
            match facts.need {
                Need::Nothing => parts == 0,
                Need::Whole(count) => {
                    let whole = |part: &Part| part.mode == SharingMode::Exclusive;
                    parts == count as usize && slot.parts.iter().all(whole)
                }
                Need::Part { milli, memory } => {
                    let part = |part: &Part| {
                        part.milli == milli
                            && memory.is_none_or(|memory| part.memory == memory)
                            && part.slice.is_none()
                            && row.per_worker.sharing.contains(&part.mode)
                            && self.index.pools[self.index.nodes[slot.node].pool]
                                .row
                                .sharing
                                .contains(&part.mode)
                    };
                    parts == 1 && slot.parts.iter().all(part)
                }
                Need::Instances { count, .. } => {
                    let name = row.per_worker.mig_profile.as_deref();
                    let slice = |part: &Part| part.slice.map(|slice| slice.profile.name.as_str());
                    parts == count as usize && slot.parts.iter().all(|part| slice(part) == name)
                }
            }
        };
        (row.workers_least()..=row.workers).contains(&count) && slots.iter().all(each)
    }

    /// Work that stands on the nodes of these slots and leaves them, by this plan or an
    /// earlier one.
    pub(super) fn leavers_on(&self, slots: &[Rc<Slot>], but: usize) -> Vec<String> {
        let nodes: BTreeSet<usize> = slots.iter().map(|s| s.node).collect();
        let there = nodes.iter().flat_map(|&node| self.ledger.seated(node));
        let there: BTreeSet<usize> = there.copied().filter(|&work| work != but).collect();
        let leaves = |work: &usize| {
            let row = self.index.works[*work].row;
            let stays = match (row.state, self.ledger.standing(*work)) {
                (WorkloadState::Running, Standing::Running) => self.ledger.slots(*work).len(),
                _ => 0,
            };
            let mut gone = row.placed.iter().skip(stays);
            gone.any(|p| self.index.node(&p.node).is_some_and(|n| nodes.contains(&n)))
        };
        let leavers = there.into_iter().filter(leaves);
        let name = |work: usize| told_name(&self.index.works[work].row.name).to_owned();
        let mut names: Vec<String> = leavers.map(name).collect();
        names.dedup();
        names
    }
}
