//! What a draft does to bookings: the conflicts that the calendar would mark once it is saved.

use std::collections::BTreeSet;

use domain::name::Name;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::bookings::calendar::{Calendar, Conflict};

/// A booking that would be in conflict with what else is promised of its pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BookingConflicts {
    /// The pool.
    pub pool: Name,
    /// The booking.
    pub booking: Name,
    /// The team that it is for.
    pub team: Name,
    /// When more would be promised than the pool has, while it lasts.
    pub conflicts: Vec<Conflict>,
}

/// The conflicts of the drafted bookings, and of all others those that the draft changes; in the
/// order in which the bookings begin.
pub(super) fn of(
    before: &Calendar,
    after: &Calendar,
    drafted: &BTreeSet<Name>,
) -> Vec<BookingConflicts> {
    let told = after.bookings().iter().filter_map(|booking| {
        let conflicts = after.conflicts(booking);
        let known = || {
            let present = before.bookings().iter().find(|b| b.id == booking.id);
            present.is_some_and(|b| before.conflicts(b) == conflicts)
        };
        let new = drafted.contains(&booking.name) || !known();
        (!conflicts.is_empty() && new).then(|| BookingConflicts {
            pool: booking.pool.clone(),
            booking: booking.name.clone(),
            team: booking.team.clone(),
            conflicts,
        })
    });
    told.collect()
}
