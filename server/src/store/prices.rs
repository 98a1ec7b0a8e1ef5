//! The price book: rows are only added, each from a time on.

use domain::Timestamp;
use domain::ids::{PoolId, PriceId, UserId};
use domain::name::Name;
use domain::sharing::SharingMode;
use rust_decimal::Decimal;

use super::Tx;

/// A row with its pool's and its author's names.
#[derive(Debug, Clone)]
pub struct Price {
    /// Its id.
    pub id: PriceId,
    /// The pool.
    pub pool: Name,
    /// The sharing mode.
    pub mode: SharingMode,
    /// What a GPU costs for an hour.
    pub per_gpu_hour: Decimal,
    /// The currency.
    pub currency: String,
    /// From when on.
    pub effective_from: Timestamp,
    /// When it was added.
    pub created_at: Timestamp,
}

/// Where a page of the book ends.
pub type Key = (Timestamp, PriceId);

/// Lists prices of one pool or all, the latest first.
pub async fn page(
    tx: &mut Tx,
    pool: Option<&str>,
    before: Option<Key>,
    rows: i64,
) -> Result<Vec<Price>, sqlx::Error> {
    let (time, id) = before.unzip();
    sqlx::query_as!(
        Price,
        r#"SELECT r.id AS "id: PriceId", p.name AS "pool: Name", r.mode AS "mode: SharingMode",
                  r.per_gpu_hour, r.currency, r.effective_from, r.created_at
           FROM prices AS r
           JOIN pools AS p ON p.id = r.pool_id
           WHERE ($1::text IS NULL OR p.name = $1)
             AND ($2::timestamptz IS NULL OR (r.effective_from, r.id) < ($2, $3))
           ORDER BY r.effective_from DESC, r.id DESC
           LIMIT $4"#,
        pool,
        time,
        id as Option<PriceId>,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A row to be written.
#[derive(Debug)]
pub struct NewPrice<'a> {
    /// Its id.
    pub id: PriceId,
    /// The pool.
    pub pool: PoolId,
    /// The sharing mode.
    pub mode: SharingMode,
    /// What a GPU costs for an hour.
    pub per_gpu_hour: Decimal,
    /// The currency.
    pub currency: &'a str,
    /// From when on.
    pub effective_from: Timestamp,
    /// Who adds it.
    pub created_by: UserId,
}

/// Adds one; when.
pub async fn insert(tx: &mut Tx, price: &NewPrice<'_>) -> Result<Timestamp, sqlx::Error> {
    sqlx::query_scalar!(
        "INSERT INTO prices (id, pool_id, mode, per_gpu_hour, currency, effective_from, created_by)
         VALUES ($1, $2, $3, $4, $5, $6, $7)
         RETURNING created_at",
        price.id as PriceId,
        price.pool as PoolId,
        price.mode as SharingMode,
        price.per_gpu_hour,
        price.currency,
        price.effective_from,
        price.created_by as UserId,
    )
    .fetch_one(&mut **tx)
    .await
}

/// A currency of the book other than `currency`, if there is one.
pub async fn other_currency(tx: &mut Tx, currency: &str) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "SELECT currency FROM prices WHERE currency <> $1 LIMIT 1",
        currency
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Whether use of this pool and mode has a price already at some time that a price from `from`
/// on would change: until the next price takes over, and until now.
pub async fn changes_known_cost(
    tx: &mut Tx,
    pool: PoolId,
    mode: SharingMode,
    from: Timestamp,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (
               SELECT FROM prices WHERE pool_id = $1 AND mode = $2 AND effective_from <= $3
           ) AND EXISTS (
               SELECT FROM usage_segments AS s
               WHERE s.pool_id = $1 AND s.mode = $2 AND s.kind = 'charged'
                 AND s.started_at < LEAST(allotment.clock(), (
                     SELECT min(effective_from) FROM prices
                     WHERE pool_id = $1 AND mode = $2 AND effective_from > $3))
                 AND (s.ended_at IS NULL OR s.ended_at > GREATEST(s.started_at, $3))
                 AND allotment.clock() > $3
           ) AS "changes!""#,
        pool as PoolId,
        mode as SharingMode,
        from,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Until when use of this pool and mode has been rated.
pub async fn rated_until(
    tx: &mut Tx,
    pool: PoolId,
    mode: SharingMode,
) -> Result<Option<Timestamp>, sqlx::Error> {
    sqlx::query_scalar!(
        "SELECT max(ended_at) FROM ledger_entries WHERE pool_id = $1 AND mode = $2",
        pool as PoolId,
        mode as SharingMode,
    )
    .fetch_one(&mut **tx)
    .await
}
