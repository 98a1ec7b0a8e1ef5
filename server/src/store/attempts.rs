//! Attempts: the runs of a job, of which at most one is live.

use domain::Timestamp;
use domain::ids::{AssignmentId, AttemptId, JobId, NodeId, TeamId};
use domain::state::{AssignmentPhase, AttemptEnd, AttemptState};

use super::Tx;

/// An attempt as stored.
#[derive(Debug, Clone)]
pub struct AttemptRow {
    /// Its id.
    pub id: AttemptId,
    /// Its team.
    pub team_id: TeamId,
    /// Its job.
    pub job_id: JobId,
    /// Its number within the job, from 1.
    pub number: i32,
    /// Where it stands.
    pub state: AttemptState,
    /// The end it had, or will have once it has been stopped.
    pub reason: Option<AttemptEnd>,
    /// The same in words.
    pub message: String,
    /// The exit code.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub exit_signal: Option<i32>,
    /// The node of rank 0.
    pub master_node_id: Option<NodeId>,
    /// Where its workers meet.
    pub master_port: Option<i32>,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: i64,
    /// When it was granted.
    pub created_at: Timestamp,
    /// When all its workers had started.
    pub started_at: Option<Timestamp>,
    /// When it was told to stop.
    pub stop_asked_at: Option<Timestamp>,
    /// When all its workers had left.
    pub ended_at: Option<Timestamp>,
    /// Rises with each change.
    pub version: i64,
}

/// The columns of an [`AttemptRow`], so that they are written once.
macro_rules! select_attempts {
    ($rest:tt $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            AttemptRow,
            r#"SELECT id AS "id: AttemptId", team_id AS "team_id: TeamId", job_id AS "job_id: JobId", number,
                      state AS "state: AttemptState", reason AS "reason: AttemptEnd", message, exit_code, exit_signal,
                      master_node_id AS "master_node_id: NodeId", master_port, grace_ms,
                      created_at, started_at, stop_asked_at, ended_at, version
               FROM attempts "# + $rest
            $(, $argument)*
        )
    };
}

/// A job's attempts, the first one first.
pub async fn of_job(
    tx: &mut Tx,
    team_id: TeamId,
    job_id: JobId,
) -> Result<Vec<AttemptRow>, sqlx::Error> {
    select_attempts!(
        "WHERE team_id = $1 AND job_id = $2 ORDER BY number",
        team_id as TeamId,
        job_id as JobId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The live attempt of a job, locked; the job's row must be locked before.
pub async fn lock_live(tx: &mut Tx, job_id: JobId) -> Result<Option<AttemptRow>, sqlx::Error> {
    Ok(lock_all_live(tx, &[job_id]).await?.pop())
}

/// The live attempts of these jobs, by job, locked; the jobs' rows must be locked before.
pub async fn lock_all_live(tx: &mut Tx, jobs: &[JobId]) -> Result<Vec<AttemptRow>, sqlx::Error> {
    select_attempts!(
        "WHERE job_id = ANY ($1) AND state <> 'ended' ORDER BY job_id FOR UPDATE",
        jobs as &[JobId]
    )
    .fetch_all(&mut **tx)
    .await
}

/// An attempt to be written.
#[derive(Debug, Clone, Copy)]
pub struct NewAttempt {
    /// Its id.
    pub id: AttemptId,
    /// Its team.
    pub team_id: TeamId,
    /// Its job.
    pub job_id: JobId,
    /// Its number within the job.
    pub number: i32,
    /// The node of rank 0.
    pub master_node_id: NodeId,
    /// Where its workers meet.
    pub master_port: i32,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: i64,
}

/// Writes attempts as `starting`.
pub async fn insert(tx: &mut Tx, new: &[NewAttempt]) -> Result<(), sqlx::Error> {
    let ids: Vec<AttemptId> = new.iter().map(|attempt| attempt.id).collect();
    let teams: Vec<TeamId> = new.iter().map(|attempt| attempt.team_id).collect();
    let jobs: Vec<JobId> = new.iter().map(|attempt| attempt.job_id).collect();
    let numbers: Vec<i32> = new.iter().map(|attempt| attempt.number).collect();
    let nodes: Vec<NodeId> = new.iter().map(|attempt| attempt.master_node_id).collect();
    let ports: Vec<i32> = new.iter().map(|attempt| attempt.master_port).collect();
    let graces: Vec<i64> = new.iter().map(|attempt| attempt.grace_ms).collect();
    sqlx::query!(
        "INSERT INTO attempts (id, team_id, job_id, number, master_node_id, master_port, grace_ms)
         SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::integer[], $5::uuid[], $6::integer[], $7::bigint[])",
        &ids as &[AttemptId],
        &teams as &[TeamId],
        &jobs as &[JobId],
        &numbers,
        &nodes as &[NodeId],
        &ports,
        &graces,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The rendezvous ports of live attempts whose rank 0 is on one of these nodes, by node.
pub async fn master_ports(
    tx: &mut Tx,
    nodes: &[NodeId],
) -> Result<Vec<(NodeId, i32)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT master_node_id AS "node_id!: NodeId", master_port AS "port!" FROM attempts
           WHERE master_node_id = ANY ($1) AND state <> 'ended' AND master_port IS NOT NULL"#,
        nodes as &[NodeId],
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.node_id, row.port))
        .collect())
}

/// A change of an attempt's state with all that belongs to it.
#[derive(Debug, Clone)]
pub struct AttemptStep {
    /// The state to go to.
    pub to: AttemptState,
    /// Its end, once that is known; a known end is kept.
    pub reason: Option<AttemptEnd>,
    /// The same in words.
    pub message: String,
    /// The exit code that decided it.
    pub exit_code: Option<i32>,
    /// The signal that decided it.
    pub exit_signal: Option<i32>,
    /// Another time between SIGTERM and SIGKILL.
    pub grace_ms: Option<i64>,
}

impl AttemptStep {
    /// A step without an end.
    pub fn to(to: AttemptState) -> Self {
        Self {
            to,
            reason: None,
            message: String::new(),
            exit_code: None,
            exit_signal: None,
            grace_ms: None,
        }
    }

    /// The same with the attempt's end, as a word and as a sentence.
    #[must_use]
    pub fn because(mut self, end: AttemptEnd, message: impl Into<String>) -> Self {
        self.reason = Some(end);
        self.message = message.into();
        self
    }
}

/// A step of an attempt that was seen in a state.
#[derive(Debug, Clone)]
pub struct StepFrom {
    /// The attempt.
    pub id: AttemptId,
    /// The state that it was seen in.
    pub from: AttemptState,
    /// The step.
    pub step: AttemptStep,
}

/// Takes steps of different attempts that still stand where they were seen; those attempts. An end
/// that was recorded earlier is kept: what stopped the attempt first is why it ended.
pub async fn step(tx: &mut Tx, steps: &[StepFrom]) -> Result<Vec<AttemptId>, sqlx::Error> {
    let ids: Vec<AttemptId> = steps.iter().map(|s| s.id).collect();
    let from: Vec<AttemptState> = steps.iter().map(|s| s.from).collect();
    let to: Vec<AttemptState> = steps.iter().map(|s| s.step.to).collect();
    let reasons: Vec<Option<AttemptEnd>> = steps.iter().map(|s| s.step.reason).collect();
    let messages: Vec<String> = steps.iter().map(|s| s.step.message.clone()).collect();
    let codes: Vec<Option<i32>> = steps.iter().map(|s| s.step.exit_code).collect();
    let signals: Vec<Option<i32>> = steps.iter().map(|s| s.step.exit_signal).collect();
    let graces: Vec<Option<i64>> = steps.iter().map(|s| s.step.grace_ms).collect();
    sqlx::query_scalar!(
        r#"UPDATE attempts AS a
           SET state = v.to_state,
               message = CASE WHEN a.reason IS NULL THEN v.message ELSE a.message END,
               exit_code = CASE WHEN a.reason IS NULL THEN v.exit_code ELSE a.exit_code END,
               exit_signal = CASE WHEN a.reason IS NULL THEN v.exit_signal ELSE a.exit_signal END,
               reason = COALESCE(a.reason, v.reason),
               grace_ms = COALESCE(v.grace_ms, a.grace_ms),
               started_at = CASE WHEN v.to_state = 'running' THEN allotment.clock() ELSE a.started_at END,
               stop_asked_at = CASE WHEN v.to_state = 'stopping' THEN allotment.clock() ELSE a.stop_asked_at END,
               ended_at = CASE WHEN v.to_state = 'ended' THEN allotment.clock() END,
               version = a.version + 1
           FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::integer[],
                       $8::bigint[])
                AS v (id, from_state, to_state, reason, message, exit_code, exit_signal, grace_ms)
           WHERE a.id = v.id AND a.state = v.from_state
           RETURNING a.id AS "id: AttemptId""#,
        &ids as &[AttemptId],
        &from as &[AttemptState],
        &to as &[AttemptState],
        &reasons as &[Option<AttemptEnd>],
        &messages,
        &codes as &[Option<i32>],
        &signals as &[Option<i32>],
        &graces as &[Option<i64>],
    )
    .fetch_all(&mut **tx)
    .await
}

/// Notes where the workers of an attempt meet, where rank 0 was filled anew.
pub async fn move_master(
    tx: &mut Tx,
    id: AttemptId,
    node: NodeId,
    port: i32,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE attempts SET master_node_id = $2, master_port = $3, version = version + 1
         WHERE id = $1 AND state = 'running'",
        id as AttemptId,
        node as NodeId,
        port,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Keeps a running attempt's gang from growing until then.
pub async fn hold_growth(tx: &mut Tx, id: AttemptId, until: Timestamp) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE attempts SET grow_after = $2, version = version + 1 WHERE id = $1 AND state = 'running'",
        id as AttemptId,
        until,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A worker that was told to stop.
#[derive(Debug, Clone, Copy)]
pub struct StoppedWorker {
    /// Its assignment.
    pub id: AssignmentId,
    /// Its number in the gang.
    pub worker: i32,
    /// Its node.
    pub node_id: NodeId,
    /// Where it stood.
    pub phase: AssignmentPhase,
}

/// Tells every worker of an attempt that has not ended to stop, in the order of their ids.
pub async fn stop_workers(tx: &mut Tx, id: AttemptId) -> Result<Vec<StoppedWorker>, sqlx::Error> {
    sqlx::query_as!(
        StoppedWorker,
        r#"WITH before AS (
               SELECT id, phase FROM assignments
               WHERE attempt_id = $1 AND phase IN ('granted', 'handed_over', 'running')
               ORDER BY id
               FOR UPDATE)
           UPDATE assignments AS a
           SET phase = 'stopping', version = a.version + 1
           FROM before
           WHERE a.id = before.id
           RETURNING a.id AS "id: AssignmentId", a.worker, a.node_id AS "node_id: NodeId", before.phase AS "phase: AssignmentPhase""#,
        id as AttemptId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Forgets the end that a stop had recorded, since the work was done before it arrived.
pub async fn amend_as_done(tx: &mut Tx, id: AttemptId) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE attempts SET reason = NULL, message = '', version = version + 1
         WHERE id = $1 AND state = 'stopping'",
        id as AttemptId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Most jobs that a reconciler takes up at a time; the rest come in its next round.
const DUE_MAX: i64 = 256;

/// Jobs whose running attempt has reached its time limit. One whose limit is no number, in a
/// spec that something else wrote, has none here: it must not keep the others from theirs.
pub async fn over_time(tx: &mut Tx) -> Result<Vec<JobId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT j.id AS "id: JobId"
           FROM attempts AS t
           JOIN jobs AS j ON j.id = t.job_id
           LEFT JOIN arrays AS r ON r.id = j.array_id
           CROSS JOIN LATERAL (SELECT COALESCE(j.spec, r.spec) ->> 'time_limit_seconds' AS seconds) AS most
           WHERE t.state = 'running'
             AND t.started_at + CASE WHEN most.seconds ~ '^[0-9]{1,12}$'
                                     THEN most.seconds::bigint END * interval '1 second'
                 <= allotment.clock()
           ORDER BY j.id
           LIMIT $1"#,
        DUE_MAX,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Jobs with an attempt that some node has not acknowledged within the start window.
pub async fn not_taken(tx: &mut Tx, window_ms: i64) -> Result<Vec<JobId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT t.job_id AS "id: JobId"
           FROM attempts AS t
           WHERE t.state = 'starting'
             AND t.created_at + $1::bigint * interval '1 millisecond' <= allotment.clock()
             AND EXISTS (SELECT FROM assignments AS a WHERE a.attempt_id = t.id AND a.phase = 'granted')
           ORDER BY t.job_id
           LIMIT $2"#,
        window_ms,
        DUE_MAX,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Jobs that run and have a worker to grow by which its node has not acknowledged within the
/// start window.
pub async fn growth_not_taken(tx: &mut Tx, window_ms: i64) -> Result<Vec<JobId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT DISTINCT a.job_id AS "id: JobId"
           FROM assignments AS a
           JOIN attempts AS t ON t.id = a.attempt_id
           WHERE a.phase = 'granted' AND t.state = 'running'
             AND a.granted_at + $1::bigint * interval '1 millisecond' <= allotment.clock()
           ORDER BY 1
           LIMIT $2"#,
        window_ms,
        DUE_MAX,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A job that must leave a place, and what that place is called.
#[derive(Debug, Clone)]
pub struct Leaving {
    /// The job.
    pub job_id: JobId,
    /// The node.
    pub node_id: NodeId,
    /// The node's name.
    pub node: String,
    /// What of it is meant, in words.
    pub what: String,
}

/// Jobs whose running attempt holds a device that has failed.
pub async fn on_failed_devices(tx: &mut Tx) -> Result<Vec<Leaving>, sqlx::Error> {
    sqlx::query_as!(
        Leaving,
        r#"SELECT DISTINCT ON (a.job_id) a.job_id AS "job_id: JobId", n.id AS "node_id: NodeId", n.name AS node,
                  d.uuid || ' of ' || n.name || ' failed: ' || d.health_reason AS "what!"
           FROM devices AS d
           JOIN assignment_devices AS s ON s.device_id = d.id AND s.live
           JOIN assignments AS a ON a.id = s.assignment_id
           JOIN attempts AS t ON t.id = a.attempt_id
           JOIN nodes AS n ON n.id = d.node_id
           WHERE d.health = 'failed' AND t.state IN ('starting', 'running')
             AND a.phase IN ('granted', 'handed_over', 'running')
           ORDER BY a.job_id, d.uuid
           LIMIT $1"#,
        DUE_MAX,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Jobs with workers on lost nodes that need not wait for them: work that stops when it is cut
/// off, and what was cancelled and will never run again. Kept work that is being stopped for
/// any other reason may still run there, and would be placed a second time.
pub async fn on_lost_nodes(tx: &mut Tx) -> Result<Vec<Leaving>, sqlx::Error> {
    sqlx::query_as!(
        Leaving,
        r#"SELECT DISTINCT a.job_id AS "job_id: JobId", n.id AS "node_id: NodeId", n.name AS node, '' AS "what!"
           FROM nodes AS n
           JOIN assignments AS a ON a.node_id = n.id AND a.phase NOT IN ('released', 'fenced')
           JOIN attempts AS t ON t.id = a.attempt_id
           JOIN jobs AS j ON j.id = a.job_id
           LEFT JOIN arrays AS r ON r.id = j.array_id
           WHERE n.reachability = 'lost'
             AND ((COALESCE(j.spec, r.spec) ->> 'on_partition') IS DISTINCT FROM 'keep'
                  OR (t.state = 'stopping' AND t.reason = 'cancelled'))
           ORDER BY 1, 2
           LIMIT $1"#,
        DUE_MAX,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Work that must leave a node that is being emptied.
#[derive(Debug, Clone)]
pub struct Drained {
    /// The job.
    pub job_id: JobId,
    /// The node's name.
    pub node: String,
    /// The moment by which the node was to be empty; without one only what may be preempted leaves.
    pub deadline_at: Option<Timestamp>,
}

/// Jobs with workers on nodes that are being emptied, of all or one of them: those that may be
/// preempted, and all of them where the deadline has passed, but none before it.
pub async fn on_draining_nodes(
    tx: &mut Tx,
    job: Option<JobId>,
) -> Result<Vec<Drained>, sqlx::Error> {
    sqlx::query_as!(
        Drained,
        r#"SELECT DISTINCT ON (a.job_id) a.job_id AS "job_id: JobId", n.name AS node, n.drain_deadline_at AS deadline_at
           FROM nodes AS n
           JOIN assignments AS a ON a.node_id = n.id AND a.phase IN ('granted', 'handed_over', 'running')
           JOIN attempts AS t ON t.id = a.attempt_id
           JOIN jobs AS j ON j.id = a.job_id
           LEFT JOIN arrays AS r ON r.id = j.array_id
           JOIN classes AS c ON c.name = j.class
           WHERE n.intent = 'draining' AND t.state IN ('starting', 'running') AND ($2::uuid IS NULL OR a.job_id = $2)
             AND CASE WHEN n.drain_deadline_at IS NOT NULL THEN n.drain_deadline_at <= allotment.clock()
                      ELSE CASE COALESCE(j.spec, r.spec) ->> 'preemptible'
                           WHEN 'true' THEN true WHEN 'false' THEN false ELSE c.preemptible END END
           ORDER BY a.job_id, n.drain_deadline_at NULLS LAST, n.name
           LIMIT $1"#,
        DUE_MAX,
        job as Option<JobId>,
    )
    .fetch_all(&mut **tx)
    .await
}
