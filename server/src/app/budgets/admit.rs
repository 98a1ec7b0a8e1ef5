//! The hard check at admission: a job is refused whose least cost passes what a hard budget has left.

use domain::FieldError;
use domain::name::Name;
use domain::spec::JobSpec;
use rust_decimal::Decimal;

use super::figures::{self, Asked, Prices};
use crate::app::{App, AppError, Asker, RefusalCode};
use crate::store::budgets::{self as rows, Budget, Which};
use crate::store::teams::Team;
use crate::store::{self, Tx};

/// Refuses jobs of a team that cost more, at the least, than a hard budget of it or of a team above has left beside what
/// was used and what is committed. These budgets stay locked until the person's transaction ends: of two jobs that ask
/// at once the second sees the first.
pub(in crate::app) async fn admit(
    app: &App,
    tx: &mut Tx,
    asker: &Asker,
    team: &Team,
    specs: &[&JobSpec],
) -> Result<(), AppError> {
    let ids = rows::lock_hard(tx, team.id).await?;
    if ids.is_empty() {
        return Ok(());
    }
    // What others of the same budget use and have asked for is not theirs to read who submits: the system adds it up.
    let mut system = app.db.begin_system().await?;
    let most = i64::try_from(ids.len()).unwrap_or(i64::MAX);
    let budgets = rows::all(&mut system, Which::Ids(&ids), most).await?;
    let now = store::clock(&mut system).await?;
    let prices = Prices::load(&mut system, now).await?;
    for budget in &budgets {
        let Some(figures) = figures::of(&mut system, budget).await? else {
            continue;
        };
        let seen = asker.platform_role.is_some() || asker.teams.contains_key(&budget.team_id);
        let mut left = figures.left;
        for spec in specs {
            let need = least_cost(budget, spec, &prices)?;
            if need > left {
                return Err(refused(budget, need, seen.then_some(left)));
            }
            left -= need;
        }
    }
    system.commit().await?;
    Ok(())
}

/// What a job costs at the least: as few workers as it starts with, in the cheapest pool, until its time limit; of an
/// array all elements.
fn least_cost(budget: &Budget, spec: &JobSpec, prices: &Prices) -> Result<Decimal, AppError> {
    let asked = Asked {
        per_worker: spec.per_worker.clone(),
        pools: spec.pools.clone(),
        workers: Some(spec.workers),
        time_limit_seconds: spec.time_limit_seconds,
    };
    let workers = spec.min_workers.unwrap_or(spec.workers);
    let one = asked.cost(budget.unit, workers, prices).ok_or_else(|| {
        AppError::Invalid(FieldError::missing(
            "time_limit_seconds",
            format!("a time limit: the hard budget {} of team {} takes only work whose cost has a bound", budget.name, budget.team),
        ))
    })?;
    let elements = spec.array.map_or(1, |array| array.count);
    Ok(one * Decimal::from(elements))
}

fn refused(budget: &Budget, need: Decimal, left: Option<Decimal>) -> AppError {
    let unit = match &budget.currency {
        Some(currency) => currency.to_string(),
        None => "GPU-hours".to_owned(),
    };
    let Budget { team, name, .. } = budget;
    let have = match left {
        Some(left) => format!("{} {unit} are left", left.max(Decimal::ZERO).normalize()),
        None => "less is left".to_owned(),
    };
    let need = domain::money::round(need, 4).normalize();
    AppError::conflict(
        RefusalCode::OverBudget,
        format!(
            "the job costs {need} {unit} at the least, and of the hard budget {name} of team {team} {have}"
        ),
        FieldError::new("time_limit_seconds", format!("{need} {unit}"), remedy(team)),
    )
}

fn remedy(team: &Name) -> String {
    format!(
        "a shorter time limit or fewer GPUs, or a larger budget: whoever keeps the prices gives team {team} one"
    )
}
