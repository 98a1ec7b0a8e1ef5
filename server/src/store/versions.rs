//! How pools, classes, quotas, bookings and windows were: one row for each change, written once.

use domain::Timestamp;
use domain::ids::{PoolId, TeamId, UserId};
use serde_json::Value;

use super::Tx;

/// A row to be written.
#[derive(Debug)]
pub struct NewVersion<'a> {
    /// What kind of object it is of.
    pub noun: &'a str,
    /// The object, as kind and name.
    pub object: &'a str,
    /// The object's own version from now on.
    pub version: i64,
    /// The pool that it belongs to.
    pub pool_id: Option<PoolId>,
    /// The team that may read of it.
    pub team_id: Option<TeamId>,
    /// Who made it; nobody where the product itself did.
    pub actor_id: Option<UserId>,
    /// That person's name.
    pub actor_name: &'a str,
    /// Why.
    pub reason: &'a str,
    /// The version that is gone back to, where one is.
    pub restored_version: Option<i64>,
    /// How it was.
    pub before: Option<&'a Value>,
    /// How it is.
    pub after: Option<&'a Value>,
}

/// A row as it is read.
#[derive(Debug, Clone)]
pub struct Version {
    /// Its number; later changes have higher ones.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// What kind of object it is of.
    pub noun: String,
    /// The object, as kind and name.
    pub object: String,
    /// The object's own version.
    pub version: i64,
    /// Who.
    pub actor_name: String,
    /// Why.
    pub reason: String,
    /// The version that was gone back to, where one was.
    pub restored_version: Option<i64>,
    /// How it was.
    pub before: Option<Value>,
    /// How it became.
    pub after: Option<Value>,
}

/// Writes a row; its number.
pub async fn insert(tx: &mut Tx, new: NewVersion<'_>) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        "INSERT INTO policy_versions (noun, object, version, pool_id, team_id, actor_id, actor_name, reason, restored_version, before, after)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
         RETURNING id",
        new.noun,
        new.object,
        new.version,
        new.pool_id as Option<PoolId>,
        new.team_id as Option<TeamId>,
        new.actor_id as Option<UserId>,
        new.actor_name,
        new.reason,
        new.restored_version,
        new.before,
        new.after,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Finds one by its number.
pub async fn find(tx: &mut Tx, id: i64) -> Result<Option<Version>, sqlx::Error> {
    sqlx::query_as!(
        Version,
        "SELECT id, at, noun, object, version, actor_name, reason, restored_version, before, after
         FROM policy_versions
         WHERE id = $1",
        id,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Which rows are read; what is absent does not matter.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    /// Of this kind.
    pub noun: Option<&'a str>,
    /// Of this object.
    pub object: Option<&'a str>,
    /// Of this pool.
    pub pool: Option<PoolId>,
    /// Older than this one.
    pub before: Option<i64>,
}

/// Reads up to `rows`, newest first.
pub async fn page(tx: &mut Tx, filter: Filter<'_>, rows: i64) -> Result<Vec<Version>, sqlx::Error> {
    sqlx::query_as!(
        Version,
        "SELECT id, at, noun, object, version, actor_name, reason, restored_version, before, after
         FROM policy_versions
         WHERE ($1::text IS NULL OR noun = $1)
           AND ($2::text IS NULL OR object = $2)
           AND ($3::uuid IS NULL OR pool_id = $3)
           AND ($4::bigint IS NULL OR id < $4)
         ORDER BY id DESC
         LIMIT $5",
        filter.noun,
        filter.object,
        filter.pool as Option<PoolId>,
        filter.before,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Removes up to `rows` from before a moment, the oldest first, but never the newest of an object: it
/// tells how that one is, or that it was removed.
pub async fn clear(tx: &mut Tx, before: Timestamp, rows: i64) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!(
        "DELETE FROM policy_versions
         WHERE id IN (
             SELECT old.id
             FROM policy_versions AS old
             WHERE old.at < $1
               AND EXISTS (SELECT FROM policy_versions AS later WHERE later.object = old.object AND later.id > old.id)
             ORDER BY old.at, old.id
             LIMIT $2)",
        before,
        rows,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected())
}
