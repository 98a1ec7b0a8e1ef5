//! Laws that hold whatever was killed: asked of the database after every test, in SQL that shares nothing with the product's own.
//!
//! I1 to I9 are the invariants that they stand for; I1 and I9 are asked of the agents' journals too.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use rig::Cluster;

use crate::acknowledged;

/// A law: its sentence, and the query that finds what breaks it.
const LAWS: [(&str, &str); 14] = [
    (
        "I1: a place on a device has one holder at a time, by the events",
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
        "I1: segments of one place never overlap",
        "SELECT x.id AS one, y.id AS other
         FROM usage_segments AS x JOIN usage_segments AS y
             ON x.device_id = y.device_id AND x.slot = y.slot AND x.id < y.id
         WHERE x.started_at < COALESCE(y.ended_at, 'infinity') AND y.started_at < COALESCE(x.ended_at, 'infinity')
           AND x.started_at < COALESCE(x.ended_at, 'infinity') AND y.started_at < COALESCE(y.ended_at, 'infinity')",
    ),
    (
        "I2: a job has at most one live attempt",
        "SELECT job_id, count(*) FROM attempts WHERE state <> 'ended' GROUP BY job_id HAVING count(*) > 1",
    ),
    (
        "I4: what is held belongs to a live attempt of a live job",
        "SELECT d.assignment_id, t.state AS attempt, j.state AS job
         FROM assignment_devices AS d
         JOIN assignments AS a ON a.id = d.assignment_id
         JOIN attempts AS t ON t.id = a.attempt_id
         JOIN jobs AS j ON j.id = a.job_id
         WHERE d.live AND (t.state = 'ended' OR j.state IN ('queued', 'succeeded', 'failed', 'cancelled'))",
    ),
    (
        "I4: an assignment that has ended leaves no open segment",
        "SELECT s.id FROM usage_segments AS s JOIN assignments AS a ON a.id = s.assignment_id
         WHERE s.ended_at IS NULL AND a.phase IN ('released', 'fenced')",
    ),
    (
        "I6: a job's events are one chain, and its last is its state",
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
        "I6: a job ends once, and nothing follows",
        "SELECT subject_id AS job, count(*) FROM events
         WHERE subject = 'job' AND to_state IN ('succeeded', 'failed', 'cancelled')
         GROUP BY subject_id HAVING count(*) > 1",
    ),
    (
        "an array holds no more places at once than it may",
        "SELECT a.id AS attempt, r.id AS array, r.at_most
         FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id JOIN arrays AS r ON r.id = j.array_id
         WHERE r.at_most < (
             SELECT count(*) FROM attempts AS b JOIN jobs AS k ON k.id = b.job_id
             WHERE k.array_id = r.id AND b.created_at <= a.created_at AND COALESCE(b.ended_at, 'infinity') > a.created_at)",
    ),
    (
        "I8: a gang runs whole: no worker starts before every one that it began or grew with was accepted",
        "SELECT a.attempt_id, a.worker, a.started_at, o.worker AS other, o.handed_over_at
         FROM assignments AS a JOIN assignments AS o ON o.attempt_id = a.attempt_id
         WHERE a.started_at IS NOT NULL AND o.dismissed_at IS NULL AND o.granted_at <= a.started_at
           AND (o.handed_over_at IS NULL OR o.handed_over_at > a.started_at)",
    ),
    (
        "I3: nobody holds more than its limit, but for what ran before the limit fell",
        // An open window's limit holds in place of the team's own; of several that which opened last. A start
        // is planned a moment before it is granted, so that just behind an edge either limit may bind. What was
        // told to leave does not count.
        "WITH RECURSIVE line AS (
             SELECT id AS leaf, id, name, parent_id FROM teams
             UNION ALL
             SELECT line.leaf, t.id, t.name, t.parent_id FROM line JOIN teams AS t ON t.id = line.parent_id),
         held AS (
             SELECT a.id, a.team_id, n.pool_id, a.granted_at,
                    least(a.ended_at, t.stop_asked_at, a.dismissed_at, 'infinity') AS until, sum(d.gpus_milli) AS milli
             FROM assignments AS a
             JOIN attempts AS t ON t.id = a.attempt_id
             JOIN assignment_devices AS d ON d.assignment_id = a.id
             JOIN nodes AS n ON n.id = a.node_id
             GROUP BY a.id, t.id, n.pool_id),
         starts AS (
             SELECT team.id, team.name, one.pool_id, one.granted_at, sum(other.milli) AS milli
             FROM held AS one
             JOIN line AS team ON team.leaf = one.team_id
             JOIN line AS below ON below.id = team.id
             JOIN held AS other ON other.team_id = below.leaf AND other.pool_id = one.pool_id
                 AND other.granted_at <= one.granted_at AND other.until > one.granted_at
             GROUP BY team.id, team.name, one.id, one.pool_id, one.granted_at),
         bound AS (
             SELECT s.*, p.name AS pool, m.late,
                    COALESCE(w.after, v.after) AS quota, (COALESCE(w.after, v.after) ->> 'limit')::numeric * 1000 AS most
             FROM starts AS s JOIN pools AS p ON p.id = s.pool_id
             CROSS JOIN LATERAL (VALUES (true, s.granted_at), (false, s.granted_at - interval '5 seconds')) AS m (late, moment)
             LEFT JOIN LATERAL (
                 SELECT after FROM policy_versions
                 WHERE object = 'quota/' || s.name || '/' || p.name AND at <= m.moment ORDER BY id DESC LIMIT 1) AS v ON true
             LEFT JOIN LATERAL (
                 SELECT q.row -> 'quota' AS after
                 FROM (SELECT DISTINCT ON (object) object, after FROM policy_versions
                       WHERE noun = 'window' AND pool_id = s.pool_id AND at <= m.moment ORDER BY object, id DESC) AS known
                 CROSS JOIN LATERAL (SELECT m.moment AT TIME ZONE (known.after ->> 'time_zone') AS clocks,
                                            (known.after ->> 'from')::time AS opens, (known.after ->> 'to')::time AS closes) AS t
                 CROSS JOIN LATERAL (SELECT t.clocks::date - CASE WHEN t.clocks::time < t.opens THEN 1 ELSE 0 END AS day) AS d
                 CROSS JOIN LATERAL jsonb_array_elements(known.after -> 'quotas') AS q (row)
                 WHERE known.after IS NOT NULL AND q.row ->> 'team' = s.name
                   AND known.after -> 'days' @> to_jsonb(lower(to_char(d.day, 'dy')))
                   AND t.clocks < d.day + t.closes + CASE WHEN t.closes <= t.opens THEN interval '1 day' ELSE interval '0' END
                 ORDER BY d.day + t.opens DESC, known.object DESC LIMIT 1) AS w ON true)
         SELECT late.name AS team, late.pool, late.granted_at, late.milli, late.quota
         FROM bound AS late JOIN bound AS early
             ON early.id = late.id AND early.pool_id = late.pool_id AND early.granted_at = late.granted_at AND early.milli = late.milli
         WHERE late.late AND NOT early.late AND late.milli > late.most
             AND (early.quota IS NULL OR early.milli > early.most)",
    ),
    (
        "I5: what is known of a device has no gap and goes on",
        "WITH known AS (
             SELECT device_id, started_at, ended_at,
                    lag(ended_at) OVER (PARTITION BY device_id ORDER BY started_at, ended_at) AS before,
                    row_number() OVER (PARTITION BY device_id ORDER BY started_at DESC, ended_at DESC NULLS FIRST) AS from_last
             FROM capacity_segments)
         SELECT device_id, started_at, before, ended_at FROM known
         WHERE (before IS NOT NULL AND before <> started_at) OR (from_last = 1 AND ended_at IS NOT NULL)
         UNION ALL
         SELECT id, NULL, NULL, NULL FROM devices AS d
         WHERE NOT EXISTS (SELECT FROM capacity_segments AS c WHERE c.device_id = d.id)",
    ),
    (
        "I5: a device has no more in use at any moment than all of it",
        "SELECT one.id, sum(other.gpus_milli) AS milli
         FROM usage_segments AS one JOIN usage_segments AS other ON other.device_id = one.device_id
             AND other.started_at <= one.started_at AND COALESCE(other.ended_at, 'infinity') > one.started_at
         WHERE one.started_at < COALESCE(one.ended_at, 'infinity')
         GROUP BY one.id HAVING sum(other.gpus_milli) > 1000",
    ),
    (
        "I5: what a device was used for lies within what is known of it",
        "SELECT s.id, s.started_at, c.since
         FROM usage_segments AS s
         LEFT JOIN (SELECT device_id, min(started_at) AS since FROM capacity_segments GROUP BY device_id) AS c
             ON c.device_id = s.device_id
         WHERE c.since IS NULL OR s.started_at < c.since",
    ),
    (
        "I8: all workers that a gang began with start within its window",
        "SELECT a.attempt_id, min(a.started_at), max(a.started_at)
         FROM assignments AS a JOIN attempts AS t ON t.id = a.attempt_id
         WHERE a.started_at <= t.started_at
         GROUP BY a.attempt_id HAVING max(a.started_at) - min(a.started_at) > interval '60 seconds'",
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
    check_acknowledged(cluster).await
}

/// I7: each submission that was acknowledged exists, whatever was killed since.
async fn check_acknowledged(cluster: &Cluster) -> anyhow::Result<()> {
    let submitted = "SELECT id FROM jobs UNION ALL SELECT id FROM arrays";
    let rows = cluster.postgres.query(submitted).await?;
    let there: BTreeSet<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
    let bases: Vec<String> = cluster.servers.iter().map(|server| server.url()).collect();
    let lost: Vec<String> = acknowledged::by(&bases)
        .into_iter()
        .filter(|id| !there.contains(id.as_str()))
        .collect();
    if !lost.is_empty() {
        bail!("broken: I7: what was acknowledged exists: {lost:?} do not");
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
