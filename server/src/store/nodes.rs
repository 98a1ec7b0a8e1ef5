//! Nodes: what each machine is, what people want of it, and whether it answers.

use std::collections::BTreeMap;

use domain::Timestamp;
use domain::ids::{EnrolmentId, IncarnationId, JournalId, NodeId, PoolId, ReplicaId};
use domain::sharing::SharingMode;
use domain::spec::Runner;
use domain::state::{NodeIntent, Reachability};
use serde_json::Value;
use sqlx::types::Json;

use super::Tx;

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
    /// Sentences for its page.
    pub warnings: Vec<String>,
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
                      n.intent AS "intent: NodeIntent", n.intent_reason, n.reachability AS "reachability: Reachability",
                      n.last_heartbeat_at, n.lease_until, n.agent_version, n.address, n.driver_version,
                      n.cpus_milli, n.memory_mib, n.sharing AS "sharing: Vec<SharingMode>", n.mps_across_teams,
                      n.runners AS "runners: Vec<Runner>", n.cgroup, n.isolated, n.checkpoints_shared,
                      n.warnings, n.labels, n.enrolled_at, n.version
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

/// Whose word on a node counts now, and how far its facts are known.
#[derive(Debug, Clone)]
pub struct Voice {
    /// The life of the agent process that spoke last.
    pub incarnation: Option<IncarnationId>,
    /// The replica that holds its stream.
    pub replica: Option<ReplicaId>,
    /// The kernel's boot.
    pub boot_id: String,
    /// The journal within which its facts are numbered.
    pub journal_id: Option<JournalId>,
    /// Facts up to this number are known.
    pub last_fact: i64,
    /// Rises with each connection.
    pub connection: i64,
    /// The enrolment whose certificates are good.
    pub enrolment_id: EnrolmentId,
}

/// Whose word on a node counts; the caller holds the node's lock.
pub async fn voice(tx: &mut Tx, id: NodeId) -> Result<Voice, sqlx::Error> {
    sqlx::query_as!(
        Voice,
        r#"SELECT incarnation AS "incarnation: IncarnationId", replica AS "replica: ReplicaId", boot_id,
                  journal_id AS "journal_id: JournalId", last_fact, connection, enrolment_id AS "enrolment_id: EnrolmentId"
           FROM nodes WHERE id = $1"#,
        id as NodeId,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Gives a node's voice to the connection that says hello, and numbers it. Of which boot it is is
/// noted by [`note_boot`], once what did not survive has ended.
pub async fn begin_connection(
    tx: &mut Tx,
    id: NodeId,
    voice: &Voice,
    agent_version: &str,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        "UPDATE nodes
         SET heard_before_life_at = CASE WHEN incarnation IS DISTINCT FROM $2 THEN last_heartbeat_at
                                         ELSE heard_before_life_at END,
             incarnation = $2, replica = $3, journal_id = $4, last_fact = $5, agent_version = $6,
             connection = connection + 1, version = version + 1
         WHERE id = $1
         RETURNING connection",
        id as NodeId,
        voice.incarnation as Option<IncarnationId>,
        voice.replica as Option<ReplicaId>,
        voice.journal_id as Option<JournalId>,
        voice.last_fact,
        agent_version,
    )
    .fetch_one(&mut **tx)
    .await
}

/// When the node was last heard of before the present life of its agent began.
pub async fn heard_before_life(tx: &mut Tx, id: NodeId) -> Result<Option<Timestamp>, sqlx::Error> {
    sqlx::query_scalar!(
        "SELECT heard_before_life_at FROM nodes WHERE id = $1",
        id as NodeId
    )
    .fetch_one(&mut **tx)
    .await
}

/// Notes the kernel's boot that a connection speaks of; false when another connection speaks by now.
pub async fn note_boot(
    tx: &mut Tx,
    id: NodeId,
    connection: i64,
    boot_id: &str,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE nodes SET boot_id = $3 WHERE id = $1 AND connection = $2",
        id as NodeId,
        connection,
        boot_id,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Lets a machine that enrols anew take a node's place: certificates of the enrolment before are
/// not good any more, and whoever spoke for the node is not heard.
pub async fn enrol_anew(
    tx: &mut Tx,
    id: NodeId,
    enrolment: EnrolmentId,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE nodes
         SET enrolment_id = $2, incarnation = NULL, replica = NULL, connection = connection + 1, version = version + 1
         WHERE id = $1",
        id as NodeId,
        enrolment as EnrolmentId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Facts of a node's journal that are known from now on.
#[derive(Debug, Clone, Copy)]
pub struct KnownFacts {
    /// The node.
    pub node_id: NodeId,
    /// The life of the agent process that told them.
    pub incarnation: IncarnationId,
    /// The journal that numbers them.
    pub journal: JournalId,
    /// The last of them.
    pub up_to: i64,
}

/// Notes which facts of different nodes are known, in the order of the nodes; of how many nodes. It
/// is not noted where another connection has the node's voice by now, or knew them.
pub async fn advance_facts(tx: &mut Tx, known: &[KnownFacts]) -> Result<usize, sqlx::Error> {
    let nodes: Vec<NodeId> = known.iter().map(|known| known.node_id).collect();
    let lives: Vec<IncarnationId> = known.iter().map(|known| known.incarnation).collect();
    let journals: Vec<JournalId> = known.iter().map(|known| known.journal).collect();
    let up_to: Vec<i64> = known.iter().map(|known| known.up_to).collect();
    let noted = sqlx::query!(
        "WITH held AS (SELECT id FROM nodes WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE)
         UPDATE nodes AS n SET last_fact = v.up_to
         FROM held, unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[]) AS v (id, incarnation, journal_id, up_to)
         WHERE n.id = held.id AND n.id = v.id AND n.incarnation = v.incarnation AND n.journal_id = v.journal_id AND n.last_fact < v.up_to",
        &nodes as &[NodeId],
        &lives as &[IncarnationId],
        &journals as &[JournalId],
        &up_to,
    )
    .execute(&mut **tx)
    .await?;
    Ok(usize::try_from(noted.rows_affected()).unwrap_or(usize::MAX))
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
}

/// Writes what a node says it is; false when that was known.
pub async fn set_machine(tx: &mut Tx, id: NodeId, machine: &Machine) -> Result<bool, sqlx::Error> {
    let done = sqlx::query!(
        "UPDATE nodes
         SET driver_version = $2, cpus_milli = $3, memory_mib = $4, address = $5, sharing = $6, runners = $7,
             cgroup = $8, isolated = $9, checkpoints_shared = $10, warnings = $11, nvlink = $12, numa = $13,
             work_roots = $14, mps_across_teams = $15, version = version + 1
         WHERE id = $1
           AND (driver_version, cpus_milli, memory_mib, address, sharing, runners, cgroup, isolated,
                checkpoints_shared, warnings, nvlink, numa, work_roots, mps_across_teams)
               IS DISTINCT FROM ($2, $3, $4, $5, $6::text[], $7::text[], $8, $9, $10, $11::text[], $12::jsonb, $13::jsonb, $14::text[], $15)",
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
        machine.mps_across_teams,
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

/// Steps what people want of a node; its new version, or nothing when it stands elsewhere.
pub async fn step_intent(
    tx: &mut Tx,
    id: NodeId,
    version: i64,
    to: NodeIntent,
    reason: &str,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        "UPDATE nodes SET intent = $3, intent_reason = $4, intent_at = allotment.clock(), version = version + 1
         WHERE id = $1 AND version = $2
         RETURNING version",
        id as NodeId,
        version,
        to as NodeIntent,
        reason,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// The open nodes that have refused at least so many starts within so many seconds, since they are
/// open: how many each. The workers of one attempt are one start.
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
           WHERE n.intent = 'open' AND e.at >= n.intent_at
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
