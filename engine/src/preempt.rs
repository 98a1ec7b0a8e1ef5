//! Room by victims: who may be taken, in which order, and the smallest set that is enough.
//!
//! A set is the smallest for its newcomer, as the contract has it: newcomers are served in order, and
//! each victim is told whom it gives way for. That what a later one frees would have done for an
//! earlier one, too, is no reason to keep the earlier waiting for it.

mod binding;
mod bound;
mod choice;
mod floors;
mod front;
mod herd;
mod herds;
mod hope;
mod outlook;
mod rules;
mod search;
mod single;

use std::rc::Rc;

use domain::Timestamp;

use crate::index::{Amount, DEVICE, Index};
use crate::ledger::{Ledger, Slot, Standing};
use crate::plan::Reason;
use crate::world::NodeState;

pub(crate) use binding::{binding_rules, once_protected_ran};
pub(crate) use choice::service_can_lose;
pub(crate) use front::Fronts;
pub(crate) use herd::Herd;
pub(crate) use herds::Herds;
pub(crate) use outlook::Outlooks;
pub(crate) use rules::Rules;
pub(crate) use search::{could_make_room, make_room};

/// By which right a victim is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Right {
    /// Its team borrows, and the newcomer is in its guarantee.
    Reclaim,
    /// It is of the newcomer's team and of lower priority.
    Priority,
    /// Its team borrows more than the newcomer's will.
    Share,
}

/// A victim and what stays of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Victim {
    pub work: usize,
    /// Workers that stay.
    pub keep: usize,
    pub right: Right,
}

impl Victim {
    /// The word of the plan. What is shrunk is told so, but for the rule between borrowers and for
    /// what a booking takes back, which stand whatever is taken.
    pub fn reason(&self) -> Reason {
        match self.right {
            Right::Share => Reason::Share,
            _ if self.keep > 0 => Reason::Shrink,
            Right::Reclaim => Reason::Reclaim,
            Right::Priority => Reason::Priority,
        }
    }
}

/// Room for a workload, and who leaves for it.
pub(crate) struct Room {
    pub slots: Vec<Rc<Slot>>,
    pub victims: Vec<Victim>,
}

/// What taking some workers loses, whatever the hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stake {
    /// Thousandths of devices.
    milli: i64,
    started: Option<Timestamp>,
    checkpoint_seconds: Option<i64>,
    restart_seconds: i64,
}

impl Stake {
    fn of(index: &Index<'_>, work: usize, slots: &[Rc<Slot>]) -> Self {
        let stint = index.works[work].stint;
        Self {
            milli: slots.iter().map(|slot| slot.milli).sum(),
            started: stint.started,
            checkpoint_seconds: stint.checkpoint_seconds,
            restart_seconds: stint.restart_seconds,
        }
    }

    /// Work that would be lost, in thousandths of a GPU-second.
    fn lost_milli(&self, now: Timestamp) -> i128 {
        let ran = (self.started).map_or(0, |started| (now - started).num_seconds().max(0));
        let since = (self.checkpoint_seconds).map_or(ran, |each| ran % each.max(1));
        i128::from(self.milli) * i128::from(since)
    }

    /// What it costs at this moment and at any later one at least: what is lost grows until the next
    /// checkpoint.
    fn cost_from(&self, now: Timestamp) -> i128 {
        match self.checkpoint_seconds {
            Some(_) => i128::from(self.milli) * i128::from(self.restart_seconds),
            None => self.cost(now),
        }
    }

    /// Devices × (time since the last checkpoint + restart).
    fn cost(&self, now: Timestamp) -> i128 {
        self.lost_milli(now) + i128::from(self.milli) * i128::from(self.restart_seconds)
    }
}

/// What a workload's team holds by running work that may be preempted and is of lower priority.
pub(crate) fn lower_held(ledger: &mut Ledger<'_, '_>, work: usize, pool: usize) -> Amount {
    let herd = Herd::of(ledger, pool);
    let facts = &ledger.index.works[work];
    let members = herd.team(facts.team).iter();
    let lower = members.take_while(|member| member.priority < facts.priority);
    let slots = lower.flat_map(|member| ledger.slots(member.work));
    slots.map(|slot| slot.amount).sum()
}

/// Work that would be lost, in whole GPU-seconds.
pub(crate) fn lost_gpu_seconds(index: &Index<'_>, work: usize, slots: &[Rc<Slot>]) -> i64 {
    let lost = Stake::of(index, work, slots).lost_milli(index.world.now);
    i64::try_from(lost / i128::from(DEVICE)).unwrap_or(i64::MAX)
}

/// What taking these workers costs: devices × (time since the last checkpoint + restart).
pub(crate) fn cost(index: &Index<'_>, work: usize, slots: &[Rc<Slot>]) -> i128 {
    Stake::of(index, work, slots).cost(index.world.now)
}

/// Where a workload is that has to leave a draining node, if it has to and may be preempted.
pub(crate) fn drained(ledger: &Ledger<'_, '_>, work: usize) -> Option<Vec<Rc<Slot>>> {
    let index = ledger.index;
    let slots = ledger.slots(work);
    let leaves = ledger.standing(work) == Standing::Running
        && index.works[work].preemptible
        && slots
            .iter()
            .any(|s| index.nodes[s.node].row.state == NodeState::Draining);
    leaves.then(|| slots.to_vec())
}
