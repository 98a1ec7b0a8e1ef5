//! The starts that are reserved in a pool: what they are, what may pass them, and where they are moved to.

use std::rc::Rc;

use domain::Timestamp;
use rustc_hash::FxHashSet;

use super::{Key, Timeline};
use crate::backfill::NEVER;
use crate::backfill::kept::Undo;
use crate::index::{Index, Need};
use crate::ledger::{Sight, Slot};
use crate::place::{Query, place};

/// A start in the future.
#[derive(Debug, Clone)]
pub(crate) struct Reserved {
    pub work: usize,
    /// What has ended by then leaves the room.
    pub(in crate::backfill) at: Key,
    pub(in crate::backfill) end: Timestamp,
    /// The same in time.
    pub(in crate::backfill) start: Timestamp,
    pub slots: Vec<Rc<Slot>>,
    /// The nodes on which its limits let it stand, where these are not all.
    pub(in crate::backfill) only: Option<Rc<[usize]>>,
    /// Whether it starts in its team's guarantee: a borrower's start holds back less.
    pub inside: bool,
}

impl Reserved {
    /// When it starts; [`NEVER`] when it waits for work whose end nobody knows.
    pub fn start(&self) -> Timestamp {
        self.start
    }

    /// Whether work that ends then stands in its way: it has begun before.
    fn meets(&self, end: Timestamp) -> bool {
        self.at.0 < end || end == NEVER
    }

    /// Whether it has begun and not ended at a moment.
    pub(in crate::backfill) fn stands_at(&self, at: Key) -> bool {
        self.at <= at && (self.end > at.0 || self.end == NEVER)
    }
}

/// The starts that are kept, as of some moment.
pub(crate) struct KeptStarts {
    reserved: Vec<Reserved>,
    sure: bool,
}

impl Timeline<'_, '_> {
    /// The starts that are kept, in the order in which they were given.
    pub fn reserved(&self) -> &[Reserved] {
        &self.reserved
    }

    /// Keeps a start.
    pub fn keep(&mut self, reserved: Reserved) {
        self.turn(reserved.at);
        self.reserved.push(reserved);
        self.look_at_kept();
    }

    /// A number that is another once the starts that are kept, or what is known of them, are.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Says whether each start that is kept is known to have its room.
    pub(super) fn know(&mut self, sure: bool) {
        self.changes += u64::from(self.sure != sure);
        self.sure = sure;
    }

    /// After starts that are kept have changed.
    pub(in crate::backfill) fn look_at_kept(&mut self) {
        self.changes += 1;
        self.sure = false;
        let slots = self.reserved.iter().flat_map(|r| &r.slots);
        self.kept_on = slots.map(|slot| slot.node).collect();
    }

    /// The starts that are kept, to come back to after a look at what might be.
    pub fn kept(&self) -> KeptStarts {
        KeptStarts {
            reserved: self.reserved.clone(),
            sure: self.sure,
        }
    }

    /// Comes back to them.
    pub fn keep_as(&mut self, kept: KeptStarts) {
        self.reserved = kept.reserved;
        self.look_at_kept();
        self.sure = kept.sure;
    }

    /// Whether devices are on other nodes than all starts that are kept.
    pub fn apart(&self, slots: &[Rc<Slot>]) -> bool {
        !slots.iter().any(|slot| self.kept_on.contains(&slot.node))
    }

    /// Whether the starts that are kept are known to have their room, whatever comes on other nodes.
    pub fn is_sure(&self) -> bool {
        // Who owns other nodes matters where whole ones are promised.
        self.sure && !self.promises()
    }

    /// Gives up the start of a workload, if one is kept.
    pub fn give_up(&mut self, work: usize) -> Option<(usize, Reserved)> {
        let at = self.reserved.iter().position(|r| r.work == work)?;
        let given_up = self.reserved.remove(at);
        self.look_at_kept();
        Some((at, given_up))
    }

    /// Keeps again what was given up.
    pub fn take_back(&mut self, (at, reserved): (usize, Reserved)) {
        self.reserved.insert(at, reserved);
        self.look_at_kept();
    }

    /// Whether any start stands in the way of work that ends then. Work in its guarantee
    /// minds no borrower's.
    pub fn binds(&self, work: usize, end: Timestamp, inside: bool) -> bool {
        self.binding(work, end, inside).next().is_some()
    }

    fn binding(
        &self,
        work: usize,
        end: Timestamp,
        inside: bool,
    ) -> impl Iterator<Item = (usize, &Reserved)> {
        self.reserved
            .iter()
            .enumerate()
            .filter(move |(_, r)| r.work != work && r.meets(end) && (!inside || r.inside))
    }

    /// Whether so many devices are plainly more than the one reserved start leaves free.
    pub fn plainly_too_many(&self, work: usize, end: Timestamp, inside: bool, count: i64) -> bool {
        let [head] = &self.reserved[..] else {
            return false;
        };
        self.turned == Some(head.at)
            && self.binds(work, end, inside)
            && count > self.free - devices(self.index, head)
    }

    /// Whether work on these devices until some moment leaves every start that it meets
    /// where it is; which devices those get may change.
    pub fn passes(
        &mut self,
        work: usize,
        slots: &[Rc<Slot>],
        end: Timestamp,
        inside: bool,
    ) -> bool {
        let met: Vec<usize> = self.binding(work, end, inside).map(|(i, _)| i).collect();
        if met.is_empty() || self.is_sure() && self.apart(slots) {
            return true;
        }
        let (before, sure, changes) = (self.reserved.clone(), self.sure, self.changes);
        self.insert(work, slots, end);
        let passes = self.hold(&met);
        self.forget_last(work);
        let mut moved = false;
        if !passes {
            self.reserved = before;
        } else if !same(&before, &self.reserved) {
            moved = true;
            self.look_at_kept();
        }
        self.know(if passes {
            met.len() == self.reserved.len()
        } else {
            sure
        });
        if !moved && self.sure == sure {
            self.changes = changes;
        }
        passes
    }

    fn forget_last(&mut self, work: usize) {
        let keys = self.of_work.get(&work);
        let Some(&key) = keys.and_then(|keys| keys.as_slice().last()) else {
            return;
        };
        let Some(claim) = self.lift(key) else {
            return;
        };
        if matches!(self.undo.last(), Some(Undo::Put(last)) if *last == key) {
            self.undo.pop();
        } else {
            self.undo.push(Undo::Lifted(key, claim));
        }
    }

    /// Whether all starts that are kept can be.
    pub fn holds(&mut self) -> bool {
        if self.is_sure() {
            return true;
        }
        let all: Vec<usize> = (0..self.reserved.len()).collect();
        let before = self.reserved.clone();
        let holds = self.hold(&all);
        if !same(&before, &self.reserved) {
            self.look_at_kept();
        }
        self.know(holds);
        holds
    }

    /// Whether these starts have room at their moments; who has not is given other devices.
    fn hold(&mut self, some: &[usize]) -> bool {
        let mut moved = false;
        for &at in some {
            if self.has_room(at) {
                continue;
            }
            let Some(slots) = self.place_again(at) else {
                return false;
            };
            self.reserved[at].slots = slots;
            moved = true;
        }
        !moved || self.reserved.len() == 1 || (0..self.reserved.len()).all(|at| self.has_room(at))
    }

    fn has_room(&mut self, at: usize) -> bool {
        let own = self.reserved[at].clone();
        self.beside(own.at, Some(own.work), |this| {
            this.stands(own.work, &own.slots)
        })
    }

    fn place_again(&mut self, at: usize) -> Option<Vec<Rc<Slot>>> {
        let own = self.reserved[at].clone();
        let query = Query::start(self.index, own.work, self.pool)
            .workers(own.slots.len() as u32)
            .sight(Sight::Later);
        let query = match &own.only {
            Some(nodes) => query.only(nodes),
            None => query,
        };
        self.beside(own.at, Some(own.work), |this| {
            place(&mut this.scratch, query)
        })
    }

    /// Looks at a moment with all starts that have begun by then, but for one's own.
    pub(in crate::backfill) fn beside<T>(
        &mut self,
        at: Key,
        but: Option<usize>,
        look: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.turn(at);
        let others: Vec<Reserved> = self
            .reserved
            .iter()
            .filter(|r| Some(r.work) != but && r.stands_at(at))
            .cloned()
            .collect();
        for other in &others {
            self.occupy(other.work, &other.slots);
        }
        let seen = look(self);
        for other in &others {
            self.vacate(other.work, &other.slots);
        }
        seen
    }

    /// Where starts that work would meet are kept, each with whose it is.
    pub fn met(&self, work: usize, end: Timestamp, inside: bool) -> Vec<(usize, Vec<Rc<Slot>>)> {
        let met = self.binding(work, end, inside);
        met.map(|(_, r)| (r.work, r.slots.clone())).collect()
    }

    /// The nodes on which starts that work would meet are kept.
    pub fn nodes_met(&self, work: usize, end: Timestamp, inside: bool) -> FxHashSet<usize> {
        self.binding(work, end, inside)
            .flat_map(|(_, r)| r.slots.iter().map(|s| s.node))
            .collect()
    }
}

/// Whether starts are kept on the same devices.
fn same(some: &[Reserved], others: &[Reserved]) -> bool {
    let slots = some.iter().map(|r| &r.slots);
    slots.eq(others.iter().map(|r| &r.slots))
}

/// The whole devices that a start takes.
pub(in crate::backfill) fn devices(index: &Index<'_>, reserved: &Reserved) -> i64 {
    match index.works[reserved.work].need {
        Need::Whole(_) => reserved.slots.iter().map(|s| s.parts.len() as i64).sum(),
        _ => 0,
    }
}
