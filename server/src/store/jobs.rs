//! Jobs: what people submitted, and where each stands.

use domain::Timestamp;
use domain::ids::{JobId, TeamId, UserId};
use domain::spec::JobSpec;
use domain::state::JobState;
use serde_json::Value;
use sqlx::types::Json;

use super::Tx;

/// A job with the names of its team and user.
#[derive(Debug, Clone)]
pub struct JobRow {
    /// Its id.
    pub id: JobId,
    /// Its team.
    pub team_id: TeamId,
    /// The team's name.
    pub team: String,
    /// Who submitted it.
    pub user_id: UserId,
    /// That user's name.
    pub user: String,
    /// Its name.
    pub name: String,
    /// What it is for.
    pub kind: String,
    /// Its priority class.
    pub class: String,
    /// The spec as stored; see [`JobRow::spec`].
    pub spec: Value,
    /// Where it stands.
    pub state: JobState,
    /// An attempt's end, or the waiting code.
    pub reason: Option<String>,
    /// The same in words.
    pub message: String,
    /// Attempts begun so far.
    pub attempt: i32,
    /// Retries spent of the spec's limit.
    pub retries_used: i32,
    /// Requeues that were nobody's fault.
    pub requeues: i32,
    /// The exit code of its last attempt.
    pub exit_code: Option<i32>,
    /// The signal that ended its last attempt.
    pub exit_signal: Option<i32>,
    /// Not placed before this time.
    pub not_before: Option<Timestamp>,
    /// The engine's last verdict while it waits.
    pub waiting: Option<Value>,
    /// Room that a plan keeps for it.
    pub nominated: Option<Value>,
    /// When it was submitted; a requeue keeps it.
    pub created_at: Timestamp,
    /// When it last began to wait.
    pub queued_at: Timestamp,
    /// When its present or last attempt began to run.
    pub started_at: Option<Timestamp>,
    /// When it ended for good.
    pub finished_at: Option<Timestamp>,
    /// Rises with each change.
    pub version: i64,
}

impl JobRow {
    /// The spec; an error only where a row was written by something else than this program.
    pub fn spec(&self) -> Result<JobSpec, serde_json::Error> {
        serde::Deserialize::deserialize(&self.spec)
    }

    /// When the engine last expected it to start. Its own earliest start is no estimate.
    pub fn expected_start(&self) -> Option<Timestamp> {
        let waiting = self.waiting.as_ref()?;
        let estimate = waiting["code"] != "not_yet";
        let at = waiting["expected_start"].as_str().filter(|_| estimate)?;
        at.parse().ok()
    }
}

/// What is said of a job whose spec cannot be read.
pub fn unreadable_spec(error: &dyn std::fmt::Display) -> String {
    format!("its spec cannot be read: {error}")
}

/// A job to be written.
#[derive(Debug, Clone)]
pub struct NewJob<'a> {
    /// Its id.
    pub id: JobId,
    /// Its team.
    pub team_id: TeamId,
    /// Who submits it.
    pub user_id: UserId,
    /// Its checked spec.
    pub spec: &'a JobSpec,
    /// What is known of its wait before the scheduler has looked at it.
    pub foretold: Option<Verdict>,
}

/// Writes jobs as `queued`, in their order.
pub async fn insert(tx: &mut Tx, new: &[NewJob<'_>]) -> Result<(), sqlx::Error> {
    let ids: Vec<JobId> = new.iter().map(|job| job.id).collect();
    let teams: Vec<TeamId> = new.iter().map(|job| job.team_id).collect();
    let users: Vec<UserId> = new.iter().map(|job| job.user_id).collect();
    let of = |text: fn(&JobSpec) -> &str| -> Vec<String> {
        new.iter().map(|job| text(job.spec).to_owned()).collect()
    };
    let names = of(|spec| spec.name.as_str());
    let kinds = of(|spec| spec.kind.as_str());
    let classes = of(|spec| spec.class.as_str());
    let specs: Vec<Json<&JobSpec>> = new.iter().map(|job| Json(job.spec)).collect();
    let not_before: Vec<Option<Timestamp>> = new.iter().map(|job| job.spec.not_before).collect();
    let foretold = || new.iter().map(|job| job.foretold.as_ref());
    let reasons: Vec<Option<String>> = foretold().map(|v| v.map(|v| v.code.clone())).collect();
    let messages: Vec<String> = foretold()
        .map(|v| v.map(|v| v.message.clone()).unwrap_or_default())
        .collect();
    let waiting: Vec<Option<Value>> = foretold().map(|v| v.map(|v| v.whole.clone())).collect();
    sqlx::query!(
        "INSERT INTO jobs (id, team_id, user_id, name, kind, class, spec, not_before, reason, message, waiting)
         SELECT n.id, n.team_id, n.user_id, n.name, n.kind, n.class, n.spec, n.not_before, n.reason, n.message, n.waiting
         FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::jsonb[],
                     $8::timestamptz[], $9::text[], $10::text[], $11::jsonb[])
              AS n (id, team_id, user_id, name, kind, class, spec, not_before, reason, message, waiting)",
        &ids as &[JobId],
        &teams as &[TeamId],
        &users as &[UserId],
        &names,
        &kinds,
        &classes,
        &specs as &[Json<&JobSpec>],
        &not_before as &[Option<Timestamp>],
        &reasons as &[Option<String>],
        &messages,
        &waiting as &[Option<Value>],
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The columns of a [`JobRow`], so that they are written once.
macro_rules! select_jobs {
    ($rest:tt $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            JobRow,
            r#"SELECT j.id AS "id: JobId", j.team_id AS "team_id: TeamId", t.name AS team, j.user_id AS "user_id: UserId",
                      u.name AS "user", j.name, j.kind, j.class,
                      COALESCE(j.spec, r.spec) AS "spec!", j.state AS "state: JobState", j.reason, j.message,
                      j.attempt, j.retries_used, j.requeues, j.exit_code, j.exit_signal, j.not_before, j.waiting, j.nominated,
                      j.created_at, j.queued_at, j.started_at, j.finished_at, j.version
               FROM jobs AS j
               JOIN teams AS t ON t.id = j.team_id
               JOIN users AS u ON u.id = j.user_id
               LEFT JOIN arrays AS r ON r.id = j.array_id "# + $rest
            $(, $argument)*
        )
    };
}

/// The job of that id, as far as the transaction may see it.
pub async fn find(tx: &mut Tx, id: JobId) -> Result<Option<JobRow>, sqlx::Error> {
    select_jobs!("WHERE j.id = $1", id as JobId)
        .fetch_optional(&mut **tx)
        .await
}

/// The jobs of these ids that the transaction may see, in the order of the ids.
pub async fn find_all(tx: &mut Tx, ids: &[JobId]) -> Result<Vec<JobRow>, sqlx::Error> {
    select_jobs!("WHERE j.id = ANY ($1) ORDER BY j.id", ids as &[JobId])
        .fetch_all(&mut **tx)
        .await
}

/// The job of that id, locked until the transaction ends: the first step of every change of a job, its
/// attempts or its assignments.
pub async fn lock(tx: &mut Tx, id: JobId) -> Result<Option<JobRow>, sqlx::Error> {
    select_jobs!("WHERE j.id = $1 FOR UPDATE OF j", id as JobId)
        .fetch_optional(&mut **tx)
        .await
}

/// Locks jobs in the order of their ids, for who changes several in one transaction.
pub async fn lock_all(tx: &mut Tx, ids: &[JobId]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "SELECT id FROM jobs WHERE id = ANY ($1) ORDER BY id FOR UPDATE",
        ids as &[JobId],
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(())
}

/// The same, and reads them.
pub async fn lock_and_read(tx: &mut Tx, ids: &[JobId]) -> Result<Vec<JobRow>, sqlx::Error> {
    select_jobs!(
        "WHERE j.id = ANY ($1) ORDER BY j.id FOR UPDATE OF j",
        ids as &[JobId]
    )
    .fetch_all(&mut **tx)
    .await
}

/// Which jobs a list shows; the newest first.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Of these teams only; empty is all that may be seen.
    pub teams: Vec<TeamId>,
    /// In these states only; empty is all.
    pub states: Vec<JobState>,
    /// Of this user only.
    pub user_id: Option<UserId>,
    /// Older than the job at which the page before ended.
    pub before: Option<(Timestamp, JobId)>,
}

/// A page of jobs by themselves, the newest first; elements of arrays are in none.
pub async fn list(tx: &mut Tx, filter: &Filter, limit: i64) -> Result<Vec<JobRow>, sqlx::Error> {
    let (before_at, before_id) = filter.before.unzip();
    select_jobs!(
        "WHERE j.array_id IS NULL
           AND (cardinality($1::uuid[]) = 0 OR j.team_id = ANY ($1))
           AND (cardinality($2::text[]) = 0 OR j.state = ANY ($2))
           AND ($3::uuid IS NULL OR j.user_id = $3)
           AND ($4::timestamptz IS NULL OR (j.created_at, j.id) < ($4, $5::uuid))
         ORDER BY j.created_at DESC, j.id DESC
         LIMIT $6",
        &filter.teams as &[TeamId],
        &filter.states as &[JobState],
        filter.user_id as Option<UserId>,
        before_at,
        before_id as Option<JobId>,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The state and version that a change was decided upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobGuard {
    /// The job.
    pub id: JobId,
    /// The state that it was seen in.
    pub state: JobState,
    /// The version that it was seen with.
    pub version: i64,
}

/// A change of a job's state with all that belongs to it.
#[derive(Debug, Clone)]
pub struct JobStep {
    /// The state to go to.
    pub to: JobState,
    /// The end of an attempt or the waiting code.
    pub reason: Option<String>,
    /// The same in words.
    pub message: String,
    /// The exit code of the attempt that ended.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub exit_signal: Option<i32>,
    /// For a job that queues again: not before.
    pub not_before: Option<Timestamp>,
    /// Whether an attempt begins with it.
    pub begins_attempt: bool,
    /// Whether it spends one of the spec's retries.
    pub spends_retry: bool,
    /// Whether it counts as a requeue that was nobody's fault.
    pub counts_requeue: bool,
}

impl JobStep {
    /// A step without reason, message or counts.
    pub fn to(to: JobState) -> Self {
        Self {
            to,
            reason: None,
            message: String::new(),
            exit_code: None,
            exit_signal: None,
            not_before: None,
            begins_attempt: false,
            spends_retry: false,
            counts_requeue: false,
        }
    }

    /// The same with a reason, as a stable word and as a sentence.
    #[must_use]
    pub fn because(mut self, reason: &str, message: impl Into<String>) -> Self {
        self.reason = Some(reason.to_owned());
        self.message = message.into();
        self
    }

    /// The same with the exit code and the signal of the attempt that ended.
    #[must_use]
    pub fn exited(mut self, code: Option<i32>, signal: Option<i32>) -> Self {
        self.exit_code = code;
        self.exit_signal = signal;
        self
    }
}

/// Takes steps of different jobs that still stand where they were seen, each with the next version;
/// those jobs.
pub async fn step(tx: &mut Tx, steps: &[(JobGuard, JobStep)]) -> Result<Vec<JobId>, sqlx::Error> {
    let ids: Vec<JobId> = steps.iter().map(|(guard, _)| guard.id).collect();
    let from: Vec<JobState> = steps.iter().map(|(guard, _)| guard.state).collect();
    let versions: Vec<i64> = steps.iter().map(|(guard, _)| guard.version).collect();
    let to: Vec<JobState> = steps.iter().map(|(_, step)| step.to).collect();
    let reasons: Vec<Option<String>> = steps.iter().map(|(_, s)| s.reason.clone()).collect();
    let messages: Vec<String> = steps.iter().map(|(_, s)| s.message.clone()).collect();
    let codes: Vec<Option<i32>> = steps.iter().map(|(_, step)| step.exit_code).collect();
    let signals: Vec<Option<i32>> = steps.iter().map(|(_, step)| step.exit_signal).collect();
    let not_before: Vec<Option<Timestamp>> = steps.iter().map(|(_, s)| s.not_before).collect();
    let begun: Vec<bool> = steps.iter().map(|(_, step)| step.begins_attempt).collect();
    let retries: Vec<bool> = steps.iter().map(|(_, step)| step.spends_retry).collect();
    let requeues: Vec<bool> = steps.iter().map(|(_, s)| s.counts_requeue).collect();
    sqlx::query_scalar!(
        r#"UPDATE jobs AS j
           SET state = v.to_state,
               reason = v.reason,
               message = v.message,
               exit_code = v.exit_code,
               exit_signal = v.exit_signal,
               not_before = v.not_before,
               attempt = j.attempt + v.begins_attempt::int,
               retries_used = j.retries_used + v.spends_retry::int,
               requeues = j.requeues + v.counts_requeue::int,
               waiting = NULL,
               nominated = CASE WHEN v.to_state IN ('preempting', 'queued') THEN j.nominated END,
               queued_at = CASE WHEN v.to_state = 'queued' THEN allotment.clock() ELSE j.queued_at END,
               started_at = CASE WHEN v.to_state = 'running' THEN allotment.clock()
                                 WHEN v.to_state IN ('queued', 'starting') THEN NULL
                                 -- A job that was resumed while its attempt ended well.
                                 WHEN v.to_state = 'succeeded' THEN COALESCE(j.started_at, (
                                     SELECT a.started_at FROM attempts AS a WHERE a.job_id = j.id ORDER BY a.number DESC LIMIT 1))
                                 ELSE j.started_at END,
               finished_at = CASE WHEN v.to_state IN ('succeeded', 'failed', 'cancelled') THEN allotment.clock() END,
               version = j.version + 1
           FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::integer[],
                       $8::integer[], $9::timestamptz[], $10::boolean[], $11::boolean[], $12::boolean[])
                AS v (id, from_state, version, to_state, reason, message, exit_code, exit_signal, not_before,
                      begins_attempt, spends_retry, counts_requeue)
           WHERE j.id = v.id AND j.state = v.from_state AND j.version = v.version
           RETURNING j.id AS "id: JobId""#,
        &ids as &[JobId],
        &from as &[JobState],
        &versions,
        &to as &[JobState],
        &reasons as &[Option<String>],
        &messages,
        &codes as &[Option<i32>],
        &signals as &[Option<i32>],
        &not_before as &[Option<Timestamp>],
        &begun,
        &retries,
        &requeues,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Raises the version of a job whose workers change while its state stays, if it still stands
/// where it was seen; the new version, or nothing.
pub async fn touch(tx: &mut Tx, guard: JobGuard) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        "UPDATE jobs SET version = version + 1
         WHERE id = $1 AND state = $2 AND version = $3
         RETURNING version",
        guard.id as JobId,
        guard.state as JobState,
        guard.version,
    )
    .fetch_optional(&mut **tx)
    .await
}

/// Replaces the spec and class of a job that waits; its new version, or nothing.
pub async fn change_spec(
    tx: &mut Tx,
    guard: JobGuard,
    spec: &JobSpec,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar!(
        "UPDATE jobs SET spec = $4, class = $5, version = version + 1
         WHERE id = $1 AND state = $2 AND version = $3
         RETURNING version",
        guard.id as JobId,
        guard.state as JobState,
        guard.version,
        sqlx::types::Json(spec) as _,
        spec.class.as_str(),
    )
    .fetch_optional(&mut **tx)
    .await
}

/// The engine's verdict on a waiting job.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The job.
    pub id: JobId,
    /// The waiting code.
    pub code: String,
    /// The same in words.
    pub message: String,
    /// All of it.
    pub whole: Value,
}

/// Stores verdicts on jobs that still wait, where they changed. Versions stay: a verdict is no
/// change that a person could collide with.
pub async fn set_waiting(tx: &mut Tx, verdicts: &[Verdict]) -> Result<u64, sqlx::Error> {
    let ids: Vec<JobId> = verdicts.iter().map(|v| v.id).collect();
    let codes: Vec<String> = verdicts.iter().map(|v| v.code.clone()).collect();
    let messages: Vec<String> = verdicts.iter().map(|v| v.message.clone()).collect();
    let wholes: Vec<Value> = verdicts.iter().map(|v| v.whole.clone()).collect();
    let changed = sqlx::query!(
        "UPDATE jobs AS j SET waiting = v.whole, reason = v.code, message = v.message
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::jsonb[]) AS v (id, code, message, whole)
         WHERE j.id = v.id AND j.state = 'queued'
           AND (j.reason IS DISTINCT FROM v.code OR j.message <> v.message OR j.waiting IS DISTINCT FROM v.whole)",
        &ids as &[JobId],
        &codes,
        &messages,
        &wholes,
    )
    .execute(&mut **tx)
    .await?;
    Ok(changed.rows_affected())
}

/// Keeps, or with `None` gives up, room for a job that is to start when others have left.
pub async fn set_nominated(
    tx: &mut Tx,
    id: JobId,
    nominated: Option<&Value>,
) -> Result<bool, sqlx::Error> {
    let changed = sqlx::query!(
        "UPDATE jobs SET nominated = $2
         WHERE id = $1 AND state IN ('queued', 'preempting') AND nominated IS DISTINCT FROM $2",
        id as JobId,
        nominated,
    )
    .execute(&mut **tx)
    .await?;
    Ok(changed.rows_affected() == 1)
}

/// Jobs of a team in a state.
#[derive(Debug, Clone)]
pub struct LiveCount {
    /// The team's name.
    pub team: String,
    /// The state.
    pub state: JobState,
    /// How many.
    pub jobs: i64,
}

/// Jobs that have not ended, each element of an array as one, by team and state, as far as the
/// transaction may see them.
pub async fn count_live(tx: &mut Tx) -> Result<Vec<LiveCount>, sqlx::Error> {
    sqlx::query_as!(
        LiveCount,
        r#"SELECT t.name AS team, j.state AS "state!: JobState", sum(j.jobs)::bigint AS "jobs!"
           FROM (SELECT team_id, state, count(*) AS jobs
                 FROM jobs
                 WHERE state NOT IN ('succeeded', 'failed', 'cancelled')
                 GROUP BY team_id, state
                 UNION ALL
                 -- Elements of arrays that nothing was done with yet.
                 SELECT r.team_id, CASE r.intent WHEN 'open' THEN 'queued' ELSE 'suspended' END,
                        r.count - (SELECT count(*) FROM jobs AS e WHERE e.array_id = r.id)
                 FROM arrays AS r
                 WHERE r.finished_at IS NULL AND r.intent <> 'cancelled') AS j
           JOIN teams AS t ON t.id = j.team_id
           GROUP BY t.name, j.state
           HAVING sum(j.jobs) > 0
           ORDER BY t.name, j.state"#,
    )
    .fetch_all(&mut **tx)
    .await
}
