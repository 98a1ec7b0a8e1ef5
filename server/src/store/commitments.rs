//! Commitments: capacity that a team pays for whether it uses it or not, and what of it was not used.

use domain::Timestamp;
use domain::ids::{BillingPeriodId, CommitmentId, PoolId, TeamId, UserId};
use rust_decimal::Decimal;

use super::Tx;

/// One.
#[derive(Debug, Clone)]
pub struct Commitment {
    /// Its id.
    pub id: CommitmentId,
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// Thousandths of GPUs.
    pub gpus_milli: i64,
    /// What a GPU of it costs for an hour in which it is not used.
    pub per_gpu_hour: Decimal,
    /// The currency.
    pub currency: String,
    /// From then on.
    pub started_at: Timestamp,
    /// Up to before then.
    pub ended_at: Timestamp,
}

/// All that may be seen, the latest first.
pub async fn list(tx: &mut Tx, limit: i64) -> Result<Vec<Commitment>, sqlx::Error> {
    sqlx::query_as!(
        Commitment,
        r#"SELECT c.id AS "id: CommitmentId", t.name AS team, p.name AS pool, c.gpus_milli, c.per_gpu_hour,
                  c.currency, c.started_at, c.ended_at
           FROM commitments AS c
           JOIN teams AS t ON t.id = c.team_id
           JOIN pools AS p ON p.id = c.pool_id
           ORDER BY c.started_at DESC, c.id
           LIMIT $1"#,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// One to be written.
#[derive(Debug)]
pub struct NewCommitment<'a> {
    /// Its id.
    pub id: CommitmentId,
    /// The team.
    pub team: TeamId,
    /// The pool.
    pub pool: PoolId,
    /// Thousandths of GPUs.
    pub gpus_milli: i64,
    /// What a GPU of it costs for an hour.
    pub per_gpu_hour: Decimal,
    /// The currency.
    pub currency: &'a str,
    /// From then on.
    pub started_at: Timestamp,
    /// Up to before then.
    pub ended_at: Timestamp,
    /// Who adds it.
    pub created_by: UserId,
}

/// Adds one.
pub async fn insert(tx: &mut Tx, new: &NewCommitment<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO commitments (id, team_id, pool_id, gpus_milli, per_gpu_hour, currency, started_at, ended_at, created_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        new.id as CommitmentId,
        new.team as TeamId,
        new.pool as PoolId,
        new.gpus_milli,
        new.per_gpu_hour,
        new.currency,
        new.started_at,
        new.ended_at,
        new.created_by as UserId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Enters what of each commitment was not used in a period: at every moment what was committed less what the team
/// held of the pool. Once for each; returns how many.
pub async fn enter_unused(tx: &mut Tx, period: BillingPeriodId) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!(
        "WITH spans AS (
             SELECT c.id, c.team_id, c.pool_id, c.gpus_milli, c.per_gpu_hour, c.currency, b.id AS period_id,
                 GREATEST(c.started_at, b.started_at) AS began, LEAST(c.ended_at, b.ended_at) AS ended
             FROM commitments AS c
             JOIN billing_periods AS b ON c.started_at < b.ended_at AND c.ended_at > b.started_at
             WHERE b.id = $1
         ),
         steps AS (
             SELECT p.id, p.began AS at, 0::bigint AS step FROM spans AS p
             UNION ALL
             SELECT p.id, edge.at, edge.step
             FROM spans AS p
             JOIN usage_segments AS s ON s.team_id = p.team_id AND s.pool_id = p.pool_id AND s.kind = 'charged'
                 AND s.started_at < p.ended AND COALESCE(s.ended_at, p.ended) > p.began
             CROSS JOIN LATERAL (VALUES
                 (GREATEST(s.started_at, p.began), s.gpus_milli::bigint),
                 (LEAST(COALESCE(s.ended_at, p.ended), p.ended), -s.gpus_milli::bigint)) AS edge (at, step)
         ),
         levels AS (
             SELECT id, at, sum(sum(step)) OVER (PARTITION BY id ORDER BY at) AS held,
                 LEAD(at) OVER (PARTITION BY id ORDER BY at) AS until
             FROM steps
             GROUP BY id, at
         ),
         unused AS (
             SELECT p.*, sum(GREATEST(0, p.gpus_milli - l.held)
                             * trunc(EXTRACT(EPOCH FROM COALESCE(l.until, p.ended) - l.at) * 1000000)) AS milli_micros
             FROM spans AS p
             JOIN levels AS l ON l.id = p.id
             GROUP BY p.id, p.team_id, p.pool_id, p.gpus_milli, p.per_gpu_hour, p.currency, p.period_id, p.began, p.ended
         )
         INSERT INTO ledger_entries (kind, period_id, team_id, pool_id, started_at, ended_at, gpu_milli_micros,
                                     unused_milli_micros, amount, list_amount, effective_amount, currency, commitment_id)
         SELECT 'committed', u.period_id, u.team_id, u.pool_id, u.began, u.ended, 0, u.milli_micros, cost.amount,
                cost.amount, cost.amount, u.currency, u.id
         FROM unused AS u
         CROSS JOIN LATERAL (
             SELECT round((u.per_gpu_hour * u.milli_micros)::numeric(96, 36) / 3600000000000, 18) AS amount
         ) AS cost
         ON CONFLICT DO NOTHING",
        period as BillingPeriodId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected())
}
