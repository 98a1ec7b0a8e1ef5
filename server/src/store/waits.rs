//! Waits: which verdict bound a waiting job, from when to when.

use domain::Timestamp;
use domain::ids::{JobId, TeamId};

use super::Tx;

/// Most rows of one job: what people read in one piece. It is above twice the number of codes, so
/// that among the older rows two of one code are always found to become one.
pub const WAITS_MAX: i64 = 48;

/// What binds a waiting job, to be written where it has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The job.
    pub job_id: JobId,
    /// The verdict's code.
    pub code: String,
    /// What binds.
    pub scope: String,
    /// The same in words.
    pub message: String,
    /// What it needs, in thousandths of a GPU.
    pub need_milli: i64,
    /// What there is for it.
    pub have_milli: i64,
}

/// Ends the stretches whose code or scope is another now, and begins the new ones. A job that has
/// left the queue meanwhile gets none.
pub async fn turn(tx: &mut Tx, causes: &[Cause], now: Timestamp) -> Result<(), sqlx::Error> {
    let ids: Vec<JobId> = causes.iter().map(|cause| cause.job_id).collect();
    let codes: Vec<String> = causes.iter().map(|cause| cause.code.clone()).collect();
    let scopes: Vec<String> = causes.iter().map(|cause| cause.scope.clone()).collect();
    let messages: Vec<String> = causes.iter().map(|cause| cause.message.clone()).collect();
    let needs: Vec<i64> = causes.iter().map(|cause| cause.need_milli).collect();
    let haves: Vec<i64> = causes.iter().map(|cause| cause.have_milli).collect();
    // Seconds are those between two moments, each cut to its second: stretches that follow one
    // upon the other add up to the whole.
    sqlx::query!(
        "UPDATE waits AS w
         SET ended_at = $4,
             held_seconds = GREATEST(floor(extract(epoch FROM $4::timestamptz)) - floor(extract(epoch FROM w.began_at)), 0)::bigint
         FROM unnest($1::uuid[], $2::text[], $3::text[]) AS v (job_id, code, scope)
         WHERE w.job_id = v.job_id AND w.ended_at IS NULL AND (w.code, w.scope) <> (v.code, v.scope)",
        &ids as &[JobId],
        &codes,
        &scopes,
        now,
    )
    .execute(&mut **tx)
    .await?;
    // The lock keeps a job from leaving the queue between this look and the commit.
    let begun = sqlx::query_scalar!(
        r#"INSERT INTO waits (team_id, job_id, code, scope, message, need_milli, have_milli, began_at)
           SELECT j.team_id, j.id, v.code, v.scope, v.message, v.need, v.have,
                  CASE WHEN EXISTS (SELECT FROM waits AS w WHERE w.job_id = j.id AND w.ended_at >= j.queued_at)
                       THEN $7 ELSE j.queued_at END
           FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[])
                AS v (job_id, code, scope, message, need, have)
           JOIN jobs AS j ON j.id = v.job_id
           WHERE j.state = 'queued' AND NOT EXISTS (SELECT FROM waits AS w WHERE w.job_id = j.id AND w.ended_at IS NULL)
           ORDER BY j.id
           FOR SHARE OF j
           RETURNING job_id AS "id: JobId""#,
        &ids as &[JobId],
        &codes,
        &scopes,
        &messages,
        &needs,
        &haves,
        now,
    )
    .fetch_all(&mut **tx)
    .await?;
    shorten(tx, &begun).await
}

/// Of each of these jobs that has more rows than are kept, makes one of two: the oldest of one
/// code, if possible of one scope. How a wait began and what held last stays as it was.
async fn shorten(tx: &mut Tx, ids: &[JobId]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "WITH crowded AS (
             SELECT job_id FROM waits WHERE job_id = ANY ($1) GROUP BY job_id HAVING count(*) > $2
         ), placed AS (
             SELECT w.id, w.job_id, w.code, w.scope,
                    row_number() OVER (PARTITION BY w.job_id ORDER BY w.began_at, w.id) AS place
             FROM waits AS w
             JOIN crowded AS c ON c.job_id = w.job_id
             WHERE w.ended_at IS NOT NULL
         ), pair AS (
             SELECT DISTINCT ON (a.job_id) a.id AS kept, b.id AS gone
             FROM placed AS a
             JOIN placed AS b ON b.job_id = a.job_id AND b.code = a.code AND b.place > a.place
             WHERE a.place > 1
             ORDER BY a.job_id, a.scope <> b.scope, b.place, a.place DESC
         ), gone AS (
             DELETE FROM waits AS w USING pair
             WHERE w.id = pair.gone
             RETURNING pair.kept, w.scope, w.ended_at, w.stretches, w.held_seconds
         )
         UPDATE waits AS w
         SET ended_at = GREATEST(w.ended_at, gone.ended_at),
             stretches = w.stretches + gone.stretches,
             held_seconds = w.held_seconds + gone.held_seconds,
             scope = CASE WHEN w.scope = gone.scope THEN w.scope ELSE '' END
         FROM gone
         WHERE w.id = gone.kept",
        ids as &[JobId],
        WAITS_MAX,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Ends what bound these jobs, each with its team: they wait no more.
pub async fn end(tx: &mut Tx, jobs: &[(TeamId, JobId)]) -> Result<(), sqlx::Error> {
    let (teams, ids): (Vec<TeamId>, Vec<JobId>) = jobs.iter().copied().unzip();
    sqlx::query!(
        "UPDATE waits AS w
         SET ended_at = c.now,
             held_seconds = GREATEST(floor(extract(epoch FROM c.now)) - floor(extract(epoch FROM w.began_at)), 0)::bigint
         FROM (SELECT allotment.clock() AS now) AS c, unnest($1::uuid[], $2::uuid[]) AS v (team_id, job_id)
         WHERE w.team_id = v.team_id AND w.job_id = v.job_id AND w.ended_at IS NULL",
        &teams as &[TeamId],
        &ids as &[JobId],
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// A stretch of a wait, or several that became one row.
#[derive(Debug, Clone)]
pub struct WaitRow {
    /// The verdict's code.
    pub code: String,
    /// What bound; empty where stretches of several scopes became one row.
    pub scope: String,
    /// The same in words, when it began.
    pub message: String,
    /// What was needed, in thousandths of a GPU.
    pub need_milli: i64,
    /// What there was.
    pub have_milli: i64,
    /// From when.
    pub began_at: Timestamp,
    /// To when; absent while it holds.
    pub ended_at: Option<Timestamp>,
    /// How many stretches it stands for.
    pub stretches: i32,
    /// How long they held in all; absent while it holds.
    pub held_seconds: Option<i64>,
}

/// What bound a job, the first first. They are few, by [`WAITS_MAX`].
pub async fn of_job(
    tx: &mut Tx,
    team_id: TeamId,
    job_id: JobId,
) -> Result<Vec<WaitRow>, sqlx::Error> {
    sqlx::query_as!(
        WaitRow,
        "SELECT code, scope, message, need_milli, have_milli, began_at, ended_at, stretches, held_seconds
         FROM waits
         WHERE team_id = $1 AND job_id = $2
         ORDER BY began_at, id",
        team_id as TeamId,
        job_id as JobId,
    )
    .fetch_all(&mut **tx)
    .await
}
