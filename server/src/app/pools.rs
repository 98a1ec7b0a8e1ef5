//! Pools: nodes that can stand in for one another, and the policy that holds in them.

use std::collections::BTreeSet;

use domain::Timestamp;
use domain::ids::PoolId;
use domain::name::Name;
use domain::policy::PoolPolicy;
use domain::sharing::SharingMode;
use engine::world::World;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::idempotency::{self, Answer, Repeat};
use super::page::{self, Page, PageAsk};
pub use super::pool_policy::{NewPool, PolicyPatch};
use super::promises::Overpromised;
use super::versions::{self, By, Expected, Object, PolicyNoun};
use super::{App, AppError, Asker, change, promises, questions};
use crate::store::{self, Tx};

/// A pool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Its name.
    pub name: Name,
    /// Its policy.
    #[serde(flatten)]
    pub policy: PoolPolicy,
    /// Modes of `sharing` that no node of the pool can drive.
    pub unavailable_sharing: Vec<SharingMode>,
    /// What is promised of it beyond what it has; null where it is not, and for who may not see
    /// the quotas of all teams.
    pub overpromised: Option<Overpromised>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Its version.
    pub version: i64,
}

/// Lists the pools.
pub async fn list(app: &App, asker: &Asker, ask: &PageAsk) -> Result<Page<Pool>, AppError> {
    authorise(asker, Action::ListPools, Target::Platform)?;
    let after: Option<String> = ask.after("pool")?;
    let fleet = fleet(app, asker).await?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::pools::page(&mut tx, after.as_deref(), ask.rows_wanted()).await?;
    let drivable = store::pools::drivable(&mut tx).await?;
    tx.commit().await?;
    let mut pools = rows
        .into_iter()
        .map(|row| shown(row, &drivable))
        .collect::<Result<Vec<_>, _>>()?;
    tell_promises(fleet.as_ref(), &mut pools);
    Ok(page::cut(ask, "pool", pools, |p: &Pool| p.name.to_string()))
}

/// Shows one pool.
pub async fn get(app: &App, asker: &Asker, name: &Name) -> Result<Pool, AppError> {
    authorise(asker, Action::GetPool, Target::Platform)?;
    let fleet = fleet(app, asker).await?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let mut pool = read(&mut tx, name).await?;
    tx.commit().await?;
    tell_promises(fleet.as_ref(), std::slice::from_mut(&mut pool));
    Ok(pool)
}

/// What is there, for who may see all quotas. It is read before a change is made, so that none is
/// made and then answered as failed.
async fn fleet(app: &App, asker: &Asker) -> Result<Option<World>, AppError> {
    if !asker.scope().sees_all {
        return Ok(None);
    }
    questions::fleet(app).await.map(Some)
}

/// Says where more is promised than there is.
fn tell_promises(fleet: Option<&World>, pools: &mut [Pool]) {
    let Some(fleet) = fleet else {
        return;
    };
    for pool in pools {
        pool.overpromised = promises::overpromised(fleet, pool.name.as_str());
    }
}

/// Makes a pool; keys that are absent have their defaults.
pub async fn create(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    new: NewPool,
    reason: &str,
) -> Result<Answer<Pool>, AppError> {
    let by = By::allowed(asker, Action::CreatePool, reason)?;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    set(
        &mut work.tx,
        &by,
        &new.name,
        Expected::Nothing,
        &new.policy(),
    )
    .await?;
    let pool = read(&mut work.tx, &new.name).await?;
    let version = pool.version;
    work.finish(app, Answer::created(pool, version)).await
}

/// Changes a pool's policy.
pub async fn update(
    app: &App,
    asker: &Asker,
    name: &Name,
    version: i64,
    keys: PolicyPatch,
    reason: &str,
) -> Result<Pool, AppError> {
    let by = By::allowed(asker, Action::UpdatePool, reason)?;
    let fleet = fleet(app, asker).await?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let mut policy = kept_policy(&find(&mut tx, name).await?)?;
    keys.onto(&mut policy);
    set(&mut tx, &by, name, Expected::Version(version), &policy).await?;
    let mut pool = read(&mut tx, name).await?;
    tx.commit().await?;
    app.wake.all();
    tell_promises(fleet.as_ref(), std::slice::from_mut(&mut pool));
    Ok(pool)
}

/// Makes one, or changes its policy.
pub(super) async fn set(
    tx: &mut Tx,
    by: &By<'_>,
    name: &Name,
    expected: Expected,
    policy: &PoolPolicy,
) -> Result<(), AppError> {
    policy.check()?;
    let kept = versions::written(policy)?;
    let (id, before, version) = match expected {
        Expected::Nothing => {
            let id = PoolId::new();
            store::pools::insert(tx, id, name, &kept)
                .await
                .map_err(|error| AppError::name_taken(error, "pool_name_taken", "pool", name))?;
            (id, None, 1)
        }
        Expected::Version(version) => {
            let row = find(tx, name).await?;
            if change::leaves((version, row.version), &kept_policy(&row)?, policy)? {
                return Ok(());
            }
            if !store::pools::update(tx, row.id, version, &kept).await? {
                return Err(AppError::Stale {
                    given: version.to_string(),
                    present: find(tx, name).await?.version,
                });
            }
            (row.id, Some(row.policy), version + 1)
        }
    };
    let object = Object {
        noun: PolicyNoun::Pool,
        name: name.to_string(),
        pool_id: Some(id),
        team_id: None,
        version,
    };
    versions::record(tx, by, object, before, Some(kept)).await
}

async fn read(tx: &mut Tx, name: &Name) -> Result<Pool, AppError> {
    let row = find(tx, name).await?;
    let drivable = store::pools::drivable(tx).await?;
    shown(row, &drivable)
}

/// Finds a pool, or says that it is not there.
pub async fn find(tx: &mut Tx, name: &Name) -> Result<store::pools::Pool, AppError> {
    store::pools::find(tx, name.as_str())
        .await?
        .ok_or_else(|| AppError::not_found("pool", name))
}

fn kept_policy(row: &store::pools::Pool) -> Result<PoolPolicy, AppError> {
    serde_json::from_value(row.policy.clone()).map_err(|e| {
        AppError::Internal(anyhow::Error::new(e).context(format!("policy of pool {}", row.name)))
    })
}

fn shown(row: store::pools::Pool, drivable: &[store::pools::Drivable]) -> Result<Pool, AppError> {
    let policy = kept_policy(&row)?;
    let driven: BTreeSet<SharingMode> = drivable
        .iter()
        .filter(|d| d.pool_id == row.id)
        .map(|d| d.mode)
        .collect();
    Ok(Pool {
        name: row.name,
        unavailable_sharing: policy
            .sharing
            .iter()
            .copied()
            .filter(|mode| !driven.contains(mode))
            .collect(),
        overpromised: None,
        policy,
        created_at: row.created_at,
        version: row.version,
    })
}
