//! The replicas that run now, and where others reach them.

use domain::ids::ReplicaId;

use super::Tx;

/// Says that a replica runs and where it is reached.
pub async fn announce(
    tx: &mut Tx,
    id: ReplicaId,
    internal_address: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO replicas (id, internal_address, started_at, seen_at)
         VALUES ($1, $2, allotment.clock(), allotment.clock())
         ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, internal_address = excluded.internal_address",
        id as ReplicaId,
        internal_address,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Forgets a replica that stops.
pub async fn remove(tx: &mut Tx, id: ReplicaId) -> Result<(), sqlx::Error> {
    sqlx::query!("DELETE FROM replicas WHERE id = $1", id as ReplicaId)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// The address of this process as the database sees it; none over a Unix socket.
pub async fn own_host(tx: &mut Tx) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar!("SELECT host(inet_client_addr()) AS host")
        .fetch_one(&mut **tx)
        .await
}

/// Forgets replicas that have not been seen for so long.
pub async fn forget_silent(tx: &mut Tx, silent_ms: i64) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!(
        "DELETE FROM replicas WHERE seen_at + $1::bigint * interval '1 millisecond' < allotment.clock()",
        silent_ms,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected())
}
