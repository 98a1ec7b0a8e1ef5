//! What teams spent in the present month, for pages.

use domain::Timestamp;
use domain::money::Money;
use domain::name::Name;
use rust_decimal::Decimal;

use super::authorise::{Action, Target, authorise};
use super::{App, AppError, Asker, teams};
use crate::accounting::usage::{self, ReportLine, Sum};
use crate::store;
use crate::store::ledger::{Grouping, Window};

/// Use of one kind, and what it cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent {
    /// The team, user, or pool that it is of.
    pub of: String,
    /// The sharing mode, where lines are told apart by it.
    pub mode: Option<String>,
    /// GPU-seconds.
    pub gpu_seconds: Decimal,
    /// Of these those that no price covers.
    pub unpriced_gpu_seconds: Decimal,
    /// What the rest cost.
    pub cost: Option<Money>,
}

/// What one team, with all below it, spent this month.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamSpend {
    /// By pool and sharing mode.
    pub by_pool: Vec<Spent>,
    /// By user.
    pub by_user: Vec<Spent>,
    /// All of it.
    pub total: Spent,
}

/// What a team spent this month, with all below it.
pub async fn of_team(app: &App, asker: &Asker, team: &Name) -> Result<TeamSpend, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let found = teams::find_as(&mut tx, asker, Action::GetTeamUsage, team).await?;
    let window = Window {
        team: Some(found.id),
        ..this_month(store::clock(&mut tx).await?)
    };
    let by = Grouping {
        pool: true,
        mode: true,
        ..Grouping::default()
    };
    let by_pool = usage::report(&mut tx, &window, by).await?;
    let by = Grouping {
        user: true,
        ..Grouping::default()
    };
    let by_user = usage::report(&mut tx, &window, by).await?;
    tx.commit().await?;
    Ok(TeamSpend {
        by_pool: by_pool
            .lines
            .into_iter()
            .map(|line| spent(line, |line| line.of.pool.clone()))
            .collect(),
        by_user: by_user
            .lines
            .into_iter()
            .map(|line| spent(line, |line| line.of.user.clone()))
            .collect(),
        total: total(team.to_string(), by_pool.total),
    })
}

/// What each team that the asker may see spent this month by itself, without those below it.
pub async fn by_team(app: &App, asker: &Asker) -> Result<Vec<Spent>, AppError> {
    authorise(asker, Action::GetUsage, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let window = this_month(store::clock(&mut tx).await?);
    let report = usage::report(
        &mut tx,
        &window,
        Grouping {
            team: true,
            ..Grouping::default()
        },
    )
    .await?;
    tx.commit().await?;
    Ok(report
        .lines
        .into_iter()
        .map(|line| spent(line, |line| line.of.team.clone()))
        .collect())
}

fn this_month(now: Timestamp) -> Window {
    Window {
        from: usage::month_start(now),
        to: now,
        team: None,
        now,
    }
}

fn spent(line: ReportLine, of: impl Fn(&ReportLine) -> Option<String>) -> Spent {
    let mode = line.of.mode.clone();
    Spent {
        mode,
        ..total(of(&line).unwrap_or_default(), line.sum)
    }
}

fn total(of: String, sum: Sum) -> Spent {
    Spent {
        of,
        mode: None,
        gpu_seconds: sum.gpu_seconds,
        unpriced_gpu_seconds: sum.unpriced_gpu_seconds,
        cost: sum.cost,
    }
}
