//! Nightly reconciliation: each day of the organisation is gone through once, and what is off is told.

use chrono::TimeDelta;
use serde_json::json;

use crate::store::events::{self, Actor, NewEvent, Subject};
use crate::store::reconciliations::{self, Off};
use crate::store::{self, Database, Tx};

/// How long after its end a day is gone through: leases have run out by then, and nodes that were away have
/// told what they did.
const SETTLES: TimeDelta = TimeDelta::hours(1);
/// Days of one call; what is left is taken up by the next.
const DAYS_MAX: usize = 31;

/// Reconciles the days that are due, each in a transaction of its own.
pub async fn reconcile_due(db: &Database) -> Result<(), sqlx::Error> {
    for _ in 0..DAYS_MAX {
        let mut tx = db.begin_system().await?;
        if !reconciliations::try_lock(&mut tx).await? {
            return Ok(());
        }
        let settled = store::clock(&mut tx).await? - SETTLES;
        let Some(day) = reconciliations::due(&mut tx, settled).await? else {
            return Ok(());
        };
        let off = reconciliations::reconcile(&mut tx, &day).await?;
        for device in &off {
            tell(&mut tx, &day, device).await?;
        }
        tx.commit().await?;
        alarm(&day, &off);
    }
    Ok(())
}

async fn tell(tx: &mut Tx, day: &reconciliations::Day, off: &Off) -> Result<(), sqlx::Error> {
    let event = NewEvent {
        subject: Subject::Device(off.device_id),
        job: None,
        node_id: Some(off.node_id),
        from: None,
        to: "unreconciled",
        actor: &Actor::System,
        reason: "reconciliation",
        data: json!({
            "day": day.day,
            "wall_micros": off.wall_micros,
            "found_micros": off.found_micros,
            "capacity_micros": off.capacity_micros,
        }),
    };
    events::insert(tx, &event).await
}

fn alarm(day: &reconciliations::Day, off: &[Off]) {
    let devices = u64::try_from(off.len()).unwrap_or(u64::MAX);
    metrics::counter!("allotment_reconciliation_devices_off").increment(devices);
    if devices > 0 {
        tracing::error!(
            day = %day.day, devices,
            "the time of devices does not add up: `allot reconciliations` says of which"
        );
    }
}
