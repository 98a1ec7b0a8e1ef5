//! When work ends: by its prediction, else by its limit, else never.

use std::ops::Range;

use chrono::TimeDelta;
use domain::Timestamp;

use crate::index::Index;

/// Later than any end: that of work without prediction or limit.
pub(crate) const NEVER: Timestamp = Timestamp::MAX_UTC;

/// When a workload ends that begins at some moment.
pub(crate) fn end_from(index: &Index<'_>, work: usize, begin: Timestamp) -> Timestamp {
    after(begin, index.works[work].row.length_seconds())
}

/// When a running workload ends. One that has outrun its prediction goes on to its limit;
/// one that has outrun both is about to end.
pub(crate) fn end_of_running(index: &Index<'_>, work: usize) -> Timestamp {
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
        .unwrap_or_else(|| soon(index))
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

/// Whether running work of a pool has ended for sure no later than a victim of this cycle has to leave it: by
/// its limit, since a prediction may be wrong. Who has outrun its limit is being stopped, for as long as
/// the grace is; beyond that nobody knows.
pub(crate) fn ends_in_grace(index: &Index<'_>, work: usize, pool: usize) -> bool {
    let awaited = awaited(index, work, pool);
    awaited.is_some_and(|awaited| awaited.contains(&index.world.now))
}

/// At which moments running work of a pool is awaited so.
pub(crate) fn awaited(index: &Index<'_>, work: usize, pool: usize) -> Option<Range<Timestamp>> {
    let end = index.works[work].stint.bounded?;
    let grace = index.pools[pool].row.preemption.grace_seconds;
    let from = TimeDelta::try_seconds(grace).and_then(|grace| end.checked_sub_signed(grace));
    Some(from.unwrap_or(Timestamp::MIN_UTC)..after(end, Some(grace)))
}

/// Running work of a pool that ends so, wherever else it may stand, the first to end first.
pub(crate) fn ending(index: &Index<'_>, pool: usize) -> impl Iterator<Item = usize> {
    let now = index.world.now;
    let grace = index.pools[pool].row.preemption.grace_seconds;
    let ago = TimeDelta::try_seconds(grace).and_then(|grace| now.checked_sub_signed(grace));
    let from = ago.unwrap_or(Timestamp::MIN_UTC);
    let all = index.bounded_between(from, after(now, Some(grace)));
    all.filter(move |&work| ends_in_grace(index, work, pool))
}

/// When running work that makes way has left a pool.
pub(crate) fn left_by(index: &Index<'_>, work: usize, pool: usize) -> Timestamp {
    match ends_in_grace(index, work, pool) {
        true => end_of_running(index, work).max(soon(index)),
        false => after_grace(index, pool),
    }
}

/// So many seconds later; never without a number, or where there is no such moment.
pub(crate) fn after(begin: Timestamp, seconds: Option<i64>) -> Timestamp {
    seconds
        .and_then(TimeDelta::try_seconds)
        .and_then(|length| begin.checked_add_signed(length))
        .unwrap_or(NEVER)
}
