//! Reconciliation: of each device and day, whether what was held, idle and down adds up to the time that passed.

use chrono::NaiveDate;
use domain::Timestamp;
use domain::ids::{DeviceId, NodeId};

use super::Tx;

/// A day of the organisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Day {
    /// Its date.
    pub day: NaiveDate,
    /// Its midnight there.
    pub started_at: Timestamp,
    /// The next one.
    pub ended_at: Timestamp,
}

/// Whether this transaction may reconcile: one replica does at a time.
pub async fn try_lock(tx: &mut Tx) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT pg_try_advisory_xact_lock(hashtextextended('allotment.reconciling', 0)) AS "locked!""#
    )
    .fetch_one(&mut **tx)
    .await
}

/// The first day that has not been reconciled and was over before `settled`, if there is one.
pub async fn due(tx: &mut Tx, settled: Timestamp) -> Result<Option<Day>, sqlx::Error> {
    sqlx::query_as!(
        Day,
        r#"SELECT d.day AS "day!", d.started_at AS "started_at!", d.ended_at AS "ended_at!"
           FROM (
               SELECT next.day,
                   -- A day begins where the one before it ended, whatever the clocks are by now.
                   COALESCE((SELECT max(r.ended_at) FROM reconciled_days AS r), next.day::timestamp AT TIME ZONE o.time_zone)
                       AS started_at,
                   (next.day + 1)::timestamp AT TIME ZONE o.time_zone AS ended_at
               FROM organisation AS o
               CROSS JOIN LATERAL (
                   SELECT COALESCE((SELECT max(r.day) + 1 FROM reconciled_days AS r),
                                   (SELECT (min(c.started_at) AT TIME ZONE o.time_zone)::date FROM capacity_segments AS c)) AS day
               ) AS next
           ) AS d
           WHERE d.day IS NOT NULL AND d.ended_at <= $1 AND d.started_at < d.ended_at"#,
        settled,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// A device whose time does not add up.
#[derive(Debug, Clone)]
pub struct Off {
    /// The device.
    pub device_id: DeviceId,
    /// Its node.
    pub node_id: NodeId,
    /// Microseconds in which it was there.
    pub wall_micros: i64,
    /// Of these those that are held, idle or down.
    pub found_micros: i64,
    /// What its capacity's segments add up to.
    pub capacity_micros: i64,
}

/// Reconciles a day and keeps what came of it; the devices that are off.
///
/// A device was there from its first segment of capacity to the end of its last. What was held is what segments of
/// use cover, whatever capacity says; idle and down are what those of capacity cover beside that.
pub async fn reconcile(tx: &mut Tx, day: &Day) -> Result<Vec<Off>, sqlx::Error> {
    sqlx::query!(
        "INSERT INTO reconciled_days (day, started_at, ended_at, devices, off) VALUES ($1, $2, $3, 0, 0)",
        day.day,
        day.started_at,
        day.ended_at,
    )
    .execute(&mut **tx)
    .await?;
    sqlx::query!(
        "INSERT INTO reconciliations (day, device_id, node_id, pool_id, wall_micros, held_micros, idle_micros,
                                      down_micros, capacity_micros)
         SELECT $1, l.device_id, l.node_id, l.pool_id,
                allotment.micros(tstzmultirange(tstzrange(l.born, l.died) * tstzrange($2, $3))),
                allotment.micros(use.held), allotment.micros(use.there - use.held), allotment.micros(use.down - use.held),
                use.capacity
         FROM (
             SELECT c.device_id, min(c.started_at) AS born, max(COALESCE(c.ended_at, 'infinity')) AS died,
                 (array_agg(c.node_id ORDER BY c.started_at DESC))[1] AS node_id,
                 (array_agg(c.pool_id ORDER BY c.started_at DESC))[1] AS pool_id
             FROM capacity_segments AS c
             GROUP BY c.device_id
         ) AS l
         CROSS JOIN LATERAL (
             SELECT COALESCE((SELECT range_agg(tstzrange(s.started_at, s.ended_at) * tstzrange($2, $3))
                              FROM usage_segments AS s
                              WHERE s.device_id = l.device_id AND s.started_at < $3 AND COALESCE(s.ended_at, $3) > $2),
                             '{}') AS held,
                 COALESCE((SELECT range_agg(tstzrange(c.started_at, c.ended_at) * tstzrange($2, $3))
                           FROM capacity_segments AS c
                           WHERE c.device_id = l.device_id AND c.available AND c.started_at < $3
                             AND COALESCE(c.ended_at, $3) > $2), '{}') AS there,
                 COALESCE((SELECT range_agg(tstzrange(c.started_at, c.ended_at) * tstzrange($2, $3))
                           FROM capacity_segments AS c
                           WHERE c.device_id = l.device_id AND NOT c.available AND c.started_at < $3
                             AND COALESCE(c.ended_at, $3) > $2), '{}') AS down,
                 COALESCE((SELECT sum(trunc(EXTRACT(EPOCH FROM LEAST(COALESCE(c.ended_at, $3), $3) - GREATEST(c.started_at, $2)) * 1000000))
                           FROM capacity_segments AS c
                           WHERE c.device_id = l.device_id AND c.started_at < $3 AND COALESCE(c.ended_at, $3) > $2),
                          0)::bigint AS capacity
         ) AS use
         WHERE l.born < $3 AND l.died > $2",
        day.day,
        day.started_at,
        day.ended_at,
    )
    .execute(&mut **tx)
    .await?;
    sqlx::query!(
        "UPDATE reconciled_days
         SET devices = n.devices, off = n.off
         FROM (SELECT count(*)::integer AS devices,
                   (count(*) FILTER (WHERE wall_micros <> held_micros + idle_micros + down_micros
                                        OR wall_micros <> capacity_micros))::integer AS off
               FROM reconciliations WHERE day = $1) AS n
         WHERE reconciled_days.day = $1",
        day.day,
    )
    .execute(&mut **tx)
    .await?;
    sqlx::query_as!(
        Off,
        r#"SELECT device_id AS "device_id: DeviceId", node_id AS "node_id: NodeId", wall_micros,
                  held_micros + idle_micros + down_micros AS "found_micros!", capacity_micros
           FROM reconciliations
           WHERE day = $1 AND (wall_micros <> held_micros + idle_micros + down_micros OR wall_micros <> capacity_micros)
           ORDER BY device_id"#,
        day.day,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A day that was reconciled.
#[derive(Debug, Clone)]
pub struct Reconciled {
    /// Its date.
    pub day: NaiveDate,
    /// Its midnight.
    pub started_at: Timestamp,
    /// The next one.
    pub ended_at: Timestamp,
    /// Devices that were there.
    pub devices: i32,
    /// Of these those that are off.
    pub off: i32,
    /// When it was reconciled.
    pub reconciled_at: Timestamp,
}

/// Days before one, the latest first; or a single one.
pub async fn days(
    tx: &mut Tx,
    before: Option<NaiveDate>,
    one: Option<NaiveDate>,
    rows: i64,
) -> Result<Vec<Reconciled>, sqlx::Error> {
    sqlx::query_as!(
        Reconciled,
        "SELECT day, started_at, ended_at, devices, off, reconciled_at
         FROM reconciled_days
         WHERE ($1::date IS NULL OR day < $1) AND ($2::date IS NULL OR day = $2)
         ORDER BY day DESC
         LIMIT $3",
        before,
        one,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What became of a device's day.
#[derive(Debug, Clone)]
pub struct DeviceDay {
    /// The device.
    pub device_id: DeviceId,
    /// Its place on its node.
    pub index: i32,
    /// Its node.
    pub node: String,
    /// Its pool.
    pub pool: String,
    /// Microseconds in which it was there.
    pub wall_micros: i64,
    /// Of these those in which somebody held some of it.
    pub held_micros: i64,
    /// Those in which nobody did and it could be given out.
    pub idle_micros: i64,
    /// Those in which nobody did and it could not.
    pub down_micros: i64,
    /// What its capacity's segments add up to.
    pub capacity_micros: i64,
}

/// The devices of a day after one, those that are off first.
pub async fn devices(
    tx: &mut Tx,
    day: NaiveDate,
    after: Option<(bool, DeviceId)>,
    rows: i64,
) -> Result<Vec<DeviceDay>, sqlx::Error> {
    let (fits, device) = after.unzip();
    sqlx::query_as!(
        DeviceDay,
        r#"SELECT r.device_id AS "device_id: DeviceId", d.index, n.name AS node, p.name AS pool, r.wall_micros,
                  r.held_micros, r.idle_micros, r.down_micros, r.capacity_micros
           FROM reconciliations AS r
           JOIN devices AS d ON d.id = r.device_id
           JOIN nodes AS n ON n.id = r.node_id
           JOIN pools AS p ON p.id = r.pool_id
           CROSS JOIN LATERAL (
               SELECT r.wall_micros = r.held_micros + r.idle_micros + r.down_micros
                   AND r.wall_micros = r.capacity_micros AS fits
           ) AS sum
           WHERE r.day = $1 AND ($2::boolean IS NULL OR (sum.fits, r.device_id) > ($2, $3::uuid))
           ORDER BY sum.fits, r.device_id
           LIMIT $4"#,
        day,
        fits,
        device as Option<DeviceId>,
        rows,
    )
    .fetch_all(&mut **tx)
    .await
}
