//! Billing periods: months of the organisation's clocks, from open to issued, and its settings.

use domain::Timestamp;
use domain::ids::BillingPeriodId;
use domain::state::PeriodState;

use super::Tx;

/// What the organisation has settled about its bills.
#[derive(Debug, Clone)]
pub struct Organisation {
    /// On whose clocks its months and days begin.
    pub time_zone: String,
    /// In which currency it bills; absent until the first price.
    pub currency: Option<String>,
    /// Of what an attempt was charged before its node was lost, the last so many minutes are credited.
    pub node_loss_credit_minutes: i32,
    /// Its version.
    pub version: i64,
}

/// Reads it.
pub async fn organisation(tx: &mut Tx) -> Result<Organisation, sqlx::Error> {
    sqlx::query_as!(
        Organisation,
        "SELECT time_zone, currency, node_loss_credit_minutes, version FROM organisation"
    )
    .fetch_one(&mut **tx)
    .await
}

/// Changes it where it has that version still; whether it had.
pub async fn change_organisation(
    tx: &mut Tx,
    version: i64,
    time_zone: &str,
    node_loss_credit_minutes: i32,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE organisation
         SET time_zone = $2, node_loss_credit_minutes = $3, version = version + 1
         WHERE version = $1",
        version,
        time_zone,
        node_loss_credit_minutes,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Opens every period from the first use that is not rated yet to the present one. A period's bounds are
/// those of the organisation's months when it opens, and it begins where the one before it ended.
pub async fn open_through(tx: &mut Tx, now: Timestamp) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!(
        "INSERT INTO billing_periods (id, name, started_at, ended_at, time_zone)
         SELECT gen_random_uuid(), to_char(m.month, 'YYYY-MM'),
             -- Two days: more than the clocks of two zones ever differ by.
             COALESCE((SELECT max(p.ended_at) FROM billing_periods AS p
                       WHERE p.ended_at BETWEEN m.began - interval '2 days' AND m.began + interval '2 days'), m.began),
             m.ended, m.time_zone
         FROM (
             SELECT o.time_zone, months.month, months.month AT TIME ZONE o.time_zone AS began,
                 (months.month + interval '1 month') AT TIME ZONE o.time_zone AS ended
             FROM organisation AS o
             CROSS JOIN LATERAL generate_series(
                 date_trunc('month', LEAST($1, (
                     SELECT min(COALESCE(s.rated_until, s.started_at))
                     FROM usage_segments AS s
                     WHERE s.kind = 'charged' AND (s.ended_at IS NULL OR s.rated_until IS NULL OR s.rated_until < s.ended_at)
                 )) AT TIME ZONE o.time_zone),
                 date_trunc('month', $1 AT TIME ZONE o.time_zone), interval '1 month') AS months (month)
         ) AS m
         WHERE NOT EXISTS (
             SELECT FROM billing_periods AS p
             WHERE p.name = to_char(m.month, 'YYYY-MM') OR (p.started_at <= m.began AND p.ended_at >= m.ended))",
        now,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected())
}

/// A period.
#[derive(Debug, Clone)]
pub struct Period {
    /// Its id.
    pub id: BillingPeriodId,
    /// Its name, the month: `2026-10`.
    pub name: String,
    /// From then on.
    pub started_at: Timestamp,
    /// Up to before then.
    pub ended_at: Timestamp,
    /// On whose clocks.
    pub time_zone: String,
    /// Where it stands.
    pub state: PeriodState,
    /// When it was closed.
    pub closed_at: Option<Timestamp>,
    /// When its statements were issued.
    pub issued_at: Option<Timestamp>,
    /// Its version.
    pub version: i64,
}

/// Periods before a time, the latest first; or the one of a name.
pub async fn page(
    tx: &mut Tx,
    before: Option<Timestamp>,
    name: Option<&str>,
    rows: i64,
) -> Result<Vec<Period>, sqlx::Error> {
    sqlx::query_as!(
        Period,
        r#"SELECT id AS "id: BillingPeriodId", name, started_at, ended_at, time_zone, state AS "state: PeriodState",
                  closed_at, issued_at, version
           FROM billing_periods
           WHERE ($1::timestamptz IS NULL OR started_at < $1) AND ($2::text IS NULL OR name = $2)
           ORDER BY started_at DESC
           LIMIT $3"#,
        before,
        name,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Takes a period from one state to another; whether it stood there.
pub async fn step(
    tx: &mut Tx,
    id: BillingPeriodId,
    from: PeriodState,
    to: PeriodState,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE billing_periods
         SET state = $3, version = version + 1,
             closed_at = CASE WHEN $3 = 'closed' THEN allotment.clock() ELSE closed_at END,
             issued_at = CASE WHEN $3 = 'issued' THEN allotment.clock() ELSE issued_at END
         WHERE id = $1 AND state = $2",
        id as BillingPeriodId,
        from.as_str(),
        to.as_str(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// What keeps a period from being closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Obstacles {
    /// Segments that have ended and are not rated to the period's end.
    pub unrated: i64,
    /// Thousandths of a GPU times microseconds that no price covers.
    pub unpriced: rust_decimal::Decimal,
    /// Periods before it that are open.
    pub earlier: i64,
}

/// Looks for them.
pub async fn obstacles(tx: &mut Tx, period: &Period) -> Result<Obstacles, sqlx::Error> {
    sqlx::query_as!(
        Obstacles,
        r#"SELECT (SELECT count(*) FROM usage_segments AS s
                   WHERE s.kind = 'charged' AND s.started_at < $2 AND s.ended_at IS NOT NULL
                     AND (s.rated_until IS NULL OR s.rated_until < LEAST(s.ended_at, $2))
                     AND s.started_at < s.ended_at) AS "unrated!",
                  (SELECT COALESCE(sum(e.gpu_milli_micros), 0) FROM ledger_entries AS e
                   WHERE e.period_id = $1 AND e.amount IS NULL) AS "unpriced!",
                  (SELECT count(*) FROM billing_periods AS p
                   WHERE p.ended_at <= $3 AND p.state IN ('open', 'closing')) AS "earlier!""#,
        period.id as BillingPeriodId,
        period.ended_at,
        period.started_at,
    )
    .fetch_one(&mut **tx)
    .await
}
