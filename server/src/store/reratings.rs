//! Rating anew: entries whose price has become another are reversed, and what they should be is entered.

use domain::Timestamp;
use domain::ids::{PoolId, UserId};

use super::Tx;

/// Asks that the ledger of a pool be gone through from a time on.
pub async fn ask(
    tx: &mut Tx,
    pool: PoolId,
    from: Timestamp,
    by: UserId,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO reratings (pool_id, from_at, requested_by) VALUES ($1, $2, $3)",
        pool as PoolId,
        from,
        by as UserId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// One that is not through yet.
#[derive(Debug)]
pub struct Due {
    /// Its id.
    pub id: i64,
    /// The pool.
    pub pool_id: PoolId,
    /// From then on.
    pub from_at: Timestamp,
    /// The last entry that was looked at.
    pub looked_at: i64,
}

/// The oldest that is not through.
pub async fn due(tx: &mut Tx) -> Result<Option<Due>, sqlx::Error> {
    sqlx::query_as!(
        Due,
        r#"SELECT id, pool_id AS "pool_id: PoolId", from_at, looked_at
           FROM reratings
           WHERE done_at IS NULL
           ORDER BY id
           LIMIT 1
           FOR UPDATE"#,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// How many are not through.
pub async fn waiting(tx: &mut Tx) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(r#"SELECT count(*) AS "n!" FROM reratings WHERE done_at IS NULL"#)
        .fetch_one(&mut **tx)
        .await
}

/// The next entries to look at, at most so many; empty where none is left.
pub async fn next(tx: &mut Tx, due: &Due, limit: i64) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        "SELECT e.id
         FROM ledger_entries AS e
         WHERE e.pool_id = $1 AND e.ended_at > $2 AND e.id > $3 AND e.kind IN ('usage', 'correction')
         ORDER BY e.id
         LIMIT $4",
        due.pool_id as PoolId,
        due.from_at,
        due.looked_at,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Rates these entries anew: where what is priced now differs from what was entered, that is reversed and the
/// new pieces are entered, each in its own period while that is open, else as a correction in the next one
/// that is. Where nothing differs nothing is written, so that it may be done again. Returns how many rows
/// were written.
pub async fn apply(tx: &mut Tx, entries: &[i64]) -> Result<u64, sqlx::Error> {
    let reversed = sqlx::query_scalar!(
        r#"WITH live AS (
               SELECT e.*
               FROM ledger_entries AS e
               WHERE e.id = ANY ($1) AND e.kind IN ('usage', 'correction')
                 AND NOT EXISTS (SELECT FROM ledger_entries AS r WHERE r.reverses = e.id)
           ),
           same AS (
               SELECT e.id
               FROM live AS e
               JOIN usage_segments AS s ON s.id = e.segment_id
               CROSS JOIN LATERAL allotment.priced(s, e.started_at, e.ended_at, NULL) AS p
               WHERE p.resource = e.resource AND p.started_at = e.started_at AND p.ended_at = e.ended_at
                 AND (p.price_id, p.factor, p.amount, p.list_amount, p.effective_amount, p.currency)
                     IS NOT DISTINCT FROM (e.price_id, e.factor, e.amount, e.list_amount, e.effective_amount, e.currency)
           )
           INSERT INTO ledger_entries (kind, period_id, team_id, user_id, job_id, segment_id, pool_id, resource, mode,
                                       started_at, ended_at, gpu_milli_micros, price_id, factor, amount, list_amount,
                                       effective_amount, currency, reverses, revision)
           SELECT 'reversal', allotment.billing_period(e.started_at), e.team_id, e.user_id, e.job_id, e.segment_id,
                  e.pool_id, e.resource, e.mode, e.started_at, e.ended_at, -e.gpu_milli_micros, e.price_id, e.factor,
                  -e.amount, -e.list_amount, -e.effective_amount, e.currency, e.id, e.revision
           FROM live AS e
           WHERE e.id NOT IN (SELECT id FROM same)
           RETURNING reverses AS "reverses!""#,
        entries,
    )
    .fetch_all(&mut **tx)
    .await?;
    let entered = sqlx::query!(
        r#"WITH reversed AS (
               SELECT e.* FROM ledger_entries AS e WHERE e.id = ANY ($2)
           ),
           -- A resource that had no price when its GPU was rated: it has no entry yet.
           missing AS (
               SELECT e.segment_id, e.started_at, e.ended_at, r.resource
               FROM ledger_entries AS e
               CROSS JOIN (VALUES ('cpu'), ('memory')) AS r (resource)
               WHERE e.id = ANY ($1) AND e.resource = 'gpu'
                 AND NOT EXISTS (
                     SELECT FROM ledger_entries AS o
                     WHERE o.segment_id = e.segment_id AND o.resource = r.resource AND o.kind IN ('usage', 'correction')
                       AND o.started_at < e.ended_at AND o.ended_at > e.started_at)
           ),
           wanted AS (
               SELECT segment_id, resource, started_at, ended_at, revision + 1 AS revision FROM reversed
               UNION ALL
               SELECT segment_id, resource, started_at, ended_at, 0 FROM missing
           )
           INSERT INTO ledger_entries (kind, period_id, team_id, user_id, job_id, segment_id, pool_id, resource, mode,
                                       started_at, ended_at, gpu_milli_micros, price_id, factor, amount, list_amount,
                                       effective_amount, currency, revision)
           SELECT CASE WHEN b.started_at <= p.started_at THEN 'usage' ELSE 'correction' END, b.id, s.team_id, s.user_id,
                  s.job_id, s.id, s.pool_id, p.resource, s.mode, p.started_at, p.ended_at, p.gpu_milli_micros,
                  p.price_id, p.factor, p.amount, p.list_amount, p.effective_amount, p.currency, w.revision
           FROM wanted AS w
           JOIN usage_segments AS s ON s.id = w.segment_id
           CROSS JOIN LATERAL allotment.priced(s, w.started_at, w.ended_at, NULL) AS p
           JOIN billing_periods AS b ON b.id = allotment.billing_period(p.started_at)
           WHERE p.resource = w.resource"#,
        entries,
        &reversed,
    )
    .execute(&mut **tx)
    .await?;
    let count = u64::try_from(reversed.len()).unwrap_or(u64::MAX);
    Ok(count.saturating_add(entered.rows_affected()))
}

/// Notes how far one has come; `through` when nothing is left.
pub async fn advance(
    tx: &mut Tx,
    id: i64,
    looked_at: i64,
    entered: i64,
    through: bool,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE reratings
         SET looked_at = $2, entered = entered + $3, done_at = CASE WHEN $4 THEN allotment.clock() END
         WHERE id = $1",
        id,
        looked_at,
        entered,
        through,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
