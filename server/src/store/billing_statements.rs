//! Statements: what a closed period bills each team, with a digest of the ledger rows behind it.

use domain::Timestamp;
use domain::ids::{BillingPeriodId, PoolId, StatementId, TeamId};
use rust_decimal::Decimal;

use super::Tx;

/// Credits what attempts whose node was lost in a period were charged in the last minutes before that, each segment
/// once; returns how many.
pub async fn enter_credits(tx: &mut Tx, period: BillingPeriodId) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!(
        "WITH lost AS (
             SELECT s.id AS segment_id, s.ended_at AS lost_at,
                 s.ended_at - o.node_loss_credit_minutes * interval '1 minute' AS since
             FROM attempts AS a
             JOIN billing_periods AS b ON b.id = $1 AND a.ended_at >= b.started_at AND a.ended_at < b.ended_at
             JOIN usage_segments AS s ON s.attempt_id = a.id AND s.kind = 'charged' AND s.ended_at IS NOT NULL
             CROSS JOIN organisation AS o
             WHERE a.reason = 'node_lost' AND o.node_loss_credit_minutes > 0
         ),
         charged AS (
             SELECT l.segment_id, min(GREATEST(e.started_at, l.since)) AS began, l.lost_at, e.currency,
                 sum(e.amount * part.of) AS amount, sum(e.list_amount * part.of) AS list_amount,
                 sum(e.effective_amount * part.of) AS effective_amount
             FROM lost AS l
             JOIN ledger_entries AS e ON e.segment_id = l.segment_id AND e.kind IN ('usage', 'reversal', 'correction')
                 AND e.ended_at > l.since AND e.amount IS NOT NULL
             CROSS JOIN LATERAL (
                 SELECT EXTRACT(EPOCH FROM e.ended_at - GREATEST(e.started_at, l.since))::numeric(40, 24)
                        / EXTRACT(EPOCH FROM e.ended_at - e.started_at) AS of
             ) AS part
             GROUP BY l.segment_id, l.lost_at, e.currency
         )
         INSERT INTO ledger_entries (kind, period_id, team_id, user_id, job_id, segment_id, pool_id, mode, started_at,
                                     ended_at, gpu_milli_micros, amount, list_amount, effective_amount, currency)
         SELECT 'credit', $1, s.team_id, s.user_id, s.job_id, s.id, s.pool_id, s.mode, c.began, c.lost_at, 0,
                -round(c.amount, 18), -round(c.list_amount, 18), -round(c.effective_amount, 18), c.currency
         FROM charged AS c
         JOIN usage_segments AS s ON s.id = c.segment_id
         WHERE c.amount > 0
         ON CONFLICT DO NOTHING",
        period as BillingPeriodId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected())
}

/// A line of what a period bills a team, exact.
#[derive(Debug, Clone)]
pub struct Billed {
    /// The team.
    pub team_id: TeamId,
    /// `usage`, `correction` (with what it reverses), `credit` or `committed`.
    pub kind: String,
    /// The pool.
    pub pool_id: PoolId,
    /// The sharing mode; absent of what was committed.
    pub mode: Option<String>,
    /// `gpu`, `cpu` or `memory`.
    pub resource: String,
    /// Thousandths of a GPU times microseconds that were held.
    pub gpu_milli_micros: Decimal,
    /// The same of what was committed and not used.
    pub unused_milli_micros: Decimal,
    /// What it costs.
    pub amount: Decimal,
    /// In which currency.
    pub currency: String,
}

/// What a period bills, by team and line; what was reversed within it has left it.
pub async fn billed(tx: &mut Tx, period: BillingPeriodId) -> Result<Vec<Billed>, sqlx::Error> {
    sqlx::query_as!(
        Billed,
        r#"SELECT e.team_id AS "team_id: TeamId", line.kind AS "kind!", e.pool_id AS "pool_id: PoolId", e.mode, e.resource,
                  sum(e.gpu_milli_micros) AS "gpu_milli_micros!", sum(e.unused_milli_micros) AS "unused_milli_micros!",
                  round(sum(e.amount), 18) AS "amount!", e.currency AS "currency!"
           FROM ledger_entries AS e
           JOIN billing_periods AS b ON b.id = e.period_id
           CROSS JOIN LATERAL (
               SELECT CASE WHEN e.kind <> 'reversal' THEN e.kind
                           WHEN e.started_at >= b.started_at THEN 'usage' ELSE 'correction' END AS kind
           ) AS line
           WHERE e.period_id = $1 AND e.amount IS NOT NULL
           GROUP BY e.team_id, line.kind, e.pool_id, e.mode, e.resource, e.currency
           ORDER BY e.team_id, line.kind DESC, e.pool_id, e.mode NULLS LAST, e.resource"#,
        period as BillingPeriodId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A statement to be written.
#[derive(Debug)]
pub struct NewStatement<'a> {
    /// Its id.
    pub id: StatementId,
    /// The period.
    pub period: BillingPeriodId,
    /// The team.
    pub team: TeamId,
    /// The currency.
    pub currency: &'a str,
    /// The total, rounded.
    pub total: Decimal,
    /// Its lines with what each is charged, rounded.
    pub lines: &'a [(&'a Billed, Decimal)],
}

/// Writes one with its lines and the digest of its ledger rows.
pub async fn insert(tx: &mut Tx, new: &NewStatement<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO statements (id, period_id, team_id, entries, sha256, currency, total)
         SELECT $1, $2, $3, d.entries, d.sha256, $4, $5
         FROM allotment.ledger_digest($2, $3) AS d",
        new.id as StatementId,
        new.period as BillingPeriodId,
        new.team as TeamId,
        new.currency,
        new.total,
    )
    .execute(&mut **tx)
    .await?;
    for (place, (line, amount)) in (1_i32..).zip(new.lines) {
        sqlx::query!(
            "INSERT INTO statement_lines (statement_id, team_id, place, kind, pool_id, mode, resource,
                                          gpu_milli_micros, unused_milli_micros, exact, amount)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            new.id as StatementId,
            new.team as TeamId,
            place,
            line.kind,
            line.pool_id as PoolId,
            line.mode,
            line.resource,
            line.gpu_milli_micros,
            line.unused_milli_micros,
            line.amount,
            amount,
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// A statement.
#[derive(Debug, Clone)]
pub struct Statement {
    /// Its id.
    pub id: StatementId,
    /// The team.
    pub team: String,
    /// The period.
    pub period: String,
    /// Ledger rows behind it.
    pub entries: i64,
    /// Their digest when it was written.
    pub sha256: String,
    /// Their digest now: another one, and somebody has changed what never changes.
    pub sha256_now: String,
    /// The currency.
    pub currency: Option<String>,
    /// The total.
    pub total: Decimal,
    /// When it was written.
    pub created_at: Timestamp,
}

/// The statements of a period that may be seen, by team; or those of one team, the latest first.
pub async fn list(
    tx: &mut Tx,
    period: Option<BillingPeriodId>,
    team: Option<TeamId>,
    limit: i64,
) -> Result<Vec<Statement>, sqlx::Error> {
    sqlx::query_as!(
        Statement,
        r#"SELECT s.id AS "id: StatementId", t.name AS team, b.name AS period, s.entries, s.sha256,
                  d.sha256 AS "sha256_now!", s.currency, s.total, s.created_at
           FROM statements AS s
           JOIN teams AS t ON t.id = s.team_id
           JOIN billing_periods AS b ON b.id = s.period_id
           CROSS JOIN LATERAL allotment.ledger_digest(s.period_id, s.team_id) AS d
           WHERE ($1::uuid IS NULL OR s.period_id = $1) AND ($2::uuid IS NULL OR s.team_id = $2)
           ORDER BY b.started_at DESC, t.name
           LIMIT $3"#,
        period as Option<BillingPeriodId>,
        team as Option<TeamId>,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A line of a statement.
#[derive(Debug, Clone)]
pub struct StatementLine {
    /// `usage`, `correction`, `credit` or `committed`.
    pub kind: String,
    /// The pool.
    pub pool: String,
    /// The sharing mode; absent of what was committed.
    pub mode: Option<String>,
    /// `gpu`, `cpu` or `memory`.
    pub resource: String,
    /// Thousandths of a GPU times microseconds that were held.
    pub gpu_milli_micros: Decimal,
    /// The same of what was committed and not used.
    pub unused_milli_micros: Decimal,
    /// What it is charged.
    pub amount: Decimal,
}

/// The lines of a statement, in their order.
pub async fn lines(tx: &mut Tx, id: StatementId) -> Result<Vec<StatementLine>, sqlx::Error> {
    sqlx::query_as!(
        StatementLine,
        r#"SELECT l.kind, p.name AS pool, l.mode, l.resource, l.gpu_milli_micros, l.unused_milli_micros, l.amount
           FROM statement_lines AS l
           JOIN pools AS p ON p.id = l.pool_id
           WHERE l.statement_id = $1
           ORDER BY l.place"#,
        id as StatementId,
    )
    .fetch_all(&mut **tx)
    .await
}
