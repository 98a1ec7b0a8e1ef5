//! Noticing which bookings can no longer be had whole, and which can again: a device fails or a node is
//! lost long after they were made, and nobody looks at the calendar then.

use std::collections::BTreeMap;

use domain::Timestamp;
use domain::ids::RequestId;
use domain::name::Name;

use super::super::{App, AppError, pools, versions};
use super::calendar::{Calendar, Conflict};
use super::world_name;
use crate::store::audit::{self, NewEntry};
use crate::store::bookings::{self as rows, Booking};
use crate::store::{self, Tx};

/// Notes in their rows since when bookings are in conflict. Each step is told once, in the audit log
/// for the booking's team and who steers, and by the feed.
pub async fn watch(app: &App) -> Result<(), AppError> {
    let mut tx = app.db.begin_system().await?;
    let now = store::clock(&mut tx).await?;
    let mut by_pool: BTreeMap<Name, Vec<Booking>> = BTreeMap::new();
    for booking in rows::standing(&mut tx, None, now).await? {
        by_pool
            .entry(booking.pool.clone())
            .or_default()
            .push(booking);
    }
    let mut noted = false;
    for (pool, bookings) in by_pool {
        let id = pools::find(&mut tx, &pool).await?.id;
        let calendar = Calendar::load(&mut tx, (id, &pool), &bookings).await?;
        for booking in &bookings {
            let conflict = calendar.conflicts(booking).into_iter().next();
            if conflict.is_some() != booking.conflict_since.is_some() {
                noted |= note(&mut tx, booking, conflict, now).await?;
            }
        }
    }
    tx.commit().await?;
    if noted {
        app.wake.all();
    }
    Ok(())
}

/// Notes one step, unless another replica just did.
async fn note(
    tx: &mut Tx,
    booking: &Booking,
    conflict: Option<Conflict>,
    now: Timestamp,
) -> Result<bool, AppError> {
    let since = conflict.as_ref().map(|_| now);
    if !rows::note_conflict(tx, booking.id, since).await? {
        return Ok(false);
    }
    let name = world_name(&booking.pool, &booking.name);
    let (action, reason) = match &conflict {
        Some(conflict) => ("booking_in_conflict", why(&booking.pool, conflict)),
        None => (
            "booking_honoured_again",
            format!("pool {} has all again that is promised of it", booking.pool),
        ),
    };
    tracing::warn!(booking = %name, action, "what can be had of a booking has changed");
    let after = conflict.as_ref().map(versions::written).transpose()?;
    let entry = NewEntry {
        actor_kind: "system",
        actor_id: None,
        actor_name: "allotment",
        action,
        object: &format!("booking/{name}"),
        team_id: Some(booking.team_id),
        request_id: RequestId::new(),
        outcome: "done",
        reason: &reason,
        before: None,
        after,
    };
    audit::insert(tx, entry).await?;
    Ok(true)
}

fn why(pool: &Name, conflict: &Conflict) -> String {
    format!(
        "pool {pool} has {} GPUs, and {} guaranteed with {} booked are promised of it from {} to {}: all of them shrink in proportion",
        conflict.capacity,
        conflict.guaranteed,
        conflict.booked,
        domain::time::format(conflict.from),
        domain::time::format(conflict.to)
    )
}
