//! Bookings: a team has GPUs of a pool beyond its guarantee for a time; what is not taken of them,
//! and all of them before they begin, is lent.

pub mod calendar;
mod check;
mod watch;

use domain::ids::{BookingId, PoolId};
use domain::name::Name;
use domain::{MilliGpu, Timestamp};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::policy_diff::BookingDraft;
use super::versions::{self, By, Expected, Object, PolicyNoun};
use super::{App, AppError, Asker, change, pools};
use crate::store::bookings::{self as rows, Fields};
use crate::store::{self, Tx};
use calendar::{Calendar, Conflict};
pub(super) use check::drafted;
pub use check::{Typed, faults};
use check::{check, team};
pub use watch::watch;

/// Where a booking stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BookingState {
    /// It has not begun, and is lent.
    Ahead,
    /// It lasts.
    Lasts,
    /// It has ended.
    Ended,
}

/// Capacity booked ahead.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Booking {
    /// Its name.
    pub name: Name,
    /// The pool.
    pub pool: Name,
    /// The team that it is for.
    pub team: Name,
    /// How much, beyond the team's guarantee.
    pub gpus: MilliGpu,
    /// When it begins.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// When it ends.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// Where it stands.
    pub state: BookingState,
    /// When more is promised than the pool has, from now on.
    pub conflicts: Vec<Conflict>,
    /// Since when the product knows of such a time; null while there is none, and for the moment before
    /// it is noticed.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub conflict_since: Option<Timestamp>,
    /// Its version.
    pub version: i64,
}

/// A booking to be made.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBooking {
    /// Its name.
    pub name: Name,
    /// The team that it is for.
    pub team: Name,
    /// How much, beyond the team's guarantee.
    pub gpus: MilliGpu,
    /// When it begins.
    #[serde(deserialize_with = "domain::time::read")]
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// When it ends.
    #[serde(deserialize_with = "domain::time::read")]
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
}

/// What is to be changed of a booking; what is absent stays.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BookingPatch {
    /// The team that it is for.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub team: Option<Name>,
    /// How much, beyond the team's guarantee.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub gpus: Option<MilliGpu>,
    /// When it begins.
    #[serde(default, deserialize_with = "time")]
    #[schema(value_type = Option<String>, format = DateTime, nullable = false)]
    pub from: Option<Timestamp>,
    /// When it ends.
    #[serde(default, deserialize_with = "time")]
    #[schema(value_type = Option<String>, format = DateTime, nullable = false)]
    pub to: Option<Timestamp>,
}

/// A time that is changed, which is not null.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    domain::time::read(deserializer).map(Some)
}

/// A booking as its versions keep it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BookingForm {
    team: Name,
    gpus: MilliGpu,
    from: Timestamp,
    to: Timestamp,
}

impl From<&rows::Booking> for BookingForm {
    fn from(row: &rows::Booking) -> Self {
        Self {
            team: row.team.clone(),
            gpus: MilliGpu::from_milli(row.gpus_milli),
            from: row.starts_at,
            to: row.ends_at,
        }
    }
}

impl BookingForm {
    /// The same as a draft.
    pub(super) fn draft(self, pool: Name, name: Name) -> BookingDraft {
        BookingDraft {
            pool,
            name,
            team: self.team,
            gpus: self.gpus,
            from: self.from,
            to: self.to,
        }
    }
}

/// Which bookings of a pool to list.
#[derive(Debug, Clone, Copy, Default)]
pub struct BookingFilter {
    /// That end after this.
    pub from: Option<Timestamp>,
    /// That begin before this.
    pub to: Option<Timestamp>,
}

/// Lists a pool's bookings in the order in which they begin: all of them to who steers, to others
/// those of their own teams.
pub async fn list(
    app: &App,
    asker: &Asker,
    pool: &Name,
    filter: BookingFilter,
    ask: &PageAsk,
) -> Result<Page<Booking>, AppError> {
    authorise(asker, Action::ListBookings, Target::Platform)?;
    let after: Option<(Timestamp, BookingId)> = ask.after("booking")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let pool_id = pools::find(&mut tx, pool).await?.id;
    let span = (filter.from, filter.to);
    let found = rows::page(&mut tx, pool_id, span, after, ask.rows_wanted()).await?;
    tx.commit().await?;
    // What stands in the way of a booking is other teams', too: it is told in amounts.
    let mut tx = app.db.begin_system().await?;
    let calendar = Calendar::load(&mut tx, (pool_id, pool), &found).await?;
    tx.commit().await?;
    let page = page::cut(ask, "booking", found, |b: &rows::Booking| {
        (b.starts_at, b.id)
    });
    let seen =
        |name: &Name| page.items.iter().any(|b| b.name == *name) || asker.platform_role.is_some();
    let items = page.items.iter().map(|row| {
        let mut booking = shown(row, &calendar);
        for conflict in &mut booking.conflicts {
            conflict.with.retain(seen);
        }
        booking
    });
    Ok(Page {
        items: items.collect(),
        next_cursor: page.next_cursor.clone(),
    })
}

/// Makes a booking.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    pool: &Name,
    new: NewBooking,
    reason: &str,
) -> Result<Answer<Booking>, AppError> {
    let by = By::allowed(asker, Action::CreateBooking, reason)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let form = BookingForm {
        team: new.team,
        gpus: new.gpus,
        from: new.from,
        to: new.to,
    };
    set(&mut work.tx, &by, pool, &new.name, Expected::Nothing, &form).await?;
    let booking = read(&mut work.tx, pool, &new.name).await?;
    let version = booking.version;
    let answer = work.finish(app, Answer::created(booking, version)).await?;
    app.wake.all();
    Ok(answer)
}

/// Changes a booking.
pub async fn update(
    app: &App,
    asker: &Asker,
    (pool, name): (&Name, &Name),
    version: i64,
    patch: BookingPatch,
    reason: &str,
) -> Result<Booking, AppError> {
    let by = By::allowed(asker, Action::UpdateBooking, reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let pool_id = pools::find(&mut tx, pool).await?.id;
    let mut form = BookingForm::from(&find(&mut tx, pool_id, name).await?);
    form.team = patch.team.unwrap_or(form.team);
    form.gpus = patch.gpus.unwrap_or(form.gpus);
    form.from = patch.from.unwrap_or(form.from);
    form.to = patch.to.unwrap_or(form.to);
    set(&mut tx, &by, pool, name, Expected::Version(version), &form).await?;
    let booking = read(&mut tx, pool, name).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(booking)
}

/// Removes a booking: what it held is in nobody's guarantee any more.
pub async fn delete(
    app: &App,
    asker: &Asker,
    (pool, name): (&Name, &Name),
    version: i64,
    reason: &str,
) -> Result<(), AppError> {
    let by = By::allowed(asker, Action::DeleteBooking, reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let pool_id = pools::find(&mut tx, pool).await?.id;
    let row = find(&mut tx, pool_id, name).await?;
    if !rows::delete(&mut tx, row.id, version).await? {
        return Err(stale(&mut tx, pool_id, name, version).await);
    }
    let before = versions::written(&BookingForm::from(&row))?;
    let gone = Object {
        version: version + 1,
        team_id: Some(row.team_id),
        ..object(pool_id, pool, name)
    };
    versions::record(&mut tx, &by, gone, Some(before), None).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(())
}

/// Makes or changes one.
pub(super) async fn set(
    tx: &mut Tx,
    by: &By<'_>,
    pool: &Name,
    name: &Name,
    expected: Expected,
    form: &BookingForm,
) -> Result<(), AppError> {
    let pool_id = pools::find(tx, pool).await?.id;
    if let Expected::Version(version) = expected {
        let row = find(tx, pool_id, name).await?;
        if change::leaves((version, row.version), &BookingForm::from(&row), form)? {
            return Ok(());
        }
    }
    check(form.gpus, (form.from, form.to), store::clock(tx).await?)?;
    let team_id = team(tx, pool_id, pool, &form.team).await?;
    let fields = Fields {
        team_id,
        gpus_milli: form.gpus.milli(),
        starts_at: form.from,
        ends_at: form.to,
    };
    let (before, version) = match expected {
        Expected::Nothing => {
            let version = versions::first(tx, &object(pool_id, pool, name)).await?;
            rows::insert(tx, BookingId::new(), pool_id, (name, version), &fields)
                .await
                .map_err(|e| AppError::name_taken(e, "booking_name_taken", "booking", name))?;
            (None, version)
        }
        Expected::Version(version) => {
            let row = find(tx, pool_id, name).await?;
            if !rows::update(tx, row.id, version, &fields).await? {
                return Err(stale(tx, pool_id, name, version).await);
            }
            (
                Some(versions::written(&BookingForm::from(&row))?),
                version + 1,
            )
        }
    };
    let object = Object {
        version,
        team_id: Some(team_id),
        ..object(pool_id, pool, name)
    };
    versions::record(tx, by, object, before, Some(versions::written(form)?)).await
}

/// The name of a booking among those of all pools, as the planner knows it.
pub fn world_name(pool: &Name, name: &Name) -> String {
    format!("{pool}/{name}")
}

fn object(pool_id: PoolId, pool: &Name, name: &Name) -> Object {
    Object {
        noun: PolicyNoun::Booking,
        name: world_name(pool, name),
        pool_id: Some(pool_id),
        team_id: None,
        version: 1,
    }
}

async fn find(tx: &mut Tx, pool: PoolId, name: &Name) -> Result<rows::Booking, AppError> {
    rows::find(tx, pool, name.as_str())
        .await?
        .ok_or_else(|| AppError::not_found("booking", name))
}

async fn stale(tx: &mut Tx, pool: PoolId, name: &Name, given: i64) -> AppError {
    match find(tx, pool, name).await {
        Ok(row) => AppError::Stale {
            given: given.to_string(),
            present: row.version,
        },
        Err(error) => error,
    }
}

/// One booking, in the transaction of somebody who sees all of them.
async fn read(tx: &mut Tx, pool: &Name, name: &Name) -> Result<Booking, AppError> {
    let pool_id = pools::find(tx, pool).await?.id;
    let row = find(tx, pool_id, name).await?;
    let calendar = Calendar::load(tx, (pool_id, pool), std::slice::from_ref(&row)).await?;
    Ok(shown(&row, &calendar))
}

fn shown(row: &rows::Booking, calendar: &Calendar) -> Booking {
    let state = if calendar.now < row.starts_at {
        BookingState::Ahead
    } else if calendar.now < row.ends_at {
        BookingState::Lasts
    } else {
        BookingState::Ended
    };
    Booking {
        name: row.name.clone(),
        pool: row.pool.clone(),
        team: row.team.clone(),
        gpus: MilliGpu::from_milli(row.gpus_milli),
        from: row.starts_at,
        to: row.ends_at,
        state,
        conflicts: calendar.conflicts(row),
        conflict_since: row.conflict_since,
        version: row.version,
    }
}
