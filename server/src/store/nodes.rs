//! Nodes: what each machine is, what people want of it, and whether it answers.

use std::collections::BTreeMap;

use domain::Timestamp;
use domain::ids::{EnrolmentId, IncarnationId, NodeId, PoolId, ReplicaId};
use domain::sharing::SharingMode;
use domain::spec::Runner;
use domain::state::{NodeIntent, Reachability};
use domain::wall::Wall;
use serde_json::Value;
use sqlx::types::Json;

use super::Tx;

mod voice;

pub use voice::{
    KnownFacts, Voice, advance_facts, begin_connection, enrol_anew, heard_before_life, note_boot,
    voice,
};

/// A node as it is shown.
#[derive(Debug, Clone)]
pub struct NodeRow {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool_id: PoolId,
    /// The pool's name.
    pub pool: String,
    /// What people want of it.
    pub intent: NodeIntent,
    /// Why.
    pub intent_reason: String,
    /// Until when running work may stay on it while it is being emptied.
    pub drain_deadline_at: Option<Timestamp>,
    /// Whether it answers.
    pub reachability: Reachability,
    /// The last time that it did.
    pub last_heartbeat_at: Option<Timestamp>,
    /// Until when it may run what it holds.
    pub lease_until: Option<Timestamp>,
    /// Its agent's version.
    pub agent_version: String,
    /// Where other workers reach it.
    pub address: String,
    /// Its driver's version.
    pub driver_version: String,
    /// CPU, in thousandths of a core.
    pub cpus_milli: i64,
    /// Memory of the host.
    pub memory_mib: i64,
    /// The sharing modes that its agent can drive.
    pub sharing: Vec<SharingMode>,
    /// Whether it lets several teams share a device by MPS where its pool does.
    pub mps_across_teams: bool,
    /// The runners that its agent can drive.
    pub runners: Vec<Runner>,
    /// How CPU and memory limits are enforced.
    pub cgroup: String,
    /// Whether jobs run as their team's own user.
    pub isolated: bool,
    /// Whether checkpoints lie on storage that all nodes share.
    pub checkpoints_shared: bool,
    /// Whether its devices stay cut as they are.
    pub mig_static: bool,
    /// What was free on its disk when it was found to be full.
    pub disk_free_mib: Option<i64>,
    /// What a job needs there to start.
    pub disk_needed_mib: Option<i64>,
    /// Since when its disk is full or has room.
    pub disk_at: Timestamp,
    /// Sentences for its page.
    pub warnings: Vec<String>,
    /// The walls between jobs that it lacks.
    pub lacks: Vec<Wall>,
    /// By how much its clock is ahead of the servers', where it is wrong.
    pub clock_ahead_ms: Option<i64>,
    /// Labels, a flat object of texts.
    pub labels: Value,
    /// When it first joined.
    pub enrolled_at: Timestamp,
    /// Rises with each change but a heartbeat.
    pub version: i64,
}

/// The columns of a [`NodeRow`], so that they are written once.
macro_rules! select_nodes {
    ($rest:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            NodeRow,
            r#"SELECT n.id AS "id: NodeId", n.name, n.pool_id AS "pool_id: PoolId", p.name AS pool,
                      n.intent AS "intent: NodeIntent", n.intent_reason, n.drain_deadline_at, n.reachability AS "reachability: Reachability",
                      n.last_heartbeat_at, n.lease_until, n.agent_version, n.address, n.driver_version,
                      n.cpus_milli, n.memory_mib, n.sharing AS "sharing: Vec<SharingMode>", n.mps_across_teams,
                      n.runners AS "runners: Vec<Runner>", n.cgroup, n.isolated, n.checkpoints_shared,
                      n.mig_static, n.disk_free_mib, n.disk_needed_mib, n.disk_at,
                      n.warnings, n.lacks AS "lacks: Vec<Wall>", n.clock_ahead_ms, n.labels, n.enrolled_at, n.version
               FROM nodes AS n
               JOIN pools AS p ON p.id = n.pool_id "# + $rest
            $(, $argument)*
        )
    };
}

/// Which nodes a list shows.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Of this pool only.
    pub pool_id: Option<PoolId>,
    /// Also those that are gone for good.
    pub retired: bool,
    /// After the node at which the page before ended, by name.
    pub after: Option<String>,
}

/// A page of nodes, by name.
pub async fn list(tx: &mut Tx, filter: &Filter, limit: i64) -> Result<Vec<NodeRow>, sqlx::Error> {
    select_nodes!(
        "WHERE ($1::uuid IS NULL OR n.pool_id = $1)
           AND ($2 OR n.intent <> 'retired')
           AND ($3::text IS NULL OR n.name > $3)
         ORDER BY n.name
         LIMIT $4",
        filter.pool_id as Option<PoolId>,
        filter.retired,
        filter.after.as_deref(),
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The node of that name.
pub async fn find_by_name(tx: &mut Tx, name: &str) -> Result<Option<NodeRow>, sqlx::Error> {
    select_nodes!("WHERE n.name = $1", name)
        .fetch_optional(&mut **tx)
        .await
}

/// The same, locked.
pub async fn lock_by_name(tx: &mut Tx, name: &str) -> Result<Option<NodeRow>, sqlx::Error> {
    select_nodes!("WHERE n.name = $1 FOR UPDATE OF n", name)
        .fetch_optional(&mut **tx)
        .await
}

/// The node of that id, locked.
pub async fn lock(tx: &mut Tx, id: NodeId) -> Result<Option<NodeRow>, sqlx::Error> {
    select_nodes!("WHERE n.id = $1 FOR UPDATE OF n", id as NodeId)
        .fetch_optional(&mut **tx)
        .await
}

/// Writes a node that has just enrolled; false when the name is taken.
pub async fn insert(
    tx: &mut Tx,
    id: NodeId,
    name: &str,
    pool: PoolId,
    enrolment: EnrolmentId,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "INSERT INTO nodes (id, name, pool_id, enrolment_id) VALUES ($1, $2, $3, $4)
         ON CONFLICT ON CONSTRAINT node_name_taken DO NOTHING",
        id as NodeId,
        name,
        pool as PoolId,
        enrolment as EnrolmentId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// What a node says it is.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its driver's version.
    pub driver_version: String,
    /// CPU, in thousandths of a core.
    pub cpus_milli: i64,
    /// Memory of the host.
    pub memory_mib: i64,
    /// Where other workers reach it.
    pub address: String,
    /// The sharing modes that its agent can drive.
    pub sharing: Vec<SharingMode>,
    /// Whether it lets several teams share a device by MPS where its pool does.
    pub mps_across_teams: bool,
    /// The runners that its agent can drive.
    pub runners: Vec<Runner>,
    /// How CPU and memory limits are enforced.
    pub cgroup: String,
    /// Whether jobs run as their team's own user.
    pub isolated: bool,
    /// Folders below which jobs may work, absolute.
    pub work_roots: Vec<String>,
    /// Whether checkpoints lie on storage that all nodes share.
    pub checkpoints_shared: bool,
    /// Sentences for its page.
    pub warnings: Vec<String>,
    /// Groups of device indices that are linked.
    pub nvlink: Value,
    /// Groups of device indices by NUMA node.
    pub numa: Value,
    /// Whether its devices stay cut as they are.
    pub mig_static: bool,
    /// What is free on its disk while that is full, and what a job needs to start.
    pub disk_full: Option<(i64, i64)>,
    /// The walls between jobs that it lacks.
    pub lacks: Vec<Wall>,
}

/// Writes what a node says it is; false when that was known.
pub async fn set_machine(tx: &mut Tx, id: NodeId, machine: &Machine) -> Result<bool, sqlx::Error> {
    let (free, needed) = machine.disk_full.unzip();
    let done = sqlx::query!(
        "UPDATE nodes
         SET driver_version = $2, cpus_milli = $3, memory_mib = $4, address = $5, sharing = $6, runners = $7,
             cgroup = $8, isolated = $9, checkpoints_shared = $10, warnings = $11, nvlink = $12, numa = $13,
             work_roots = $14, mig_static = $15, disk_free_mib = $16, disk_needed_mib = $17, mps_across_teams = $18, lacks = $19,
             disk_at = CASE WHEN (disk_free_mib IS NULL) = ($16::bigint IS NULL) THEN disk_at ELSE allotment.clock() END,
             version = version + 1
         WHERE id = $1
           AND (driver_version, cpus_milli, memory_mib, address, sharing, runners, cgroup, isolated,
                checkpoints_shared, warnings, nvlink, numa, work_roots, mig_static, disk_free_mib, disk_needed_mib, mps_across_teams, lacks)
               IS DISTINCT FROM ($2, $3, $4, $5, $6::text[], $7::text[], $8, $9, $10, $11::text[], $12::jsonb, $13::jsonb, $14::text[], $15, $16::bigint, $17::bigint, $18, $19::text[])",
        id as NodeId,
        machine.driver_version,
        machine.cpus_milli,
        machine.memory_mib,
        machine.address,
        &machine.sharing as &[SharingMode],
        &machine.runners as &[Runner],
        machine.cgroup,
        machine.isolated,
        machine.checkpoints_shared,
        &machine.warnings,
        machine.nvlink,
        machine.numa,
        &machine.work_roots,
        machine.mig_static,
        free,
        needed,
        machine.mps_across_teams,
        &machine.lacks as &[Wall],
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Writes by how much a node's clock is ahead, or that it is right again; false when that was known, or another
/// life of its agent speaks for it by now.
pub async fn set_clock_ahead(
    tx: &mut Tx,
    id: NodeId,
    incarnation: IncarnationId,
    ahead_ms: Option<i64>,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE nodes SET clock_ahead_ms = $3, version = version + 1
         WHERE id = $1 AND incarnation = $2 AND clock_ahead_ms IS DISTINCT FROM $3",
        id as NodeId,
        incarnation as IncarnationId,
        ahead_ms,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Steps a node's reachability; false when it stands elsewhere by now.
pub async fn step_reachability(
    tx: &mut Tx,
    id: NodeId,
    from: Reachability,
    to: Reachability,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE nodes SET reachability = $3, version = version + 1 WHERE id = $1 AND reachability = $2",
        id as NodeId,
        from as Reachability,
        to as Reachability,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// What people want of a node from now on.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'w> {
    /// The intent.
    pub intent: NodeIntent,
    /// Until when running work may stay, where it is being emptied by a deadline.
    pub deadline_at: Option<Timestamp>,
    /// Why, in words.
    pub reason: &'w str,
}

impl<'w> Wanted<'w> {
    /// An intent without a deadline.
    pub fn plain(intent: NodeIntent, reason: &'w str) -> Self {
        Self {
            intent,
            deadline_at: None,
            reason,
        }
    }
}

/// Steps what people want of a node; its new version, or nothing when it stands elsewhere.
pub async fn step_intent(
    tx: &mut Tx,
    id: NodeId,
    version: i64,
    wanted: Wanted<'_>,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        "UPDATE nodes
         SET intent = $3, intent_reason = $4, drain_deadline_at = $5, intent_at = allotment.clock(), version = version + 1
         WHERE id = $1 AND version = $2
         RETURNING version",
        id as NodeId,
        version,
        wanted.intent as NodeIntent,
        wanted.reason,
        wanted.deadline_at,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// The open nodes that have refused at least so many starts within so many seconds, since they are
/// open and have room on their disks: how many each. The workers of one attempt are one start.
pub async fn refusing(
    tx: &mut Tx,
    starts: i64,
    seconds: i32,
) -> Result<Vec<(NodeId, i64)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT n.id AS "id: NodeId", count(DISTINCT a.attempt_id) AS "refused!"
           FROM nodes AS n
           JOIN events AS e ON e.node_id = n.id
           JOIN assignments AS a ON a.id = e.subject_id
           WHERE n.intent = 'open' AND n.disk_free_mib IS NULL AND e.at >= GREATEST(n.intent_at, n.disk_at)
             AND e.at > allotment.clock() - make_interval(secs => $2)
             AND e.subject = 'assignment' AND e.reason = 'start_refused' AND e.to_state IN ('released', 'cleaning')
             AND e.actor_kind = 'agent' AND e.actor_name = n.name
           GROUP BY n.id
           HAVING count(DISTINCT a.attempt_id) >= $1
           ORDER BY n.id"#,
        starts,
        f64::from(seconds),
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.refused)).collect())
}

/// Replaces a node's labels; its new version, or nothing when it changed meanwhile.
pub async fn set_labels(
    tx: &mut Tx,
    id: NodeId,
    version: i64,
    labels: &Value,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        "UPDATE nodes SET labels = $3, version = version + 1
         WHERE id = $1 AND version = $2
         RETURNING version",
        id as NodeId,
        version,
        labels,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// How devices are wired: groups of indices that are linked, and groups by NUMA node.
pub type Wiring = (Vec<Vec<i32>>, Vec<Vec<i32>>);

/// How the devices of nodes are wired.
pub async fn wiring(tx: &mut Tx, ids: &[NodeId]) -> Result<BTreeMap<NodeId, Wiring>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT id AS "id: NodeId", nvlink AS "nvlink: Json<Vec<Vec<i32>>>", numa AS "numa: Json<Vec<Vec<i32>>>"
           FROM nodes
           WHERE id = ANY ($1)"#,
        ids as &[NodeId],
    )
    .fetch_all(&mut **tx)
    .await?;
    let wiring = rows
        .into_iter()
        .map(|row| (row.id, (row.nvlink.0, row.numa.0)));
    Ok(wiring.collect())
}

/// Where a node's stream is held, for reading its logs.
pub async fn holder(tx: &mut Tx, id: NodeId) -> Result<Option<(ReplicaId, String)>, sqlx::Error> {
    let row = sqlx::query!(
        r#"SELECT r.id AS "id: ReplicaId", r.internal_address
           FROM nodes AS n
           JOIN replicas AS r ON r.id = n.replica
           WHERE n.id = $1"#,
        id as NodeId,
    )
    .fetch_optional(&mut **tx)
    .await?;
    Ok(row.map(|row| (row.id, row.internal_address)))
}
