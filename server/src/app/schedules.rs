//! Reports on schedule: made by themselves, once for each period, and sent to who is to have them.

mod report;
mod timing;

use domain::FieldError;
use domain::Timestamp;
use domain::ids::{ScheduleId, ScheduleRunId, TeamId};
use domain::name::Name;
use domain::notice::{ReportFormat, ReportSpan, ScheduleKind};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::{self, Change};
use super::authorise::Action;
use super::idempotency::{self, Answer, Repeat};
use super::page::Page;
use super::{App, AppError, Asker, notices, teams, webhooks};
use crate::store::outbox::{self, NewReport};
use crate::store::schedules::{self as rows, Run};
use crate::store::{self, Tx};

use timing::Timing;

/// Most schedules of a team.
const OF_TEAM_MAX: i64 = 50;
/// Most addresses of each kind of a schedule; a list of people belongs into a mailing list.
const ADDRESSES_MAX: usize = 20;
/// Most reports of a schedule that are listed: some years of months.
const RUNS_LISTED_MAX: i64 = 100;
/// Reports that one round makes at most, so that what is to be made up after an outage keeps nothing else waiting.
const REPORTS_AT_ONCE: usize = 20;

/// A report on schedule.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// Its name.
    pub name: Name,
    /// What it reports.
    pub kind: ScheduleKind,
    /// In what.
    pub format: ReportFormat,
    /// Of what: the last whole one before it is due.
    pub covers: ReportSpan,
    /// When: minute, hour, day of the month, month, day of the week.
    pub cron: String,
    /// By which clocks.
    pub time_zone: String,
    /// To which addresses of e-mail.
    pub emails: Vec<String>,
    /// To how many webhooks.
    pub webhooks: usize,
    /// When it is due next.
    #[schema(value_type = String, format = DateTime)]
    pub next_at: Timestamp,
    /// Its version.
    pub version: i64,
}

/// A report on schedule to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSchedule {
    /// Its name.
    pub name: Name,
    /// What it reports.
    pub kind: ScheduleKind,
    /// In what.
    pub format: ReportFormat,
    /// Of what: the last whole one before it is due. Of each it reports once, however often it is due.
    pub covers: ReportSpan,
    /// When: minute, hour, day of the month, month, day of the week.
    #[schema(max_length = 200, example = "0 6 1 * *")]
    pub cron: String,
    /// By which clocks; the organisation's unless given.
    #[serde(default)]
    pub time_zone: Option<String>,
    /// To which addresses of e-mail.
    #[serde(default)]
    #[schema(max_items = 20)]
    pub emails: Vec<String>,
    /// To which webhooks of the team.
    #[serde(default)]
    #[schema(max_items = 20)]
    pub webhooks: Vec<Name>,
}

/// A report that was made.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Report {
    /// Its id.
    pub id: ScheduleRunId,
    /// When it was due.
    #[schema(value_type = String, format = DateTime)]
    pub due_at: Timestamp,
    /// From when on it reports.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Up to before when.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub made_at: Timestamp,
    /// The name of its file.
    pub file_name: String,
    /// The type of that.
    pub media_type: String,
    /// What is in it.
    pub content: String,
}

/// Lists a team's schedules, by name.
pub async fn list(app: &App, asker: &Asker, team: &Name) -> Result<Page<Schedule>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, Action::ListSchedules, team).await?;
    let found = rows::all(&mut tx, team.id, OF_TEAM_MAX).await?;
    tx.commit().await?;
    Ok(Page {
        items: found.into_iter().map(Schedule::from).collect(),
        next_cursor: None,
    })
}

/// Makes a schedule; it is first due after now.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    team: &Name,
    new: NewSchedule,
    reason: &str,
) -> Result<Answer<Schedule>, AppError> {
    let action = Action::CreateSchedule;
    super::reason::check_reason(reason)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    let team = teams::find_as(&mut work.tx, asker, action, team).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let tx = &mut work.tx;
    let there = rows::all(tx, team.id, OF_TEAM_MAX).await?.len();
    webhooks::too_many(
        "schedules",
        i64::try_from(there).unwrap_or(i64::MAX),
        OF_TEAM_MAX,
    )?;
    let time_zone = new
        .time_zone
        .unwrap_or_else(|| app.config.organisation.time_zone.to_string());
    let now = store::clock(tx).await?;
    let next_at = Timing::read(&new.cron, &time_zone)
        .map_err(AppError::Invalid)?
        .after(now)
        .ok_or_else(|| AppError::invalid("cron", &new.cron, "a time that comes again"))?;
    addresses(&new.emails, &new.webhooks)?;
    let row = rows::Schedule {
        id: ScheduleId::new(),
        team_id: team.id,
        team: team.name.clone(),
        name: new.name,
        kind: new.kind,
        format: new.format,
        covers: new.covers,
        cron: new.cron,
        time_zone,
        emails: new.emails,
        webhook_ids: webhooks::ids(tx, team.id, "webhooks", &new.webhooks).await?,
        next_at,
        version: 1,
    };
    rows::insert(tx, &row, asker.user_id)
        .await
        .map_err(|error| {
            AppError::name_taken(error, "schedule_name_taken", "schedule", &row.name)
        })?;
    let schedule = Schedule::from(row);
    let change = Change {
        team_id: Some(team.id),
        reason,
        after: Some(json!(schedule)),
        ..Change::of(action, format!("schedule/{}/{}", team.name, schedule.name))
    };
    audit::record(tx, asker, change).await?;
    work.finish(app, Answer::created(schedule, 1)).await
}

fn addresses(emails: &[String], webhooks: &[Name]) -> Result<(), AppError> {
    if emails.is_empty() && webhooks.is_empty() {
        return Err(AppError::Invalid(FieldError::missing(
            "emails",
            "an address, or one of webhooks",
        )));
    }
    for (field, count) in [("emails", emails.len()), ("webhooks", webhooks.len())] {
        if count > ADDRESSES_MAX {
            return Err(AppError::invalid(
                field,
                count,
                format!("at most {ADDRESSES_MAX} of them"),
            ));
        }
    }
    emails
        .iter()
        .enumerate()
        .try_for_each(|(at, email)| notices::check_email(&format!("emails[{at}]"), email))
}

/// Removes a schedule; the reports that it made stay where they were sent.
pub async fn delete(
    app: &App,
    asker: &Asker,
    (team, name): (&Name, &Name),
    version: i64,
    reason: &str,
) -> Result<(), AppError> {
    let action = Action::DeleteSchedule;
    super::reason::check_reason(reason)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, action, team).await?;
    let row = find(&mut tx, team.id, name).await?;
    if !rows::remove(&mut tx, row.id, version).await? {
        let (given, present) = (version.to_string(), row.version);
        return Err(AppError::Stale { given, present });
    }
    let change = Change {
        team_id: Some(team.id),
        reason,
        before: Some(json!(Schedule::from(row))),
        ..Change::of(action, format!("schedule/{}/{name}", team.name))
    };
    audit::record(&mut tx, asker, change).await?;
    Ok(tx.commit().await?)
}

/// Lists the reports that a schedule made, the latest first.
pub async fn reports(
    app: &App,
    asker: &Asker,
    (team, name): (&Name, &Name),
) -> Result<Page<Report>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = teams::find_as(&mut tx, asker, Action::ListScheduleReports, team).await?;
    let row = find(&mut tx, team.id, name).await?;
    let runs = rows::runs(&mut tx, row.id, RUNS_LISTED_MAX).await?;
    tx.commit().await?;
    let items = runs.into_iter().map(|run| Report {
        id: run.id,
        due_at: run.due_at,
        from: run.starts_at,
        to: run.ends_at,
        made_at: run.made_at,
        file_name: run.file_name,
        media_type: run.media_type,
        content: run.content,
    });
    Ok(Page {
        items: items.collect(),
        next_cursor: None,
    })
}

async fn find(tx: &mut Tx, team: TeamId, name: &Name) -> Result<rows::Schedule, AppError> {
    let all = rows::all(tx, team, OF_TEAM_MAX).await?;
    all.into_iter()
        .find(|row| row.name == *name)
        .ok_or_else(|| AppError::not_found("schedule", name))
}

impl From<rows::Schedule> for Schedule {
    fn from(row: rows::Schedule) -> Self {
        Self {
            name: row.name,
            kind: row.kind,
            format: row.format,
            covers: row.covers,
            cron: row.cron,
            time_zone: row.time_zone,
            emails: row.emails,
            webhooks: row.webhook_ids.len(),
            next_at: row.next_at,
            version: row.version,
        }
    }
}

/// Makes the reports that are due, each with what is to be delivered of it in one transaction; what an outage kept from
/// being made is made up, for its own period. How many were made.
pub async fn make_due(app: &App) -> Result<usize, AppError> {
    let mut made = 0;
    for _ in 0..REPORTS_AT_ONCE {
        let mut tx = app.db.begin_system().await?;
        let Some(schedule) = rows::lock_due(&mut tx).await? else {
            break;
        };
        made += usize::from(make_one(&mut tx, &schedule).await?);
        tx.commit().await?;
    }
    Ok(made)
}

/// Makes the report of a locked schedule that is due, where there is none of its period yet.
async fn make_one(tx: &mut Tx, schedule: &rows::Schedule) -> Result<bool, AppError> {
    let due = schedule.next_at;
    let timing = Timing::read(&schedule.cron, &schedule.time_zone).map_err(AppError::Invalid)?;
    // An expression that was taken comes again; were it not so, a day later is looked at again.
    let next = timing
        .after(due)
        .unwrap_or(due + chrono::TimeDelta::days(1));
    rows::set_next(tx, schedule.id, next).await?;
    let Some(span) = timing.span(schedule.covers, due) else {
        return Ok(false);
    };
    if rows::has_run(tx, schedule.id, span.0).await? {
        return Ok(false);
    }
    let file = report::make(tx, schedule, span).await?;
    let run = Run {
        id: ScheduleRunId::new(),
        due_at: due,
        starts_at: span.0,
        ends_at: span.1,
        made_at: store::clock(tx).await?,
        file_name: file.name,
        media_type: file.media_type.to_owned(),
        content: file.content,
    };
    rows::insert_run(tx, schedule, &run).await?;
    let report = NewReport {
        team_id: schedule.team_id,
        run: run.id,
        key: &format!("report/{}", run.id),
        about: &format!("schedule/{}", schedule.id),
        emails: &schedule.emails,
        webhooks: &schedule.webhook_ids,
        payload: &file.told,
    };
    outbox::send_report(tx, &report).await?;
    let object = format!("schedule/{}/{}", schedule.team, schedule.name);
    let reason = format!("its report of {} was due", domain::time::format(span.0));
    store::audit::insert_of_system(tx, "make_report", &object, &reason).await?;
    Ok(true)
}
