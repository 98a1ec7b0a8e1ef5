//! What a version of the price book would have charged for what was used.

use chrono::TimeDelta;
use domain::Timestamp;
use domain::money::{Currency, Money, SHOWN_DECIMALS, round_lines};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::find;
use crate::app::authorise::{Action, Target, authorise};
use crate::app::usage::month_start;
use crate::app::{App, AppError, Asker};
use crate::store;

/// Longest window of a preview: a quarter, every hour of which is rated twice.
const PREVIEW_DAYS_MAX: i64 = 92;

/// What a version would have charged.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PricePreview {
    /// From then on.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Up to before then.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// By team and pool; they add up to the total.
    pub items: Vec<PreviewItem>,
    /// What the prices in force charge for it; null where nothing is priced.
    pub now: Option<Money>,
    /// What the version's would have.
    pub then: Option<Money>,
}

/// What a version would have charged a team in a pool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PreviewItem {
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// What the prices in force charge for it.
    pub now: Money,
    /// What the version's would have.
    pub then: Money,
    /// Whether some of it has no price in force.
    pub unpriced_now: bool,
    /// Whether some of it would have had none.
    pub unpriced_then: bool,
}

/// Tries a version on what was used: as if its lines had always been in force, beside the prices that are. Last month,
/// in UTC, unless a window is given.
pub async fn preview(
    app: &App,
    asker: &Asker,
    number: i64,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
) -> Result<PricePreview, AppError> {
    authorise(asker, Action::PreviewPriceBook, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let book = find(&mut tx, number).await?;
    let now = store::clock(&mut tx).await?;
    let this_month = month_start(now);
    let to = to.unwrap_or(this_month).min(now);
    let from = from.unwrap_or_else(|| last_month(to));
    if from >= to || to - from > TimeDelta::days(PREVIEW_DAYS_MAX) {
        let remedy = format!(
            "a time before {}, by at most {PREVIEW_DAYS_MAX} days",
            domain::time::format(to)
        );
        return Err(AppError::invalid(
            "from",
            domain::time::format(from),
            remedy,
        ));
    }
    let rows = store::price_books::compare(&mut tx, book.id, None, from, to).await?;
    let code = store::prices::currency(&mut tx).await?;
    tx.commit().await?;
    let currency: Option<Currency> = code.and_then(|code| code.parse().ok());
    let exact = |of: fn(&store::price_books::Compared) -> Decimal| -> Vec<Decimal> {
        let amounts: Vec<Decimal> = rows.iter().map(of).collect();
        round_lines(&amounts, SHOWN_DECIMALS)
    };
    let (befores, afters) = (exact(|row| row.now), exact(|row| row.then));
    let money = |amount: Decimal| {
        let currency = currency.clone()?;
        Some(Money { amount, currency })
    };
    let items = rows
        .iter()
        .zip(&befores)
        .zip(&afters)
        .filter_map(|((row, now), then)| {
            Some(PreviewItem {
                team: row.team.clone(),
                pool: row.pool.clone(),
                now: money(*now)?,
                then: money(*then)?,
                unpriced_now: !row.unpriced_now.is_zero(),
                unpriced_then: !row.unpriced_then.is_zero(),
            })
        });
    Ok(PricePreview {
        from,
        to,
        items: items.collect(),
        now: money(befores.iter().sum()),
        then: money(afters.iter().sum()),
    })
}

/// The beginning of the last month that had begun before a time: of the first of one, the month before.
fn last_month(to: Timestamp) -> Timestamp {
    month_start(to - TimeDelta::microseconds(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_month_before_the_first_of_one_is_the_whole_month_before() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        assert_eq!(
            last_month(at("2026-03-01T00:00:00Z")),
            at("2026-02-01T00:00:00Z")
        );
        assert_eq!(
            last_month(at("2026-03-10T05:00:00Z")),
            at("2026-03-01T00:00:00Z")
        );
    }
}
