//! Which teams can start nothing any more: a parent's share leaves them out.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::Cycle;
use super::dead::{Bounds, Dead};
use crate::backfill::{self, Timeline};
use crate::index::{Amount, Index, Need};
use crate::ledger::{Sight, Slot};
use crate::order::Picker;
use crate::place::stands_free;
use crate::quota;

/// For each team work that could start when it was last looked at, and where: as long as it
/// still can, nothing else of the team need be tried.
pub(super) struct Hints {
    of: Vec<Option<Hint>>,
    /// Teams by the nodes on which theirs would start, and by the kin whose place would be theirs.
    on_node: FxHashMap<usize, Vec<usize>>,
    on_kin: FxHashMap<usize, Vec<usize>>,
    /// Teams whose work may be kept from starting by what starts on other nodes.
    odd: Vec<usize>,
    /// Teams of which something has changed since they were looked at, each once.
    stale: Vec<usize>,
    is_stale: Vec<bool>,
    /// Whether something has changed for all.
    all: bool,
    /// What was known of the starts that are kept.
    kept: Option<u64>,
}

struct Hint {
    work: usize,
    slots: Vec<Rc<Slot>>,
    /// What had been put on its nodes.
    put: i64,
    /// What limits turned on.
    held: Amount,
    /// Whose place it is that others would take as well.
    kin: Option<usize>,
}

impl Hints {
    pub fn of(index: &Index<'_>) -> Self {
        Self {
            of: index.teams.iter().map(|_| None).collect(),
            on_node: FxHashMap::default(),
            on_kin: FxHashMap::default(),
            odd: Vec::new(),
            stale: Vec::new(),
            is_stale: vec![false; index.teams.len()],
            all: true,
            kept: None,
        }
    }

    /// Says that a workload is not in the queue any more.
    pub fn taken(&mut self, team: usize, work: usize) {
        let hint = &mut self.of[team];
        if hint.as_ref().is_some_and(|hint| hint.work == work) {
            *hint = None;
            self.ages(team);
        }
    }

    /// Says that others may have what they had not: limits let them, where victims leave.
    pub fn start_anew(&mut self) {
        self.all = true;
    }

    /// Says that something of a team was started on these slots; whether what others are let
    /// have turns on it, too.
    fn started(&mut self, team: usize, slots: &[Rc<Slot>], spoilt: &[usize], for_all: bool) {
        self.all |= for_all;
        self.ages(team);
        for kin in spoilt {
            for team in self.on_kin.remove(kin).into_iter().flatten() {
                self.ages(team);
            }
        }
        for slot in slots {
            for team in self.on_node.remove(&slot.node).into_iter().flatten() {
                self.ages(team);
            }
        }
        for team in std::mem::take(&mut self.odd) {
            self.ages(team);
        }
    }

    /// Says that a team has to be looked at again.
    pub(super) fn ages(&mut self, team: usize) {
        if !std::mem::replace(&mut self.is_stale[team], true) {
            self.stale.push(team);
        }
    }

    /// Who has to be looked at again, in order.
    fn take_stale(&mut self) -> Vec<usize> {
        let mut stale = std::mem::take(&mut self.stale);
        for &team in &stale {
            self.is_stale[team] = false;
        }
        if std::mem::take(&mut self.all) {
            stale = (0..self.of.len()).collect();
        } else {
            stale.sort_unstable();
        }
        stale
    }

    fn keep(&mut self, index: &Index<'_>, team: usize, hint: Option<Hint>) {
        self.of[team] = hint;
        self.rely_on(index, team);
    }

    /// The work of a team that could start is relied on until something changes on its nodes.
    fn rely_on(&mut self, index: &Index<'_>, team: usize) {
        let Some(hint) = &self.of[team] else {
            return;
        };
        if let Some(kin) = hint.kin {
            self.on_kin.entry(kin).or_default().push(team);
        } else {
            for slot in &hint.slots {
                self.on_node.entry(slot.node).or_default().push(team);
            }
        }
        if is_odd(index, hint.work) {
            self.odd.push(team);
        }
    }
}

/// Whether more than what is free on its nodes and limits may keep work from starting.
fn is_odd(index: &Index<'_>, work: usize) -> bool {
    let facts = &index.works[work];
    matches!(facts.need, Need::Instances { .. }) || facts.service.is_some()
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
        // What passes a start that is kept may move its devices, and what does not may pass then.
        let kept = self.timelines[pool].as_ref().map(Timeline::changes);
        hints.all |= kept != std::mem::replace(&mut hints.kept, kept);
        for team in hints.take_stale() {
            let Some(parent) = index.teams[team].parent else {
                continue;
            };
            if !index.teams[team].children.is_empty() || !picker.starts(team) {
                continue;
            }
            let beside = index.teams[parent].children.iter();
            let rivals = beside.filter(|&&c| picker.waits(c)).take(2).count();
            // What starts already may start with more.
            if rivals < 2 || picker.has_begun(team) {
                continue;
            }
            if self.still_starts(hints.of[team].as_ref(), pool) {
                hints.rely_on(index, team);
                continue;
            }
            let hint = if dead.all() {
                None
            } else {
                self.hint(picker, dead, team, pool)
            };
            if hint.is_none() {
                picker.stick(index, team);
            }
            hints.keep(index, team, hint);
        }
    }

    /// Says that something of a team was started, and where.
    pub(super) fn age(
        &mut self,
        hints: &mut Hints,
        dead: &mut Dead,
        (team, pool): (usize, usize),
        slots: &[Rc<Slot>],
    ) {
        let spoilt = self.spoilt(dead, slots);
        let facts = &self.index.pools[pool];
        let above = &self.index.teams[team].path[1..];
        let for_all = facts.lends
            || facts.row.whole_node_guarantees
            || self.index.teams[team].by_user
            || self.bookings.any(pool)
            || above.iter().any(|&t| facts.rows[t].limit.is_some());
        hints.started(team, slots, &spoilt, for_all);
    }

    /// The first work of a team that can start, and where.
    fn hint(&mut self, picker: &Picker, dead: &mut Dead, team: usize, pool: usize) -> Option<Hint> {
        let bounds = Bounds::of(&self.ledger, team, pool);
        picker.pending_tags(team).find_map(|(at, bucket)| {
            if dead.has(bucket) || dead.is_over(bucket, &bounds) {
                return None;
            }
            let work = picker.at(team, at);
            let (kin, slots) = match self.spare_place(dead, bucket, work, pool) {
                Some((kin, slots)) => (Some(kin), slots),
                None => (None, self.find_start_of(work, pool, bucket, dead)?),
            };
            Some(Hint {
                put: self.put_on(&slots),
                held: self.held_above(team, pool),
                work,
                slots,
                kin,
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
            ..
        }) = hint
        else {
            return false;
        };
        let index = self.index;
        let facts = &index.works[*work];
        let odd = is_odd(index, *work) || index.pools[pool].row.whole_node_guarantees;
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

    pub(super) fn put_on(&self, slots: &[Rc<Slot>]) -> i64 {
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
