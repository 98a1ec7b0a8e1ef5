//! Prices as they stand now: the currency in use, and what a pool and mode cost.

use domain::money::Currency;
use domain::sharing::SharingMode;
use rust_decimal::Decimal;

use super::Tx;

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
