//! The price book: rows are only added, each from a time on.

use domain::Timestamp;
use domain::ids::{JobId, PoolId, PriceId, UserId};
use domain::money::Currency;
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
        r#"SELECT r.id AS "id: PriceId", p.name AS "pool: Name", r.mode AS "mode!: SharingMode",
                  r.per_gpu_hour, r.currency, r.effective_from, r.created_at
           FROM prices AS r
           JOIN pools AS p ON p.id = r.pool_id
           LEFT JOIN price_books AS b ON b.id = r.book_id
           WHERE ($1::text IS NULL OR p.name = $1) AND r.resource = 'gpu' AND r.mig_profile IS NULL
             AND (r.book_id IS NULL OR b.activated_at IS NOT NULL)
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

/// Adds one by itself, in force at once; when. The first price of all says in which currency the
/// organisation bills.
pub async fn insert(tx: &mut Tx, price: &NewPrice<'_>) -> Result<Timestamp, sqlx::Error> {
    claim_currency(tx, price.currency).await?;
    sqlx::query_scalar!(
        "INSERT INTO prices (id, pool_id, mode, per_gpu_hour, list_per_hour, effective_per_hour, currency,
                             effective_from, created_by)
         VALUES ($1, $2, $3, $4, $4, $4, $5, $6, $7)
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

/// Makes a currency the organisation's where it has none yet; the one that it has then.
pub async fn claim_currency(tx: &mut Tx, currency: &str) -> Result<String, sqlx::Error> {
    sqlx::query!(
        "UPDATE organisation SET currency = $1 WHERE currency IS NULL",
        currency
    )
    .execute(&mut **tx)
    .await?;
    sqlx::query_scalar!(r#"SELECT currency AS "currency!" FROM organisation"#)
        .fetch_one(&mut **tx)
        .await
}

/// The organisation's currency; what has cost nothing yet is shown in it.
pub async fn currency(tx: &mut Tx) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("SELECT currency FROM organisation")
        .fetch_one(&mut **tx)
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
pub async fn in_force(
    tx: &mut Tx,
    pool: &str,
    mode: SharingMode,
) -> Result<Option<PriceInForce>, sqlx::Error> {
    sqlx::query_as!(
        PriceInForce,
        r#"SELECT r.per_gpu_hour AS "amount!", r.currency AS "currency!: Currency"
           FROM pools AS p
           CROSS JOIN LATERAL allotment.price_at(p.id, 'gpu', $2, NULL, allotment.clock(), NULL) AS r
           WHERE p.name = $1"#,
        pool,
        mode as SharingMode,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// A pool and a mode of a placement, with the price that is in force for them now, if one is.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The amount.
    pub amount: Option<Decimal>,
    /// Its currency.
    pub currency: Option<Currency>,
}

/// The prices in force for what the present or last attempt of a job holds or held: one for each
/// pool and mode of its devices.
pub async fn of_placement(tx: &mut Tx, job: JobId) -> Result<Vec<Placed>, sqlx::Error> {
    sqlx::query_as!(
        Placed,
        r#"SELECT r.per_gpu_hour AS "amount?", r.currency AS "currency?: Currency"
           FROM (
               SELECT DISTINCT n.pool_id, s.mode
               FROM jobs AS j
               JOIN attempts AS t ON t.job_id = j.id AND t.number = j.attempt
               JOIN assignments AS a ON a.attempt_id = t.id
               JOIN nodes AS n ON n.id = a.node_id
               JOIN assignment_devices AS s ON s.assignment_id = a.id
               WHERE j.id = $1
           ) AS held
           LEFT JOIN LATERAL allotment.price_at(held.pool_id, 'gpu', held.mode, NULL, allotment.clock(), NULL) AS r ON true"#,
        job as JobId,
    )
    .fetch_all(&mut **tx)
    .await
}
