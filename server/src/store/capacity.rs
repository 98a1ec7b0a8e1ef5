//! Capacity segments: when each device was there, and whether it could be given out.

use domain::Timestamp;
use domain::ids::{NodeId, PoolId};
use domain::money::Currency;
use rust_decimal::Decimal;

use super::Tx;

/// Brings the capacity of a node's devices up to date with what is known of node and devices
/// now: where a device's state differs from its open segment, that ends and another begins.
/// Call it in every transaction that changes a node's intent or reachability, or a device.
///
/// In two statements: the parts of one have no order, and the open segment of a device is unique.
pub async fn refresh(tx: &mut Tx, node: NodeId) -> Result<(), sqlx::Error> {
    let now = super::clock(tx).await?;
    sqlx::query!(
        "UPDATE capacity_segments AS c
         SET ended_at = GREATEST($2, c.started_at)
         FROM devices AS d
         JOIN nodes AS n ON n.id = d.node_id
         WHERE n.id = $1 AND c.device_id = d.id AND c.ended_at IS NULL
           AND (c.pool_id, c.node_id, c.reason)
               <> (n.pool_id, n.id, allotment.out_of_use(n.intent, n.reachability, d.health))",
        node as NodeId,
        now,
    )
    .execute(&mut **tx)
    .await?;
    sqlx::query!(
        "INSERT INTO capacity_segments (id, pool_id, node_id, device_id, available, reason, started_at)
         SELECT gen_random_uuid(), n.pool_id, n.id, d.id, present.reason = '', present.reason,
             GREATEST($2, (SELECT max(c.ended_at) FROM capacity_segments AS c WHERE c.device_id = d.id))
         FROM devices AS d
         JOIN nodes AS n ON n.id = d.node_id
         CROSS JOIN LATERAL (SELECT allotment.out_of_use(n.intent, n.reachability, d.health) AS reason) AS present
         WHERE n.id = $1 AND present.reason <> 'retired'
           AND NOT EXISTS (SELECT FROM capacity_segments AS c WHERE c.device_id = d.id AND c.ended_at IS NULL)",
        node as NodeId,
        now,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// What became of the device time of a pool within a span in which no price changes, in
/// thousandths of a GPU times microseconds, and those times a price where it says *priced*.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// From then on.
    pub started_at: Timestamp,
    /// Up to before then.
    pub ended_at: Timestamp,
    /// The price of a whole device and hour, where there is one.
    pub per_gpu_hour: Option<Decimal>,
    /// Its currency.
    pub currency: Option<Currency>,
    /// All that was there.
    pub capacity: Decimal,
    /// Of that what could be given out.
    pub available: Decimal,
    /// Held by teams.
    pub charged: Decimal,
    /// The same, each share times the price of its mode.
    pub charged_priced: Decimal,
    /// Granted and not yet acknowledged, or held since the last heartbeat of a node that answers.
    pub reserved: Decimal,
    /// The same, each share times the price of its mode.
    pub reserved_priced: Decimal,
    /// Of what was charged and reserved: in a mode that no price covers.
    pub unpriced: Decimal,
    /// Held after the last heartbeat of nodes that are lost or do not answer.
    pub unreachable: Decimal,
    /// Of what was held: while it could be given out.
    pub held_available: Decimal,
    /// Of what was held: while it could not.
    pub held_unavailable: Decimal,
}

/// The device time of a pool between two points in time, cut where a price changes.
pub async fn spans(
    tx: &mut Tx,
    pool: PoolId,
    from: Timestamp,
    to: Timestamp,
) -> Result<Vec<Span>, sqlx::Error> {
    sqlx::query_as!(
        Span,
        r#"WITH spans AS (
               SELECT cuts.at AS started_at, LEAD(cuts.at, 1, $3) OVER (ORDER BY cuts.at) AS ended_at
               FROM (
                   SELECT $2::timestamptz AS at
                   UNION
                   SELECT effective_from FROM prices
                   WHERE pool_id = $1 AND effective_from > $2 AND effective_from < $3
               ) AS cuts
           ),
           rates AS (
               SELECT DISTINCT ON (s.started_at, p.mode) s.started_at AS span, p.mode, p.per_gpu_hour, p.currency
               FROM spans AS s
               JOIN prices AS p ON p.pool_id = $1 AND p.effective_from <= s.started_at
               ORDER BY s.started_at, p.mode, p.effective_from DESC
           ),
           was AS (
               SELECT c.device_id, c.available, s.started_at AS span,
                   GREATEST(c.started_at, s.started_at) AS started_at,
                   LEAST(COALESCE(c.ended_at, s.ended_at), s.ended_at) AS ended_at
               FROM capacity_segments AS c
               JOIN spans AS s ON c.started_at < s.ended_at AND COALESCE(c.ended_at, s.ended_at) > s.started_at
               WHERE c.pool_id = $1
           ),
           known AS (
               SELECT u.device_id, u.mode, u.gpus_milli, part.kind, part.started_at, part.ended_at
               FROM usage_segments AS u
               JOIN nodes AS n ON n.id = u.node_id
               CROSS JOIN LATERAL (
                   SELECT GREATEST(u.started_at, u.rated_until, COALESCE(n.last_heartbeat_at, 'infinity')) AS at
               ) AS heard
               -- What is open counts as what it is up to its node's last heartbeat. The rest is
               -- charged once the node is heard of again, and the operator's if it is lost.
               CROSS JOIN LATERAL (
                   SELECT u.kind, u.started_at, COALESCE(u.ended_at, heard.at) AS ended_at
                   UNION ALL
                   SELECT CASE WHEN n.reachability = 'ready' THEN 'reserved' ELSE 'unreachable' END, heard.at, $3
                   WHERE u.ended_at IS NULL
               ) AS part
               WHERE u.pool_id = $1 AND u.started_at < $3 AND (u.ended_at IS NULL OR u.ended_at > $2)
           ),
           held AS (
               SELECT u.device_id, u.mode, u.kind, u.gpus_milli, s.started_at AS span,
                   GREATEST(u.started_at, s.started_at) AS started_at, LEAST(u.ended_at, s.ended_at) AS ended_at
               FROM known AS u
               JOIN spans AS s ON u.started_at < s.ended_at AND u.ended_at > s.started_at
           ),
           there AS (
               SELECT span, sum(1000 * trunc(EXTRACT(EPOCH FROM ended_at - started_at) * 1000000)) AS capacity,
                   sum(1000 * trunc(EXTRACT(EPOCH FROM ended_at - started_at) * 1000000)) FILTER (WHERE available) AS available
               FROM was
               GROUP BY span
           ),
           by_mode AS (
               SELECT span, mode, kind,
                   sum(gpus_milli * trunc(EXTRACT(EPOCH FROM ended_at - started_at) * 1000000)) AS held
               FROM held
               GROUP BY span, mode, kind
           ),
           used AS (
               SELECT b.span,
                   sum(b.held) FILTER (WHERE b.kind = 'charged') AS charged,
                   sum(b.held * r.per_gpu_hour) FILTER (WHERE b.kind = 'charged') AS charged_priced,
                   sum(b.held) FILTER (WHERE b.kind = 'reserved') AS reserved,
                   sum(b.held * r.per_gpu_hour) FILTER (WHERE b.kind = 'reserved') AS reserved_priced,
                   sum(b.held) FILTER (WHERE b.kind <> 'unreachable' AND r.mode IS NULL) AS unpriced,
                   sum(b.held) FILTER (WHERE b.kind = 'unreachable') AS unreachable
               FROM by_mode AS b
               LEFT JOIN rates AS r ON r.span = b.span AND r.mode = b.mode
               GROUP BY b.span
           ),
           shared AS (
               SELECT h.span, w.available,
                   sum(h.gpus_milli * trunc(EXTRACT(EPOCH FROM LEAST(h.ended_at, w.ended_at) - GREATEST(h.started_at, w.started_at)) * 1000000)) AS held
               FROM held AS h
               JOIN was AS w ON w.device_id = h.device_id AND w.span = h.span
                   AND w.started_at < h.ended_at AND w.ended_at > h.started_at
               GROUP BY h.span, w.available
           )
           SELECT s.started_at AS "started_at!", s.ended_at AS "ended_at!", whole.per_gpu_hour AS "per_gpu_hour?",
               (SELECT min(r.currency) FROM rates AS r WHERE r.span = s.started_at) AS "currency?: Currency",
               COALESCE(there.capacity, 0) AS "capacity!", COALESCE(there.available, 0) AS "available!",
               COALESCE(used.charged, 0) AS "charged!", COALESCE(used.charged_priced, 0) AS "charged_priced!",
               COALESCE(used.reserved, 0) AS "reserved!", COALESCE(used.reserved_priced, 0) AS "reserved_priced!",
               COALESCE(used.unpriced, 0) AS "unpriced!",
               COALESCE(used.unreachable, 0) AS "unreachable!",
               COALESCE((SELECT held FROM shared AS o WHERE o.span = s.started_at AND o.available), 0) AS "held_available!",
               COALESCE((SELECT held FROM shared AS o WHERE o.span = s.started_at AND NOT o.available), 0) AS "held_unavailable!"
           FROM spans AS s
           LEFT JOIN there ON there.span = s.started_at
           LEFT JOIN used ON used.span = s.started_at
           LEFT JOIN rates AS whole ON whole.span = s.started_at AND whole.mode = 'exclusive'
           ORDER BY s.started_at"#,
        pool as PoolId,
        from,
        to,
    )
    .fetch_all(&mut **tx)
    .await
}
