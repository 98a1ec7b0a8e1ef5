//! Words of evictions: in what way running work gives way, and by which rule.

use crate::text_enum::text_enum;

text_enum!(
    /// What an eviction does to a workload.
    EvictionKind, "kind" {
        /// All of it leaves, and waits again.
        Preemption = "preemption",
        /// Its highest ranks leave, and it goes on.
        Shrink = "shrink",
        /// All of it leaves for a place that is kept for it.
        Move = "move",
    }
);

text_enum!(
    /// By which rule running work gives way.
    EvictionRule, "rule" {
        /// A team takes back its guarantee, which the work had borrowed.
        Reclaim = "reclaim",
        /// Work of higher priority of its own team takes its place.
        Priority = "priority",
        /// Another borrower holds less than its team.
        Share = "share",
        /// Room is made for work on whole devices.
        Consolidation = "consolidation",
        /// Capacity that was booked ahead begins.
        Reservation = "reservation",
        /// Its node is emptied.
        Drain = "drain",
        /// Its node was to be empty by now.
        DrainDeadline = "drain_deadline",
        /// A budget of its team stops what is borrowed.
        Budget = "budget",
    }
);
