//! What jobs have used and cost so far, from their segments and the price book.

use domain::ids::JobId;
use domain::money::Currency;
use domain::sharing::SharingMode;
use rust_decimal::Decimal;

use super::Tx;

/// What one job has used in one currency.
#[derive(Debug, Clone)]
pub struct JobUsageRow {
    /// The job.
    pub job_id: JobId,
    /// Seconds times GPUs that were charged.
    pub gpu_seconds: Decimal,
    /// What they cost where a price covers them.
    pub amount: Option<Decimal>,
    /// In which currency; absent where no price covers them.
    pub currency: Option<String>,
}

/// What jobs have used up to now, by job and currency; the dearest currency first. A segment
/// is priced piece by piece as prices began, so that a running job's cost is right at any moment.
pub async fn of_jobs(tx: &mut Tx, jobs: &[JobId]) -> Result<Vec<JobUsageRow>, sqlx::Error> {
    sqlx::query_as!(
        JobUsageRow,
        r#"WITH book AS (
               SELECT pool_id, mode, per_gpu_hour, currency, effective_from,
                      COALESCE(lead(effective_from) OVER (PARTITION BY pool_id, mode ORDER BY effective_from),
                               'infinity') AS effective_until
               FROM prices),
           moment AS MATERIALIZED (SELECT allotment.clock() AS now),
           held AS (
               SELECT s.id, s.job_id, s.pool_id, s.mode, s.gpus_milli, s.started_at,
                      GREATEST(COALESCE(s.ended_at, m.now), s.started_at) AS ended_at
               FROM usage_segments AS s
               CROSS JOIN moment AS m
               WHERE s.job_id = ANY ($1) AND s.kind = 'charged'),
           piece AS (
               SELECT h.job_id, h.gpus_milli, b.per_gpu_hour, b.currency,
                      EXTRACT(epoch FROM LEAST(h.ended_at, b.effective_until) - GREATEST(h.started_at, b.effective_from)) AS seconds
               FROM held AS h
               JOIN book AS b ON b.pool_id = h.pool_id AND b.mode = h.mode
                AND b.effective_from < h.ended_at AND b.effective_until > h.started_at
               UNION ALL
               SELECT h.job_id, h.gpus_milli, NULL, NULL,
                      EXTRACT(epoch FROM LEAST(h.ended_at, COALESCE(first.at, 'infinity')) - h.started_at)
               FROM held AS h
               LEFT JOIN LATERAL (
                   SELECT min(b.effective_from) AS at FROM book AS b
                   WHERE b.pool_id = h.pool_id AND b.mode = h.mode) AS first ON true
               WHERE first.at IS NULL OR first.at > h.started_at)
           SELECT job_id AS "job_id!: JobId",
                  COALESCE(sum(gpus_milli * seconds) / 1000, 0) AS "gpu_seconds!",
                  sum(gpus_milli * seconds * per_gpu_hour) / 3600000 AS "amount",
                  currency AS "currency"
           FROM piece
           GROUP BY job_id, currency
           ORDER BY job_id, sum(gpus_milli * seconds * per_gpu_hour) DESC NULLS LAST"#,
        jobs as &[JobId],
    )
    .fetch_all(&mut **tx)
    .await
}

/// The currency of the youngest price; what has cost nothing yet is shown in it.
pub async fn currency(tx: &mut Tx) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("SELECT currency FROM prices ORDER BY created_at DESC, id DESC LIMIT 1")
        .fetch_optional(&mut **tx)
        .await
}

/// A price per GPU and hour.
#[derive(Debug, Clone)]
pub struct PriceInForce {
    /// The amount.
    pub amount: Decimal,
    /// Its currency.
    pub currency: Currency,
}

/// The price that is in force now for a pool and a mode.
pub async fn price_in_force(
    tx: &mut Tx,
    pool: &str,
    mode: SharingMode,
) -> Result<Option<PriceInForce>, sqlx::Error> {
    sqlx::query_as!(
        PriceInForce,
        r#"SELECT r.per_gpu_hour AS amount, r.currency AS "currency: Currency"
           FROM prices AS r
           JOIN pools AS p ON p.id = r.pool_id
           WHERE p.name = $1 AND r.mode = $2 AND r.effective_from <= allotment.clock()
           ORDER BY r.effective_from DESC
           LIMIT 1"#,
        pool,
        mode as SharingMode,
    )
    .fetch_optional(&mut **tx)
    .await
}
