//! Time in a cycle: when running work ends, when blocked work starts by that, and what may start before it.
//!
//! A pool that backfills has a [`Timeline`] from the moment its first head is blocked. The head
//! is given the earliest start at which what has ended by then leaves room for it, and that
//! start is kept: later work starts now only if the head can still start then, on the devices
//! that were meant for it or on others.

mod beside;
mod earliest;
mod ends;
mod kept;
mod timeline;

pub(crate) use beside::beside_slots;
pub(crate) use ends::{NEVER, after, after_grace, end_from, end_of_running, once_left, soon};
use ends::{OVERDUE, known_end, when};
pub(crate) use kept::PausedTimeline;
pub(crate) use timeline::{Reserved, Timeline};

/// Most work that reserves in one pool: each is looked at for every start before it, and who
/// is behind so many is hardly delayed by one start more.
pub(crate) const RESERVED_MAX: usize = 100;
/// How far a search for a start goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Ends that are looked at, the first first.
    pub ends: usize,
    /// Placements that are tried one by one.
    pub probes: usize,
    /// No start before this is asked for.
    pub from: domain::Timestamp,
}

/// For a start that is kept: all ends, since a head that finds none holds nothing back.
pub(crate) const KEPT: Bounds = Bounds {
    ends: usize::MAX,
    probes: 256,
    from: OVERDUE,
};
/// For one that is only told, to each of many: who waits for more ends has other worries.
pub(crate) const TOLD: Bounds = Bounds {
    ends: 200,
    probes: 16,
    from: OVERDUE,
};
