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

/// Writes a new assignment in phase `granted`.
pub async fn insert(tx: &mut Tx, new: &NewAssignment, now: Timestamp) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO assignments
            (id, team_id, job_id, attempt_id, node_id, worker, node_rank, cpus_milli, memory_mib, granted_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        new.id as AssignmentId,
        new.team_id as TeamId,
        new.job_id as JobId,
        new.attempt_id as AttemptId,
        new.node_id as NodeId,
        new.worker,
        new.node_rank,
        new.cpus_milli,
        new.memory_mib,
        now,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Writes what an assignment takes of a device; the constraints `one_live_holder` and
/// `share_fits` refuse what the device cannot bear.
pub async fn insert_share(
    tx: &mut Tx,
    team: TeamId,
    assignment: AssignmentId,
    share: &NewShare,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO assignment_devices (assignment_id, team_id, device_id, mode, gpus_milli, memory_mib, slots,
            mig_profile)
         VALUES ($1, $2, $3, $4, $5, $6, int4range($7, $8), $9)",
        assignment as AssignmentId,
        team as TeamId,
        share.device_id as DeviceId,
        share.mode as SharingMode,
        share.gpus_milli,
        share.memory_mib,
        share.slot_first,
        share.slot_end,
        share.mig_profile,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The first places of a device's live shares.
pub async fn slots_taken(tx: &mut Tx, device: DeviceId) -> Result<Vec<i32>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT lower(slots) AS "slot!" FROM assignment_devices WHERE device_id = $1 AND live"#,
        device as DeviceId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The assignments of an attempt, by worker, locked. The caller holds the job's lock.
pub async fn lock_of_attempt(
    tx: &mut Tx,
    attempt: AttemptId,
) -> Result<Vec<Assignment>, sqlx::Error> {
    sqlx::query_as!(
        Assignment,
        r#"SELECT id AS "id: _", team_id AS "team_id: _", job_id AS "job_id: _", attempt_id AS "attempt_id: _",
                  node_id AS "node_id: _", worker, node_rank, phase AS "phase: _", exit_code, exit_signal, exit_asked, exited_at,
                  dismissed_at
           FROM assignments
           WHERE attempt_id = $1
           ORDER BY worker
           FOR UPDATE"#,
        attempt as AttemptId,
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

/// Steps an assignment from `from` to `to`; false when it no longer stands at `from`.
pub async fn step(
    tx: &mut Tx,
    id: AssignmentId,
    from: AssignmentPhase,
    to: AssignmentPhase,
    now: Timestamp,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE assignments
         SET phase = $3,
             handed_over_at = CASE WHEN $3 = 'handed_over' THEN $4 ELSE handed_over_at END,
             started_at = CASE WHEN $3 = 'running' THEN $4 ELSE started_at END,
             exited_at = CASE WHEN $3 IN ('cleaning', 'released') THEN COALESCE(exited_at, $4) ELSE exited_at END,
             ended_at = CASE WHEN $3 IN ('released', 'fenced') THEN $4 END,
             version = version + 1
         WHERE id = $1 AND phase = $2",
        id as AssignmentId,
        from as AssignmentPhase,
        to as AssignmentPhase,
        now,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
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

/// Which of an attempt's workers hold a device that has failed.
pub async fn on_failed_devices(
    tx: &mut Tx,
    attempt: AttemptId,
) -> Result<Vec<AssignmentId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT DISTINCT a.id AS "id: AssignmentId"
           FROM assignments AS a
           JOIN assignment_devices AS s ON s.assignment_id = a.id AND s.live
           JOIN devices AS d ON d.id = s.device_id
           WHERE a.attempt_id = $1 AND d.health = 'failed'
             AND a.phase IN ('granted', 'handed_over', 'running') AND a.dismissed_at IS NULL"#,
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

/// Notes the process that carries an assignment.
pub async fn note_pid(tx: &mut Tx, id: AssignmentId, pid: i64) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE assignments SET pid = $2, version = version + 1 WHERE id = $1 AND pid IS NULL",
        id as AssignmentId,
        pid,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Notes how an assignment's process ended; the first report stands.
pub async fn note_exit(
    tx: &mut Tx,
    id: AssignmentId,
    exit: &Exit,
    now: Timestamp,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE assignments
         SET exit_code = $2, exit_signal = $3, exit_asked = $4, exit_message = $5, exited_at = $6, version = version + 1
         WHERE id = $1 AND exited_at IS NULL",
        id as AssignmentId,
        exit.code,
        exit.signal,
        exit.asked,
        exit.message,
        now,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Where a worker's log lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPlace {
    /// The assignment.
    pub id: AssignmentId,
    /// The attempt's number.
    pub attempt: i32,
    /// The node.
    pub node_id: NodeId,
    /// The node's name.
    pub node: String,
    /// Whether the node answers.
    pub ready: bool,
    /// Where the worker stands.
    pub phase: AssignmentPhase,
}

/// Which worker's log: of a rank of an attempt, where it was filled several times the one that filled it
/// so (the first is 1), else the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOf {
    /// The attempt's number.
    pub attempt: i32,
    /// The rank.
    pub worker: i32,
    /// Which filling of the rank.
    pub filling: Option<i32>,
}

/// Where the log of a worker lies.
pub async fn log_place(
    tx: &mut Tx,
    team: TeamId,
    job: JobId,
    of: LogOf,
) -> Result<Option<LogPlace>, sqlx::Error> {
    sqlx::query_as!(
        LogPlace,
        r#"SELECT f.id AS "id: _", f.number AS attempt, f.node_id AS "node_id: _", f.name AS node,
                  f.ready AS "ready!", f.phase AS "phase: _"
           FROM (SELECT a.id, t.number, a.node_id, n.name, n.reachability = 'ready' AS ready, a.phase,
                        row_number() OVER (ORDER BY a.granted_at, a.id) AS filling, count(*) OVER () AS fillings
                 FROM assignments AS a
                 JOIN attempts AS t ON t.id = a.attempt_id
                 JOIN nodes AS n ON n.id = a.node_id
                 WHERE a.team_id = $1 AND a.job_id = $2 AND t.number = $3 AND a.worker = $4) AS f
           WHERE f.filling = COALESCE($5::integer, f.fillings)"#,
        team as TeamId,
        job as JobId,
        of.attempt,
        of.worker,
        of.filling,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// A rank that was filled more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refilled {
    /// The attempt's number.
    pub attempt: i32,
    /// The rank.
    pub worker: i32,
    /// How often it was filled.
    pub fillings: i64,
}

/// The ranks of a job that were given up or lost, and filled anew; by attempt and rank.
pub async fn refilled(tx: &mut Tx, team: TeamId, job: JobId) -> Result<Vec<Refilled>, sqlx::Error> {
    sqlx::query_as!(
        Refilled,
        r#"SELECT t.number AS attempt, a.worker, count(*) AS "fillings!"
           FROM assignments AS a
           JOIN attempts AS t ON t.id = a.attempt_id
           WHERE a.team_id = $1 AND a.job_id = $2
           GROUP BY t.number, a.worker
           HAVING count(*) > 1
           ORDER BY t.number, a.worker"#,
        team as TeamId,
        job as JobId,
    )
    .fetch_all(&mut **tx)
    .await
}
