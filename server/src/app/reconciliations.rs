//! Reconciliations as people read them: which days add up, and what is off where one does not.

use chrono::NaiveDate;
use domain::Timestamp;
use domain::ids::DeviceId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::page::{self, Page, PageAsk};
use super::{App, AppError, Asker};
use crate::store;

/// A day of the organisation that was reconciled.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ReconciledDay {
    /// Its date.
    #[schema(value_type = String, format = Date)]
    pub day: NaiveDate,
    /// Its midnight.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// The next one.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// Devices that were there.
    pub devices: i32,
    /// Of these those whose held, idle and down time does not add up to the time that passed.
    pub off: i32,
    /// When it was reconciled.
    #[schema(value_type = String, format = DateTime)]
    pub reconciled_at: Timestamp,
}

/// What became of a device's day.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ReconciledDevice {
    /// The device.
    pub id: DeviceId,
    /// Its node.
    pub node: String,
    /// Its place on its node.
    pub index: i32,
    /// Its pool.
    pub pool: String,
    /// Microseconds in which it was there.
    pub wall_micros: i64,
    /// Of these those in which somebody held some of it.
    pub held_micros: i64,
    /// Those in which nobody did and it could be given out.
    pub idle_micros: i64,
    /// Those in which nobody did and it could not.
    pub down_micros: i64,
    /// What its segments of capacity add up to by themselves.
    pub capacity_micros: i64,
    /// The first less the sum of the three: anything but 0 is a fault in our books.
    pub difference_micros: i64,
}

/// Lists days, the latest first.
pub async fn list(
    app: &App,
    asker: &Asker,
    ask: &PageAsk,
) -> Result<Page<ReconciledDay>, AppError> {
    authorise(asker, Action::ListReconciliations, Target::Platform)?;
    let before: Option<NaiveDate> = ask.after("reconciliation")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::reconciliations::days(&mut tx, before, None, ask.rows_wanted()).await?;
    tx.commit().await?;
    let days = rows.into_iter().map(|row| ReconciledDay {
        day: row.day,
        from: row.started_at,
        to: row.ended_at,
        devices: row.devices,
        off: row.off,
        reconciled_at: row.reconciled_at,
    });
    Ok(page::cut(
        ask,
        "reconciliation",
        days.collect(),
        |day: &ReconciledDay| day.day,
    ))
}

/// The devices of a day, those that are off first.
pub async fn get(
    app: &App,
    asker: &Asker,
    day: NaiveDate,
    ask: &PageAsk,
) -> Result<Page<ReconciledDevice>, AppError> {
    authorise(asker, Action::GetReconciliation, Target::Platform)?;
    let after: Option<(bool, DeviceId)> = ask.after("reconciled device")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let known = store::reconciliations::days(&mut tx, None, Some(day), 1).await?;
    if known.is_empty() {
        return Err(AppError::not_found("reconciliation", day));
    }
    let rows = store::reconciliations::devices(&mut tx, day, after, ask.rows_wanted()).await?;
    tx.commit().await?;
    let devices = rows.into_iter().map(|row| ReconciledDevice {
        difference_micros: row.wall_micros - row.held_micros - row.idle_micros - row.down_micros,
        id: row.device_id,
        node: row.node,
        index: row.index,
        pool: row.pool,
        wall_micros: row.wall_micros,
        held_micros: row.held_micros,
        idle_micros: row.idle_micros,
        down_micros: row.down_micros,
        capacity_micros: row.capacity_micros,
    });
    Ok(page::cut(
        ask,
        "reconciled device",
        devices.collect(),
        |device: &ReconciledDevice| {
            let fits =
                device.difference_micros == 0 && device.wall_micros == device.capacity_micros;
            (fits, device.id)
        },
    ))
}
