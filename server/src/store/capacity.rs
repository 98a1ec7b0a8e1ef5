//! Capacity segments: when each device was there, and whether it could be given out.

use domain::ids::NodeId;

use super::Tx;

/// Brings the capacity of a node's devices up to date with what is known of node and devices
/// now: where a device's state differs from its open segment, that ends and another begins.
/// Call it in every transaction that changes a node's intent or reachability, or a device.
pub async fn refresh(tx: &mut Tx, node: NodeId) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "WITH now AS MATERIALIZED (SELECT allotment.clock() AS at),
         present AS (
             SELECT d.id AS device_id, n.pool_id, n.id AS node_id,
                 CASE WHEN n.intent = 'retired' THEN 'retired'
                      WHEN n.reachability <> 'ready' THEN n.reachability
                      WHEN d.health = 'failed' THEN 'failed'
                      WHEN d.health = 'suspect' THEN 'suspect'
                      WHEN n.intent <> 'open' THEN n.intent
                      ELSE '' END AS reason
             FROM nodes AS n
             JOIN devices AS d ON d.node_id = n.id
             WHERE n.id = $1
         ),
         changed AS (
             SELECT p.device_id, p.pool_id, p.node_id, p.reason, c.id AS open_id,
                 GREATEST(now.at, c.started_at) AS at
             FROM present AS p
             CROSS JOIN now
             LEFT JOIN capacity_segments AS c ON c.device_id = p.device_id AND c.ended_at IS NULL
             WHERE (c.id IS NULL AND p.reason <> 'retired')
                OR c.reason <> p.reason OR c.pool_id <> p.pool_id OR c.node_id <> p.node_id
         ),
         closed AS (
             UPDATE capacity_segments AS c
             SET ended_at = changed.at
             FROM changed
             WHERE c.id = changed.open_id
             RETURNING c.id
         )
         INSERT INTO capacity_segments (id, pool_id, node_id, device_id, available, reason, started_at)
         SELECT gen_random_uuid(), changed.pool_id, changed.node_id, changed.device_id, changed.reason = '', changed.reason,
             changed.at
         FROM changed
         -- Reads `closed`, so that it runs first: the open segment of a device is unique.
         WHERE changed.reason <> 'retired' AND (SELECT count(*) FROM closed) >= 0",
        node as NodeId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
