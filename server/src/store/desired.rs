//! What each node is to hold and run: a view of assignments, attempts and jobs.

use std::collections::BTreeMap;

use domain::ids::{AssignmentId, AttemptId, JobId, NodeId, TeamId};
use domain::sharing::SharingMode;
use domain::spec::JobSpec;
use domain::state::{AssignmentPhase, AttemptEnd, AttemptState};
use protocol::mig::MigSlice;
use serde_json::Value;

use super::Tx;

/// Little enough of a live assignment to see whether its node must be told something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The assignment.
    pub id: AssignmentId,
    /// Its node.
    pub node_id: NodeId,
    /// Where it stands.
    pub phase: AssignmentPhase,
    /// Where its attempt stands.
    pub attempt_state: AttemptState,
    /// The end that the attempt will have.
    pub reason: Option<AttemptEnd>,
    /// Whether every worker of its gang was taken by its node.
    pub all_taken: bool,
    /// The workers that work together: how many, and the one that joined last. Neither is as it was
    /// where others work together.
    pub gang: Gang,
}

/// What tells the workers that work together from those that did before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gang {
    /// How many there are.
    pub size: i64,
    /// The one that joined last.
    pub newest: Option<AssignmentId>,
}

struct MarkRow {
    id: AssignmentId,
    node_id: NodeId,
    phase: AssignmentPhase,
    attempt_state: AttemptState,
    reason: Option<AttemptEnd>,
    all_taken: bool,
    size: i64,
    newest: Option<AssignmentId>,
}

/// The live assignments of nodes.
pub async fn marks(tx: &mut Tx, nodes: &[NodeId]) -> Result<Vec<Mark>, sqlx::Error> {
    let rows = sqlx::query_as!(
        MarkRow,
        r#"SELECT a.id AS "id: AssignmentId", a.node_id AS "node_id: NodeId", a.phase AS "phase: AssignmentPhase",
                  t.state AS "attempt_state: AttemptState", t.reason AS "reason: AttemptEnd",
                  NOT EXISTS (SELECT FROM assignments AS g
                              WHERE g.attempt_id = a.attempt_id AND g.phase = 'granted') AS "all_taken!",
                  w.size AS "size!", w.newest AS "newest: AssignmentId"
           FROM assignments AS a
           JOIN attempts AS t ON t.id = a.attempt_id
           CROSS JOIN LATERAL (
               SELECT count(*) AS size, (array_agg(g.id ORDER BY g.granted_at DESC, g.id DESC))[1] AS newest
               FROM assignments AS g
               WHERE g.attempt_id = a.attempt_id AND g.dismissed_at IS NULL
                 AND (g.started_at IS NOT NULL OR NOT EXISTS (
                     SELECT FROM assignments AS h WHERE h.attempt_id = a.attempt_id AND h.phase = 'granted'))) AS w
           WHERE a.node_id = ANY ($1) AND a.phase NOT IN ('released', 'fenced')
           ORDER BY a.node_id, a.id"#,
        nodes as &[NodeId],
    )
    .fetch_all(&mut **tx)
    .await?;
    let mark = |row: MarkRow| Mark {
        id: row.id,
        node_id: row.node_id,
        phase: row.phase,
        attempt_state: row.attempt_state,
        reason: row.reason,
        all_taken: row.all_taken,
        gang: Gang {
            size: row.size,
            newest: row.newest,
        },
    };
    Ok(rows.into_iter().map(mark).collect())
}

/// Everything that a node needs for one worker.
#[derive(Debug, Clone)]
pub struct Order {
    /// The assignment.
    pub id: AssignmentId,
    /// Its attempt.
    pub attempt_id: AttemptId,
    /// Which attempt of the job it is.
    pub attempt: i32,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: i64,
    /// Its job.
    pub job_id: JobId,
    /// The job's name.
    pub job_name: String,
    /// The job's spec as stored; see [`Order::spec`].
    pub spec: Value,
    /// The team.
    pub team_id: TeamId,
    /// The team's name.
    pub team: String,
    /// The team's place in the range of Unix users.
    pub unix_slot: i32,
    /// Which worker it is.
    pub worker: i32,
    /// The place of its node in the job.
    pub node_rank: i32,
    /// Workers of the attempt, without those that it gave up.
    pub workers: i32,
    /// CPU that it holds.
    pub cpus_milli: i64,
    /// Memory that it holds.
    pub memory_mib: i64,
    /// The address of rank 0's node.
    pub master_address: Option<String>,
    /// The port there.
    pub master_port: Option<i32>,
}

impl Order {
    /// The spec; an error only where a row was written by something else than this program. It
    /// is read row by row: one that cannot be read says nothing of the others.
    pub fn spec(&self) -> Result<JobSpec, serde_json::Error> {
        serde::Deserialize::deserialize(&self.spec)
    }
}

/// The orders for these assignments.
pub async fn orders(tx: &mut Tx, ids: &[AssignmentId]) -> Result<Vec<Order>, sqlx::Error> {
    sqlx::query_as!(
        Order,
        r#"SELECT a.id AS "id: AssignmentId", a.attempt_id AS "attempt_id: AttemptId", t.number AS attempt,
                  COALESCE(a.grace_ms, t.grace_ms) AS "grace_ms!",
                  j.id AS "job_id: JobId", j.name AS job_name, COALESCE(j.spec, r.spec) AS "spec!", a.team_id AS "team_id: TeamId",
                  team.name AS team, team.unix_slot, a.worker, a.node_rank,
                  GREATEST(a.worker, (SELECT max(g.worker) FROM assignments AS g
                                      WHERE g.attempt_id = a.attempt_id AND g.dismissed_at IS NULL)) + 1 AS "workers!",
                  a.cpus_milli, a.memory_mib, m.address AS "master_address?", t.master_port
           FROM assignments AS a
           JOIN attempts AS t ON t.id = a.attempt_id
           JOIN jobs AS j ON j.id = a.job_id
           LEFT JOIN arrays AS r ON r.id = j.array_id
           JOIN teams AS team ON team.id = a.team_id
           LEFT JOIN nodes AS m ON m.id = t.master_node_id
           WHERE a.id = ANY ($1)
           ORDER BY a.id"#,
        ids as &[AssignmentId],
    )
    .fetch_all(&mut **tx)
    .await
}

/// Where a worker is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// Its rank.
    pub worker: i32,
    /// The address of its node.
    pub address: String,
}

/// Where the workers of attempts that work together are reached, by rank; those that are to be
/// added come when all of them were taken. Ranks that were lost are left out.
pub async fn seats(
    tx: &mut Tx,
    attempts: &[AttemptId],
) -> Result<BTreeMap<AttemptId, Vec<Seat>>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT a.attempt_id AS "attempt_id: AttemptId", a.worker, n.address
           FROM assignments AS a
           JOIN nodes AS n ON n.id = a.node_id
           WHERE a.attempt_id = ANY ($1) AND a.dismissed_at IS NULL
             AND (a.started_at IS NOT NULL OR NOT EXISTS (
                 SELECT FROM assignments AS g WHERE g.attempt_id = a.attempt_id AND g.phase = 'granted'))
           ORDER BY a.attempt_id, a.worker"#,
        attempts as &[AttemptId],
    )
    .fetch_all(&mut **tx)
    .await?;
    let mut seats: BTreeMap<AttemptId, Vec<Seat>> = BTreeMap::new();
    for row in rows {
        seats.entry(row.attempt_id).or_default().push(Seat {
            worker: row.worker,
            address: row.address,
        });
    }
    Ok(seats)
}

/// A share as its node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// NVML's UUID of the device.
    pub uuid: String,
    /// The device's index on its node.
    pub index: i32,
    /// The way in which it is given out.
    pub mode: SharingMode,
    /// How much of it.
    pub gpus_milli: i32,
    /// How much of its memory.
    pub memory_mib: i64,
    /// The instance, in the mode `mig`.
    pub mig: Option<MigSlice>,
}

/// The shares of these assignments, by the device's index.
pub async fn shares(
    tx: &mut Tx,
    ids: &[AssignmentId],
) -> Result<BTreeMap<AssignmentId, Vec<Share>>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT s.assignment_id AS "assignment_id: AssignmentId", d.uuid, d.index, s.mode AS "mode: SharingMode",
                  s.gpus_milli, s.memory_mib, s.mig_profile, lower(s.slots) AS "slot!", upper(s.slots) AS "slot_end!"
           FROM assignment_devices AS s
           JOIN devices AS d ON d.id = s.device_id
           WHERE s.assignment_id = ANY ($1)
           ORDER BY s.assignment_id, d.index, d.id, s.slots"#,
        ids as &[AssignmentId],
    )
    .fetch_all(&mut **tx)
    .await?;
    let mut shares: BTreeMap<AssignmentId, Vec<Share>> = BTreeMap::new();
    for row in rows {
        shares.entry(row.assignment_id).or_default().push(Share {
            uuid: row.uuid,
            index: row.index,
            mode: row.mode,
            gpus_milli: row.gpus_milli,
            memory_mib: row.memory_mib,
            mig: row.mig_profile.map(|profile| MigSlice {
                profile,
                start: row.slot.unsigned_abs(),
                size: (row.slot_end - row.slot).unsigned_abs(),
            }),
        });
    }
    Ok(shares)
}
