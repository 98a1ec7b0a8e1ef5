//! What work that has not ended will still hold, by its time limits.

use domain::Timestamp;
use domain::ids::TeamId;
use domain::sharing::SharingMode;
use rust_decimal::Decimal;
use serde_json::Value;

use super::Tx;

/// What running work will hold until its limits, of one pool and mode.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// Thousandths of a GPU times seconds.
    pub gpu_milli_seconds: Decimal,
    /// What a GPU of it costs for an hour now; absent where no price covers it.
    pub per_gpu_hour: Option<Decimal>,
}

/// What the running work of a team, with all below it, will hold, and how many jobs of it have no limit.
pub async fn running(
    tx: &mut Tx,
    teams: &[TeamId],
    now: Timestamp,
) -> Result<(Vec<Running>, i64), sqlx::Error> {
    let rows = sqlx::query!(
        r#"WITH held AS (
               SELECT n.pool_id, s.mode, s.gpus_milli, j.id AS job_id, t.started_at,
                      (COALESCE(j.spec, r.spec) ->> 'time_limit_seconds')::bigint AS time_limit
               FROM assignment_devices AS s
               JOIN assignments AS a ON a.id = s.assignment_id
               JOIN nodes AS n ON n.id = a.node_id
               JOIN attempts AS t ON t.id = a.attempt_id
               JOIN jobs AS j ON j.id = a.job_id
               LEFT JOIN arrays AS r ON r.id = j.array_id
               WHERE s.live AND s.team_id = ANY ($1) AND t.state <> 'stopping'
           )
           SELECT h.pool_id, h.mode AS "mode!",
                  COALESCE(sum(h.gpus_milli * GREATEST(0, h.time_limit - trunc(EXTRACT(EPOCH FROM $2 - COALESCE(h.started_at, $2))))), 0)
                      AS "gpu_milli_seconds!",
                  count(DISTINCT h.job_id) FILTER (WHERE h.time_limit IS NULL) AS "open_ended!",
                  (SELECT p.per_gpu_hour FROM allotment.price_at(h.pool_id, 'gpu', h.mode, NULL, $2, NULL) AS p) AS per_gpu_hour
           FROM held AS h
           GROUP BY h.pool_id, h.mode
           ORDER BY h.pool_id, h.mode"#,
        teams as &[TeamId],
        now,
    )
    .fetch_all(&mut **tx)
    .await?;
    let open_ended = rows.iter().map(|row| row.open_ended).sum();
    let running = rows.into_iter().map(|row| Running {
        gpu_milli_seconds: row.gpu_milli_seconds,
        per_gpu_hour: row.per_gpu_hour,
    });
    Ok((running.collect(), open_ended))
}

/// Work that waits, all of which asks for the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// What its spec says of `per_worker`, `pools`, `workers` and `time_limit_seconds`.
    pub asked: Value,
    /// How many jobs.
    pub jobs: i64,
}

/// The work of these teams that waits, by what it asks for, with the elements of arrays that are yet to come; at most
/// so many kinds.
pub async fn waiting(
    tx: &mut Tx,
    teams: &[TeamId],
    kinds: i64,
) -> Result<Vec<Waiting>, sqlx::Error> {
    sqlx::query_as!(
        Waiting,
        r#"SELECT jsonb_build_object('per_worker', w.spec -> 'per_worker', 'pools', w.spec -> 'pools',
                      'workers', w.spec -> 'workers', 'time_limit_seconds', w.spec -> 'time_limit_seconds') AS "asked!",
                  sum(w.jobs)::bigint AS "jobs!"
           FROM (
               SELECT COALESCE(j.spec, r.spec) AS spec, 1::bigint AS jobs
               FROM jobs AS j
               LEFT JOIN arrays AS r ON r.id = j.array_id
               WHERE j.team_id = ANY ($1) AND j.state = 'queued'
               UNION ALL
               SELECT r.spec, r.count - (SELECT count(*) FROM jobs AS e WHERE e.array_id = r.id)
               FROM arrays AS r
               WHERE r.team_id = ANY ($1) AND r.finished_at IS NULL AND r.intent = 'open'
           ) AS w
           WHERE w.jobs > 0
           GROUP BY 1
           LIMIT $2"#,
        teams as &[TeamId],
        kinds,
    )
    .fetch_all(&mut **tx)
    .await
}

/// A price that is in force now.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    /// The pool.
    pub pool: String,
    /// The sharing mode.
    pub mode: SharingMode,
    /// What a GPU costs for an hour.
    pub per_gpu_hour: Decimal,
}

/// The prices that are in force now.
pub async fn prices(tx: &mut Tx, now: Timestamp) -> Result<Vec<InForce>, sqlx::Error> {
    sqlx::query_as!(
        InForce,
        r#"SELECT p.name AS pool, m.mode AS "mode!: SharingMode", r.per_gpu_hour AS "per_gpu_hour!"
           FROM pools AS p
           CROSS JOIN unnest(ARRAY['exclusive', 'mig', 'mps', 'time_slice', 'vgpu']) AS m (mode)
           CROSS JOIN LATERAL allotment.price_at(p.id, 'gpu', m.mode, NULL, $1, NULL) AS r
           ORDER BY p.name, m.mode"#,
        now,
    )
    .fetch_all(&mut **tx)
    .await
}
