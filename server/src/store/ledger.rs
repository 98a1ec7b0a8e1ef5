//! The ledger: money derived from segments and prices, and what was used, with what is not in it yet.

use domain::Timestamp;
use domain::ids::{AttemptId, JobId, SegmentId, TeamId};
use domain::money::Currency;
use rust_decimal::Decimal;

use super::Tx;

/// Whether this transaction may rate: one replica does at a time.
pub async fn try_lock(tx: &mut Tx) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT pg_try_advisory_xact_lock(hashtextextended('allotment.rating', 0)) AS "locked!""#
    )
    .fetch_one(&mut **tx)
    .await
}

/// Waits until nobody rates, and keeps everybody from it until this transaction ends.
pub async fn lock(tx: &mut Tx) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended('allotment.rating', 0))::text AS locked"
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(())
}

/// Segments with something to rate, locked: closed ones to their end, open ones up to `hour`
/// where their node has been heard of since, so that no time is charged that may turn out
/// to be the operator's.
pub async fn lock_due(
    tx: &mut Tx,
    hour: Timestamp,
    limit: i64,
) -> Result<Vec<SegmentId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT s.id AS "id: SegmentId"
           FROM usage_segments AS s
           JOIN nodes AS n ON n.id = s.node_id
           WHERE s.kind = 'charged' AND (s.ended_at IS NULL OR s.rated_until IS NULL OR s.rated_until < s.ended_at)
             AND (s.ended_at IS NOT NULL
                  OR (COALESCE(s.rated_until, s.started_at) < $1 AND n.last_heartbeat_at >= $1))
           ORDER BY s.id
           LIMIT $2
           FOR UPDATE OF s SKIP LOCKED"#,
        hour,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Writes the ledger entries of locked segments; returns how many, and how many of them no
/// price covers.
pub async fn rate(
    tx: &mut Tx,
    segments: &[SegmentId],
    hour: Timestamp,
) -> Result<(u64, u64), sqlx::Error> {
    let written = sqlx::query_scalar!(
        r#"INSERT INTO ledger_entries (kind, period_id, team_id, user_id, job_id, segment_id, pool_id, resource, mode,
                                       started_at, ended_at, gpu_milli_micros, price_id, factor, amount, list_amount,
                                       effective_amount, currency)
           -- What comes late, after its own period was closed, is a correction in the one that is open.
           SELECT CASE WHEN b.started_at <= p.started_at THEN 'usage' ELSE 'correction' END, b.id,
                  p.team_id, p.user_id, p.job_id, p.segment_id, p.pool_id, p.resource, p.mode, p.started_at, p.ended_at,
                  p.gpu_milli_micros, p.price_id, p.factor, p.amount, p.list_amount, p.effective_amount, p.currency
           FROM allotment.unrated_pieces($2) AS p
           JOIN billing_periods AS b ON b.id = allotment.billing_period(p.started_at)
           WHERE p.segment_id = ANY ($1)
           RETURNING price_id IS NULL AS "unpriced!""#,
        segments as &[SegmentId],
        hour,
    )
    .fetch_all(&mut **tx)
    .await?;
    sqlx::query!(
        "UPDATE usage_segments SET rated_until = COALESCE(ended_at, $2) WHERE id = ANY ($1)",
        segments as &[SegmentId],
        hour,
    )
    .execute(&mut **tx)
    .await?;
    let unpriced = written.iter().filter(|unpriced| **unpriced).count();
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    Ok((count(written.len()), count(unpriced)))
}

/// By what a report groups; all false gives one line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grouping {
    /// By team.
    pub team: bool,
    /// By user.
    pub user: bool,
    /// By job.
    pub job: bool,
    /// By pool.
    pub pool: bool,
    /// By sharing mode.
    pub mode: bool,
    /// By day, in UTC.
    pub day: bool,
    /// By hour of the clock.
    pub hour: bool,
}

/// What a report is over.
#[derive(Debug, Clone)]
pub struct Window {
    /// From then on.
    pub from: Timestamp,
    /// Up to before then.
    pub to: Timestamp,
    /// Of this team and all below it; absent: of all that may be seen.
    pub team: Option<TeamId>,
    /// The present time: where open segments end for now.
    pub now: Timestamp,
}

/// One line of a report, exact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The team, where grouped by.
    pub team: Option<String>,
    /// The user, where grouped by.
    pub user: Option<String>,
    /// The job, where grouped by.
    pub job: Option<JobId>,
    /// That job's name.
    pub job_name: Option<String>,
    /// The pool, where grouped by.
    pub pool: Option<String>,
    /// The sharing mode, where grouped by.
    pub mode: Option<String>,
    /// The beginning of the day or hour, where grouped by.
    pub bucket: Option<Timestamp>,
    /// Thousandths of a GPU times microseconds.
    pub gpu_milli_micros: Decimal,
    /// The part of it that no price covers.
    pub unpriced_milli_micros: Decimal,
    /// What the rest costs.
    pub amount: Decimal,
    /// In which currency; absent where nothing is priced.
    pub currency: Option<Currency>,
}

/// What was held in a window, from the ledger and from what is not in it yet. Lines that differ
/// only in their currency stay apart.
pub async fn usage(
    tx: &mut Tx,
    window: &Window,
    by: Grouping,
    limit: i64,
) -> Result<Vec<Line>, sqlx::Error> {
    sqlx::query_as!(
        Line,
        r#"WITH RECURSIVE below AS (
               SELECT id FROM teams WHERE id = $4
               UNION ALL
               SELECT t.id FROM teams AS t JOIN below ON t.parent_id = below.id
           ),
           pieces AS (
               SELECT team_id, user_id, job_id, pool_id, mode, started_at, ended_at, gpu_milli_micros, amount, currency
               FROM ledger_entries
               WHERE started_at < $2 AND ended_at > $1
               UNION ALL
               SELECT team_id, user_id, job_id, pool_id, mode, started_at, ended_at, gpu_milli_micros, amount, currency
               FROM allotment.unrated_pieces($3)
               WHERE started_at < $2 AND ended_at > $1
           ),
           clipped AS (
               SELECT p.team_id, p.user_id, p.job_id, p.pool_id, p.mode, p.currency, p.amount,
                   GREATEST(p.started_at, $1) AS started_at, p.gpu_milli_micros,
                   -- The part of a piece within the window; whole pieces are not divided.
                   CASE WHEN p.started_at >= $1 AND p.ended_at <= $2 THEN 1
                        ELSE EXTRACT(EPOCH FROM LEAST(p.ended_at, $2) - GREATEST(p.started_at, $1))::numeric(40, 24)
                             / EXTRACT(EPOCH FROM p.ended_at - p.started_at) END AS part
               FROM pieces AS p
               WHERE $4::uuid IS NULL OR p.team_id IN (SELECT id FROM below)
           ),
           grouped AS (
               SELECT CASE WHEN $5 THEN team_id END AS team_id,
                   CASE WHEN $6 THEN user_id END AS user_id,
                   CASE WHEN $7 THEN job_id END AS job_id,
                   CASE WHEN $8 THEN pool_id END AS pool_id,
                   CASE WHEN $9 THEN mode END AS mode,
                   CASE WHEN $11 THEN date_trunc('hour', started_at, 'UTC')
                        WHEN $10 THEN date_trunc('day', started_at, 'UTC') END AS bucket,
                   currency,
                   round(sum(gpu_milli_micros * part)) AS gpu_milli_micros,
                   round(COALESCE(sum(gpu_milli_micros * part) FILTER (WHERE amount IS NULL), 0)) AS unpriced_milli_micros,
                   round(COALESCE(sum(amount * part), 0), 12) AS amount
               FROM clipped
               GROUP BY 1, 2, 3, 4, 5, 6, 7
           )
           SELECT t.name AS "team?", u.name AS "user?", g.job_id AS "job: JobId", j.name AS "job_name?", p.name AS "pool?",
               g.mode, g.bucket, g.gpu_milli_micros AS "gpu_milli_micros!",
               g.unpriced_milli_micros AS "unpriced_milli_micros!", g.amount AS "amount!",
               g.currency AS "currency: Currency"
           FROM grouped AS g
           LEFT JOIN teams AS t ON t.id = g.team_id
           LEFT JOIN users AS u ON u.id = g.user_id
           LEFT JOIN jobs AS j ON j.id = g.job_id
           LEFT JOIN pools AS p ON p.id = g.pool_id
           ORDER BY g.bucket NULLS FIRST, t.name NULLS FIRST, u.name NULLS FIRST, p.name NULLS FIRST, g.mode NULLS FIRST,
               g.job_id NULLS FIRST, g.currency NULLS LAST
           LIMIT $12"#,
        window.from,
        window.to,
        window.now,
        window.team as Option<TeamId>,
        by.team,
        by.user,
        by.job,
        by.pool,
        by.mode,
        by.day,
        by.hour,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What something has used so far in one currency or in none, exact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exact {
    /// Thousandths of a GPU times microseconds.
    pub gpu_milli_micros: Decimal,
    /// The part of it that no price covers.
    pub unpriced_milli_micros: Decimal,
    /// What the rest costs.
    pub amount: Decimal,
    /// In which currency; absent where nothing is priced.
    pub currency: Option<Currency>,
}

/// What jobs have used so far.
pub async fn of_jobs(
    tx: &mut Tx,
    jobs: &[JobId],
    now: Timestamp,
) -> Result<Vec<(JobId, Exact)>, sqlx::Error> {
    let lines = exact(tx, jobs, false, now).await?;
    Ok(lines
        .into_iter()
        .map(|(job, _, exact)| (job, exact))
        .collect())
}

/// What arrays have used so far, all elements of each together.
pub async fn of_arrays(
    tx: &mut Tx,
    arrays: &[JobId],
    now: Timestamp,
) -> Result<Vec<(JobId, Exact)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT j.array_id AS "array_id!: JobId", sum(p.gpu_milli_micros) AS "gpu_milli_micros!",
               COALESCE(sum(p.gpu_milli_micros) FILTER (WHERE p.amount IS NULL), 0) AS "unpriced_milli_micros!",
               round(COALESCE(sum(p.amount), 0), 12) AS "amount!", p.currency AS "currency: Currency"
           FROM jobs AS j
           JOIN (
               SELECT job_id, gpu_milli_micros, amount, currency FROM ledger_entries
               UNION ALL
               SELECT job_id, gpu_milli_micros, amount, currency FROM allotment.unrated_pieces($2)
           ) AS p ON p.job_id = j.id
           WHERE j.array_id = ANY ($1) AND j.attempt > 0
           GROUP BY j.array_id, p.currency
           ORDER BY j.array_id, p.currency NULLS LAST"#,
        arrays as &[JobId],
        now,
    )
    .fetch_all(&mut **tx)
    .await?;
    let lines = rows.into_iter().map(|row| {
        let exact = Exact {
            gpu_milli_micros: row.gpu_milli_micros,
            unpriced_milli_micros: row.unpriced_milli_micros,
            amount: row.amount,
            currency: row.currency,
        };
        (row.array_id, exact)
    });
    Ok(lines.collect())
}

/// What the attempts of a job have used so far.
pub async fn of_attempts(
    tx: &mut Tx,
    job: JobId,
    now: Timestamp,
) -> Result<Vec<(AttemptId, Exact)>, sqlx::Error> {
    let lines = exact(tx, &[job], true, now).await?;
    let of_attempt = |(_, attempt, exact): (_, Option<AttemptId>, _)| Some((attempt?, exact));
    Ok(lines.into_iter().filter_map(of_attempt).collect())
}

/// What jobs have used so far, each by its attempts where that is asked for.
async fn exact(
    tx: &mut Tx,
    jobs: &[JobId],
    by_attempt: bool,
    now: Timestamp,
) -> Result<Vec<(JobId, Option<AttemptId>, Exact)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT p.job_id AS "job_id!: JobId", s.attempt_id AS "attempt_id?: AttemptId",
               sum(p.gpu_milli_micros) AS "gpu_milli_micros!",
               COALESCE(sum(p.gpu_milli_micros) FILTER (WHERE p.amount IS NULL), 0) AS "unpriced_milli_micros!",
               round(COALESCE(sum(p.amount), 0), 12) AS "amount!", p.currency AS "currency: Currency"
           FROM (
               SELECT job_id, segment_id, gpu_milli_micros, amount, currency
               FROM ledger_entries
               WHERE job_id = ANY ($1)
               UNION ALL
               SELECT job_id, segment_id, gpu_milli_micros, amount, currency
               FROM allotment.unrated_pieces($2)
               WHERE job_id = ANY ($1)
           ) AS p
           LEFT JOIN usage_segments AS s ON $3 AND s.id = p.segment_id
           GROUP BY p.job_id, s.attempt_id, p.currency
           ORDER BY p.job_id, s.attempt_id, p.currency NULLS LAST"#,
        jobs as &[JobId],
        now,
        by_attempt,
    )
    .fetch_all(&mut **tx)
    .await?;
    let lines = rows.into_iter().map(|row| {
        let exact = Exact {
            gpu_milli_micros: row.gpu_milli_micros,
            unpriced_milli_micros: row.unpriced_milli_micros,
            amount: row.amount,
            currency: row.currency,
        };
        (row.job_id, row.attempt_id, exact)
    });
    Ok(lines.collect())
}
