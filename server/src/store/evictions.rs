//! Evictions: one row for each time that running work gave way.

use domain::Timestamp;
use domain::eviction::{EvictionKind, EvictionRule};
use domain::ids::{AssignmentId, AttemptId, JobId, PoolId, TeamId};

use super::Tx;

/// What a worker that runs or is to run holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The worker.
    pub id: AssignmentId,
    /// The pool of its node.
    pub pool_id: PoolId,
    /// When its process began.
    pub started_at: Option<Timestamp>,
    /// How much of devices, in thousandths.
    pub gpus_milli: i64,
    /// Devices that it has to itself.
    pub devices: i64,
}

/// What the workers of an attempt hold that it goes on with and that have not been told to stop, by rank.
pub async fn held(tx: &mut Tx, attempt: AttemptId) -> Result<Vec<Held>, sqlx::Error> {
    sqlx::query_as!(
        Held,
        r#"SELECT a.id AS "id: AssignmentId", n.pool_id AS "pool_id: PoolId", a.started_at,
                  COALESCE(sum(s.gpus_milli), 0)::bigint AS "gpus_milli!",
                  count(*) FILTER (WHERE s.mode = 'exclusive') AS "devices!"
           FROM assignments AS a
           JOIN nodes AS n ON n.id = a.node_id
           LEFT JOIN assignment_devices AS s ON s.assignment_id = a.id AND s.live
           WHERE a.attempt_id = $1 AND a.phase IN ('granted', 'handed_over', 'running') AND a.dismissed_at IS NULL
           GROUP BY a.id, n.pool_id
           ORDER BY a.worker"#,
        attempt as AttemptId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// For whom work gives way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gainer {
    /// A job that gets the room.
    Job(JobId),
    /// A booking that begins, of a team.
    Booking(String, TeamId),
}

/// An eviction to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEviction {
    /// Whose work it is.
    pub team_id: TeamId,
    /// The job.
    pub job_id: JobId,
    /// Its attempt.
    pub attempt_id: AttemptId,
    /// The pool that it gives up a place in.
    pub pool_id: PoolId,
    /// What it does to the job.
    pub kind: EvictionKind,
    /// By which rule.
    pub rule: EvictionRule,
    /// For whom; nobody, where its node is emptied.
    pub gainer: Option<Gainer>,
    /// Workers before.
    pub workers_before: i32,
    /// Workers after.
    pub workers_after: i32,
    /// What is given up, in thousandths of a GPU.
    pub gpus_milli: i64,
    /// Whole devices among that.
    pub devices: i32,
    /// Work that is lost, in thousandths of a GPU times seconds.
    pub lost_gpu_milli_seconds: i64,
}

/// Writes an eviction at the database's present time. One for a job that is gone is for nobody.
pub async fn insert(tx: &mut Tx, new: &NewEviction) -> Result<(), sqlx::Error> {
    let (job, booking) = match &new.gainer {
        None => (None, None),
        Some(Gainer::Job(job)) => (Some(*job), None),
        Some(Gainer::Booking(name, team)) => (None, Some((name.as_str(), *team))),
    };
    let (booking, team) = booking.unzip();
    sqlx::query!(
        "INSERT INTO evictions (team_id, job_id, attempt_id, pool_id, kind, rule, for_team_id, for_job_id, for_booking,
                                workers_before, workers_after, gpus_milli, devices, lost_gpu_milli_seconds)
         SELECT $1, $2, $3, $4, $5, $6, COALESCE($9::uuid, g.team_id), g.id, $8, $10, $11, $12, $13, $14
         FROM (SELECT 1) AS one
         LEFT JOIN jobs AS g ON g.id = $7",
        new.team_id as TeamId,
        new.job_id as JobId,
        new.attempt_id as AttemptId,
        new.pool_id as PoolId,
        new.kind as EvictionKind,
        new.rule as EvictionRule,
        job as Option<JobId>,
        booking,
        team as Option<TeamId>,
        new.workers_before,
        new.workers_after,
        new.gpus_milli,
        new.devices,
        new.lost_gpu_milli_seconds,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Notes that an attempt's work was done before its stop arrived, so that nothing of it was lost.
pub async fn nothing_lost(tx: &mut Tx, attempt: AttemptId) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE evictions SET lost_gpu_milli_seconds = 0 WHERE attempt_id = $1 AND workers_after = 0",
        attempt as AttemptId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// An eviction as it is shown. Of the other side there is what the reader may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionRow {
    /// Its number; rises with time.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// Whose work it was.
    pub team: String,
    /// The job.
    pub job_id: JobId,
    /// The job's name.
    pub job_name: String,
    /// The number of its attempt.
    pub attempt: i32,
    /// The pool.
    pub pool: String,
    /// What it did to the job.
    pub kind: EvictionKind,
    /// By which rule.
    pub rule: EvictionRule,
    /// Whether it was for somebody.
    pub has_gainer: bool,
    /// The team that it was for.
    pub for_team: Option<String>,
    /// The job that it was for.
    pub for_job: Option<JobId>,
    /// The booking that it was for.
    pub for_booking: Option<String>,
    /// Workers before.
    pub workers_before: i32,
    /// Workers after.
    pub workers_after: i32,
    /// What was given up.
    pub gpus_milli: i64,
    /// Whole devices among that.
    pub devices: i32,
    /// Work that was lost.
    pub lost_gpu_milli_seconds: i64,
}

/// The columns of an [`EvictionRow`], so that they are written once. The names of teams and the jobs
/// of others are kept back by the rules of their own tables; a booking's name goes with its team.
macro_rules! select_evictions {
    ($rest:tt $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            EvictionRow,
            r#"SELECT e.id, e.at, t.name AS team, e.job_id AS "job_id: JobId", j.name AS job_name, a.number AS attempt,
                      p.name AS pool, e.kind AS "kind: EvictionKind", e.rule AS "rule: EvictionRule",
                      e.for_team_id IS NOT NULL AS "has_gainer!", g.name AS "for_team?", w.id AS "for_job?: JobId",
                      CASE WHEN g.id IS NOT NULL THEN e.for_booking END AS for_booking,
                      e.workers_before, e.workers_after, e.gpus_milli, e.devices, e.lost_gpu_milli_seconds
               FROM evictions AS e
               JOIN teams AS t ON t.id = e.team_id
               JOIN jobs AS j ON j.id = e.job_id
               JOIN attempts AS a ON a.id = e.attempt_id
               JOIN pools AS p ON p.id = e.pool_id
               LEFT JOIN teams AS g ON g.id = e.for_team_id
               LEFT JOIN jobs AS w ON w.id = e.for_job_id "# + $rest
            $(, $argument)*
        )
    };
}

/// The evictions of a job, the newest first, before the eviction `before`.
pub async fn of_job(
    tx: &mut Tx,
    team: TeamId,
    job: JobId,
    before: i64,
    limit: i64,
) -> Result<Vec<EvictionRow>, sqlx::Error> {
    select_evictions!(
        "WHERE e.team_id = $1 AND e.job_id = $2 AND e.id < $3 ORDER BY e.id DESC LIMIT $4",
        team as TeamId,
        job as JobId,
        before,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The evictions of these teams, the newest first, before the eviction `before`.
pub async fn of_teams(
    tx: &mut Tx,
    teams: &[TeamId],
    before: i64,
    limit: i64,
) -> Result<Vec<EvictionRow>, sqlx::Error> {
    select_evictions!(
        "WHERE e.team_id = ANY ($1) AND e.id < $2 ORDER BY e.id DESC LIMIT $3",
        teams as &[TeamId],
        before,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What the eviction of a whole attempt says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// By which rule.
    pub rule: EvictionRule,
    /// Work that was lost.
    pub lost_gpu_milli_seconds: i64,
}

/// The attempts of a job that ended by an eviction.
pub async fn ended(tx: &mut Tx, team: TeamId, job: JobId) -> Result<Vec<Ended>, sqlx::Error> {
    sqlx::query_as!(
        Ended,
        r#"SELECT attempt_id AS "attempt_id: AttemptId", rule AS "rule: EvictionRule", lost_gpu_milli_seconds
           FROM evictions
           WHERE team_id = $1 AND job_id = $2 AND workers_after = 0
           ORDER BY id"#,
        team as TeamId,
        job as JobId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What teams lost in a month by one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonthRow {
    /// The first moment of the month, in UTC.
    pub month: Timestamp,
    /// The rule.
    pub rule: EvictionRule,
    /// How often.
    pub evictions: i64,
    /// What was given up, in thousandths of a GPU.
    pub gpus_milli: i64,
    /// Work that was lost.
    pub lost_gpu_milli_seconds: i64,
}

/// What these teams lost since a time, by month and rule, the newest month first.
pub async fn by_month(
    tx: &mut Tx,
    teams: &[TeamId],
    since: Timestamp,
) -> Result<Vec<MonthRow>, sqlx::Error> {
    sqlx::query_as!(
        MonthRow,
        r#"SELECT date_trunc('month', at, 'UTC') AS "month!", rule AS "rule: EvictionRule", count(*) AS "evictions!",
                  sum(gpus_milli)::bigint AS "gpus_milli!",
                  sum(lost_gpu_milli_seconds)::bigint AS "lost_gpu_milli_seconds!"
           FROM evictions
           WHERE team_id = ANY ($1) AND at >= $2
           GROUP BY 1, rule
           ORDER BY 1 DESC, rule"#,
        teams as &[TeamId],
        since,
    )
    .fetch_all(&mut **tx)
    .await
}
