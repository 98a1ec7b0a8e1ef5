//! The past as the scheduler reads it: what was displaced, what was used, and where work ran last.

use domain::Timestamp;
use domain::ids::JobId;
use serde_json::Value;

use super::Tx;

/// When a job that has not ended gave way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastEviction {
    /// The job.
    pub job_id: JobId,
    /// When it was told to leave.
    pub at: Timestamp,
}

/// Evictions of jobs that have not ended, by job and time; a day's worth is what limits read.
pub async fn evictions(
    tx: &mut Tx,
    jobs: Option<&[JobId]>,
) -> Result<Vec<PastEviction>, sqlx::Error> {
    sqlx::query_as!(
        PastEviction,
        r#"SELECT e.job_id AS "job_id: JobId", e.at
           FROM evictions AS e
           JOIN jobs AS j ON j.id = e.job_id
           WHERE j.state NOT IN ('succeeded', 'failed', 'cancelled')
             AND ($1::uuid[] IS NULL OR e.job_id = ANY ($1))
           ORDER BY e.job_id, e.at"#,
        jobs as Option<&[JobId]>,
    )
    .fetch_all(&mut **tx)
    .await
}

/// How many evictions a team suffered in a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evictions {
    /// The team's name.
    pub team: String,
    /// The pool's name.
    pub pool: String,
    /// How many.
    pub count: i64,
}

/// Evictions of all teams after a time.
pub async fn evictions_since(tx: &mut Tx, since: Timestamp) -> Result<Vec<Evictions>, sqlx::Error> {
    sqlx::query_as!(
        Evictions,
        r#"SELECT t.name AS team, p.name AS pool, count(*) AS "count!"
           FROM evictions AS e
           JOIN pools AS p ON p.id = e.pool_id
           JOIN teams AS t ON t.id = e.team_id
           WHERE e.at > $1
           GROUP BY t.name, p.name"#,
        since,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What a team has used of a pool, faded with time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastUse {
    /// The team's name.
    pub team: String,
    /// Thousandths of a GPU-second.
    pub gpu_milli_seconds: i64,
}

/// What teams have used of a pool up to a time, each second counting half as much after each
/// half-life. The fading is the one place where a binary fraction is good enough: it weighs
/// claims on spare capacity, and neither bills nor bounds anything.
pub async fn past_use(
    tx: &mut Tx,
    pool: &str,
    half_life_seconds: i64,
    until: Timestamp,
) -> Result<Vec<PastUse>, sqlx::Error> {
    sqlx::query_as!(
        PastUse,
        r#"SELECT t.name AS team,
                  round(sum(s.gpus_milli * $2::bigint / ln(2::double precision)
                      * (power(0.5::double precision, EXTRACT(epoch FROM $3 - LEAST(COALESCE(s.ended_at, $3), $3)) / $2::bigint)
                       - power(0.5::double precision, EXTRACT(epoch FROM $3 - s.started_at) / $2::bigint))))::bigint AS "gpu_milli_seconds!"
           FROM usage_segments AS s
           JOIN pools AS p ON p.id = s.pool_id
           JOIN teams AS t ON t.id = s.team_id
           WHERE p.name = $1 AND s.kind = 'charged' AND s.started_at < $3
             AND (s.ended_at IS NULL OR s.ended_at > $3 - 20 * $2::bigint * interval '1 second')
           GROUP BY t.name
           ORDER BY t.name"#,
        pool,
        half_life_seconds,
        until,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Workers of one kind that ran in a pool and are gone.
#[derive(Debug, Clone, PartialEq)]
pub struct Gone {
    /// The pool's name.
    pub pool: String,
    /// A spec that asks for what they asked for.
    pub spec: Value,
    /// How many there were.
    pub workers: i64,
}

/// The most frequent kinds of workers of jobs that have ended after a time, by pool; a job counts
/// once, however often it was run.
pub async fn gone_since(
    tx: &mut Tx,
    since: Timestamp,
    kinds_max: i64,
) -> Result<Vec<Gone>, sqlx::Error> {
    sqlx::query_as!(
        Gone,
        r#"SELECT p.name AS pool, (array_agg(asked.spec - 'files' - 'env' ORDER BY j.id))[1] AS "spec!", count(*) AS "workers!"
           FROM jobs AS j
           LEFT JOIN arrays AS r ON r.id = j.array_id
           CROSS JOIN LATERAL (SELECT COALESCE(j.spec, r.spec) AS spec) AS asked
           JOIN attempts AS a ON a.job_id = j.id AND a.number = j.attempt
           JOIN assignments AS s ON s.attempt_id = a.id
           JOIN nodes AS n ON n.id = s.node_id
           JOIN pools AS p ON p.id = n.pool_id
           WHERE j.finished_at > $1
           GROUP BY p.name, asked.spec -> 'per_worker', asked.spec -> 'selector', asked.spec -> 'runner'
           ORDER BY count(*) DESC, p.name, min(j.id::text)
           LIMIT $2"#,
        since,
        kinds_max,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Where a waiting job's checkpoints lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastNode {
    /// The job.
    pub job_id: JobId,
    /// A node that its last run was on.
    pub node: String,
    /// Whether its checkpoints can be read elsewhere.
    pub checkpoints_shared: bool,
}

/// The nodes of the last attempt that ran, of each waiting job.
pub async fn last_nodes(tx: &mut Tx, jobs: Option<&[JobId]>) -> Result<Vec<LastNode>, sqlx::Error> {
    sqlx::query_as!(
        LastNode,
        r#"SELECT DISTINCT j.id AS "job_id: JobId", n.name AS node, n.checkpoints_shared
           FROM jobs AS j
           CROSS JOIN LATERAL (
               SELECT id FROM attempts AS ran
               WHERE ran.job_id = j.id AND ran.started_at IS NOT NULL
               ORDER BY number DESC
               LIMIT 1) AS a
           JOIN assignments AS s ON s.attempt_id = a.id
           JOIN nodes AS n ON n.id = s.node_id
           WHERE j.state = 'queued' AND j.attempt > 0
             AND ($1::uuid[] IS NULL OR j.id = ANY ($1))
           ORDER BY j.id, n.name"#,
        jobs as Option<&[JobId]>,
    )
    .fetch_all(&mut **tx)
    .await
}
