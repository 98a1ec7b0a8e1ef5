//! Ranks by who filled them: which worker of a rank is meant, and where its log lies.

use domain::ids::{AssignmentId, JobId, NodeId, TeamId};
use domain::state::AssignmentPhase;

use super::Tx;

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
