//! Weekly windows: quotas of a pool that hold in place of others for some hours of the week.

use std::collections::BTreeMap;

use domain::ids::{PoolId, TeamId, WindowId};
use domain::name::Name;
use domain::weekly::{Day, TimeOfDay, Weekly, Zone};

use super::Tx;
use super::quotas::Amounts;

/// What a window gives one team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowQuota {
    /// The team.
    pub team_id: TeamId,
    /// Its name.
    pub team: Name,
    /// What it has while the window is open.
    pub amounts: Amounts,
}

/// A row with the name of its pool and the quotas that the reader may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Its id.
    pub id: WindowId,
    /// The pool.
    pub pool: Name,
    /// Its name, unique in its pool.
    pub name: Name,
    /// When it is open.
    pub weekly: Weekly,
    /// What it brings, by team.
    pub quotas: Vec<WindowQuota>,
    /// Its version.
    pub version: i64,
}

/// All windows of one pool or of all pools, by pool and name.
pub async fn all(tx: &mut Tx, pool: Option<PoolId>) -> Result<Vec<Window>, sqlx::Error> {
    let mut quotas = quotas(tx, pool).await?;
    let found = sqlx::query!(
        r#"SELECT w.id AS "id: WindowId", w.name AS "name: Name", p.name AS "pool: Name",
                  w.days AS "days: Vec<Day>", w.starts_minute, w.ends_minute, w.time_zone, w.version
           FROM windows AS w
           JOIN pools AS p ON p.id = w.pool_id
           WHERE $1::uuid IS NULL OR w.pool_id = $1
           ORDER BY p.name, w.name"#,
        pool as Option<PoolId>,
    )
    .fetch_all(&mut **tx)
    .await?;
    found
        .into_iter()
        .map(|r| {
            let weekly = Weekly {
                days: r.days,
                from: time_of_day(r.starts_minute)?,
                to: time_of_day(r.ends_minute)?,
                zone: zone(&r.time_zone)?,
            };
            Ok(Window {
                quotas: quotas.remove(&r.id).unwrap_or_default(),
                id: r.id,
                pool: r.pool,
                name: r.name,
                weekly,
                version: r.version,
            })
        })
        .collect()
}

fn time_of_day(minute: i16) -> Result<TimeOfDay, sqlx::Error> {
    let minutes = u16::try_from(minute).ok().and_then(TimeOfDay::from_minutes);
    minutes.ok_or_else(|| sqlx::Error::Decode(format!("no minute of a day: {minute}").into()))
}

fn zone(name: &str) -> Result<Zone, sqlx::Error> {
    name.parse()
        .map_err(|error: domain::FieldError| sqlx::Error::Decode(error.into()))
}

async fn quotas(
    tx: &mut Tx,
    pool: Option<PoolId>,
) -> Result<BTreeMap<WindowId, Vec<WindowQuota>>, sqlx::Error> {
    let found = sqlx::query!(
        r#"SELECT q.window_id AS "window_id: WindowId", q.team_id AS "team_id: TeamId",
                  t.name AS "team: Name", q.guaranteed_milli, q.limit_milli, q.lend_limit_milli,
                  q.weight_milli, q.max_per_user_milli
           FROM window_quotas AS q
           JOIN windows AS w ON w.id = q.window_id
           JOIN teams AS t ON t.id = q.team_id
           WHERE $1::uuid IS NULL OR w.pool_id = $1
           ORDER BY t.name"#,
        pool as Option<PoolId>,
    )
    .fetch_all(&mut **tx)
    .await?;
    let mut quotas: BTreeMap<WindowId, Vec<WindowQuota>> = BTreeMap::new();
    for r in found {
        quotas.entry(r.window_id).or_default().push(WindowQuota {
            team_id: r.team_id,
            team: r.team,
            amounts: Amounts {
                guaranteed_milli: r.guaranteed_milli,
                limit_milli: r.limit_milli,
                lend_limit_milli: r.lend_limit_milli,
                weight_milli: r.weight_milli,
                max_per_user_milli: r.max_per_user_milli,
            },
        });
    }
    Ok(quotas)
}

/// The versions of all windows, locked against change until the transaction ends; by id.
pub async fn share(tx: &mut Tx) -> Result<BTreeMap<WindowId, i64>, sqlx::Error> {
    let found =
        sqlx::query!(r#"SELECT id AS "id: WindowId", version FROM windows ORDER BY id FOR SHARE"#)
            .fetch_all(&mut **tx)
            .await?;
    Ok(found.into_iter().map(|r| (r.id, r.version)).collect())
}

/// Makes one.
pub async fn insert(
    tx: &mut Tx,
    id: WindowId,
    pool: PoolId,
    (name, version): (&Name, i64),
    weekly: &Weekly,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO windows (id, pool_id, name, version, days, starts_minute, ends_minute, time_zone)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        id as WindowId,
        pool as PoolId,
        name.as_str(),
        version,
        weekly.days.as_slice() as &[Day],
        minute(weekly.from),
        minute(weekly.to),
        weekly.zone.to_string(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Changes when one is open that still has `version`; whether it had.
pub async fn update(
    tx: &mut Tx,
    id: WindowId,
    version: i64,
    weekly: &Weekly,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE windows
         SET days = $3, starts_minute = $4, ends_minute = $5, time_zone = $6, version = version + 1
         WHERE id = $1 AND version = $2",
        id as WindowId,
        version,
        weekly.days.as_slice() as &[Day],
        minute(weekly.from),
        minute(weekly.to),
        weekly.zone.to_string(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes one that still has `version`, with what it brought; whether it had.
pub async fn delete(tx: &mut Tx, id: WindowId, version: i64) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "DELETE FROM windows WHERE id = $1 AND version = $2",
        id as WindowId,
        version,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Sets what a window brings, in place of what it brought before.
pub async fn set_quotas(
    tx: &mut Tx,
    id: WindowId,
    quotas: &[WindowQuota],
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "DELETE FROM window_quotas WHERE window_id = $1",
        id as WindowId
    )
    .execute(&mut **tx)
    .await?;
    for quota in quotas {
        sqlx::query!(
            "INSERT INTO window_quotas (window_id, team_id, guaranteed_milli, limit_milli,
                                        lend_limit_milli, weight_milli, max_per_user_milli)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
            id as WindowId,
            quota.team_id as TeamId,
            quota.amounts.guaranteed_milli,
            quota.amounts.limit_milli,
            quota.amounts.lend_limit_milli,
            quota.amounts.weight_milli,
            quota.amounts.max_per_user_milli,
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

fn minute(time: TimeOfDay) -> i16 {
    i16::try_from(time.minutes()).expect("a day has 1,440 minutes")
}
