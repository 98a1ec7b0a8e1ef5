//! The world as the scheduler reads it: the present rows of everything that a plan depends on.
//!
//! Each function takes the ids that it is to read, or nothing for all, so that a full load
//! and an update by changes are the same code.

use domain::Timestamp;
use domain::budget::BudgetStop;
use domain::ids::{AssignmentId, AttemptId, DeviceId, JobId, NodeId, TeamId, UserId};
use domain::sharing::SharingMode;
use domain::state::{
    AssignmentPhase, AttemptState, DeviceHealth, JobState, NodeIntent, Reachability,
};
use serde_json::Value;

use super::Tx;
use super::quotas::Amounts;

/// Makes the transaction read one snapshot throughout; to be called before anything is read.
pub async fn one_snapshot(tx: &mut Tx) -> Result<(), sqlx::Error> {
    sqlx::query!("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRow {
    /// Its name.
    pub name: String,
    /// Its policy, as the scenario format writes it.
    pub policy: Value,
    /// Rises with each change.
    pub version: i64,
}

/// All pools, by name.
pub async fn pools(tx: &mut Tx) -> Result<Vec<PoolRow>, sqlx::Error> {
    sqlx::query_as!(
        PoolRow,
        "SELECT name, policy, version FROM pools ORDER BY name"
    )
    .fetch_all(&mut **tx)
    .await
}

/// A priority class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassRow {
    /// Its name.
    pub name: String,
    /// Higher goes first.
    pub priority: i32,
    /// Whether its work may be preempted.
    pub preemptible: bool,
}

/// All classes, by name.
pub async fn classes(tx: &mut Tx) -> Result<Vec<ClassRow>, sqlx::Error> {
    sqlx::query_as!(
        ClassRow,
        "SELECT name, priority, preemptible FROM classes ORDER BY name"
    )
    .fetch_all(&mut **tx)
    .await
}

/// A team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TeamRow {
    /// Its id.
    pub id: TeamId,
    /// Its name.
    pub name: String,
    /// The name of the team above it.
    pub parent: Option<String>,
    /// What budgets of its own stop.
    pub stopped: BudgetStop,
}

/// All teams, by name.
pub async fn teams(tx: &mut Tx) -> Result<Vec<TeamRow>, sqlx::Error> {
    sqlx::query_as!(
        TeamRow,
        r#"SELECT t.id AS "id: TeamId", t.name, p.name AS "parent?",
                  CASE WHEN EXISTS (SELECT FROM budgets AS b WHERE b.team_id = t.id AND b.stopped = 'all') THEN 'all'
                       WHEN EXISTS (SELECT FROM budgets AS b WHERE b.team_id = t.id AND b.stopped = 'borrowing') THEN 'borrowing'
                       ELSE 'none' END AS "stopped!: BudgetStop"
           FROM teams AS t
           LEFT JOIN teams AS p ON p.id = t.parent_id
           ORDER BY t.name"#
    )
    .fetch_all(&mut **tx)
    .await
}

/// A team's quota in one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaRow {
    /// The team's name.
    pub team: String,
    /// The pool's name.
    pub pool: String,
    /// What it can always have.
    pub guaranteed_milli: i64,
    /// The most that it may hold.
    pub limit_milli: Option<i64>,
    /// The most that others may use of what it leaves idle.
    pub lend_limit_milli: Option<i64>,
    /// Its claim on spare capacity.
    pub weight_milli: i64,
    /// The most that one of its users may hold.
    pub max_per_user_milli: Option<i64>,
    /// Rises with each change.
    pub version: i64,
}

impl QuotaRow {
    /// Its amounts.
    pub fn amounts(&self) -> Amounts {
        Amounts {
            guaranteed_milli: self.guaranteed_milli,
            limit_milli: self.limit_milli,
            lend_limit_milli: self.lend_limit_milli,
            weight_milli: self.weight_milli,
            max_per_user_milli: self.max_per_user_milli,
        }
    }
}

/// All quotas, by team and pool.
pub async fn quotas(tx: &mut Tx) -> Result<Vec<QuotaRow>, sqlx::Error> {
    sqlx::query_as!(
        QuotaRow,
        "SELECT t.name AS team, p.name AS pool, q.guaranteed_milli, q.limit_milli, q.lend_limit_milli,
                q.weight_milli, q.max_per_user_milli, q.version
         FROM quotas AS q
         JOIN teams AS t ON t.id = q.team_id
         JOIN pools AS p ON p.id = q.pool_id
         ORDER BY t.name, p.name"
    )
    .fetch_all(&mut **tx)
    .await
}

/// The quotas of these teams, locked against change until the transaction ends.
pub async fn share_quotas(tx: &mut Tx, teams: &[String]) -> Result<Vec<QuotaRow>, sqlx::Error> {
    sqlx::query_as!(
        QuotaRow,
        "SELECT t.name AS team, p.name AS pool, q.guaranteed_milli, q.limit_milli, q.lend_limit_milli,
                q.weight_milli, q.max_per_user_milli, q.version
         FROM quotas AS q
         JOIN teams AS t ON t.id = q.team_id
         JOIN pools AS p ON p.id = q.pool_id
         WHERE t.name = ANY ($1)
         ORDER BY t.name, p.name
         FOR SHARE OF q",
        teams,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A node that is not retired, or still holds work.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRow {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Its pool's name.
    pub pool: String,
    /// What people want of it.
    pub intent: NodeIntent,
    /// Until when running work may stay while it is being emptied.
    pub drain_deadline_at: Option<Timestamp>,
    /// Whether its heartbeats arrive.
    pub reachability: Reachability,
    /// Cores.
    pub cpus_milli: i64,
    /// Memory.
    pub memory_mib: i64,
    /// Whether its disk is full.
    pub disk_full: bool,
    /// Whether its devices stay cut as they are.
    pub mig_static: bool,
    /// Sharing modes that its agent can drive.
    pub sharing: Vec<String>,
    /// Whether it lets several teams share a device by MPS where its pool does.
    pub mps_across_teams: bool,
    /// Runners that its agent can drive.
    pub runners: Vec<String>,
    /// Folders below which jobs may work.
    pub work_roots: Vec<String>,
    /// Whether checkpoints written there can be read elsewhere.
    pub checkpoints_shared: bool,
    /// Its labels, an object of texts.
    pub labels: Value,
    /// Its NVLink cliques, lists of device indices.
    pub nvlink: Value,
    /// Its NUMA nodes, lists of device indices.
    pub numa: Value,
}

/// Nodes, by id.
pub async fn nodes(tx: &mut Tx, ids: Option<&[NodeId]>) -> Result<Vec<NodeRow>, sqlx::Error> {
    sqlx::query_as!(
        NodeRow,
        r#"SELECT n.id AS "id: NodeId", n.name, p.name AS pool, n.intent AS "intent: NodeIntent", n.drain_deadline_at,
                  n.reachability AS "reachability: Reachability", n.cpus_milli, n.memory_mib,
                  n.disk_free_mib IS NOT NULL AS "disk_full!", n.mig_static, n.sharing, n.mps_across_teams, n.runners,
                  n.work_roots, n.checkpoints_shared, n.labels, n.nvlink, n.numa
           FROM nodes AS n
           JOIN pools AS p ON p.id = n.pool_id
           WHERE ($1::uuid[] IS NULL OR n.id = ANY ($1))
             AND (n.intent <> 'retired' OR EXISTS (
                 SELECT FROM assignments AS a
                 WHERE a.node_id = n.id AND a.phase NOT IN ('released', 'fenced')))
           ORDER BY n.id"#,
        ids as Option<&[NodeId]>,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRow {
    /// Its id.
    pub id: DeviceId,
    /// Its node.
    pub node_id: NodeId,
    /// Its place on the node.
    pub index: i32,
    /// Its model.
    pub model: String,
    /// Its memory.
    pub memory_mib: i64,
    /// How it does.
    pub health: DeviceHealth,
    /// Its instances, while it is in MIG mode.
    pub mig: Option<Value>,
    /// How its node is about to cut it by a layout, until it has.
    pub layout: Option<Value>,
}

/// The devices of nodes, by node and index; of several that had the same index, the healthy and
/// then the younger one comes first.
pub async fn devices(tx: &mut Tx, nodes: Option<&[NodeId]>) -> Result<Vec<DeviceRow>, sqlx::Error> {
    sqlx::query_as!(
        DeviceRow,
        r#"SELECT id AS "id: DeviceId", node_id AS "node_id: NodeId", index, model, memory_mib,
                  health AS "health: DeviceHealth", mig, layout
           FROM devices
           WHERE ($1::uuid[] IS NULL OR node_id = ANY ($1))
           ORDER BY node_id, index, health <> 'healthy', first_seen_at DESC, id"#,
        nodes as Option<&[NodeId]>,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A job that has not ended.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveJob {
    /// Its id.
    pub id: JobId,
    /// Its team's name.
    pub team: String,
    /// Who submitted it.
    pub user_id: UserId,
    /// Its spec as stored.
    pub spec: Value,
    /// Where it stands.
    pub state: JobState,
    /// Not placed before.
    pub not_before: Option<Timestamp>,
    /// Room that is kept for it.
    pub nominated: Option<Value>,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// Attempts that it had.
    pub attempt: i32,
    /// The exit code of the last of them, while nothing else was done with it.
    pub exit_code: Option<i32>,
    /// The signal that ended it, likewise.
    pub exit_signal: Option<i32>,
    /// Rises with each change.
    pub version: i64,
}

/// Jobs that have not ended, by id.
pub async fn jobs(tx: &mut Tx, ids: Option<&[JobId]>) -> Result<Vec<LiveJob>, sqlx::Error> {
    sqlx::query_as!(
        LiveJob,
        r#"SELECT j.id AS "id: JobId", t.name AS team, j.user_id AS "user_id: UserId",
                  COALESCE(j.spec, r.spec) AS "spec!",
                  j.state AS "state: JobState", j.not_before, j.nominated, j.created_at,
                  j.attempt, j.exit_code, j.exit_signal, j.version
           FROM jobs AS j
           JOIN teams AS t ON t.id = j.team_id
           LEFT JOIN arrays AS r ON r.id = j.array_id
           WHERE j.state NOT IN ('succeeded', 'failed', 'cancelled')
             AND ($1::uuid[] IS NULL OR j.id = ANY ($1))
           ORDER BY j.id"#,
        ids as Option<&[JobId]>,
    )
    .fetch_all(&mut **tx)
    .await
}

/// An attempt that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveAttempt {
    /// Its id.
    pub id: AttemptId,
    /// Its job.
    pub job_id: JobId,
    /// Where it stands.
    pub state: AttemptState,
    /// When it was granted.
    pub created_at: Timestamp,
    /// When it began to run.
    pub started_at: Option<Timestamp>,
    /// When it was told to stop.
    pub stop_asked_at: Option<Timestamp>,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: i64,
    /// Whether its gang may grow: no worker has ended by itself, and none that was given up is
    /// still there.
    pub grows: bool,
    /// It is not grown before this, since a node refused a worker to grow by.
    pub grow_after: Option<Timestamp>,
}

/// Attempts that have not ended, by job.
pub async fn attempts(
    tx: &mut Tx,
    jobs: Option<&[JobId]>,
) -> Result<Vec<LiveAttempt>, sqlx::Error> {
    sqlx::query_as!(
        LiveAttempt,
        r#"SELECT id AS "id: AttemptId", job_id AS "job_id: JobId", state AS "state: AttemptState",
                  created_at, started_at, stop_asked_at, grace_ms,
                  NOT EXISTS (
                      SELECT FROM assignments AS a
                      WHERE a.attempt_id = attempts.id
                        AND CASE WHEN a.dismissed_at IS NULL THEN a.exited_at IS NOT NULL
                                 ELSE a.phase NOT IN ('released', 'fenced') END) AS "grows!",
                  grow_after
           FROM attempts
           WHERE state <> 'ended' AND ($1::uuid[] IS NULL OR job_id = ANY ($1))
           ORDER BY job_id"#,
        jobs as Option<&[JobId]>,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A worker that holds its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveAssignment {
    /// Its id.
    pub id: AssignmentId,
    /// Its job.
    pub job_id: JobId,
    /// Its rank.
    pub worker: i32,
    /// Its node.
    pub node_id: NodeId,
    /// Where it stands.
    pub phase: AssignmentPhase,
    /// When its gang was told to go on without it, if it was.
    pub dismissed_at: Option<Timestamp>,
    /// Between SIGTERM and SIGKILL, where it is not its attempt's.
    pub grace_ms: Option<i64>,
}

/// Workers that hold their places, by job and rank.
pub async fn assignments(
    tx: &mut Tx,
    jobs: Option<&[JobId]>,
) -> Result<Vec<LiveAssignment>, sqlx::Error> {
    sqlx::query_as!(
        LiveAssignment,
        r#"SELECT id AS "id: AssignmentId", job_id AS "job_id: JobId", worker, node_id AS "node_id: NodeId",
                  phase AS "phase: AssignmentPhase", dismissed_at, grace_ms
           FROM assignments
           WHERE phase NOT IN ('released', 'fenced') AND ($1::uuid[] IS NULL OR job_id = ANY ($1))
           ORDER BY job_id, worker"#,
        jobs as Option<&[JobId]>,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A share of a device that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveShare {
    /// The worker.
    pub assignment_id: AssignmentId,
    /// The device.
    pub device_id: DeviceId,
    /// The device's place on its node.
    pub index: i32,
    /// The mode.
    pub mode: SharingMode,
    /// How much of it.
    pub gpus_milli: i32,
    /// How much of its memory.
    pub memory_mib: i64,
    /// The profile of an instance.
    pub mig_profile: Option<String>,
    /// The first place that it takes: an instance's first memory slice.
    pub slot: i32,
}

/// Shares that are held, by worker and device.
pub async fn shares(tx: &mut Tx, jobs: Option<&[JobId]>) -> Result<Vec<LiveShare>, sqlx::Error> {
    sqlx::query_as!(
        LiveShare,
        r#"SELECT s.assignment_id AS "assignment_id: AssignmentId", s.device_id AS "device_id: DeviceId",
                  d.index, s.mode AS "mode: SharingMode",
                  s.gpus_milli, s.memory_mib, s.mig_profile, lower(s.slots) AS "slot!"
           FROM assignment_devices AS s
           JOIN assignments AS a ON a.id = s.assignment_id
           JOIN devices AS d ON d.id = s.device_id
           WHERE s.live AND ($1::uuid[] IS NULL OR a.job_id = ANY ($1))
           ORDER BY s.assignment_id, d.index, s.slots"#,
        jobs as Option<&[JobId]>,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What a node is at the moment when a plan is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeFound {
    /// The node.
    pub id: NodeId,
    /// What people want of it.
    pub intent: NodeIntent,
    /// Whether its heartbeats arrive.
    pub reachability: Reachability,
}

/// The two facts of nodes, which stay until the transaction ends: who changes one of them has
/// locked the row for update, and waits. Heartbeats lock less, and do not wait.
pub async fn hold_nodes(tx: &mut Tx, ids: &[NodeId]) -> Result<Vec<NodeFound>, sqlx::Error> {
    sqlx::query_as!(
        NodeFound,
        r#"SELECT id AS "id: NodeId", intent AS "intent: NodeIntent", reachability AS "reachability: Reachability"
           FROM nodes
           WHERE id = ANY ($1)
           ORDER BY id
           FOR KEY SHARE"#,
        ids as &[NodeId],
    )
    .fetch_all(&mut **tx)
    .await
}
