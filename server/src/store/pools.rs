//! Pools with their policies.

use domain::Timestamp;
use domain::ids::PoolId;
use domain::name::Name;
use domain::sharing::SharingMode;
use serde_json::Value;

use super::Tx;

/// A row.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Its id.
    pub id: PoolId,
    /// Its name.
    pub name: Name,
    /// Its policy, by the keys of the scenario format.
    pub policy: Value,
    /// When it was made.
    pub created_at: Timestamp,
    /// Its version.
    pub version: i64,
}

/// Finds one by name.
pub async fn find(tx: &mut Tx, name: &str) -> Result<Option<Pool>, sqlx::Error> {
    sqlx::query_as!(
        Pool,
        r#"SELECT id AS "id: PoolId", name AS "name: Name", policy, created_at, version
           FROM pools
           WHERE name = $1"#,
        name,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Lists those whose names come after `after`, by name.
pub async fn page(tx: &mut Tx, after: Option<&str>, rows: i64) -> Result<Vec<Pool>, sqlx::Error> {
    sqlx::query_as!(
        Pool,
        r#"SELECT id AS "id: PoolId", name AS "name: Name", policy, created_at, version
           FROM pools
           WHERE $1::text IS NULL OR name > $1
           ORDER BY name
           LIMIT $2"#,
        after,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Makes one.
pub async fn insert(
    tx: &mut Tx,
    id: PoolId,
    name: &Name,
    policy: &Value,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO pools (id, name, policy) VALUES ($1, $2, $3)",
        id as PoolId,
        name.as_str(),
        policy,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Changes the policy of one that still has `version`; whether it had.
pub async fn update(
    tx: &mut Tx,
    id: PoolId,
    version: i64,
    policy: &Value,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE pools SET policy = $3, version = version + 1 WHERE id = $1 AND version = $2",
        id as PoolId,
        version,
        policy,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A mode that nodes of a pool can drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drivable {
    /// The pool.
    pub pool_id: PoolId,
    /// The mode.
    pub mode: SharingMode,
}

/// The sharing modes that the registered nodes of each pool can drive.
pub async fn drivable(tx: &mut Tx) -> Result<Vec<Drivable>, sqlx::Error> {
    sqlx::query_as!(
        Drivable,
        r#"SELECT DISTINCT n.pool_id AS "pool_id: PoolId", m.mode AS "mode!: SharingMode"
           FROM nodes AS n
           CROSS JOIN LATERAL unnest(n.sharing) AS m (mode)
           WHERE n.intent <> 'retired'"#
    )
    .fetch_all(&mut **tx)
    .await
}

/// What a pool has, in thousandths: devices of its nodes that are not retired, but those that have
/// failed; also where a node is away for now, but not where it is lost.
pub async fn capacity_milli(tx: &mut Tx, pool: PoolId) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT 1000 * count(*) AS "milli!"
           FROM devices AS d
           JOIN nodes AS n ON n.id = d.node_id
           WHERE n.pool_id = $1 AND n.intent <> 'retired' AND n.reachability <> 'lost' AND d.health <> 'failed'"#,
        pool as PoolId,
    )
    .fetch_one(&mut **tx)
    .await
}
