//! Leases: until when each node may run what it holds, and which are over.

use domain::ids::{IncarnationId, NodeId, ReplicaId};

use super::Tx;

/// A connection whose heartbeat is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// The node.
    pub node_id: NodeId,
    /// The life of the agent process that beats.
    pub incarnation: IncarnationId,
}

/// A node whose lease was renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewed {
    /// The node.
    pub node_id: NodeId,
    /// Whether it counts as ready.
    pub ready: bool,
}

/// Renews the leases of nodes whose voice is still the given connection's; returns those. Nodes are
/// locked in the order of their ids, as by [`super::nodes::advance_facts`]: neither waits for the other in a circle.
pub async fn renew(
    tx: &mut Tx,
    replica: ReplicaId,
    beats: &[Beat],
    lease_ms: i64,
) -> Result<Vec<Renewed>, sqlx::Error> {
    let nodes: Vec<NodeId> = beats.iter().map(|beat| beat.node_id).collect();
    let lives: Vec<IncarnationId> = beats.iter().map(|beat| beat.incarnation).collect();
    sqlx::query_as!(
        Renewed,
        r#"WITH held AS (SELECT id FROM nodes WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE)
           UPDATE nodes AS n
           SET last_heartbeat_at = now.at, lease_until = now.at + $4::bigint * interval '1 millisecond'
           FROM held, unnest($1::uuid[], $2::uuid[]) AS b (node_id, incarnation),
                (SELECT allotment.clock() AS at) AS now
           WHERE n.id = held.id AND n.id = b.node_id AND n.incarnation = b.incarnation AND n.replica = $3 AND n.intent <> 'retired'
           RETURNING n.id AS "node_id: NodeId", n.reachability = 'ready' AS "ready!""#,
        &nodes as &[NodeId],
        &lives as &[IncarnationId],
        replica as ReplicaId,
        lease_ms,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Nodes that count as ready though their lease is over.
pub async fn silent(tx: &mut Tx) -> Result<Vec<NodeId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT id AS "id: NodeId" FROM nodes
           WHERE reachability = 'ready' AND (lease_until IS NULL OR lease_until < allotment.clock())
           ORDER BY id"#,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Nodes that are unreachable for longer than their lease and `margin_ms`, and once answered.
pub async fn overdue(tx: &mut Tx, margin_ms: i64) -> Result<Vec<NodeId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT id AS "id: NodeId" FROM nodes
           WHERE reachability = 'unreachable'
             AND lease_until + $1::bigint * interval '1 millisecond' < allotment.clock()
           ORDER BY id"#,
        margin_ms,
    )
    .fetch_all(&mut **tx)
    .await
}
