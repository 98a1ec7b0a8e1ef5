//! The earliest start of a workload by the ends that are known.

use std::rc::Rc;

use domain::Timestamp;

use super::timeline::{Key, Reserved, Timeline, devices};
use super::{Bounds, NEVER, beside_slots, end_from, when};
use crate::index::Need;
use crate::ledger::{Sight, Slot};
use crate::place::{Query, place};

/// Whether something else than room keeps a workload from standing between two moments.
pub(crate) type Clear<'a> = dyn Fn(Timestamp, Timestamp) -> bool + 'a;

/// Whose start is looked for, and what keeps it from one.
struct Asked<'a> {
    work: usize,
    /// Only these nodes, where given.
    only: Option<&'a [usize]>,
    clear: &'a Clear<'a>,
}

impl Timeline<'_, '_> {
    /// The earliest start of a workload with its least workers, beside all starts that are
    /// kept; on these nodes only, where given.
    pub fn earliest(
        &mut self,
        work: usize,
        only: Option<Rc<[usize]>>,
        inside: bool,
        more: &[Timestamp],
        clear: &Clear<'_>,
        bounds: Bounds,
    ) -> Option<Reserved> {
        let asked = Asked {
            work,
            only: only.as_deref(),
            clear,
        };
        let found = if self.reserved().is_empty() && more.is_empty() && !self.promises() {
            // Room only grows: what is found by leaps is the first. Where whole nodes are
            // promised it may also shrink, when what is borrowed comes into a guarantee.
            self.first(&asked, bounds)
        } else {
            let mut steps = self.ends(bounds.ends);
            steps.extend(more.iter().map(|&at| (at, usize::MAX)));
            steps.sort_unstable();
            steps.dedup();
            let early = |step: &Key| when(self.index, step.0) < bounds.from;
            steps.retain(|step| !early(step));
            self.walk(&asked, &steps, bounds.probes)
        };
        let start = |at: Key| when(self.index, at.0);
        found.map(|(at, slots)| Reserved {
            work,
            at,
            start: start(at),
            end: if at.0 == NEVER {
                NEVER
            } else {
                end_from(self.index, work, start(at))
            },
            slots,
            only,
            inside,
        })
    }

    fn first(&mut self, asked: &Asked<'_>, bounds: Bounds) -> Option<(Key, Vec<Rc<Slot>>)> {
        let all = bounds.ends == usize::MAX;
        let near = all.then(|| self.nearby(asked.work, &mut |this, at| this.probe(asked, at)));
        let found = match near.flatten() {
            Some(found) => found,
            None => {
                let steps = self.ends(bounds.ends);
                self.leap(asked, &steps)
            }
        }?;
        if all {
            self.note(asked.work, found.0);
        }
        Some(found)
    }

    fn walk(
        &mut self,
        asked: &Asked<'_>,
        steps: &[Key],
        probes: usize,
    ) -> Option<(Key, Vec<Rc<Slot>>)> {
        let need = self.need(asked.work);
        let mut tried = 0;
        for &step in steps {
            self.turn(step);
            let kept: i64 = self
                .reserved()
                .iter()
                .filter(|r| r.work != asked.work && r.stands_at(step))
                .map(|r| devices(self.index, r))
                .sum();
            if self.free - kept < need {
                continue;
            }
            if tried == probes {
                return None;
            }
            tried += 1;
            if let Some(slots) = self.probe(asked, step) {
                return Some((step, slots));
            }
        }
        None
    }

    fn leap(&mut self, asked: &Asked<'_>, steps: &[Key]) -> Option<(Key, Vec<Rc<Slot>>)> {
        let work = asked.work;
        let need = self.need(work);
        let workers = self.index.works[work].row.workers_least();
        self.watch(work);
        let low = steps.iter().position(|&step| {
            self.turn(step);
            self.free >= need && self.may_hold(workers)
        });
        self.watch = None;
        let mut low = low?;
        let mut stride = 1;
        let mut high = low;
        let mut found = loop {
            if let Some(slots) = self.probe(asked, steps[high]) {
                break (high, slots);
            }
            if high + 1 == steps.len() {
                return None;
            }
            low = high + 1;
            high = (high + stride).min(steps.len() - 1);
            stride *= 2;
        };
        high = found.0;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.probe(asked, steps[middle]) {
                Some(slots) => {
                    found = (middle, slots);
                    high = middle;
                }
                None => low = middle + 1,
            }
        }
        Some((steps[found.0], found.1))
    }

    /// A place at a moment that is free until the workload ends.
    fn probe(&mut self, asked: &Asked<'_>, at: Key) -> Option<Vec<Rc<Slot>>> {
        let (index, work) = (self.index, asked.work);
        let begin = when(index, at.0);
        let end = end_from(index, work, begin);
        if !(asked.clear)(begin, end) {
            return None;
        }
        let query = Query {
            only: asked.only,
            ..Query::start(index, work, self.pool)
                .workers(index.works[work].row.workers_least())
                .sight(Sight::Later)
        };
        let slots = self.beside(at, Some(work), |this| place(&mut this.scratch, query))?;
        let Some(met) = self.met_until(work, &slots, at, end) else {
            return Some(slots);
        };
        // Once more without the nodes of the start that it would meet.
        let kept: Vec<usize> = self.reserved()[met].slots.iter().map(|s| s.node).collect();
        let all = asked.only.unwrap_or(&index.pools[self.pool].nodes);
        let others: Vec<usize> = all
            .iter()
            .copied()
            .filter(|node| !kept.contains(node))
            .collect();
        let slots = self.beside(at, Some(work), |this| {
            place(&mut this.scratch, query.only(&others))
        });
        if let Some(slots) = slots
            && self.met_until(work, &slots, at, end).is_none()
        {
            return Some(slots);
        }
        // Once more beside what is kept of its nodes.
        let kept = self.reserved()[met].clone();
        let slots = self.beside(at, Some(work), |this| {
            let kept = (kept.work, &kept.slots[..]);
            beside_slots(&mut this.scratch, kept, Sight::Later, |scratch| {
                place(scratch, query)
            })
        })?;
        self.met_until(work, &slots, at, end)
            .is_none()
            .then_some(slots)
    }

    /// A start that begins while the workload would stand, and would have no room beside it.
    fn met_until(
        &mut self,
        work: usize,
        slots: &[Rc<Slot>],
        at: Key,
        end: Timestamp,
    ) -> Option<usize> {
        let later: Vec<(usize, Reserved)> = self
            .reserved()
            .iter()
            .enumerate()
            .filter(|(_, r)| r.work != work && r.at > at && (r.at.0 < end || end == NEVER))
            .map(|(i, r)| (i, r.clone()))
            .collect();
        later.into_iter().find_map(|(i, other)| {
            let meets = self.beside(other.at, Some(other.work), |this| {
                this.occupy(work, slots);
                let free = this.stands(other.work, &other.slots);
                this.vacate(work, slots);
                !free
            });
            meets.then_some(i)
        })
    }

    /// Whole devices without which no placement is worth a try.
    fn need(&self, work: usize) -> i64 {
        let facts = &self.index.works[work];
        match facts.need {
            Need::Whole(count) => i64::from(count) * i64::from(facts.row.workers_least()),
            _ => 0,
        }
    }
}
