//! Usage segments: who held which share of which device, and from when to when.

use domain::Timestamp;
use domain::ids::AssignmentId;

use super::Tx;

/// What a share that is held counts as; what it counted as on a lost node, [`split`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Granted, and not yet acknowledged by its node.
    Reserved,
    /// Held by its team.
    Charged,
    /// Held by what did not survive, after its node's last heartbeat: at the operator's charge.
    Unreachable,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Charged => "charged",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Opens a segment for each share that these assignments hold, each from its moment on.
pub async fn open(
    tx: &mut Tx,
    assignments: &[(AssignmentId, Timestamp)],
    kind: Kind,
) -> Result<(), sqlx::Error> {
    let (ids, from): (Vec<AssignmentId>, Vec<Timestamp>) = assignments.iter().copied().unzip();
    sqlx::query!(
        "WITH given AS (
             SELECT a.id, a.team_id, a.job_id, a.attempt_id, a.node_id, a.cpus_milli, a.memory_mib, n.pool_id,
                 v.started_at
             FROM unnest($1::uuid[], $2::timestamptz[]) AS v (id, started_at)
             JOIN assignments AS a ON a.id = v.id
             JOIN nodes AS n ON n.id = a.node_id
         ),
         -- What the team holds of the pool up to each assignment, in the order in which they were granted.
         held AS (
             SELECT a.id, sum(sum(d.gpus_milli)) OVER (PARTITION BY a.team_id, n.pool_id ORDER BY a.granted_at, a.id) AS upto
             FROM assignments AS a
             JOIN nodes AS n ON n.id = a.node_id
             JOIN assignment_devices AS d ON d.assignment_id = a.id AND d.live
             WHERE a.ended_at IS NULL AND (a.team_id, n.pool_id) IN (SELECT g.team_id, g.pool_id FROM given AS g)
             GROUP BY a.id, a.team_id, n.pool_id
         )
         INSERT INTO usage_segments (id, team_id, user_id, job_id, attempt_id, assignment_id, pool_id, node_id,
                                     device_id, slot, mode, kind, gpus_milli, billed_milli, mig_profile, cpus_milli,
                                     memory_mib, preemptible, borrowed, started_at)
         SELECT gen_random_uuid(), a.team_id, j.user_id, a.job_id, a.attempt_id, a.id, a.pool_id, a.node_id,
                d.device_id, lower(d.slots), d.mode, $3, d.gpus_milli,
                -- Of a fraction the larger of its part of the device and of its memory.
                LEAST(1000, GREATEST(d.gpus_milli, CASE WHEN d.mode IN ('mps', 'time_slice', 'vgpu')
                    THEN ceil(d.memory_mib * 1000::numeric / v.memory_mib)::integer ELSE 0 END)),
                d.mig_profile, CASE WHEN first.of_all THEN a.cpus_milli ELSE 0 END,
                CASE WHEN first.of_all THEN a.memory_mib ELSE 0 END,
                CASE COALESCE(j.spec, r.spec) ->> 'preemptible'
                    WHEN 'true' THEN true WHEN 'false' THEN false ELSE c.preemptible END,
                COALESCE(h.upto, 0) > COALESCE(q.guaranteed_milli, 0), a.started_at
         FROM given AS a
         JOIN jobs AS j ON j.id = a.job_id
         LEFT JOIN arrays AS r ON r.id = j.array_id
         JOIN classes AS c ON c.name = j.class
         JOIN assignment_devices AS d ON d.assignment_id = a.id
         JOIN devices AS v ON v.id = d.device_id
         CROSS JOIN LATERAL (
             SELECT NOT EXISTS (
                 SELECT FROM assignment_devices AS o
                 WHERE o.assignment_id = a.id
                   AND (o.device_id, lower(o.slots)) < (d.device_id, lower(d.slots))) AS of_all
         ) AS first
         LEFT JOIN held AS h ON h.id = a.id
         LEFT JOIN quotas AS q ON q.team_id = a.team_id AND q.pool_id = a.pool_id",
        &ids as &[AssignmentId],
        &from,
        kind.as_str(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Ends the open segments of these assignments, each at its moment, though never before they began
/// nor before what the ledger already covers. Of one whose device has failed meanwhile its team pays up to then,
/// and what is left is `unreachable`, at the operator's charge.
pub async fn close(
    tx: &mut Tx,
    assignments: &[(AssignmentId, Timestamp)],
) -> Result<(), sqlx::Error> {
    let (ids, at): (Vec<AssignmentId>, Vec<Timestamp>) = assignments.iter().copied().unzip();
    sqlx::query!(
        "WITH ended AS (
             UPDATE usage_segments AS s
             SET ended_at = GREATEST(s.started_at, s.rated_until,
                                     LEAST(v.ended_at, CASE WHEN s.kind = 'charged' THEN v.failed_at END))
             FROM (SELECT u.id, u.ended_at,
                          (SELECT min(d.failed_at)
                           FROM assignment_devices AS h
                           JOIN devices AS d ON d.id = h.device_id
                           WHERE h.assignment_id = u.id) AS failed_at
                   FROM unnest($1::uuid[], $2::timestamptz[]) AS u (id, ended_at)) AS v
             WHERE s.assignment_id = v.id AND s.ended_at IS NULL
             RETURNING s.team_id, s.user_id, s.job_id, s.attempt_id, s.assignment_id, s.pool_id, s.node_id, s.device_id,
                 s.slot, s.mode, s.kind, s.gpus_milli, s.billed_milli, s.mig_profile, s.preemptible, s.borrowed, s.ended_at,
                 v.ended_at AS until
         )
         INSERT INTO usage_segments (id, team_id, user_id, job_id, attempt_id, assignment_id, pool_id, node_id,
                                     device_id, slot, mode, kind, gpus_milli, billed_milli, mig_profile,
                                     preemptible, borrowed, started_at, ended_at)
         SELECT gen_random_uuid(), e.team_id, e.user_id, e.job_id, e.attempt_id, e.assignment_id, e.pool_id, e.node_id,
                e.device_id, e.slot, e.mode, 'unreachable', e.gpus_milli, e.billed_milli,
                e.mig_profile, e.preemptible, e.borrowed, e.ended_at, e.until
         FROM ended AS e
         WHERE e.kind = 'charged' AND e.ended_at < e.until",
        &ids as &[AssignmentId],
        &at,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Whether an assignment is held for its team now.
pub async fn charged(tx: &mut Tx, assignment: AssignmentId) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM usage_segments
                          WHERE assignment_id = $1 AND ended_at IS NULL AND kind = 'charged') AS "charged!""#,
        assignment as AssignmentId,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Ends the open segments of an assignment as [`close`] does, and follows each from where it
/// really ended up to `until` with one that is `unreachable`, at the operator's charge. Each by
/// itself: rating may have come further with one device than with another.
pub async fn split(
    tx: &mut Tx,
    assignment: AssignmentId,
    at: Timestamp,
    until: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "WITH ended AS (
             UPDATE usage_segments
             SET ended_at = GREATEST(started_at, rated_until, $2)
             WHERE assignment_id = $1 AND ended_at IS NULL
             RETURNING team_id, user_id, job_id, attempt_id, assignment_id, pool_id, node_id, device_id, slot, mode,
                 gpus_milli, billed_milli, mig_profile, preemptible, borrowed, ended_at
         )
         INSERT INTO usage_segments (id, team_id, user_id, job_id, attempt_id, assignment_id, pool_id, node_id,
                                     device_id, slot, mode, kind, gpus_milli, billed_milli, mig_profile,
                                     preemptible, borrowed, started_at, ended_at)
         SELECT gen_random_uuid(), e.team_id, e.user_id, e.job_id, e.attempt_id, e.assignment_id, e.pool_id, e.node_id,
                e.device_id, e.slot, e.mode, 'unreachable', e.gpus_milli, e.billed_milli,
                e.mig_profile, e.preemptible, e.borrowed, e.ended_at, $3
         FROM ended AS e
         WHERE e.ended_at < $3",
        assignment as AssignmentId,
        at,
        until,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
