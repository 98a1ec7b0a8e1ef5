//! What teams spent this month, as pages show it.

use std::collections::BTreeMap;

use domain::money::{BILLED_DECIMALS, Money, SHOWN_DECIMALS, round_lines};
use domain::name::Name;
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive as _;
use web::format::Cost;
use web::views::{SpendLine, UserSpend};

use super::PageError;
use crate::app::spend::{self, Spent};
use crate::app::{App, Asker};

/// A team's month.
pub struct Month {
    /// By pool and mode.
    pub lines: Vec<SpendLine>,
    /// By user.
    pub users: Vec<UserSpend>,
    /// All of it.
    pub total: Cost,
}

/// What a team spent this month, with all below it.
pub async fn of_team(app: &App, asker: &Asker, team: &Name) -> Result<Month, PageError> {
    let mut spent = spend::of_team(app, asker, team).await?;
    // As far as the page writes them, where one is less than a cent.
    let lines = spent.by_pool.iter().chain(&spent.by_user);
    let amounts = lines.chain([&spent.total]).map(|line| line.cost.as_ref());
    let small = amounts.flatten().any(Money::less_than_a_cent);
    let decimals = if small {
        SHOWN_DECIMALS
    } else {
        BILLED_DECIMALS
    };
    round_together(&mut spent.by_pool, decimals);
    round_together(&mut spent.by_user, decimals);
    round_together(std::slice::from_mut(&mut spent.total), decimals);
    let lines = spent.by_pool.iter().map(|line| SpendLine {
        pool: line.of.clone(),
        mode: line.mode.clone().unwrap_or_default(),
        gpu_milli_seconds: milli(line),
        cost: cost(line),
    });
    let users = spent.by_user.iter().map(|line| UserSpend {
        user: line.of.clone(),
        gpu_milli_seconds: milli(line),
        cost: cost(line),
    });
    Ok(Month {
        lines: lines.collect(),
        users: users.collect(),
        total: cost(&spent.total),
    })
}

/// What each team that the asker may see spent this month by itself.
pub async fn by_team(app: &App, asker: &Asker) -> Result<BTreeMap<String, Cost>, PageError> {
    let mut teams = BTreeMap::new();
    for line in spend::by_team(app, asker).await? {
        let sum = teams.remove(&line.of).unwrap_or_else(nothing);
        teams.insert(line.of.clone(), Cost::plus(sum, cost(&line)));
    }
    Ok(teams)
}

/// Rounds a bill's lines so that they add up to their rounded total.
fn round_together(lines: &mut [Spent], decimals: u32) {
    let priced: Vec<&mut Money> = lines
        .iter_mut()
        .filter_map(|line| line.cost.as_mut())
        .collect();
    let exact: Vec<Decimal> = priced.iter().map(|money| money.amount).collect();
    let rounded = round_lines(&exact, decimals);
    for (money, amount) in priced.into_iter().zip(rounded) {
        money.amount = amount;
    }
}

/// No use at all.
pub fn nothing() -> Cost {
    Cost {
        priced: None,
        unpriced: false,
    }
}

fn cost(spent: &Spent) -> Cost {
    Cost {
        priced: spent.cost.clone(),
        unpriced: !spent.unpriced_gpu_seconds.is_zero(),
    }
}

fn milli(spent: &Spent) -> i64 {
    (spent.gpu_seconds * Decimal::from(1000))
        .to_i64()
        .unwrap_or(i64::MAX)
}
