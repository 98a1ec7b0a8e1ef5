//! Laws that hold whatever was killed: asked of the database after every test, in SQL that shares nothing with the product's own.

use std::time::{Duration, Instant};

use anyhow::bail;
use rig::Cluster;

/// A law: its sentence, and the query that finds what breaks it.
const LAWS: [(&str, &str); 9] = [
    (
        "a place on a device has one holder at a time, by the events",
        "WITH held AS (
             SELECT a.id, d.device_id, d.slots,
                    (SELECT min(e.at) FROM events AS e
                     WHERE e.subject = 'assignment' AND e.subject_id = a.id AND e.to_state = 'handed_over') AS since,
                    (SELECT max(e.at) FROM events AS e
                     WHERE e.subject = 'assignment' AND e.subject_id = a.id AND e.to_state IN ('released', 'fenced')) AS until
             FROM assignments AS a JOIN assignment_devices AS d ON d.assignment_id = a.id)
         SELECT x.id AS one, y.id AS other, x.device_id
         FROM held AS x JOIN held AS y ON x.device_id = y.device_id AND x.slots && y.slots AND x.id < y.id
         WHERE x.since < COALESCE(y.until, 'infinity') AND y.since < COALESCE(x.until, 'infinity')",
    ),
    (
        "segments of one place never overlap",
        "SELECT x.id AS one, y.id AS other
         FROM usage_segments AS x JOIN usage_segments AS y
             ON x.device_id = y.device_id AND x.slot = y.slot AND x.id < y.id
         WHERE x.started_at < COALESCE(y.ended_at, 'infinity') AND y.started_at < COALESCE(x.ended_at, 'infinity')
           AND x.started_at < COALESCE(x.ended_at, 'infinity') AND y.started_at < COALESCE(y.ended_at, 'infinity')",
    ),
    (
        "a job has at most one live attempt",
        "SELECT job_id, count(*) FROM attempts WHERE state <> 'ended' GROUP BY job_id HAVING count(*) > 1",
    ),
    (
        "what is held belongs to a live attempt of a live job",
        "SELECT d.assignment_id, t.state AS attempt, j.state AS job
         FROM assignment_devices AS d
         JOIN assignments AS a ON a.id = d.assignment_id
         JOIN attempts AS t ON t.id = a.attempt_id
         JOIN jobs AS j ON j.id = a.job_id
         WHERE d.live AND (t.state = 'ended' OR j.state IN ('queued', 'succeeded', 'failed', 'cancelled'))",
    ),
    (
        "an assignment that has ended leaves no open segment",
        "SELECT s.id FROM usage_segments AS s JOIN assignments AS a ON a.id = s.assignment_id
         WHERE s.ended_at IS NULL AND a.phase IN ('released', 'fenced')",
    ),
    (
        "a job's events are one chain, and its last is its state",
        "WITH steps AS (
             SELECT subject_id, id, from_state, to_state,
                    lag(to_state) OVER (PARTITION BY subject_id ORDER BY id) AS before
             FROM events WHERE subject = 'job')
         SELECT subject_id AS job, from_state, before FROM steps WHERE before IS NOT NULL AND from_state IS DISTINCT FROM before
         UNION ALL
         SELECT j.id, j.state, e.to_state
         FROM jobs AS j
         JOIN LATERAL (SELECT to_state FROM events WHERE subject = 'job' AND subject_id = j.id ORDER BY id DESC LIMIT 1) AS e ON true
         WHERE e.to_state <> j.state",
    ),
    (
        "a job ends once, and nothing follows",
        "SELECT subject_id AS job, count(*) FROM events
         WHERE subject = 'job' AND to_state IN ('succeeded', 'failed', 'cancelled')
         GROUP BY subject_id HAVING count(*) > 1",
    ),
    (
        "a gang runs whole: no worker starts before every one that it began or grew with was accepted",
        "SELECT a.attempt_id, a.worker, a.started_at, o.worker AS other, o.handed_over_at
         FROM assignments AS a JOIN assignments AS o ON o.attempt_id = a.attempt_id
         WHERE a.started_at IS NOT NULL AND o.dismissed_at IS NULL AND o.granted_at <= a.started_at
           AND (o.handed_over_at IS NULL OR o.handed_over_at > a.started_at)",
    ),
    (
        "nobody holds more than its limit",
        "SELECT q.team_id, q.pool_id, held.milli
         FROM quotas AS q
         JOIN (SELECT d.team_id, n.pool_id, sum(d.gpus_milli) AS milli
               FROM assignment_devices AS d JOIN devices AS v ON v.id = d.device_id JOIN nodes AS n ON n.id = v.node_id
               WHERE d.live GROUP BY d.team_id, n.pool_id) AS held
             ON held.team_id = q.team_id AND held.pool_id = q.pool_id
         WHERE q.limit_milli IS NOT NULL AND held.milli > q.limit_milli",
    ),
];

/// Fails with the first law that is broken, and by what.
pub async fn check(cluster: &Cluster) -> anyhow::Result<()> {
    for (law, breaches) in LAWS {
        let found = cluster.postgres.query(breaches).await?;
        if !found.is_empty() {
            bail!("broken: {law}: {found:?}");
        }
    }
    Ok(())
}

/// How long the ledger may be behind: it is written some seconds after a segment has ended.
const RATED_WITHIN: Duration = Duration::from_secs(60);

/// Waits until each charged segment that has ended is in the ledger whole, the sum of its
/// entries' device-time being its own, and nothing else is; fails with what differs.
pub async fn check_ledger(cluster: &Cluster) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let found = cluster
            .postgres
            .query(
                "WITH rated AS (
                     SELECT segment_id, sum(gpu_milli_micros) AS micros FROM ledger_entries GROUP BY segment_id)
                 SELECT s.id, s.kind, s.started_at, s.ended_at, s.rated_until, r.micros
                 FROM usage_segments AS s LEFT JOIN rated AS r ON r.segment_id = s.id
                 WHERE s.ended_at IS NOT NULL
                   AND COALESCE(r.micros, 0) <> CASE s.kind WHEN 'charged'
                       THEN (extract(epoch FROM s.ended_at - s.started_at) * 1000000 * s.gpus_milli)::numeric(38, 0)
                       ELSE 0 END",
            )
            .await?;
        if found.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > RATED_WITHIN {
            bail!("segments and ledger differ: {found:?}");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
