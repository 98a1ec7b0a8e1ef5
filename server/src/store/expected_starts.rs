//! Expected starts: what waiting jobs were told, and how far it was out.

use domain::Timestamp;
use domain::ids::{JobId, NodeId};

use super::Tx;

/// An estimate that counts as good is out by so much at the most.
pub const NEAR_SECONDS: i64 = 600;

/// Keeps the first estimate of each wait; later ones change nothing.
pub async fn tell(tx: &mut Tx, estimates: &[(JobId, Timestamp)]) -> Result<(), sqlx::Error> {
    let (ids, starts): (Vec<JobId>, Vec<Timestamp>) = estimates.iter().copied().unzip();
    sqlx::query!(
        "INSERT INTO expected_starts (job_id, queued_at, team_id, told_at, first_at)
         SELECT j.id, j.queued_at, j.team_id, allotment.clock(), v.start
         FROM unnest($1::uuid[], $2::timestamptz[]) AS v (id, start)
         JOIN jobs AS j ON j.id = v.id
         WHERE j.state = 'queued'
         ON CONFLICT (job_id, queued_at) DO NOTHING",
        &ids as &[JobId],
        &starts,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A job that waited and got its place.
#[derive(Debug, Clone, Copy)]
pub struct Met {
    /// The job.
    pub job_id: JobId,
    /// The last estimate before that.
    pub last: Option<Timestamp>,
    /// The node.
    pub node_id: NodeId,
}

/// Keeps when jobs that waited got their places, with the last estimate before that. Of one that
/// was told nothing there is nothing to keep.
pub async fn meet(tx: &mut Tx, met: &[Met]) -> Result<(), sqlx::Error> {
    let jobs: Vec<JobId> = met.iter().map(|met| met.job_id).collect();
    let last: Vec<Option<Timestamp>> = met.iter().map(|met| met.last).collect();
    let nodes: Vec<NodeId> = met.iter().map(|met| met.node_id).collect();
    sqlx::query!(
        "UPDATE expected_starts AS e
         SET granted_at = allotment.clock(), last_at = v.last_at, pool_id = n.pool_id
         FROM unnest($1::uuid[], $2::timestamptz[], $3::uuid[]) AS v (job_id, last_at, node_id)
         JOIN jobs AS j ON j.id = v.job_id
         JOIN nodes AS n ON n.id = v.node_id
         WHERE e.job_id = v.job_id AND e.queued_at = j.queued_at",
        &jobs as &[JobId],
        &last as &[Option<Timestamp>],
        &nodes as &[NodeId],
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// How far estimates in one pool were out.
#[derive(Debug, Clone)]
pub struct AccuracyRow {
    /// The pool.
    pub pool: String,
    /// Jobs that had been told a start and got their place.
    pub cases: i64,
    /// By how many seconds half of the first estimates were out at the most.
    pub first_median_seconds: i64,
    /// First estimates that were out by [`NEAR_SECONDS`] at the most.
    pub first_near: i64,
    /// Waits that lasted from half to double of what was first told.
    pub first_within_double: i64,
    /// Cases with an estimate until the end.
    pub last_cases: i64,
    /// By how many seconds half of the last estimates were out at the most.
    pub last_median_seconds: Option<i64>,
    /// Last estimates that were out by [`NEAR_SECONDS`] at the most.
    pub last_near: i64,
}

/// How far estimates were out for jobs that got their place in a pool since then; nothing where
/// there was no such job.
pub async fn accuracy(
    tx: &mut Tx,
    pool: &str,
    since: Timestamp,
) -> Result<Option<AccuracyRow>, sqlx::Error> {
    sqlx::query_as!(
        AccuracyRow,
        r#"WITH met AS (
               SELECT p.name AS pool,
                      round(abs(extract(epoch FROM e.granted_at - e.first_at)))::bigint AS first_error,
                      round(abs(extract(epoch FROM e.granted_at - e.last_at)))::bigint AS last_error,
                      e.first_at - e.told_at AS told,
                      e.granted_at - e.told_at AS waited
               FROM expected_starts AS e
               JOIN pools AS p ON p.id = e.pool_id
               WHERE p.name = $1 AND e.granted_at >= $2
           )
           SELECT pool,
                  count(*) AS "cases!",
                  percentile_disc(0.5) WITHIN GROUP (ORDER BY first_error) AS "first_median_seconds!",
                  count(*) FILTER (WHERE first_error <= $3) AS "first_near!",
                  count(*) FILTER (WHERE waited * 2 >= told AND waited <= told * 2) AS "first_within_double!",
                  count(last_error) AS "last_cases!",
                  percentile_disc(0.5) WITHIN GROUP (ORDER BY last_error) AS last_median_seconds,
                  count(*) FILTER (WHERE last_error <= $3) AS "last_near!"
           FROM met
           GROUP BY pool"#,
        pool,
        since,
        NEAR_SECONDS,
    )
    .fetch_optional(&mut **tx)
    .await
}
