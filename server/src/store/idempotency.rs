//! Idempotency keys with what their requests were answered.

use domain::ids::UserId;
use serde_json::Value;

use super::Tx;

/// A key as it is read.
#[derive(Debug)]
pub struct Row {
    /// SHA-256 of the key and the request's body.
    pub body_hash: Vec<u8>,
    /// The answer's status; absent only while the work is being done.
    pub status: Option<i16>,
    /// The answer's body.
    pub response: Option<Value>,
    /// The answer's version.
    pub etag: Option<String>,
}

/// An answer to be kept.
#[derive(Debug)]
pub struct Kept {
    /// The status.
    pub status: i16,
    /// The body.
    pub response: Value,
    /// The version.
    pub etag: Option<String>,
}

/// Takes the key, given as its hash; false when another request has it. Waits for one that is being worked on.
pub async fn insert(
    tx: &mut Tx,
    principal: UserId,
    route: &str,
    key: &str,
    body_hash: &[u8],
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "INSERT INTO idempotency_keys (principal, route, key, body_hash)
         VALUES ($1, $2, $3, $4)
         ON CONFLICT (principal, route, key) DO NOTHING",
        principal as UserId,
        route,
        key,
        body_hash,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Reads a key.
pub async fn find(
    tx: &mut Tx,
    principal: UserId,
    route: &str,
    key: &str,
) -> Result<Option<Row>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        "SELECT body_hash, status, response, etag
         FROM idempotency_keys
         WHERE principal = $1 AND route = $2 AND key = $3",
        principal as UserId,
        route,
        key,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Keeps the answer.
pub async fn answer(
    tx: &mut Tx,
    principal: UserId,
    route: &str,
    key: &str,
    kept: Kept,
) -> Result<(), sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE idempotency_keys SET status = $4, response = $5, etag = $6
         WHERE principal = $1 AND route = $2 AND key = $3",
        principal as UserId,
        route,
        key,
        kept.status,
        kept.response,
        kept.etag,
    )
    .execute(&mut **tx)
    .await?;
    if done.rows_affected() == 1 {
        Ok(())
    } else {
        Err(sqlx::Error::RowNotFound)
    }
}

/// Clears away keys made before `before`; how many.
pub async fn clear(tx: &mut Tx, before: domain::Timestamp) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!("DELETE FROM idempotency_keys WHERE created_at < $1", before)
        .execute(&mut **tx)
        .await?;
    Ok(done.rows_affected())
}
