//! Who speaks for a node: the life of its agent, its connection, its boot, and how far its facts are known.

use domain::Timestamp;
use domain::ids::{EnrolmentId, IncarnationId, JournalId, NodeId, ReplicaId};

use crate::store::Tx;

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
