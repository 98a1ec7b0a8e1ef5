//! The bookings of a pool: a calendar by weeks, and making, changing and removing one.

use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::{IntoResponse, Redirect, Response};
use domain::name::Name;
use domain::weekly::Zone;
use domain::{FieldError, MilliGpu, Timestamp};
use serde::Deserialize;
use web::messages::Messages;
use web::shell::Section;
use web::views::{BookingConflict, BookingForm, BookingRow, BookingsView, PolicyTab, Refusal};

use super::calendar::{Calendar, date};
use super::fields::Fields;
use super::jobs::Teams;
use super::policies::{self, Outcome};
use super::pool::read_name;
use super::visit::{Posted, Visit};
use super::{PageError, changes, effect, page, refusal};
use crate::app::authorise::{Action, Target, authorise, may};
use crate::app::bookings::calendar::Conflict;
use crate::app::bookings::{
    self, Booking, BookingFilter, BookingPatch, BookingState, NewBooking, Typed,
};
use crate::app::page::{PAGE_ITEMS_MAX, PageAsk};
use crate::app::policy_diff::{self, BookingDraft, PolicyDraft};
use crate::app::versions::{PolicyNoun, VersionFilter};
use crate::app::{App, AppError};
use crate::front::fields::read_query;

/// The route that keys of this form belong to.
const ROUTE: &str = "POST /pools/bookings";

/// Which weeks to show, and which booking is to be changed.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct CalendarQuery {
    /// A day of the first week, as `2026-11-30`.
    week: Option<String>,
    edit: Option<String>,
}

/// Shows the calendar.
pub async fn show_bookings(
    State(app): State<App>,
    visit: Visit,
    Path(pool): Path<String>,
    uri: Uri,
) -> Result<Response, PageError> {
    let query: CalendarQuery = read_query(&uri)?;
    show(&app, &visit, &read_name(&pool)?, query, Outcome::none()).await
}

async fn show(
    app: &App,
    visit: &Visit,
    pool: &Name,
    query: CalendarQuery,
    mut outcome: Outcome<BookingForm>,
) -> Result<Response, PageError> {
    let asker = &visit.asker;
    let mut shell = visit.shell(app, Section::Policies).await?;
    let zone = app.config.organisation.time_zone;
    let calendar = Calendar::of(zone, query.week.as_deref(), shell.now)?;
    let (from, to) = calendar.span();
    let filter = BookingFilter { from, to };
    let found = all(app, visit, pool, filter).await?;
    let teams = Teams::load(app, asker).await?;
    let address = format!("/pools/{pool}/bookings");
    if query.edit.is_none() && !shell.here.starts_with(&address) || outcome.form.is_some() {
        shell.here = address.clone();
    }
    let form = match (
        may(asker, Action::CreateBooking, Target::Platform),
        outcome.form.take(),
    ) {
        (false, _) => None,
        (true, Some(form)) => Some(form),
        (true, None) => Some(match &query.edit {
            Some(name) => edited(app, visit, pool, name, calendar.zone).await?,
            None => BookingForm::default(),
        }),
    };
    let send = match &form {
        Some(form) if form.changes => format!("{address}/{}", form.name),
        _ => address.clone(),
    };
    let changes = VersionFilter {
        noun: Some(PolicyNoun::Booking),
        pool: Some(pool.clone()),
        ..VersionFilter::default()
    };
    let status = outcome.status();
    let mut response = page(&BookingsView {
        tabs: policies::tabs(app, visit, PolicyTab::Bookings, Some(pool.as_str())).await?,
        pool: pool.to_string(),
        zone: calendar.zone.to_string(),
        weeks: calendar.weeks(&found),
        steps: calendar.steps(pool),
        rows: found
            .iter()
            .map(|booking| row(booking, &teams, calendar.zone))
            .collect(),
        teams: teams.all().map(|team| team.name.to_string()).collect(),
        form,
        save: outcome.save(send, &address),
        errors: outcome.errors,
        effect: outcome.effect,
        changes: changes::beside(app, visit, changes, &address).await?,
        shell,
    })?;
    *response.status_mut() = status;
    Ok(response)
}

/// All bookings of some weeks.
async fn all(
    app: &App,
    visit: &Visit,
    pool: &Name,
    filter: BookingFilter,
) -> Result<Vec<Booking>, AppError> {
    let mut found = Vec::new();
    let mut ask = PageAsk::first();
    loop {
        let page = bookings::list(app, &visit.asker, pool, filter, &ask).await?;
        found.extend(page.items);
        let Some(cursor) = page.next_cursor else {
            return Ok(found);
        };
        ask = PageAsk::new(Some(PAGE_ITEMS_MAX), Some(cursor))?;
    }
}

/// The form of a booking that is there.
async fn edited(
    app: &App,
    visit: &Visit,
    pool: &Name,
    name: &str,
    zone: Zone,
) -> Result<BookingForm, AppError> {
    let all = all(app, visit, pool, BookingFilter::default()).await?;
    let booking = all
        .into_iter()
        .find(|booking| booking.name.as_str() == name);
    let booking = booking.ok_or_else(|| AppError::not_found("booking", name))?;
    Ok(BookingForm {
        changes: true,
        name: booking.name.to_string(),
        team: booking.team.to_string(),
        gpus: booking.gpus.to_string(),
        from: zone.local(booking.from),
        to: zone.local(booking.to),
        version: booking.version,
        errors: Vec::new(),
    })
}

/// A conflict of a booking, by the clocks of a zone.
pub fn conflict_row(conflict: &Conflict, zone: Zone) -> BookingConflict {
    BookingConflict {
        span: (shown(zone, conflict.from), shown(zone, conflict.to)),
        excess: conflict.excess.milli(),
        capacity: conflict.capacity.milli(),
        guaranteed: conflict.guaranteed.milli(),
        booked: conflict.booked.milli(),
        with: conflict.with.iter().map(Name::to_string).collect(),
    }
}

fn shown(zone: Zone, at: Timestamp) -> String {
    zone.local(at).replace('T', " ")
}

fn row(booking: &Booking, teams: &Teams, zone: Zone) -> BookingRow {
    BookingRow {
        name: booking.name.to_string(),
        team: teams.shown(booking.team.as_str()),
        gpus: booking.gpus.milli(),
        span: (shown(zone, booking.from), shown(zone, booking.to)),
        state: match booking.state {
            BookingState::Ahead => "ahead",
            BookingState::Lasts => "lasts",
            BookingState::Ended => "ended",
        },
        conflicts: booking
            .conflicts
            .iter()
            .map(|conflict| conflict_row(conflict, zone))
            .collect(),
        conflict_since: booking.conflict_since.map(|at| shown(zone, at)),
        version: booking.version,
        edit: format!(
            "/pools/{}/bookings?edit={}&week={}#form",
            booking.pool,
            booking.name,
            date(&zone.local(booking.from)).map_or_else(String::new, |day| day.to_string()),
        ),
    }
}

/// Tries a booking on the live world, or makes it.
pub async fn make_booking(
    State(app): State<App>,
    Path(pool): Path<String>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::CreateBooking, Target::Platform)?;
    let pool = read_name(&pool)?;
    set(&app, &visit, &pool, None, &fields).await
}

/// Tries a changed booking on the live world, or saves it.
pub async fn change_booking(
    State(app): State<App>,
    Path((pool, name)): Path<(String, String)>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::UpdateBooking, Target::Platform)?;
    let (pool, name) = (read_name(&pool)?, read_booking(&name)?);
    set(&app, &visit, &pool, Some(&name), &fields).await
}

async fn set(
    app: &App,
    visit: &Visit,
    pool: &Name,
    changed: Option<&Name>,
    fields: &Fields,
) -> Result<Response, PageError> {
    let zone = app.config.organisation.time_zone;
    let text = |name: &str| fields.text(name).to_owned();
    let mut form = BookingForm {
        changes: changed.is_some(),
        name: changed.map_or_else(|| text("name"), Name::to_string),
        team: text("team"),
        gpus: text("gpus"),
        from: text("from"),
        to: text("to"),
        version: match changed {
            Some(_) => policies::version(fields)?,
            None => 0,
        },
        errors: Vec::new(),
    };
    let mut outcome = Outcome::sent(fields);
    let read = read(&mut form, zone);
    note_faults(app, visit, pool, &mut form, &read.typed).await?;
    let new = read.whole().filter(|_| form.errors.is_empty());
    let done = match new {
        None => None,
        Some(new) if fields.saves() => {
            match save(app, visit, pool, changed, (&form, fields), new).await {
                Ok(done) => {
                    let address = format!("/pools/{pool}/bookings?done={done}");
                    return Ok(Redirect::to(&address).into_response());
                }
                Err(error) => Some(Err(error)),
            }
        }
        Some(new) => Some(policy_diff::diff(app, &visit.asker, draft(pool, new)).await),
    };
    match done {
        None => {}
        Some(Ok(diff)) => {
            let teams = Teams::load(app, &visit.asker).await?;
            outcome.effect = Some(effect::of(diff, &teams, zone));
        }
        Some(Err(error)) => {
            let mut refused = refusal::of(error, |key| field_of(key).to_owned())?;
            own_words(&mut refused);
            if ["booking_name", "team", "gpus", "from", "to"].contains(&refused.field.as_str()) {
                form.errors.push(refused);
            } else {
                outcome.errors.push(refused);
            }
        }
    }
    // The weeks that it is in are those that are looked at.
    let query = CalendarQuery {
        week: date(&form.from).map(|day| day.to_string()),
        edit: None,
    };
    outcome.form = Some(form);
    show(app, visit, pool, query, outcome).await
}

async fn save(
    app: &App,
    visit: &Visit,
    pool: &Name,
    changed: Option<&Name>,
    (form, fields): (&BookingForm, &Fields),
    new: NewBooking,
) -> Result<&'static str, AppError> {
    let reason = fields.text("reason");
    let Some(name) = changed else {
        let repeat = fields.repeat(ROUTE);
        bookings::create(app, &visit.asker, repeat, pool, new, reason).await?;
        return Ok("booking_made");
    };
    let patch = BookingPatch {
        team: Some(new.team),
        gpus: Some(new.gpus),
        from: Some(new.from),
        to: Some(new.to),
    };
    let which = (pool, name);
    bookings::update(app, &visit.asker, which, form.version, patch, reason).await?;
    Ok("booking_saved")
}

fn draft(pool: &Name, new: NewBooking) -> PolicyDraft {
    PolicyDraft {
        bookings: vec![BookingDraft {
            pool: pool.clone(),
            name: new.name,
            team: new.team,
            gpus: new.gpus,
            from: new.from,
            to: new.to,
        }],
        ..PolicyDraft::default()
    }
}

/// What could be read of the form.
struct Read {
    name: Option<Name>,
    typed: Typed,
}

impl Read {
    /// The booking, where all of it could be read.
    fn whole(self) -> Option<NewBooking> {
        let (from, to) = self.typed.span?;
        Some(NewBooking {
            name: self.name?,
            team: self.typed.team?,
            gpus: self.typed.gpus?,
            from,
            to,
        })
    }
}

/// Notes in the form what is wrong with what could be read of it.
async fn note_faults(
    app: &App,
    visit: &Visit,
    pool: &Name,
    form: &mut BookingForm,
    typed: &Typed,
) -> Result<(), AppError> {
    for fault in bookings::faults(app, &visit.asker, pool, typed).await? {
        let mut error = refusal::of_value(&fault, fault.field.clone());
        own_words(&mut error);
        form.errors.push(error);
    }
    Ok(())
}

/// The booking that is typed; what cannot be read is noted in the form.
fn read(form: &mut BookingForm, zone: Zone) -> Read {
    let mut errors = Vec::new();
    let mut keep = |field: &str, fault: FieldError| {
        errors.push(refusal::of_value(&fault, field.to_owned()));
    };
    let name = form.name.parse::<Name>();
    let name = name.map_err(|fault| keep("booking_name", fault)).ok();
    let team = form.team.parse::<Name>();
    let team = team.map_err(|fault| keep("team", fault)).ok();
    let gpus = form.gpus.parse::<MilliGpu>();
    let gpus = gpus.map_err(|fault| keep("gpus", fault)).ok();
    let mut moment = |field: &str, text: &str| {
        let found = zone.moment(text);
        if found.is_none() {
            keep(field, FieldError::new(field, text, "a day and a time"));
        }
        found
    };
    let from = moment("from", &form.from);
    let to = moment("to", &form.to);
    form.errors = errors;
    for error in &mut form.errors {
        own_words(error);
    }
    Read {
        name,
        typed: Typed {
            team,
            gpus,
            span: from.zip(to),
        },
    }
}

/// What a booking's amounts and team may be is not what a job's may.
fn own_words(error: &mut Refusal) {
    let t = Messages::english();
    if t.knows("refused_booking", &error.field) && error.code.is_none() {
        error.told = Some(t.word("refused_booking", &error.field));
    }
}

/// The form's field for a key of the API, or for what stands in the way.
fn field_of(key: &str) -> &str {
    let key = key.rsplit('.').next().unwrap_or(key);
    match key {
        "name" | "name_taken" => "booking_name",
        other => other,
    }
}

/// Removes a booking.
pub async fn delete_booking(
    State(app): State<App>,
    Path((pool, name)): Path<(String, String)>,
    Posted { visit, fields }: Posted<Fields>,
) -> Result<Response, PageError> {
    authorise(&visit.asker, Action::DeleteBooking, Target::Platform)?;
    let (pool, name) = (read_name(&pool)?, read_booking(&name)?);
    let version = policies::version(&fields)?;
    let which = (&pool, &name);
    match bookings::delete(&app, &visit.asker, which, version, fields.text("reason")).await {
        Ok(()) => {
            let address = format!("/pools/{pool}/bookings?done=booking_deleted");
            Ok(Redirect::to(&address).into_response())
        }
        Err(error) => {
            let outcome = Outcome::refused(refusal::of(error, str::to_owned)?);
            show(&app, &visit, &pool, CalendarQuery::default(), outcome).await
        }
    }
}

fn read_booking(text: &str) -> Result<Name, AppError> {
    text.parse()
        .map_err(|_| AppError::not_found("booking", text))
}
