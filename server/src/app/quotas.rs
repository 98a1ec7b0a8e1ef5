//! Quotas: promises down the tree, of which children never hold more than their parent.

pub mod table;
pub mod tree;
pub(super) mod warning;

use std::collections::{BTreeMap, BTreeSet};

use domain::FieldError;
use domain::MilliGpu;
use domain::ids::{PoolId, TeamId};
use domain::name::Name;
use domain::quantity::Weight;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
use super::versions::{self, By, Expected, Object, PolicyNoun};
use super::{App, AppError, Asker, RefusalCode, change, pools, teams};
use crate::store::quotas::{Amounts, OfTeam};
use crate::store::teams::TreeTeam;
use crate::store::{self, Tx};
use tree::Promises;
pub use warning::Warning;
use warning::warnings;

/// Most quotas that are set at once: those of a hundred teams in ten pools.
const BATCH_MAX: usize = 1_000;

/// What a team is promised, and may at most hold, in a pool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Quota {
    /// The team.
    pub team: Name,
    /// The pool.
    pub pool: Name,
    /// What it can have at any time.
    pub guaranteed: MilliGpu,
    /// The most it may hold; null is no limit.
    pub limit: Option<MilliGpu>,
    /// What others may use of its idle guarantee; null is all of it.
    pub lend_limit: Option<MilliGpu>,
    /// Its claim on spare capacity; 0 is none.
    pub weight: Weight,
    /// The most that one of its users may hold; null is no limit.
    pub max_per_user: Option<MilliGpu>,
    /// Its version.
    pub version: i64,
}

/// A quota as it is set: whole, since what is absent has its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewQuota {
    /// What the team can have at any time.
    pub guaranteed: MilliGpu,
    /// The most it may hold; null is no limit.
    #[serde(default)]
    pub limit: Option<MilliGpu>,
    /// What others may use of its idle guarantee; null is all of it.
    #[serde(default)]
    pub lend_limit: Option<MilliGpu>,
    /// Its claim on spare capacity; 0 is none, 1 unless given.
    #[serde(default = "one")]
    pub weight: Weight,
    /// The most that one of its users may hold; null is no limit.
    #[serde(default)]
    pub max_per_user: Option<MilliGpu>,
}

/// A team's quota in a pool, as it is set with others.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaRow {
    /// The team.
    pub team: Name,
    /// The pool.
    pub pool: Name,
    /// The version that was read; null for one that is not there yet.
    #[serde(default)]
    pub version: Option<i64>,
    /// The quota.
    pub quota: NewQuota,
}

/// Quotas that are set together: all of them or none.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaBatch {
    /// At most 1,000, of any teams and pools.
    pub quotas: Vec<QuotaRow>,
}

/// What was set, and what is to be thought of.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct QuotasSet {
    /// The quotas, in the order in which they were sent.
    pub items: Vec<Quota>,
    /// The pools among them of which more is guaranteed now than they have.
    pub warnings: Vec<Warning>,
}

/// A quota as it was set, with what is to be known of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SetQuota {
    /// The quota.
    #[serde(flatten)]
    pub quota: Quota,
    /// What does not keep it from holding, and should be known.
    pub warnings: Vec<Warning>,
}

fn one() -> Weight {
    Weight::whole(1)
}

/// Lists a team's quotas, by pool.
pub async fn list(
    app: &App,
    asker: &Asker,
    team: &Name,
    ask: &PageAsk,
) -> Result<Page<Quota>, AppError> {
    let after: Option<String> = ask.after("quota")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let row = teams::find_as(&mut tx, asker, Action::ListQuotas, team).await?;
    let rows = store::quotas::page(&mut tx, row.id, after.as_deref(), ask.rows_wanted()).await?;
    tx.commit().await?;
    let quotas = rows
        .into_iter()
        .map(|q| shown(team, &q.pool, q.amounts, q.version))
        .collect();
    Ok(page::cut(ask, "quota", quotas, |q: &Quota| {
        q.pool.to_string()
    }))
}

/// Lists the quotas of all teams that the asker may see, by team and pool.
pub async fn list_all(app: &App, asker: &Asker, ask: &PageAsk) -> Result<Page<Quota>, AppError> {
    authorise(asker, Action::ListAllQuotas, Target::Platform)?;
    let after: Option<(String, String)> = ask.after("quotas")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::quotas::page_of_all(&mut tx, after, ask.rows_wanted()).await?;
    tx.commit().await?;
    let quotas = rows
        .into_iter()
        .map(|(team, q)| shown(&team, &q.pool, q.amounts, q.version))
        .collect();
    Ok(page::cut(ask, "quotas", quotas, |q: &Quota| {
        (q.team.to_string(), q.pool.to_string())
    }))
}

/// Sets a team's quota in a pool.
pub async fn put(
    app: &App,
    asker: &Asker,
    (team, pool): (&Name, &Name),
    expected: Expected,
    new: NewQuota,
    reason: &str,
) -> Result<Answer<SetQuota>, AppError> {
    let by = By::allowed(asker, Action::PutQuota, reason)?;
    let change = Change {
        team: team.clone(),
        pool: pool.clone(),
        expected,
        amounts: checked(&new)?,
    };
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let mut set = set(&mut tx, &by, &[change]).await?;
    let changed = BTreeMap::from([(pool, BTreeSet::from([team]))]);
    let warnings = warnings(&mut tx, &changed).await?;
    tx.commit().await?;
    app.wake.all();
    let quota = set.pop().expect("one was sent, and one is answered");
    let version = quota.version;
    let quota = SetQuota { quota, warnings };
    Ok(match expected {
        Expected::Nothing => Answer::created(quota, version),
        Expected::Version(_) => Answer::done(quota, version),
    })
}

/// Sets many quotas of many teams and pools, all or none.
pub async fn put_all(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    batch: QuotaBatch,
    reason: &str,
) -> Result<Answer<QuotasSet>, AppError> {
    let by = By::allowed(asker, Action::PutQuotas, reason)?;
    let changes = changes(batch.quotas)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let items = set(&mut work.tx, &by, &changes).await?;
    let mut changed: BTreeMap<&Name, BTreeSet<&Name>> = BTreeMap::new();
    for change in &changes {
        changed
            .entry(&change.pool)
            .or_default()
            .insert(&change.team);
    }
    let warnings = warnings(&mut work.tx, &changed).await?;
    let answer = Answer::done(QuotasSet { items, warnings }, None);
    let answer = work.finish(app, answer).await?;
    app.wake.all();
    Ok(answer)
}

fn changes(rows: Vec<QuotaRow>) -> Result<Vec<Change>, AppError> {
    if rows.is_empty() || rows.len() > BATCH_MAX {
        let remedy = format!("1 to {BATCH_MAX} quotas");
        return Err(AppError::invalid("quotas", rows.len(), remedy));
    }
    let mut changes: Vec<Change> = Vec::with_capacity(rows.len());
    for (index, row) in rows.into_iter().enumerate() {
        let amounts = checked(&row.quota).map_err(|error| at(index, error))?;
        changes.push(Change {
            team: row.team,
            pool: row.pool,
            expected: row.version.map_or(Expected::Nothing, Expected::Version),
            amounts,
        });
    }
    Ok(changes)
}

/// A refusal of a quota that is one of several, with its place among them.
pub(super) fn at(index: usize, error: AppError) -> AppError {
    match error {
        AppError::Invalid(error) => error.under(&format!("quotas[{index}].quota")).into(),
        other => other,
    }
}

/// A quota that is to be made or changed.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub team: Name,
    pub pool: Name,
    pub expected: Expected,
    pub amounts: Amounts,
}

/// Makes or changes quotas, all or none: what they are together is checked when all are written.
pub(super) async fn set(
    tx: &mut Tx,
    by: &By<'_>,
    changes: &[Change],
) -> Result<Vec<Quota>, AppError> {
    // The tree and the pools first, then the rows: the sums below must stay true until the commit,
    // for rows that are about to be inserted too.
    store::teams::lock_tree(tx).await?;
    let tree = store::teams::tree(tx).await?;
    let mut pools_changed: BTreeMap<&Name, PoolId> = BTreeMap::new();
    for change in changes {
        pools_changed.insert(&change.pool, pools::find(tx, &change.pool).await?.id);
    }
    for pool in pools_changed.values() {
        store::quotas::lock_pool(tx, *pool).await?;
    }
    let ids: Vec<PoolId> = pools_changed.values().copied().collect();
    let locked = store::quotas::lock(tx, &ids).await?;
    let mut rows: BTreeMap<(PoolId, TeamId), OfTeam> = locked
        .into_iter()
        .map(|row| ((row.pool_id, row.team_id), row))
        .collect();
    let mut quotas = Vec::with_capacity(changes.len());
    for (index, change) in changes.iter().enumerate() {
        let team = tree.iter().find(|node| node.name == change.team);
        let team = team.ok_or_else(|| AppError::not_found("team", &change.team))?;
        let pool = pools_changed[&change.pool];
        let row = write(
            tx,
            by,
            (index, change),
            (team, pool),
            rows.get(&(pool, team.id)),
        )
        .await
        .map_err(|error| named(by, (index, change), error))?;
        rows.insert((pool, team.id), row);
        quotas.push(shown(
            &change.team,
            &change.pool,
            change.amounts,
            row.version,
        ));
    }
    let now = store::clock(tx).await?;
    for (name, id) in &pools_changed {
        Promises::load(tx, (*id, name)).await?.check(now)?;
    }
    Ok(quotas)
}

/// A refusal of one of many, by its name: there is no header that it could be about.
fn named(by: &By<'_>, (index, change): (usize, &Change), error: AppError) -> AppError {
    let (what, given) = match error {
        AppError::Stale { given, present } if by.action == Action::PutQuotas => {
            (format!("has version {present}, not {given}"), given)
        }
        AppError::AlreadyThere { present } if by.action == Action::PutQuotas => {
            let what = format!("is there already, with version {present}");
            (what, "null".to_owned())
        }
        other => return other,
    };
    let of = format!("the quota of team {} in pool {}", change.team, change.pool);
    AppError::conflict(
        RefusalCode::QuotaChanged,
        format!("{of} {what}"),
        FieldError::new(
            format!("quotas[{index}].version"),
            given,
            "read it again and repeat",
        ),
    )
}

/// Writes one row, if it still is what was expected.
async fn write(
    tx: &mut Tx,
    by: &By<'_>,
    (index, change): (usize, &Change),
    (team, pool): (&TreeTeam, PoolId),
    present: Option<&OfTeam>,
) -> Result<OfTeam, AppError> {
    let Change { amounts, .. } = *change;
    match (change.expected, present) {
        (Expected::Nothing, Some(row)) => {
            return Err(AppError::AlreadyThere {
                present: row.version,
            });
        }
        (Expected::Version(version), None) => {
            return Err(AppError::conflict(
                RefusalCode::NotThereYet,
                format!(
                    "team {} has no quota in pool {} yet",
                    change.team, change.pool
                ),
                if by.action == Action::PutQuotas {
                    FieldError::new(format!("quotas[{index}].version"), version, "null")
                } else {
                    FieldError::new("If-Match", version, "send If-None-Match: *")
                },
            ));
        }
        (Expected::Version(given), Some(row))
            if change::leaves((given, row.version), &row.amounts, &amounts)? =>
        {
            return Ok(*row);
        }
        (Expected::Nothing, None) => store::quotas::insert(tx, team.id, pool, amounts).await?,
        (Expected::Version(version), Some(_)) => {
            if !store::quotas::update(tx, team.id, pool, version, amounts).await? {
                return Err(AppError::Stale {
                    given: version.to_string(),
                    present: version + 1,
                });
            }
        }
    }
    let version = present.map_or(1, |row| row.version + 1);
    let object = Object {
        noun: PolicyNoun::Quota,
        name: format!("{}/{}", change.team, change.pool),
        pool_id: Some(pool),
        team_id: Some(team.id),
        version,
    };
    let written = |amounts| versions::written(&NewQuota::from(amounts));
    let before = present.map(|row| written(row.amounts));
    let after = written(amounts)?;
    versions::record(tx, by, object, before.transpose()?, Some(after)).await?;
    Ok(OfTeam {
        pool_id: pool,
        team_id: team.id,
        amounts,
        version,
    })
}

/// Checks the promises of every pool against a tree that is about to change.
pub(super) async fn check_all_pools(tx: &mut Tx, tree: &[TreeTeam]) -> Result<(), AppError> {
    let now = store::clock(tx).await?;
    let mut after: Option<String> = None;
    loop {
        let pools = store::pools::page(tx, after.as_deref(), POOLS_AT_ONCE).await?;
        let Some(last) = pools.last() else {
            return Ok(());
        };
        after = Some(last.name.to_string());
        for pool in pools {
            store::quotas::lock_pool(tx, pool.id).await?;
            let promises = Promises {
                tree: tree.to_vec(),
                ..Promises::load(tx, (pool.id, &pool.name)).await?
            };
            promises.check(now)?;
        }
    }
}

/// Pools read at a time while all are gone through.
const POOLS_AT_ONCE: i64 = 100;

/// The amounts, if a row may have them.
pub(super) fn checked(new: &NewQuota) -> Result<Amounts, AppError> {
    if let Some(limit) = new.limit
        && new.guaranteed > limit
    {
        return Err(AppError::invalid(
            "guaranteed",
            new.guaranteed,
            format!("at most the limit, which is {limit}"),
        ));
    }
    Ok(Amounts {
        guaranteed_milli: new.guaranteed.milli(),
        limit_milli: new.limit.map(MilliGpu::milli),
        lend_limit_milli: new.lend_limit.map(MilliGpu::milli),
        weight_milli: new.weight.milli(),
        max_per_user_milli: new.max_per_user.map(MilliGpu::milli),
    })
}

impl From<&Quota> for NewQuota {
    fn from(quota: &Quota) -> Self {
        Self {
            guaranteed: quota.guaranteed,
            limit: quota.limit,
            lend_limit: quota.lend_limit,
            weight: quota.weight,
            max_per_user: quota.max_per_user,
        }
    }
}

impl From<Amounts> for NewQuota {
    fn from(amounts: Amounts) -> Self {
        Self {
            guaranteed: MilliGpu::from_milli(amounts.guaranteed_milli),
            limit: amounts.limit_milli.map(MilliGpu::from_milli),
            lend_limit: amounts.lend_limit_milli.map(MilliGpu::from_milli),
            weight: Weight::from_milli(amounts.weight_milli),
            max_per_user: amounts.max_per_user_milli.map(MilliGpu::from_milli),
        }
    }
}

fn shown(team: &Name, pool: &Name, amounts: Amounts, version: i64) -> Quota {
    let quota = NewQuota::from(amounts);
    Quota {
        team: team.clone(),
        pool: pool.clone(),
        guaranteed: quota.guaranteed,
        limit: quota.limit,
        lend_limit: quota.lend_limit,
        weight: quota.weight,
        max_per_user: quota.max_per_user,
        version,
    }
}
