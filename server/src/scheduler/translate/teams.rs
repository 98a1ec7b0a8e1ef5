//! Teams with the quotas that they have at a moment, windows laid over them.

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::budget::BudgetStop;
use engine::world::{Quota, Stopped, Team};

use super::super::windows;
use crate::store::quotas::Amounts;
use crate::store::windows::Window;
use crate::store::world::{QuotaRow, TeamRow};

/// The teams with their quotas as they hold while these windows are open.
pub fn teams((teams, quotas): (&[TeamRow], &[QuotaRow]), open: &[&Window]) -> Vec<Team> {
    let mut teams: BTreeMap<&str, Team> = teams
        .iter()
        .map(|row| {
            let mut team = Team::new(&row.name);
            team.parent.clone_from(&row.parent);
            team.stopped = match row.stopped {
                BudgetStop::None => Stopped::None,
                BudgetStop::Borrowing => Stopped::Borrowing,
                BudgetStop::All => Stopped::All,
            };
            (row.name.as_str(), team)
        })
        .collect();
    let mut quotas: BTreeMap<(String, String), Amounts> = quotas
        .iter()
        .map(|row| ((row.team.clone(), row.pool.clone()), row.amounts()))
        .collect();
    windows::lay_over(&mut quotas, open, |window, quota| {
        (quota.team.to_string(), window.pool.to_string())
    });
    for ((team, pool), amounts) in quotas {
        if let Some(team) = teams.get_mut(team.as_str()) {
            set_quota(team, &pool, amounts);
        }
    }
    teams.into_values().collect()
}

/// Gives a team these amounts of a pool.
pub fn set_quota(team: &mut Team, pool: &str, amounts: Amounts) {
    let quota = Quota {
        guaranteed: MilliGpu::from_milli(amounts.guaranteed_milli),
        limit: amounts.limit_milli.map(MilliGpu::from_milli),
        lend_limit: amounts.lend_limit_milli.map(MilliGpu::from_milli),
        weight_milli: amounts.weight_milli,
    };
    team.quotas.insert(pool.to_owned(), quota);
    match amounts.max_per_user_milli {
        Some(most) => team
            .max_per_user
            .insert(pool.to_owned(), MilliGpu::from_milli(most)),
        None => team.max_per_user.remove(pool),
    };
}

/// Gives a team the quota of a pool that another has, or none.
pub fn take_quota(team: &mut Team, pool: &str, other: Option<&Team>) {
    match other.and_then(|other| other.quotas.get(pool)) {
        Some(quota) => team.quotas.insert(pool.to_owned(), quota.clone()),
        None => team.quotas.remove(pool),
    };
    match other.and_then(|other| other.max_per_user.get(pool)) {
        Some(most) => team.max_per_user.insert(pool.to_owned(), *most),
        None => team.max_per_user.remove(pool),
    };
}
