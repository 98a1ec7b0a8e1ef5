//! The change feed: what was committed, in an order in which nothing is ever missed.
//!
//! A transaction's rows carry its id. Below the oldest id that is still running nothing can
//! appear any more, so a reader that stops there and goes on from there sees each row once.

use domain::Timestamp;
use domain::ids::{JobId, NodeId, TeamId, UserId};

use super::Tx;

/// Changes are kept for so long; a reader that was away for longer loads everything anew.
pub const KEPT_SECONDS: i64 = 3_600;

/// A place in the feed: everything before it has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Transaction id.
    pub xid: i64,
    /// Number of the row.
    pub id: i64,
}

/// One committed change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where it stands in the feed.
    pub position: Position,
    /// When it was made.
    pub at: Timestamp,
    /// What changed: `job`, `attempt`, `assignment`, `node`, `device`, `team`, `quota`, `pool`, `class`,
    /// `booking`, `window` or `rights`.
    pub noun: String,
    /// Whose it is; absent for what everybody may see.
    pub team_id: Option<TeamId>,
    /// The job that it is or belongs to.
    pub job_id: Option<JobId>,
    /// The node that it is or lies on.
    pub node_id: Option<NodeId>,
    /// Whose rights they are.
    pub user_id: Option<UserId>,
}

/// The position that a reader begins at who has just read everything else in this snapshot.
pub async fn head(tx: &mut Tx) -> Result<Position, sqlx::Error> {
    let xid = sqlx::query_scalar!(
        r#"SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS "xid!""#
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(Position { xid, id: 0 })
}

/// Settled changes after a position, in order.
pub async fn settled(tx: &mut Tx, after: Position, limit: i64) -> Result<Vec<Change>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT xid::text::bigint AS "xid!", id, at, noun, team_id AS "team_id: TeamId",
                  COALESCE(job_id, CASE WHEN noun = 'job' THEN object_id END) AS "job_id: JobId",
                  COALESCE(node_id, CASE WHEN noun = 'node' THEN object_id END) AS "node_id: NodeId",
                  CASE WHEN noun = 'rights' THEN object_id END AS "user_id: UserId"
           FROM changes
           WHERE (xid, id) > ($1::bigint::text::xid8, $2)
             AND xid < pg_snapshot_xmin(pg_current_snapshot())
           ORDER BY xid, id
           LIMIT $3"#,
        after.xid,
        after.id,
        limit,
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Change {
            position: Position {
                xid: row.xid,
                id: row.id,
            },
            at: row.at,
            noun: row.noun,
            team_id: row.team_id,
            job_id: row.job_id,
            node_id: row.node_id,
            user_id: row.user_id,
        })
        .collect())
}

/// The position before the oldest change that is kept, if any is.
pub async fn oldest(tx: &mut Tx) -> Result<Option<Position>, sqlx::Error> {
    let row = sqlx::query!(
        r#"SELECT xid::text::bigint AS "xid!", id FROM changes ORDER BY xid, id LIMIT 1"#
    )
    .fetch_optional(&mut **tx)
    .await?;
    Ok(row.map(|row| Position {
        xid: row.xid,
        id: row.id - 1,
    }))
}

/// Objects that changed, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Jobs, also by their attempts and assignments.
    pub jobs: Vec<JobId>,
    /// Nodes, also by their devices.
    pub nodes: Vec<NodeId>,
    /// Whether teams or quotas changed.
    pub teams: bool,
    /// Whether pools changed.
    pub pools: bool,
    /// Whether classes changed.
    pub classes: bool,
    /// Whether weekly windows changed.
    pub windows: bool,
    /// Whether bookings changed.
    pub bookings: bool,
}

/// What changed after a position as far as this snapshot sees it, settled or not. Who uses it
/// reads the objects in the same snapshot and goes on from [`head`]: what was not settled is
/// read again, and nothing waits for a long transaction. `work`: whether jobs and what belongs to them
/// are asked for.
pub async fn touched(tx: &mut Tx, after: Position, work: bool) -> Result<Touched, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT DISTINCT noun,
                  COALESCE(job_id, CASE WHEN noun = 'job' THEN object_id END) AS "job_id: JobId",
                  CASE noun WHEN 'node' THEN object_id WHEN 'device' THEN node_id END AS "node_id: NodeId"
           FROM changes
           WHERE (xid, id) > ($1::bigint::text::xid8, $2)
             AND ($3 OR noun NOT IN ('job', 'attempt', 'assignment'))"#,
        after.xid,
        after.id,
        work,
    )
    .fetch_all(&mut **tx)
    .await?;
    let mut touched = Touched::default();
    for row in rows {
        match row.noun.as_str() {
            "job" | "attempt" | "assignment" => touched.jobs.extend(row.job_id),
            "node" | "device" => touched.nodes.extend(row.node_id),
            "team" | "quota" => touched.teams = true,
            "pool" => touched.pools = true,
            "class" => touched.classes = true,
            "window" => touched.windows = true,
            "booking" => touched.bookings = true,
            _ => {}
        }
    }
    touched.jobs.sort_unstable();
    touched.jobs.dedup();
    touched.nodes.sort_unstable();
    touched.nodes.dedup();
    Ok(touched)
}

/// Removes changes older than `keep_seconds`; how many.
pub async fn prune(tx: &mut Tx, keep_seconds: i64) -> Result<u64, sqlx::Error> {
    let removed = sqlx::query!(
        "DELETE FROM changes WHERE at < allotment.clock() - $1::bigint * interval '1 second'",
        keep_seconds,
    )
    .execute(&mut **tx)
    .await?;
    Ok(removed.rows_affected())
}

/// Tells the other replicas that something changed, and who says so; a hint, sent when the
/// transaction commits. Nothing is written that could be lost: the commit waits for no disk, and with
/// it nobody waits who commits a notification next.
pub async fn notify(tx: &mut Tx, replica: &str) -> Result<(), sqlx::Error> {
    sqlx::query!("SET LOCAL synchronous_commit = off")
        .execute(&mut **tx)
        .await?;
    sqlx::query!(
        r#"SELECT pg_notify('allotment_changes', $1)::text AS "sent""#,
        replica
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(())
}

/// The channel that [`notify`] writes to.
pub const CHANNEL: &str = "allotment_changes";
