//! Reports on schedule: what is due when, and what was made.

use domain::Timestamp;
use domain::ids::{ScheduleId, ScheduleRunId, TeamId, UserId, WebhookId};
use domain::name::Name;
use domain::notice::{ReportFormat, ReportSpan, ScheduleKind};

use super::Tx;

/// A row with its team's name.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Its id.
    pub id: ScheduleId,
    /// Its team.
    pub team_id: TeamId,
    /// That team's name.
    pub team: Name,
    /// Its name.
    pub name: Name,
    /// What it reports.
    pub kind: ScheduleKind,
    /// In what.
    pub format: ReportFormat,
    /// Of what.
    pub covers: ReportSpan,
    /// When, as a cron expression.
    pub cron: String,
    /// By which clocks.
    pub time_zone: String,
    /// To which addresses.
    pub emails: Vec<String>,
    /// To which webhooks.
    pub webhook_ids: Vec<WebhookId>,
    /// When it is due next.
    pub next_at: Timestamp,
    /// Its version.
    pub version: i64,
}

/// A team's, by name; at most so many.
pub async fn all(tx: &mut Tx, team: TeamId, rows: i64) -> Result<Vec<Schedule>, sqlx::Error> {
    sqlx::query_as!(
        Schedule,
        r#"SELECT s.id AS "id: ScheduleId", s.team_id AS "team_id: TeamId", t.name AS "team: Name", s.name AS "name: Name",
                  s.kind AS "kind: ScheduleKind", s.format AS "format: ReportFormat", s.covers AS "covers: ReportSpan",
                  s.cron, s.time_zone, s.emails, s.webhook_ids AS "webhook_ids: Vec<WebhookId>", s.next_at, s.version
           FROM schedules AS s
           JOIN teams AS t ON t.id = s.team_id
           WHERE s.team_id = $1 AND s.removed_at IS NULL
           ORDER BY s.name
           LIMIT $2"#,
        team as TeamId,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Locks the one that has been due for longest, if one is and nobody else is at it.
pub async fn lock_due(tx: &mut Tx) -> Result<Option<Schedule>, sqlx::Error> {
    sqlx::query_as!(
        Schedule,
        r#"SELECT s.id AS "id: ScheduleId", s.team_id AS "team_id: TeamId", t.name AS "team: Name", s.name AS "name: Name",
                  s.kind AS "kind: ScheduleKind", s.format AS "format: ReportFormat", s.covers AS "covers: ReportSpan",
                  s.cron, s.time_zone, s.emails, s.webhook_ids AS "webhook_ids: Vec<WebhookId>", s.next_at, s.version
           FROM schedules AS s
           JOIN teams AS t ON t.id = s.team_id
           WHERE s.removed_at IS NULL AND s.next_at <= allotment.clock()
           ORDER BY s.next_at
           LIMIT 1
           FOR UPDATE OF s SKIP LOCKED"#
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Says when a locked one is due next.
pub async fn set_next(tx: &mut Tx, id: ScheduleId, next_at: Timestamp) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE schedules SET next_at = $2 WHERE id = $1",
        id as ScheduleId,
        next_at,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Makes one.
pub async fn insert(tx: &mut Tx, row: &Schedule, created_by: UserId) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO schedules (id, team_id, name, kind, format, covers, cron, time_zone, emails, webhook_ids, next_at, created_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        row.id as ScheduleId,
        row.team_id as TeamId,
        row.name.as_str(),
        row.kind.as_str(),
        row.format.as_str(),
        row.covers.as_str(),
        row.cron,
        row.time_zone,
        &row.emails,
        &row.webhook_ids as &[WebhookId],
        row.next_at,
        created_by as UserId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Removes one that still has `version`; whether it had. Its reports stay.
pub async fn remove(tx: &mut Tx, id: ScheduleId, version: i64) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE schedules SET removed_at = allotment.clock(), version = version + 1
         WHERE id = $1 AND version = $2 AND removed_at IS NULL",
        id as ScheduleId,
        version,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A report that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its id.
    pub id: ScheduleRunId,
    /// When it was due.
    pub due_at: Timestamp,
    /// From when on it reports.
    pub starts_at: Timestamp,
    /// Up to before when.
    pub ends_at: Timestamp,
    /// When it was made.
    pub made_at: Timestamp,
    /// The name of its file.
    pub file_name: String,
    /// The type of that.
    pub media_type: String,
    /// What is in it.
    pub content: String,
}

/// Whether a schedule has reported of a period.
pub async fn has_run(
    tx: &mut Tx,
    id: ScheduleId,
    starts_at: Timestamp,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM schedule_runs WHERE schedule_id = $1 AND starts_at = $2) AS "has!""#,
        id as ScheduleId,
        starts_at,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Keeps a report; the constraint `one_report_per_period` refuses a second one of its period.
pub async fn insert_run(tx: &mut Tx, schedule: &Schedule, run: &Run) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO schedule_runs (id, schedule_id, team_id, due_at, starts_at, ends_at, made_at, file_name, media_type, content)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        run.id as ScheduleRunId,
        schedule.id as ScheduleId,
        schedule.team_id as TeamId,
        run.due_at,
        run.starts_at,
        run.ends_at,
        run.made_at,
        run.file_name,
        run.media_type,
        run.content,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The reports of a schedule, the latest first; at most so many.
pub async fn runs(tx: &mut Tx, id: ScheduleId, rows: i64) -> Result<Vec<Run>, sqlx::Error> {
    sqlx::query_as!(
        Run,
        r#"SELECT id AS "id: ScheduleRunId", due_at, starts_at, ends_at, made_at, file_name, media_type, content
           FROM schedule_runs
           WHERE schedule_id = $1
           ORDER BY starts_at DESC
           LIMIT $2"#,
        id as ScheduleId,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}
