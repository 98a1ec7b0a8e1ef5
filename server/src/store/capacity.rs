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
    /// What that is billed.
    pub charged_value: Decimal,
    /// Granted and not yet acknowledged, or held since the last heartbeat of a node that answers.
    pub reserved: Decimal,
    /// What that would be billed.
    pub reserved_value: Decimal,
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
                   SELECT p.effective_from FROM prices AS p
                   WHERE p.pool_id = $1 AND p.effective_from > $2 AND p.effective_from < $3
               ) AS cuts
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
               SELECT u AS segment, u.device_id, u.gpus_milli, part.kind, part.started_at, part.ended_at
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
               SELECT u.segment, u.device_id, u.kind, u.gpus_milli, s.started_at AS span,
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
           used AS (
               SELECT h.span,
                   sum(h.held) FILTER (WHERE h.kind = 'charged') AS charged,
                   sum(h.held) FILTER (WHERE h.kind = 'reserved') AS reserved,
                   sum(h.held) FILTER (WHERE h.kind = 'unreachable') AS unreachable
               FROM (
                   SELECT span, kind, gpus_milli * trunc(EXTRACT(EPOCH FROM ended_at - started_at) * 1000000) AS held
                   FROM held
               ) AS h
               GROUP BY h.span
           ),
           -- What was charged is worth what the ledger says, with what is not in it yet.
           pieces AS (
               SELECT e.started_at, e.ended_at, e.gpu_milli_micros, e.amount
               FROM ledger_entries AS e
               WHERE e.pool_id = $1 AND e.resource = 'gpu' AND e.kind IN ('usage', 'reversal', 'correction')
                   AND e.started_at < $3 AND e.ended_at > $2
               UNION ALL
               SELECT e.started_at, e.ended_at, e.gpu_milli_micros, e.amount
               FROM allotment.unrated_pieces($3) AS e
               WHERE e.pool_id = $1 AND e.resource = 'gpu' AND e.started_at < $3 AND e.ended_at > $2
           ),
           billed AS (
               SELECT s.started_at AS span, sum(p.amount * part.of) AS amount,
                   sum(p.gpu_milli_micros * part.of) FILTER (WHERE p.amount IS NULL) AS unpriced
               FROM pieces AS p
               JOIN spans AS s ON p.started_at < s.ended_at AND p.ended_at > s.started_at
               CROSS JOIN LATERAL (
                   SELECT CASE WHEN p.started_at >= s.started_at AND p.ended_at <= s.ended_at THEN 1
                       ELSE EXTRACT(EPOCH FROM LEAST(p.ended_at, s.ended_at) - GREATEST(p.started_at, s.started_at))::numeric(40, 24)
                            / EXTRACT(EPOCH FROM p.ended_at - p.started_at) END AS of
               ) AS part
               GROUP BY s.started_at
           ),
           waiting AS (
               SELECT h.span, sum(p.amount) AS amount, sum(p.gpu_milli_micros) FILTER (WHERE p.amount IS NULL) AS unpriced
               FROM held AS h
               CROSS JOIN LATERAL allotment.priced(h.segment, h.started_at, h.ended_at, NULL) AS p
               WHERE h.kind = 'reserved' AND p.resource = 'gpu'
               GROUP BY h.span
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
               (SELECT o.currency FROM organisation AS o) AS "currency?: Currency",
               COALESCE(there.capacity, 0) AS "capacity!", COALESCE(there.available, 0) AS "available!",
               COALESCE(used.charged, 0) AS "charged!", round(COALESCE(billed.amount, 0), 18) AS "charged_value!",
               COALESCE(used.reserved, 0) AS "reserved!", round(COALESCE(waiting.amount, 0), 18) AS "reserved_value!",
               round(COALESCE(billed.unpriced, 0) + COALESCE(waiting.unpriced, 0)) AS "unpriced!",
               COALESCE(used.unreachable, 0) AS "unreachable!",
               COALESCE((SELECT held FROM shared AS o WHERE o.span = s.started_at AND o.available), 0) AS "held_available!",
               COALESCE((SELECT held FROM shared AS o WHERE o.span = s.started_at AND NOT o.available), 0) AS "held_unavailable!"
           FROM spans AS s
           LEFT JOIN there ON there.span = s.started_at
           LEFT JOIN used ON used.span = s.started_at
           LEFT JOIN billed ON billed.span = s.started_at
           LEFT JOIN waiting ON waiting.span = s.started_at
           LEFT JOIN LATERAL allotment.price_at($1, 'gpu', 'exclusive', NULL, s.started_at, NULL) AS whole ON true
           ORDER BY s.started_at"#,
        pool as PoolId,
        from,
        to,
    )
    .fetch_all(&mut **tx)
    .await
}
