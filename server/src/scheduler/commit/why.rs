//! Why running work gives way, for its record and in words for its owner.

use domain::eviction::{EvictionKind, EvictionRule};
use engine::plan::Reason;

use crate::app::bookings;
use crate::lifecycle::{Eviction, Gainer};
use crate::scheduler::translate;
use crate::scheduler::world::Records;
use crate::store::jobs::JobRow;

/// Why a victim gives way. A plan says of a gang only that it is shrunk: between two teams that is
/// to take a guarantee back, and within one for work of higher priority.
pub(super) fn eviction(
    records: &Records,
    victim: &JobRow,
    kind: EvictionKind,
    reason: Reason,
    gainer: Option<&str>,
) -> Eviction {
    let job = gainer.and_then(translate::job_id);
    let team = job.and_then(|id| Some(&records.jobs.get(&id)?.row.team));
    let booking = || {
        let name = gainer?;
        let mut all = records.bookings.iter();
        let found = all.find(|b| bookings::world_name(&b.pool, &b.name) == name)?;
        Some(Gainer::Booking(found.name.to_string(), found.team_id))
    };
    Eviction {
        kind,
        rule: match reason {
            Reason::Reclaim => EvictionRule::Reclaim,
            Reason::Priority => EvictionRule::Priority,
            Reason::Share => EvictionRule::Share,
            Reason::Shrink if team == Some(&victim.team) => EvictionRule::Priority,
            Reason::Shrink => EvictionRule::Reclaim,
            Reason::Consolidation => EvictionRule::Consolidation,
            Reason::Reservation => EvictionRule::Reservation,
            Reason::Drain => EvictionRule::Drain,
        },
        gainer: job.map(Gainer::Job).or_else(booking),
    }
}

/// What a victim is told. Not for whom: that may be another team's.
pub(super) fn told(rule: EvictionRule) -> &'static str {
    match rule {
        EvictionRule::Reclaim => {
            "preempted: a team took back its guarantee, which this job had borrowed"
        }
        EvictionRule::Priority => "preempted by work of higher priority of its own team",
        EvictionRule::Share => "preempted: another borrower held less than this team",
        EvictionRule::Consolidation => "moved to make room for work on whole devices",
        EvictionRule::Reservation => "preempted: capacity that was booked ahead begins",
        EvictionRule::Drain => "preempted: its node is being emptied",
        EvictionRule::DrainDeadline => "preempted: its node was to be empty by now",
        EvictionRule::Budget => "preempted: a budget of its team stops what is borrowed",
    }
}
