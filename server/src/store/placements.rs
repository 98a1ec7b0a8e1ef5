//! Placements: which nodes and devices the attempts of jobs had.

use domain::Timestamp;
use domain::ids::{AttemptId, JobId, TeamId};
use domain::sharing::SharingMode;

use super::Tx;

/// One device of one worker; a worker without devices has one row without.
#[derive(Debug, Clone)]
pub struct PlacementRow {
    /// The job.
    pub job_id: JobId,
    /// The worker.
    pub worker: i32,
    /// Its node's name.
    pub node: String,
    /// What names the image of its container for good, once that has started.
    pub image_digest: Option<String>,
    /// Until when it may stay there, where that is being emptied by a deadline.
    pub leaves_by: Option<Timestamp>,
    /// The device's UUID.
    pub uuid: Option<String>,
    /// The device's place on its node.
    pub index: Option<i32>,
    /// The mode in which it is given out.
    pub mode: Option<SharingMode>,
    /// How much of it.
    pub gpus_milli: Option<i32>,
}

/// The placements of jobs' latest attempts, by job, worker and device. A job that waits has none,
/// nor does a worker that its gang gave up.
pub async fn of_jobs(tx: &mut Tx, jobs: &[JobId]) -> Result<Vec<PlacementRow>, sqlx::Error> {
    sqlx::query_as!(
        PlacementRow,
        r#"SELECT j.id AS "job_id: JobId", a.worker, n.name AS node, a.image_digest,
                  CASE WHEN t.state <> 'ended' THEN n.drain_deadline_at END AS leaves_by, d.uuid AS "uuid?", d.index AS "index?",
                  s.mode AS "mode?: SharingMode", s.gpus_milli AS "gpus_milli?"
           FROM jobs AS j
           JOIN attempts AS t ON t.job_id = j.id AND t.number = j.attempt
           JOIN assignments AS a ON a.attempt_id = t.id
           JOIN nodes AS n ON n.id = a.node_id
           LEFT JOIN assignment_devices AS s ON s.assignment_id = a.id
           LEFT JOIN devices AS d ON d.id = s.device_id
           WHERE j.id = ANY ($1) AND a.dismissed_at IS NULL AND (j.state NOT IN ('queued', 'suspended') OR t.state <> 'ended')
           ORDER BY j.id, a.worker, d.index, s.slots"#,
        jobs as &[JobId],
    )
    .fetch_all(&mut **tx)
    .await
}

/// A node that an attempt had.
#[derive(Debug, Clone)]
pub struct AttemptNode {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The node's name.
    pub node: String,
}

/// The nodes of a job's attempts, each once, by attempt and name.
pub async fn nodes_of_attempts(
    tx: &mut Tx,
    team_id: TeamId,
    job_id: JobId,
) -> Result<Vec<AttemptNode>, sqlx::Error> {
    sqlx::query_as!(
        AttemptNode,
        r#"SELECT DISTINCT t.id AS "attempt_id: AttemptId", n.name AS node
           FROM attempts AS t
           JOIN assignments AS a ON a.attempt_id = t.id
           JOIN nodes AS n ON n.id = a.node_id
           WHERE t.team_id = $1 AND t.job_id = $2
           ORDER BY t.id, n.name"#,
        team_id as TeamId,
        job_id as JobId,
    )
    .fetch_all(&mut **tx)
    .await
}
