//! When work ends: by its prediction, else by its limit, else never.

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

/// So many seconds later; never without a number, or where there is no such moment.
pub(crate) fn after(begin: Timestamp, seconds: Option<i64>) -> Timestamp {
    seconds
        .and_then(TimeDelta::try_seconds)
        .and_then(|length| begin.checked_add_signed(length))
        .unwrap_or(NEVER)
}
