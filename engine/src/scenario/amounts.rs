//! The bounds on numbers in a scenario: far above any fleet, and such that no sum or product of them overflows.

/// Most devices of a node, and of a worker; the contract's own bound.
pub const DEVICES_MAX: i64 = domain::quantity::DEVICES_PER_NODE_MAX as i64;
/// Most cores of a node or worker.
pub const CPUS_MAX: i64 = 100_000;
/// Most memory of a node, worker or device in MiB: 64 TiB.
pub const MEMORY_MIB_MAX: i64 = 64 * 1024 * 1024;
/// Most workers of a gang.
pub const WORKERS_MAX: i64 = 16_384;
/// Longest duration: a hundred years, in seconds.
pub const SECONDS_MAX: i64 = 100 * 366 * 24 * 3600;
/// Largest priority, either way.
pub(super) const PRIORITY_MAX: i64 = 1_000_000_000;
/// Largest weight, in whole units.
pub(super) const WEIGHT_MAX: i64 = 1_000_000;
/// Largest past use: 10^12 GPU-seconds are 30,000 GPU-years.
pub(super) const PAST_USE_MAX: i64 = 1_000_000_000_000;
/// Largest count, such as preemptions today.
pub(super) const COUNT_MAX: i64 = 1_000_000_000;
/// Longest name or label, in characters.
pub(super) const TEXT_CHARS_MAX: usize = 253;
/// Most pools; each has a tree of its own.
pub(super) const POOLS_MAX: usize = 1_000;
/// Most nodes.
pub(super) const NODES_MAX: usize = 100_000;
/// Most teams, and classes.
pub(super) const TEAMS_MAX: usize = 100_000;
/// Most workloads.
pub const WORKLOADS_MAX: usize = 1_000_000;
/// Deepest tree of teams; shares are computed along a path to the root.
pub(super) const TEAM_DEPTH_MAX: usize = 32;
