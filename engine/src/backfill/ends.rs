//! When work ends: by its prediction, else by its limit, else never.

use std::rc::Rc;

use chrono::TimeDelta;
use domain::Timestamp;

use crate::index::Index;
use crate::ledger::{Ledger, Slot};
use crate::world::{Placed, WorkloadState};

/// Later than any end: that of work without prediction or limit.
pub(crate) const NEVER: Timestamp = Timestamp::MAX_UTC;

/// Before any end: that of work which has outrun all that is known of it and is about to end, told as [`soon`]. A future
/// need not take it in anew as time moves on.
pub(crate) const OVERDUE: Timestamp = Timestamp::MIN_UTC;

/// When a workload ends that begins at some moment.
pub(crate) fn end_from(index: &Index<'_>, work: usize, begin: Timestamp) -> Timestamp {
    after(begin, index.works[work].row.length_seconds())
}

/// When a running workload ends. One that has outrun its prediction goes on to its limit;
/// one that has outrun both is about to end.
pub(crate) fn end_of_running(index: &Index<'_>, work: usize) -> Timestamp {
    when(index, known_end(index, work))
}

/// When something ends at a moment of a future.
pub(crate) fn when(index: &Index<'_>, end: Timestamp) -> Timestamp {
    if end == OVERDUE { soon(index) } else { end }
}

/// When a running workload ends, as a future has it.
pub(super) fn known_end(index: &Index<'_>, work: usize) -> Timestamp {
    let row = index.works[work].row;
    let (Some(started), Some(_)) = (row.started, row.length_seconds()) else {
        return NEVER;
    };
    let known = [row.predicted_seconds, row.time_limit_seconds];
    let ends = known
        .into_iter()
        .flatten()
        .map(|seconds| after(started, Some(seconds)));
    ends.into_iter()
        .find(|end| *end > index.world.now)
        .unwrap_or(OVERDUE)
}

/// The next cycle: what should have ended by now has then.
pub(crate) fn soon(index: &Index<'_>) -> Timestamp {
    after(index.world.now, Some(index.world.cycle_seconds.max(1)))
}

/// When victims of this cycle have left a pool.
pub(crate) fn after_grace(index: &Index<'_>, pool: usize) -> Timestamp {
    let grace = index.pools[pool].row.preemption.grace_seconds;
    after(index.world.now, Some(grace)).max(soon(index))
}

/// When those have left who leave these devices by an earlier plan; the next cycle where nobody does.
pub(crate) fn once_left(ledger: &Ledger<'_, '_>, slots: &[Rc<Slot>]) -> Timestamp {
    let index = ledger.index;
    let leaves_at = |slot: &Rc<Slot>| {
        let node = &index.nodes[slot.node].row.name;
        let on = |placed: &Placed| {
            let has = |index: u32| placed.devices.iter().any(|device| device.index == index);
            let shares = slot.parts.is_empty() || slot.parts.iter().any(|part| has(part.index));
            placed.node == *node && shares
        };
        let there = ledger.seated(slot.node).iter();
        let there = there.map(|&work| index.works[work].row);
        let leaving = there.filter(|row| row.state == WorkloadState::Leaving);
        let here = leaving.filter(|row| row.placed.iter().any(on));
        here.filter_map(|row| row.leaves_at).max()
    };
    let last = slots.iter().filter_map(leaves_at).max();
    last.unwrap_or(OVERDUE).max(soon(index))
}

/// So many seconds later; never without a number, or where there is no such moment.
pub(crate) fn after(begin: Timestamp, seconds: Option<i64>) -> Timestamp {
    seconds
        .and_then(TimeDelta::try_seconds)
        .and_then(|length| begin.checked_add_signed(length))
        .unwrap_or(NEVER)
}
