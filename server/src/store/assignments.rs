//! Assignments: one worker of one attempt on named slices of one node.

use domain::Timestamp;
use domain::ids::{AssignmentId, AttemptId, DeviceId, JobId, NodeId, TeamId};
use domain::sharing::SharingMode;
use domain::state::AssignmentPhase;

use super::Tx;

/// An assignment as the state machine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Its id.
    pub id: AssignmentId,
    /// The team that it works for.
    pub team_id: TeamId,
    /// Its job.
    pub job_id: JobId,
    /// Its attempt.
    pub attempt_id: AttemptId,
    /// Where it runs.
    pub node_id: NodeId,
    /// Which worker of the gang it is.
    pub worker: i32,
    /// The place of its node among the job's nodes.
    pub node_rank: i32,
    /// Where it stands.
    pub phase: AssignmentPhase,
    /// Its process's exit code, once it has ended so.
    pub exit_code: Option<i32>,
    /// The signal that ended its process.
    pub exit_signal: Option<i32>,
    /// Whether its process ended because it had been told to.
    pub exit_asked: bool,
    /// When its process ended, if it has.
    pub exited_at: Option<Timestamp>,
    /// When its gang was told to go on without it, if it was.
    pub dismissed_at: Option<Timestamp>,
}

/// A worker's place as the scheduler decided it.
#[derive(Debug, Clone)]
pub struct NewAssignment {
    /// Its id.
    pub id: AssignmentId,
    /// The team that it works for.
    pub team_id: TeamId,
    /// Its job.
    pub job_id: JobId,
    /// Its attempt.
    pub attempt_id: AttemptId,
    /// Where it will run.
    pub node_id: NodeId,
    /// Which worker of the gang it is.
    pub worker: i32,
    /// The place of its node among the job's nodes.
    pub node_rank: i32,
    /// CPU that it holds, in thousandths.
    pub cpus_milli: i64,
    /// Memory that it holds.
    pub memory_mib: i64,
}

/// What an assignment takes of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewShare {
    /// The assignment.
    pub assignment_id: AssignmentId,
    /// The team that it works for.
    pub team_id: TeamId,
    /// The device.
    pub device_id: DeviceId,
    /// The way in which the device is given out.
    pub mode: SharingMode,
    /// How much of it, in thousandths.
    pub gpus_milli: i32,
    /// Memory of the device that it may use.
    pub memory_mib: i64,
    /// The first place that it takes on the device.
    pub slot_first: i32,
    /// The place after its last one.
    pub slot_end: i32,
    /// The profile of an instance, whose places are its memory slices.
    pub mig_profile: Option<String>,
}

/// How a process ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it had been told to end.
    pub asked: bool,
    /// The same in words.
    pub message: String,
}

/// Writes new assignments in phase `granted`.
pub async fn insert(tx: &mut Tx, new: &[NewAssignment], now: Timestamp) -> Result<(), sqlx::Error> {
    let ids: Vec<AssignmentId> = new.iter().map(|a| a.id).collect();
    let teams: Vec<TeamId> = new.iter().map(|a| a.team_id).collect();
    let jobs: Vec<JobId> = new.iter().map(|a| a.job_id).collect();
    let attempts: Vec<AttemptId> = new.iter().map(|a| a.attempt_id).collect();
    let nodes: Vec<NodeId> = new.iter().map(|a| a.node_id).collect();
    let workers: Vec<i32> = new.iter().map(|a| a.worker).collect();
    let node_ranks: Vec<i32> = new.iter().map(|a| a.node_rank).collect();
    let cpus: Vec<i64> = new.iter().map(|a| a.cpus_milli).collect();
    let memory: Vec<i64> = new.iter().map(|a| a.memory_mib).collect();
    sqlx::query!(
        "INSERT INTO assignments
            (id, team_id, job_id, attempt_id, node_id, worker, node_rank, cpus_milli, memory_mib, granted_at)
         SELECT a.*, $10
         FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::integer[], $7::integer[],
                     $8::bigint[], $9::bigint[]) AS a",
        &ids as &[AssignmentId],
        &teams as &[TeamId],
        &jobs as &[JobId],
        &attempts as &[AttemptId],
        &nodes as &[NodeId],
        &workers,
        &node_ranks,
        &cpus,
        &memory,
        now,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Writes what assignments take of devices; the constraints `one_live_holder` and `share_fits`
/// refuse what a device cannot bear.
pub async fn insert_shares(tx: &mut Tx, new: &[NewShare]) -> Result<(), sqlx::Error> {
    let assignments: Vec<AssignmentId> = new.iter().map(|share| share.assignment_id).collect();
    let teams: Vec<TeamId> = new.iter().map(|share| share.team_id).collect();
    let devices: Vec<DeviceId> = new.iter().map(|share| share.device_id).collect();
    let modes: Vec<SharingMode> = new.iter().map(|share| share.mode).collect();
    let gpus: Vec<i32> = new.iter().map(|share| share.gpus_milli).collect();
    let memory: Vec<i64> = new.iter().map(|share| share.memory_mib).collect();
    let first: Vec<i32> = new.iter().map(|share| share.slot_first).collect();
    let end: Vec<i32> = new.iter().map(|share| share.slot_end).collect();
    let profiles: Vec<Option<String>> = new.iter().map(|share| share.mig_profile.clone()).collect();
    sqlx::query!(
        "INSERT INTO assignment_devices (assignment_id, team_id, device_id, mode, gpus_milli, memory_mib, slots,
            mig_profile)
         SELECT s.assignment_id, s.team_id, s.device_id, s.mode, s.gpus_milli, s.memory_mib,
                int4range(s.slot_first, s.slot_end), s.mig_profile
         FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::integer[], $6::bigint[], $7::integer[],
                     $8::integer[], $9::text[])
              AS s (assignment_id, team_id, device_id, mode, gpus_milli, memory_mib, slot_first, slot_end,
                  mig_profile)
         -- Their trigger locks devices: in one order, so that two commits never wait for each other.
         ORDER BY s.device_id, s.slot_first",
        &assignments as &[AssignmentId],
        &teams as &[TeamId],
        &devices as &[DeviceId],
        &modes as &[SharingMode],
        &gpus,
        &memory,
        &first,
        &end,
        &profiles as &[Option<String>],
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The first places of the live shares of these devices, by device.
pub async fn slots_taken(
    tx: &mut Tx,
    devices: &[DeviceId],
) -> Result<Vec<(DeviceId, i32)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT device_id AS "device_id: DeviceId", lower(slots) AS "slot!"
           FROM assignment_devices
           WHERE device_id = ANY ($1) AND live"#,
        devices as &[DeviceId],
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.device_id, row.slot))
        .collect())
}

/// The assignments of an attempt, by worker and id, locked. The caller holds the job's lock.
pub async fn lock_of_attempt(
    tx: &mut Tx,
    attempt: AttemptId,
) -> Result<Vec<Assignment>, sqlx::Error> {
    lock_of_attempts(tx, &[attempt]).await
}

/// The same of several attempts.
pub async fn lock_of_attempts(
    tx: &mut Tx,
    attempts: &[AttemptId],
) -> Result<Vec<Assignment>, sqlx::Error> {
    sqlx::query_as!(
        Assignment,
        r#"SELECT id AS "id: _", team_id AS "team_id: _", job_id AS "job_id: _", attempt_id AS "attempt_id: _",
                  node_id AS "node_id: _", worker, node_rank, phase AS "phase: _", exit_code, exit_signal, exit_asked, exited_at,
                  dismissed_at
           FROM assignments
           WHERE attempt_id = ANY ($1)
           ORDER BY job_id, worker, id
           FOR UPDATE"#,
        attempts as &[AttemptId],
    )
    .fetch_all(&mut **tx)
    .await
}

/// Where assignments belong: those of the given ids that exist.
pub async fn find(tx: &mut Tx, ids: &[AssignmentId]) -> Result<Vec<Assignment>, sqlx::Error> {
    sqlx::query_as!(
        Assignment,
        r#"SELECT id AS "id: _", team_id AS "team_id: _", job_id AS "job_id: _", attempt_id AS "attempt_id: _",
                  node_id AS "node_id: _", worker, node_rank, phase AS "phase: _", exit_code, exit_signal, exit_asked, exited_at,
                  dismissed_at
           FROM assignments
           WHERE id = ANY ($1)"#,
        ids as &[AssignmentId],
    )
    .fetch_all(&mut **tx)
    .await
}

/// The live assignments of a node, without a lock: who acts on them locks the job and looks again.
pub async fn live_on_node(tx: &mut Tx, node: NodeId) -> Result<Vec<Assignment>, sqlx::Error> {
    sqlx::query_as!(
        Assignment,
        r#"SELECT id AS "id: _", team_id AS "team_id: _", job_id AS "job_id: _", attempt_id AS "attempt_id: _",
                  node_id AS "node_id: _", worker, node_rank, phase AS "phase: _", exit_code, exit_signal, exit_asked, exited_at,
                  dismissed_at
           FROM assignments
           WHERE node_id = $1 AND phase NOT IN ('released', 'fenced')
           ORDER BY job_id, id"#,
        node as NodeId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The names of the nodes on which a job has workers in a phase.
pub async fn nodes_in_phase(
    tx: &mut Tx,
    job: JobId,
    phase: AssignmentPhase,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(
        "SELECT DISTINCT n.name
         FROM assignments AS a
         JOIN nodes AS n ON n.id = a.node_id
         WHERE a.job_id = $1 AND a.phase = $2
         ORDER BY n.name",
        job as JobId,
        phase as AssignmentPhase,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A step of an assignment that was seen in a phase, or what became known of it while it stays there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignmentStep {
    /// The assignment.
    pub id: AssignmentId,
    /// The phase that it was seen in.
    pub from: AssignmentPhase,
    /// The phase to go to; the same, where it stays.
    pub to: AssignmentPhase,
    /// When.
    pub at: Timestamp,
    /// The process that carries it; what was noted first stands.
    pub pid: Option<i64>,
    /// The image of its container; what was noted first stands.
    pub image_digest: Option<String>,
    /// How its process ended; what was noted first stands.
    pub exit: Option<Exit>,
}

/// Takes steps of different assignments that still stand where they were seen; those assignments.
pub async fn step(tx: &mut Tx, steps: &[AssignmentStep]) -> Result<Vec<AssignmentId>, sqlx::Error> {
    let exit = |step: &AssignmentStep| step.exit.clone().unwrap_or_default();
    let ids: Vec<AssignmentId> = steps.iter().map(|step| step.id).collect();
    let from: Vec<AssignmentPhase> = steps.iter().map(|step| step.from).collect();
    let to: Vec<AssignmentPhase> = steps.iter().map(|step| step.to).collect();
    let at: Vec<Timestamp> = steps.iter().map(|step| step.at).collect();
    let pids: Vec<Option<i64>> = steps.iter().map(|step| step.pid).collect();
    let images: Vec<Option<String>> = steps.iter().map(|step| step.image_digest.clone()).collect();
    let exits: Vec<bool> = steps.iter().map(|step| step.exit.is_some()).collect();
    let codes: Vec<Option<i32>> = steps.iter().map(|step| exit(step).code).collect();
    let signals: Vec<Option<i32>> = steps.iter().map(|step| exit(step).signal).collect();
    let asked: Vec<bool> = steps.iter().map(|step| exit(step).asked).collect();
    let messages: Vec<String> = steps.iter().map(|step| exit(step).message).collect();
    sqlx::query_scalar!(
        r#"UPDATE assignments AS a
           SET phase = v.to_phase,
               handed_over_at = CASE WHEN v.to_phase = 'handed_over' AND v.from_phase <> v.to_phase THEN v.at
                                     ELSE a.handed_over_at END,
               started_at = CASE WHEN v.to_phase = 'running' AND v.from_phase <> v.to_phase THEN v.at
                                 ELSE a.started_at END,
               pid = COALESCE(a.pid, v.pid),
               image_digest = COALESCE(a.image_digest, v.image_digest),
               exit_code = CASE WHEN v.exits AND a.exited_at IS NULL THEN v.exit_code ELSE a.exit_code END,
               exit_signal = CASE WHEN v.exits AND a.exited_at IS NULL THEN v.exit_signal ELSE a.exit_signal END,
               exit_asked = CASE WHEN v.exits AND a.exited_at IS NULL THEN v.exit_asked ELSE a.exit_asked END,
               exit_message = CASE WHEN v.exits AND a.exited_at IS NULL THEN v.exit_message ELSE a.exit_message END,
               exited_at = CASE WHEN v.exits OR v.to_phase IN ('cleaning', 'released') THEN COALESCE(a.exited_at, v.at)
                                ELSE a.exited_at END,
               ended_at = CASE WHEN v.to_phase IN ('released', 'fenced') THEN v.at END,
               version = a.version + 1
           FROM unnest($1::uuid[], $2::text[], $3::text[], $4::timestamptz[], $5::bigint[], $6::boolean[],
                       $7::integer[], $8::integer[], $9::boolean[], $10::text[], $11::text[])
                AS v (id, from_phase, to_phase, at, pid, exits, exit_code, exit_signal, exit_asked, exit_message,
                      image_digest)
           WHERE a.id = v.id AND a.phase = v.from_phase
           RETURNING a.id AS "id: AssignmentId""#,
        &ids as &[AssignmentId],
        &from as &[AssignmentPhase],
        &to as &[AssignmentPhase],
        &at,
        &pids as &[Option<i64>],
        &exits,
        &codes as &[Option<i32>],
        &signals as &[Option<i32>],
        &asked,
        &messages,
        &images as &[Option<String>],
    )
    .fetch_all(&mut **tx)
    .await
}

/// Notes that its node took an assignment that is being stopped; false when that was known.
pub async fn note_taken(
    tx: &mut Tx,
    id: AssignmentId,
    now: Timestamp,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE assignments SET handed_over_at = $2, version = version + 1
         WHERE id = $1 AND phase = 'stopping' AND handed_over_at IS NULL",
        id as AssignmentId,
        now,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Notes that a gang goes on without this worker, and by which rule.
pub async fn dismiss(
    tx: &mut Tx,
    id: AssignmentId,
    rule: &str,
    grace_ms: Option<i64>,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE assignments
         SET dismissed_at = $2, dismissal = $3, grace_ms = $4, version = version + 1
         WHERE id = $1 AND dismissed_at IS NULL",
        id as AssignmentId,
        now,
        rule,
        grace_ms,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// How often nodes have refused an attempt workers to grow by.
pub async fn growth_refusals(tx: &mut Tx, attempt: AttemptId) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT count(DISTINCT dismissed_at) AS "times!" FROM assignments
           WHERE attempt_id = $1 AND dismissal = 'start_refused'"#,
        attempt as AttemptId,
    )
    .fetch_one(&mut **tx)
    .await
}

/// A worker whose device has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// The worker.
    pub id: AssignmentId,
    /// When its device failed, the first of them.
    pub at: Timestamp,
}

/// Which of an attempt's workers hold a device that has failed.
pub async fn on_failed_devices(
    tx: &mut Tx,
    attempt: AttemptId,
) -> Result<Vec<Failed>, sqlx::Error> {
    sqlx::query_as!(
        Failed,
        r#"SELECT a.id AS "id: AssignmentId", min(COALESCE(d.failed_at, d.health_at)) AS "at!"
           FROM assignments AS a
           JOIN assignment_devices AS s ON s.assignment_id = a.id AND s.live
           JOIN devices AS d ON d.id = s.device_id
           WHERE a.attempt_id = $1 AND d.health = 'failed'
             AND a.phase IN ('granted', 'handed_over', 'running') AND a.dismissed_at IS NULL
           GROUP BY a.id"#,
        attempt as AttemptId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The live workers of an attempt that their nodes have taken, and that are charged.
pub async fn taken_of_attempt(
    tx: &mut Tx,
    attempt: AttemptId,
) -> Result<Vec<AssignmentId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT id AS "id: AssignmentId"
           FROM assignments
           WHERE attempt_id = $1 AND handed_over_at IS NOT NULL AND phase NOT IN ('released', 'fenced')
           ORDER BY id"#,
        attempt as AttemptId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Whether its node ever acknowledged an assignment.
pub async fn accepted(tx: &mut Tx, id: AssignmentId) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT handed_over_at IS NOT NULL AS "accepted!" FROM assignments WHERE id = $1"#,
        id as AssignmentId,
    )
    .fetch_one(&mut **tx)
    .await
}
