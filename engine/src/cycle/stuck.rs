//! Which teams can start nothing any more: a parent's share leaves them out.

use std::rc::Rc;

use super::Cycle;
use super::dead::Dead;
use crate::backfill;
use crate::index::{Amount, Index, Need};
use crate::ledger::{Sight, Slot};
use crate::order::Picker;
use crate::place::stands_free;
use crate::quota;

/// For each team work that could start when it was last looked at, and where: as long as it
/// still can, nothing else of the team need be tried.
pub(super) struct Hints {
    of: Vec<Option<Hint>>,
    /// Whether nothing has changed since all were looked at.
    fresh: bool,
}

struct Hint {
    work: usize,
    slots: Vec<Rc<Slot>>,
    /// What had been put on its nodes.
    put: i64,
    /// What limits turned on.
    held: Amount,
}

impl Hints {
    pub fn of(index: &Index<'_>) -> Self {
        Self {
            of: index.teams.iter().map(|_| None).collect(),
            fresh: false,
        }
    }

    /// Says that a workload is not in the queue any more.
    pub fn taken(&mut self, team: usize, work: usize) {
        let hint = &mut self.of[team];
        if hint.as_ref().is_some_and(|hint| hint.work == work) {
            *hint = None;
            self.fresh = false;
        }
    }

    /// Says that something was started, or a start is kept.
    pub fn age(&mut self) {
        self.fresh = false;
    }
}

impl Cycle<'_, '_> {
    /// Tells the order which teams can start nothing any more, where it matters: where others
    /// beside them wait.
    pub(super) fn find_stuck(
        &mut self,
        picker: &mut Picker,
        hints: &mut Hints,
        dead: &mut Dead,
        pool: usize,
    ) {
        let index = self.index;
        if hints.fresh {
            return;
        }
        hints.fresh = true;
        for team in 0..index.teams.len() {
            let Some(parent) = index.teams[team].parent else {
                continue;
            };
            if !index.teams[team].children.is_empty() || !picker.starts(team) {
                continue;
            }
            let beside = index.teams[parent].children.iter();
            let rivals = beside.filter(|&&c| picker.waits(c)).take(2).count();
            if rivals < 2 || self.still_starts(hints.of[team].as_ref(), pool) {
                continue;
            }
            hints.of[team] = if dead.all() {
                None
            } else {
                // What passes a start that is kept may move its devices.
                hints.fresh &= self.timelines[pool].is_none();
                self.hint(picker, dead, team, pool)
            };
            if hints.of[team].is_none() {
                picker.stick(index, team);
            }
        }
    }

    /// The first work of a team that can start, and where.
    fn hint(&mut self, picker: &Picker, dead: &mut Dead, team: usize, pool: usize) -> Option<Hint> {
        picker.pending_tags(team).find_map(|(at, bucket)| {
            if dead.has(bucket) {
                return None;
            }
            let work = picker.at(team, at);
            let slots = self.find_start_of(work, pool, bucket, dead)?;
            Some(Hint {
                put: self.put_on(&slots),
                held: self.held_above(team, pool),
                work,
                slots,
            })
        })
    }

    /// Whether work can plainly start where it could before. Only what nothing but room and
    /// limits binds is told so; all else is looked for again.
    fn still_starts(&mut self, hint: Option<&Hint>, pool: usize) -> bool {
        let Some(Hint {
            work,
            slots,
            put,
            held,
        }) = hint
        else {
            return false;
        };
        let index = self.index;
        let facts = &index.works[*work];
        let odd = matches!(facts.need, Need::Instances { .. })
            || facts.service.is_some()
            || index.pools[pool].row.whole_node_guarantees;
        if odd || !self.plainly_passes(*work, pool, slots) {
            return false;
        }
        if self.held_above(facts.team, pool) != *held {
            let amount: Amount = slots.iter().map(|s| s.amount).sum();
            if quota::allowed(&self.ledger, *work, pool, amount).is_err() {
                return false;
            }
        }
        let end = backfill::end_from(index, *work, index.world.now);
        self.may_stand(*work, pool, (index.world.now, end), slots)
            && (self.put_on(slots) == *put
                || stands_free(&mut self.ledger, *work, slots, Sight::Start))
    }

    /// Whether no start that is kept can be in the way: none binds the workload, or the one
    /// that is has its room on other nodes.
    fn plainly_passes(&self, work: usize, pool: usize, slots: &[Rc<Slot>]) -> bool {
        let Some(timeline) = &self.timelines[pool] else {
            return true;
        };
        if timeline.is_sure() && timeline.reserved().len() == 1 && timeline.apart(slots) {
            return true;
        }
        let end = backfill::end_from(self.index, work, self.index.world.now);
        !timeline.binds(work, end, self.inside(work, pool, slots))
    }

    fn put_on(&self, slots: &[Rc<Slot>]) -> i64 {
        slots.iter().map(|s| self.ledger.put_on(s.node)).sum()
    }

    /// A number that is another whenever limits may let a team have less.
    fn held_above(&self, team: usize, pool: usize) -> Amount {
        let rows = &self.index.pools[pool].rows;
        if self.index.pools[pool].lends || self.index.teams[team].by_user {
            return self.ledger.version().into();
        }
        let path = self.index.teams[team].path.iter();
        let bound = path.filter(|&&t| t == team || rows[t].limit.is_some());
        bound.map(|&t| self.ledger.held(pool, t).gpu).sum()
    }
}
