//! Prices: one per pool and sharing mode from a time on; added, never changed.

use domain::FieldError;
use domain::Timestamp;
use domain::ids::{JobId, PriceId};
use domain::money::Money;
use domain::name::Name;
use domain::sharing::SharingMode;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::Change;
use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::{App, AppError, Asker, RefusalCode, audit, jobs, pools};
use crate::store;

/// Decimals of a price; the table's.
const PRICE_DECIMALS: u32 = 6;
/// Highest price of a GPU-hour, in whole units of any currency.
const PRICE_MAX: i64 = 1_000_000_000;

/// A price.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Price {
    /// Its id.
    pub id: PriceId,
    /// The pool.
    pub pool: Name,
    /// The sharing mode.
    pub mode: SharingMode,
    /// What a GPU costs for an hour.
    pub per_gpu_hour: Money,
    /// From when on, until a later price takes over.
    #[schema(value_type = String, format = DateTime)]
    pub effective_from: Timestamp,
    /// When it was added.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// A price to be added.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPrice {
    /// The pool.
    pub pool: Name,
    /// The sharing mode.
    pub mode: SharingMode,
    /// What a GPU costs for an hour.
    pub per_gpu_hour: Money,
    /// From when on; now unless given.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub effective_from: Option<Timestamp>,
}

/// Lists the price book, the latest first.
pub async fn list(
    app: &App,
    asker: &Asker,
    pool: Option<&Name>,
    ask: &PageAsk,
) -> Result<Page<Price>, AppError> {
    authorise(asker, Action::ListPrices, Target::Platform)?;
    let before: Option<store::prices::Key> = ask.after("price")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let pool = pool.map(Name::as_str);
    let rows = store::prices::page(&mut tx, pool, before, ask.rows_wanted()).await?;
    tx.commit().await?;
    let prices = rows.into_iter().map(shown).collect::<Result<_, _>>()?;
    Ok(page::cut(ask, "price", prices, |p: &Price| {
        (p.effective_from, p.id)
    }))
}

/// What a GPU of a job costs for an hour now: the price in force for what its present or last
/// attempt holds or held. None where that is nothing, has no price, or has several.
pub async fn of_placement(app: &App, asker: &Asker, job: JobId) -> Result<Option<Money>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    jobs::find(&mut tx, asker, Action::GetJob, job).await?;
    let placed = store::prices::of_placement(&mut tx, job).await?;
    tx.commit().await?;
    let mut prices = placed.into_iter().map(|placed| {
        let (amount, currency) = placed.amount.zip(placed.currency)?;
        let amount = trimmed(amount);
        Some(Money { amount, currency })
    });
    let Some(Some(first)) = prices.next() else {
        return Ok(None);
    };
    let alike = prices.all(|price| price.as_ref() == Some(&first));
    Ok(alike.then_some(first))
}

/// Adds a price, in force at once. Where it begins in the past, what was used since is rated anew: in an open
/// period its entries are reversed and entered anew, of a closed one the open one gets the corrections.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    new: NewPrice,
) -> Result<Answer<Price>, AppError> {
    authorise(asker, Action::CreatePrice, Target::Platform)?;
    let amount = checked("per_gpu_hour.amount", new.per_gpu_hour.amount)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let tx = &mut work.tx;
    let pool = pools::find(tx, &new.pool)
        .await
        .map_err(|error| match error {
            AppError::NotFound { .. } => {
                AppError::invalid("pool", &new.pool, "a pool that is there: GET /pools")
            }
            other => other,
        })?;
    let currency = new.per_gpu_hour.currency.as_str();
    let organisation = store::prices::claim_currency(tx, currency).await?;
    if organisation != currency {
        return Err(AppError::invalid(
            "per_gpu_hour.currency",
            currency,
            format!("{organisation}, the organisation's currency, so that totals can be added up"),
        ));
    }
    let effective_from = match new.effective_from {
        Some(time) => time,
        None => store::clock(tx).await?,
    };
    let price = store::prices::NewPrice {
        id: PriceId::new(),
        pool: pool.id,
        mode: new.mode,
        per_gpu_hour: amount,
        currency,
        effective_from,
        created_by: asker.user_id,
    };
    let created_at = store::prices::insert(tx, &price)
        .await
        .map_err(|error| taken(error, &new, effective_from))?;
    if effective_from < created_at {
        store::reratings::ask(tx, pool.id, effective_from, asker.user_id).await?;
    }
    let price = Price {
        id: price.id,
        pool: new.pool,
        mode: new.mode,
        per_gpu_hour: new.per_gpu_hour,
        effective_from,
        created_at,
    };
    let change = Change {
        after: Some(json!(price)),
        ..Change::of(
            Action::CreatePrice,
            format!("price/{}/{}", price.pool, price.mode),
        )
    };
    audit::record(tx, asker, change).await?;
    work.finish(app, Answer::created(price, None)).await
}

pub(super) fn checked(field: &str, amount: Decimal) -> Result<Decimal, AppError> {
    let normal = amount.normalize();
    let fits = !normal.is_sign_negative()
        && normal.scale() <= PRICE_DECIMALS
        && normal <= Decimal::from(PRICE_MAX);
    if fits {
        return Ok(amount);
    }
    Err(AppError::invalid(
        field,
        amount,
        format!("0 to {PRICE_MAX} with at most {PRICE_DECIMALS} decimals"),
    ))
}

fn shown(row: store::prices::Price) -> Result<Price, AppError> {
    let per_gpu_hour = Money {
        amount: trimmed(row.per_gpu_hour),
        currency: row.currency.parse()?,
    };
    Ok(Price {
        id: row.id,
        pool: row.pool,
        mode: row.mode,
        per_gpu_hour,
        effective_from: row.effective_from,
        created_at: row.created_at,
    })
}

/// The amount with two decimals, or more where it has more.
pub(super) fn trimmed(amount: Decimal) -> Decimal {
    let mut normal = amount.normalize();
    if normal.scale() < domain::money::BILLED_DECIMALS {
        normal.rescale(domain::money::BILLED_DECIMALS);
    }
    normal
}

/// What stands in the way of a price that begins then.
fn at_time(effective_from: Timestamp, remedy: impl Into<String>) -> FieldError {
    let given = domain::time::format(effective_from);
    FieldError::new("effective_from", given, remedy)
}

fn taken(error: sqlx::Error, new: &NewPrice, effective_from: Timestamp) -> AppError {
    if store::violated(&error) == Some("price_taken") {
        return AppError::conflict(
            RefusalCode::PriceTaken,
            format!(
                "pool {} in mode {} has a price from that time on",
                new.pool, new.mode
            ),
            at_time(effective_from, "choose another effective_from"),
        );
    }
    error.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_bounded_and_has_at_most_six_decimals() {
        let price = |text: &str| checked("amount", text.parse().expect("a decimal"));
        for good in ["0", "41.10", "0.000001", "1000000000"] {
            assert!(price(good).is_ok(), "{good}");
        }
        for bad in ["-1", "0.0000001", "1000000000.1"] {
            assert!(price(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_price_is_shown_with_two_decimals_or_more() {
        let shown = |text: &str| trimmed(text.parse().expect("a decimal")).to_string();
        assert_eq!(shown("41.100000"), "41.10");
        assert_eq!(shown("8"), "8.00");
        assert_eq!(shown("0.125000"), "0.125");
    }
}
