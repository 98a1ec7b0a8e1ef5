//! Quotas: promises down the tree, of which children never hold more than their parent.

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::ids::{PoolId, TeamId};
use domain::name::Name;
use domain::quantity::Weight;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::audit::Change;
use super::authorise::{Action, Target, authorise};
use super::idempotency::Answer;
use super::page::{self, Page, PageAsk};
use super::promises::Overpromised;
use super::{App, AppError, Asker, audit, pools, questions, teams};
use crate::store::quotas::Amounts;
use crate::store::teams::TreeTeam;
use crate::store::{self, Tx};

/// Highest weight, in whole units; with it, products of weights and amounts stay in 64 bits.
const WEIGHT_MAX: i64 = 1_000_000;

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
#[derive(Debug, Clone, Deserialize, ToSchema)]
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

/// A quota as it was set, with what is to be known of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SetQuota {
    /// The quota.
    #[serde(flatten)]
    pub quota: Quota,
    /// What does not keep it from holding, and should be known.
    pub warnings: Vec<Warning>,
}

/// Something to be known of a change that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    /// A stable word for programs: `overpromised`.
    pub code: String,
    /// The same as a sentence.
    pub message: String,
}

impl Warning {
    fn overpromised(pool: &Name, over: Overpromised) -> Self {
        Self {
            code: "overpromised".to_owned(),
            message: format!(
                "the guarantees in pool {pool} are {} GPUs and it has {}: all of them shrink in proportion until it has more",
                over.guaranteed, over.capacity
            ),
        }
    }
}

fn one() -> Weight {
    Weight::whole(1)
}

/// What a change of a quota presupposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// That nothing is there yet.
    Nothing,
    /// That this version is there.
    Version(i64),
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

/// Sets a team's quota in a pool.
pub async fn put(
    app: &App,
    asker: &Asker,
    team: &Name,
    pool: &Name,
    expected: Expected,
    new: NewQuota,
) -> Result<Answer<SetQuota>, AppError> {
    authorise(asker, Action::PutQuota, Target::Platform)?;
    let amounts = checked(&new)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team_id = teams::find(&mut tx, team).await?.id;
    let pool_id = pools::find(&mut tx, pool).await?.id;
    // The tree and the pool first, then the rows: the sums below must stay true until the commit,
    // for rows that are about to be inserted too.
    store::teams::lock_tree(&mut tx).await?;
    store::quotas::lock_pool(&mut tx, pool_id).await?;
    let tree = store::teams::tree(&mut tx).await?;
    let mut rows = locked(&mut tx, pool_id).await?;
    let before = rows.get(&team_id).copied();
    match (expected, before) {
        (Expected::Nothing, Some((_, present))) => {
            return Err(AppError::Stale {
                given: "*".into(),
                present,
            });
        }
        (Expected::Version(_), None) => {
            return Err(AppError::Conflict {
                code: "not_there_yet",
                message: format!(
                    "team {team} has no quota in pool {pool} yet: send If-None-Match: *"
                ),
            });
        }
        (Expected::Version(given), Some((_, present))) if given != present => {
            return Err(AppError::Stale {
                given: given.to_string(),
                present,
            });
        }
        (Expected::Nothing, None) => {
            store::quotas::insert(&mut tx, team_id, pool_id, amounts).await?;
        }
        (Expected::Version(version), Some(_)) => {
            if !store::quotas::update(&mut tx, team_id, pool_id, version, amounts).await? {
                return Err(AppError::Stale {
                    given: version.to_string(),
                    present: version + 1,
                });
            }
        }
    }
    let version = before.map_or(1, |(_, version)| version + 1);
    rows.insert(team_id, (amounts, version));
    let guarantees = rows.iter().map(|(id, (a, _))| (*id, a.guaranteed_milli));
    let promised = check_tree(&tree, &guarantees.collect())?;
    let quota = shown(team, pool, amounts, version);
    let change = Change {
        team_id: Some(team_id),
        before: before.map(|(amounts, _)| described(amounts)),
        after: Some(described(amounts)),
        ..Change::of(Action::PutQuota, format!("quota/{team}/{pool}"))
    };
    audit::record(&mut tx, asker, change).await?;
    tx.commit().await?;
    app.wake.all();
    // By the rows of this transaction: the world in memory may not have it yet.
    let over = Overpromised::of(&questions::fleet(app).await?, pool.as_str(), promised);
    let quota = SetQuota {
        quota,
        warnings: over
            .map(|over| Warning::overpromised(pool, over))
            .into_iter()
            .collect(),
    };
    Ok(if before.is_none() {
        Answer::created(quota, version)
    } else {
        Answer::done(quota, version)
    })
}

/// Checks the promises of every pool against a tree that is about to change.
pub(super) async fn check_all_pools(tx: &mut Tx, tree: &[TreeTeam]) -> Result<(), AppError> {
    let mut after: Option<String> = None;
    loop {
        let pools = store::pools::page(tx, after.as_deref(), POOLS_AT_ONCE).await?;
        let Some(last) = pools.last() else {
            return Ok(());
        };
        after = Some(last.name.to_string());
        for pool in pools {
            store::quotas::lock_pool(tx, pool.id).await?;
            let rows = locked(tx, pool.id).await?;
            let guarantees = rows.iter().map(|(id, (a, _))| (*id, a.guaranteed_milli));
            check_tree(tree, &guarantees.collect())?;
        }
    }
}

/// Pools read at a time while all are gone through.
const POOLS_AT_ONCE: i64 = 100;

async fn locked(tx: &mut Tx, pool: PoolId) -> Result<BTreeMap<TeamId, (Amounts, i64)>, AppError> {
    let rows = store::quotas::lock(tx, pool).await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.team_id, (row.amounts, row.version)))
        .collect())
}

/// The tree's teams, each after the team above it.
fn from_roots(tree: &[TreeTeam]) -> Vec<&TreeTeam> {
    let mut ordered: Vec<&TreeTeam> = tree.iter().filter(|n| n.parent_id.is_none()).collect();
    let mut at = 0;
    while at < ordered.len() {
        let parent = ordered[at].id;
        ordered.extend(tree.iter().filter(|n| n.parent_id == Some(parent)));
        at += 1;
    }
    ordered
}

/// Refuses a tree in which children are promised more than their parent; what is promised in all.
/// A team without a row is promised what its children are together.
fn check_tree(tree: &[TreeTeam], guaranteed: &BTreeMap<TeamId, i64>) -> Result<MilliGpu, AppError> {
    let mut in_all = 0;
    let mut of_children: BTreeMap<TeamId, i64> = BTreeMap::new();
    for team in from_roots(tree).into_iter().rev() {
        let children = of_children.get(&team.id).copied().unwrap_or(0);
        let own = guaranteed.get(&team.id).copied();
        if let Some(own) = own
            && children > own
        {
            return Err(AppError::invalid(
                "guaranteed",
                MilliGpu::from_milli(own),
                format!(
                    "the guarantees below team {} add up to {} and it has {}: raise it there, or lower them first",
                    team.name,
                    MilliGpu::from_milli(children),
                    MilliGpu::from_milli(own),
                ),
            ));
        }
        *team
            .parent_id
            .map_or(&mut in_all, |parent| of_children.entry(parent).or_default()) +=
            own.unwrap_or(children);
    }
    Ok(MilliGpu::from_milli(in_all))
}

fn checked(new: &NewQuota) -> Result<Amounts, AppError> {
    if let Some(limit) = new.limit
        && new.guaranteed > limit
    {
        return Err(AppError::invalid(
            "guaranteed",
            new.guaranteed,
            format!("at most the limit, which is {limit}"),
        ));
    }
    if new.weight > Weight::whole(WEIGHT_MAX) {
        return Err(AppError::invalid(
            "weight",
            new.weight,
            format!("0 to {WEIGHT_MAX}"),
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

fn shown(team: &Name, pool: &Name, amounts: Amounts, version: i64) -> Quota {
    Quota {
        team: team.clone(),
        pool: pool.clone(),
        guaranteed: MilliGpu::from_milli(amounts.guaranteed_milli),
        limit: amounts.limit_milli.map(MilliGpu::from_milli),
        lend_limit: amounts.lend_limit_milli.map(MilliGpu::from_milli),
        weight: Weight::from_milli(amounts.weight_milli),
        max_per_user: amounts.max_per_user_milli.map(MilliGpu::from_milli),
        version,
    }
}

fn described(amounts: Amounts) -> serde_json::Value {
    json!({
        "guaranteed_milli": amounts.guaranteed_milli,
        "limit_milli": amounts.limit_milli,
        "lend_limit_milli": amounts.lend_limit_milli,
        "weight_milli": amounts.weight_milli,
        "max_per_user_milli": amounts.max_per_user_milli,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team(name: &str, parent: Option<&TreeTeam>) -> TreeTeam {
        TreeTeam {
            id: TeamId::new(),
            name: name.parse().expect("a name"),
            parent_id: parent.map(|p| p.id),
        }
    }

    #[test]
    fn children_are_never_promised_more_than_their_parent() {
        let org = team("org", None);
        let lab = team("lab", Some(&org));
        let vision = team("vision", Some(&lab));
        let speech = team("speech", Some(&lab));
        // Out of order, as rows may come.
        let tree = [vision.clone(), org.clone(), speech.clone(), lab.clone()];
        let promised = |pairs: &[(&TreeTeam, i64)]| pairs.iter().map(|(n, m)| (n.id, *m)).collect();
        assert!(check_tree(&tree, &promised(&[(&vision, 8000), (&speech, 8000)])).is_ok());
        assert!(
            check_tree(
                &tree,
                &promised(&[(&lab, 16_000), (&vision, 8000), (&speech, 8000)])
            )
            .is_ok()
        );
        assert!(
            check_tree(
                &tree,
                &promised(&[(&lab, 15_999), (&vision, 8000), (&speech, 8000)])
            )
            .is_err()
        );
        // Through a team without a row of its own.
        assert!(
            check_tree(
                &tree,
                &promised(&[(&org, 9000), (&vision, 8000), (&speech, 2000)])
            )
            .is_err()
        );
    }

    #[test]
    fn the_order_is_from_the_roots_to_the_leaves() {
        let org = team("org", None);
        let lab = team("lab", Some(&org));
        let vision = team("vision", Some(&lab));
        let tree = [vision, lab, org];
        let names: Vec<String> = from_roots(&tree)
            .iter()
            .map(|n| n.name.to_string())
            .collect();
        assert_eq!(names, ["org", "lab", "vision"]);
    }
}
