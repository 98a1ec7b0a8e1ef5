//! Time in a cycle: when running work ends, when blocked work starts by that, and what may start before it.
//!
//! A pool that backfills has a [`Timeline`] from the moment its first head is blocked. The head
//! is given the earliest start at which what has ended by then leaves room for it, and that
//! start is kept: later work starts now only if the head can still start then, on the devices
//! that were meant for it or on others.

mod earliest;
mod ends;
mod timeline;

pub(crate) use ends::{NEVER, after_grace, end_from, end_of_running, soon};
pub(crate) use timeline::{Reserved, Timeline};

/// Most work that reserves in one pool: each is looked at for every start before it, and who
/// is behind so many is hardly delayed by one start more.
pub(crate) const RESERVED_MAX: usize = 100;
/// Most moments at which a placement is tried for one reservation.
pub(crate) const PROBES_MAX: usize = 256;
/// Most moments at which one is tried to tell when work behind a reservation starts.
pub(crate) const PROBES_TOLD_MAX: usize = 16;
