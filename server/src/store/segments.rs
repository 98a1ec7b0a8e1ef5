//! Usage segments: who held which share of which device, and from when to when.

use domain::Timestamp;
use domain::ids::AssignmentId;

use super::Tx;

/// What holding a share counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Granted, and not yet acknowledged by its node.
    Reserved,
    /// Held by its team.
    Charged,
    /// After the last heartbeat of a lost node, at the operator's charge.
    Unreachable,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Charged => "charged",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Opens a segment for each share that an assignment holds; returns how many.
pub async fn open(
    tx: &mut Tx,
    assignment: AssignmentId,
    kind: Kind,
    from: Timestamp,
    until: Option<Timestamp>,
) -> Result<u64, sqlx::Error> {
    let done = sqlx::query!(
        "INSERT INTO usage_segments (id, team_id, user_id, job_id, attempt_id, assignment_id, pool_id, node_id,
                                     device_id, slot, mode, kind, gpus_milli, started_at, ended_at)
         SELECT gen_random_uuid(), a.team_id, j.user_id, a.job_id, a.attempt_id, a.id, n.pool_id, a.node_id,
                d.device_id, lower(d.slots), d.mode, $2, d.gpus_milli, $3, $4
         FROM assignments AS a
         JOIN jobs AS j ON j.id = a.job_id
         JOIN nodes AS n ON n.id = a.node_id
         JOIN assignment_devices AS d ON d.assignment_id = a.id
         WHERE a.id = $1",
        assignment as AssignmentId,
        kind.as_str(),
        from,
        until,
    )
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected())
}

/// Ends the open segments of an assignment at `at`, though never before they began nor before
/// what the ledger already covers; returns how many, and where they really ended.
pub async fn close(
    tx: &mut Tx,
    assignment: AssignmentId,
    at: Timestamp,
) -> Result<Option<Timestamp>, sqlx::Error> {
    let ended = sqlx::query_scalar!(
        r#"UPDATE usage_segments
           SET ended_at = GREATEST(started_at, rated_until, $2)
           WHERE assignment_id = $1 AND ended_at IS NULL
           RETURNING ended_at AS "ended_at!""#,
        assignment as AssignmentId,
        at,
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(ended.into_iter().max())
}
