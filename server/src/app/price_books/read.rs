//! What a draft of the price book says, checked against what there is.

use domain::money::Money;
use domain::name::Name;
use domain::sharing::SharingMode;
use domain::weekly::Day;
use rust_decimal::Decimal;

use super::{
    FACTOR_DECIMALS, FACTOR_MAX, FactorKind, FactorLine, LINES_MAX, NewPriceBook, PriceLine,
    Resource,
};
use crate::app::AppError;
use crate::app::pools;
use crate::app::prices::checked;
use crate::app::reason::check_reason;
use crate::store::price_books::{Factor, Line};
use crate::store::{self, Tx};

pub(super) fn check_frame(new: &NewPriceBook) -> Result<(), AppError> {
    if new.reason.trim().is_empty() {
        let remedy = "a sentence that says why the prices change";
        return Err(AppError::invalid("reason", &new.reason, remedy));
    }
    check_reason(&new.reason)?;
    let lines = new.prices.len() + new.factors.len();
    if lines == 0 || lines > LINES_MAX {
        let remedy = format!("1 to {LINES_MAX} lines in prices and factors together");
        return Err(AppError::invalid("prices", lines, remedy));
    }
    Ok(())
}

pub(super) async fn read_price(tx: &mut Tx, line: &PriceLine) -> Result<Line, AppError> {
    let pool = pool(tx, &line.pool).await?;
    match (line.resource, line.mode) {
        (Resource::Gpu, None) => {
            return Err(AppError::invalid(
                "mode",
                "none",
                "the sharing mode of the GPU",
            ));
        }
        (Resource::Cpu | Resource::Memory, Some(mode)) => {
            let remedy = "no mode: cores and memory have none";
            return Err(AppError::invalid("mode", mode, remedy));
        }
        _ => {}
    }
    if let Some(profile) = &line.mig_profile {
        let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".+".contains(c);
        let written = !profile.is_empty() && profile.len() <= 32 && profile.chars().all(known);
        if !written || line.mode != Some(SharingMode::Mig) {
            let remedy = "a profile such as 1g.10gb, with the mode mig";
            return Err(AppError::invalid("mig_profile", profile, remedy));
        }
    }
    let currency = line.per_hour.currency.as_str();
    let others = [&line.list_per_hour, &line.effective_per_hour];
    for other in others.into_iter().flatten() {
        if other.currency != line.per_hour.currency {
            let remedy = format!("{currency}, as the contracted price");
            return Err(AppError::invalid("list_per_hour", &other.currency, remedy));
        }
    }
    let organisation = store::prices::claim_currency(tx, currency).await?;
    if organisation != currency {
        let remedy = format!("{organisation}, the organisation's currency");
        return Err(AppError::invalid("per_hour.currency", currency, remedy));
    }
    let per_hour = checked("per_hour.amount", line.per_hour.amount)?;
    let or_contracted = |field: &str, money: &Option<Money>| match money {
        Some(money) => checked(field, money.amount),
        None => Ok(per_hour),
    };
    Ok(Line {
        pool_id: pool.id,
        pool: line.pool.to_string(),
        resource: line.resource.as_str().to_owned(),
        mode: line.mode.map(|mode| mode.to_string()),
        mig_profile: line.mig_profile.clone(),
        per_hour,
        list_per_hour: or_contracted("list_per_hour.amount", &line.list_per_hour)?,
        effective_per_hour: or_contracted("effective_per_hour.amount", &line.effective_per_hour)?,
        currency: currency.to_owned(),
    })
}

pub(super) async fn read_factor(tx: &mut Tx, line: &FactorLine) -> Result<Factor, AppError> {
    let pool = pool(tx, &line.pool).await?;
    let remedy =
        || format!("0 to {FACTOR_MAX} with at most {FACTOR_DECIMALS} decimals, such as \"0.6\"");
    let plain = line.factor.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let factor: Option<Decimal> = plain.then(|| line.factor.parse().ok()).flatten();
    let fits = |factor: &Decimal| {
        factor.normalize().scale() <= FACTOR_DECIMALS && *factor <= Decimal::from(FACTOR_MAX)
    };
    let factor = factor
        .filter(fits)
        .ok_or_else(|| AppError::invalid("factor", &line.factor, remedy()))?;
    let window = match (line.kind, &line.window) {
        (FactorKind::Weekly, None) => {
            let remedy = "the window in which a weekly factor holds";
            return Err(AppError::invalid("window", "none", remedy));
        }
        (FactorKind::Preemptible | FactorKind::Borrowed, Some(window)) => {
            let remedy = "no window: only a weekly factor has one";
            return Err(AppError::invalid("window", &window.name, remedy));
        }
        (_, window) => window.as_ref(),
    };
    if window.is_some_and(|window| window.days.is_empty()) {
        return Err(AppError::invalid("window.days", "none", "at least one day"));
    }
    let number = |day: &Day| {
        Day::ALL
            .iter()
            .zip(1..)
            .find(|(d, _)| *d == day)
            .map(|(_, n)| n)
    };
    Ok(Factor {
        pool_id: pool.id,
        pool: line.pool.to_string(),
        kind: line.kind.as_str().to_owned(),
        name: window.map_or_else(String::new, |window| window.name.to_string()),
        factor,
        days: window.map(|window| window.days.iter().filter_map(number).collect()),
        from_minute: window.map(|window| window.from.minutes().into()),
        to_minute: window.map(|window| window.to.minutes().into()),
        time_zone: window.map(|window| window.time_zone.to_string()),
    })
}

async fn pool(tx: &mut Tx, name: &Name) -> Result<store::pools::Pool, AppError> {
    pools::find(tx, name).await.map_err(|error| match error {
        AppError::NotFound { .. } => {
            AppError::invalid("pool", name, "a pool that is there: GET /pools")
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use domain::{FieldError, Timestamp};

    use super::*;

    #[test]
    fn a_draft_needs_a_reason_and_lines() {
        let draft = |reason: &str| NewPriceBook {
            reason: reason.to_owned(),
            effective_from: Timestamp::default(),
            prices: Vec::new(),
            factors: Vec::new(),
        };
        for (reason, field) in [("", "reason"), ("dearer power", "prices")] {
            let refused = check_frame(&draft(reason)).map_err(|error| match error {
                AppError::Invalid(FieldError { field, .. }) => field,
                other => other.to_string(),
            });
            assert_eq!(refused, Err(field.to_owned()));
        }
    }
}
