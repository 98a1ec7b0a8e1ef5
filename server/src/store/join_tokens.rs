//! One-time tokens with which machines enrol.

use domain::Timestamp;
use domain::ids::{JoinTokenId, NodeId, PoolId, UserId};

use super::Tx;

/// A token as stored; its secret is not.
#[derive(Debug, Clone)]
pub struct JoinToken {
    /// Its id.
    pub id: JoinTokenId,
    /// The pool that a machine joins with it.
    pub pool_id: PoolId,
    /// The pool's name.
    pub pool: String,
    /// When it stops being good.
    pub expires_at: Timestamp,
    /// When it was used, if it was.
    pub used_at: Option<Timestamp>,
}

/// Writes a token.
pub async fn insert(
    tx: &mut Tx,
    id: JoinTokenId,
    pool: PoolId,
    secret_hash: &[u8],
    created_by: UserId,
    seconds: i64,
) -> Result<Timestamp, sqlx::Error> {
    sqlx::query_scalar!(
        "INSERT INTO join_tokens (id, pool_id, secret_hash, created_by, expires_at)
         VALUES ($1, $2, $3, $4, allotment.clock() + $5::bigint * interval '1 second')
         RETURNING expires_at",
        id as JoinTokenId,
        pool as PoolId,
        secret_hash,
        created_by as UserId,
        seconds,
    )
    .fetch_one(&mut **tx)
    .await
}

/// The token with this secret, locked: of two machines that use it at once, one waits.
pub async fn lock_by_secret(
    tx: &mut Tx,
    secret_hash: &[u8],
) -> Result<Option<JoinToken>, sqlx::Error> {
    sqlx::query_as!(
        JoinToken,
        r#"SELECT t.id AS "id: _", t.pool_id AS "pool_id: _", p.name AS pool, t.expires_at, t.used_at
           FROM join_tokens AS t
           JOIN pools AS p ON p.id = t.pool_id
           WHERE t.secret_hash = $1
           FOR UPDATE OF t"#,
        secret_hash,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Spends a token; false when it is spent already.
pub async fn spend(tx: &mut Tx, id: JoinTokenId, node: NodeId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE join_tokens SET used_at = allotment.clock(), used_by_node = $2 WHERE id = $1 AND used_at IS NULL",
        id as JoinTokenId,
        node as NodeId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}
