//! Arrays of jobs, and the elements that they are brought to life as.
//!
//! Who changes both locks the array before its elements, and nobody who holds an element waits for
//! its array.

mod write;

use domain::Timestamp;
use domain::ids::{JobId, TeamId, UserId};
use domain::spec::{Array, JobSpec};
use domain::state::{ArrayIntent, ElementCounts, JobState};
use serde_json::Value;

use super::Tx;
use super::jobs::JobRow;

pub use write::{Birth, NewArray, bring, change_spec, insert, set_finished, set_intent};

/// An array with the names of its team and user.
#[derive(Debug, Clone)]
pub struct ArrayRow {
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
    /// What each element asks for, as stored.
    pub spec: Value,
    /// How many elements it has.
    pub count: i32,
    /// Most of them that hold their places at once.
    pub at_most: Option<i32>,
    /// What people want of it as a whole.
    pub intent: ArrayIntent,
    /// What was known of its wait before the scheduler looked at it.
    pub reason: Option<String>,
    /// The same in words.
    pub message: String,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it was cancelled as a whole.
    pub cancelled_at: Option<Timestamp>,
    /// Rises with each change of the whole.
    pub version: i64,
}

impl ArrayRow {
    /// How many elements it has.
    pub fn elements(&self) -> u32 {
        self.count.unsigned_abs()
    }

    /// How it was asked for.
    pub fn array(&self) -> Array {
        Array {
            count: self.elements(),
            at_most: self.at_most.map(i32::unsigned_abs),
        }
    }

    /// What each element asks for; an error only where a row was written by something else.
    pub fn spec(&self) -> Result<JobSpec, serde_json::Error> {
        serde::Deserialize::deserialize(&self.spec)
    }

    /// How many of its elements stand where, with those that nothing was done with yet.
    pub fn counts(&self, brought: &ElementCounts) -> ElementCounts {
        let mut counts = brought.clone();
        let untouched = self.elements().saturating_sub(brought.all());
        counts.add(self.intent.untouched(), untouched);
        counts
    }

    /// An element with which nothing was done yet: where it stands follows from the array. Nothing
    /// where the array has no such element.
    pub fn untouched(&self, id: JobId) -> Option<JobRow> {
        let index = id.index().filter(|index| *index < self.elements())?;
        if id.array() != Some(self.id) {
            return None;
        }
        let state = self.intent.untouched();
        let created_at = submitted(self.created_at, index);
        Some(JobRow {
            id,
            team_id: self.team_id,
            team: self.team.clone(),
            user_id: self.user_id,
            user: self.user.clone(),
            name: self.name.clone(),
            kind: self.kind.clone(),
            class: self.class.clone(),
            spec: self.spec.clone(),
            state,
            reason: (state == JobState::Cancelled).then(|| "cancelled".to_owned()),
            message: String::new(),
            attempt: 0,
            retries_used: 0,
            requeues: 0,
            exit_code: None,
            exit_signal: None,
            not_before: self.spec().ok().and_then(|spec| spec.not_before),
            waiting: None,
            nominated: None,
            created_at,
            queued_at: created_at,
            started_at: None,
            finished_at: self.cancelled_at.filter(|_| state == JobState::Cancelled),
            version: 1,
        })
    }
}

/// When an element counts as submitted: one after the other, so that those of a team are looked at
/// in the order of their indices. The whole of the largest array takes ten milliseconds.
fn submitted(array: Timestamp, index: u32) -> Timestamp {
    array + chrono::TimeDelta::microseconds(i64::from(index))
}

/// The columns of an [`ArrayRow`], so that they are written once.
macro_rules! select_arrays {
    ($rest:tt $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            ArrayRow,
            r#"SELECT r.id AS "id: JobId", r.team_id AS "team_id: TeamId", t.name AS team, r.user_id AS "user_id: UserId",
                      u.name AS "user", r.name, r.kind, r.class, r.spec, r.count, r.at_most,
                      r.intent AS "intent: ArrayIntent", r.reason, r.message, r.created_at, r.cancelled_at, r.version
               FROM arrays AS r
               JOIN teams AS t ON t.id = r.team_id
               JOIN users AS u ON u.id = r.user_id "# + $rest
            $(, $argument)*
        )
    };
}

/// The array of that id, as far as the transaction may see it.
pub async fn find(tx: &mut Tx, id: JobId) -> Result<Option<ArrayRow>, sqlx::Error> {
    select_arrays!("WHERE r.id = $1", id as JobId)
        .fetch_optional(&mut **tx)
        .await
}

/// The arrays of these ids that the transaction may see.
pub async fn find_all(tx: &mut Tx, ids: &[JobId]) -> Result<Vec<ArrayRow>, sqlx::Error> {
    select_arrays!("WHERE r.id = ANY ($1)", ids as &[JobId])
        .fetch_all(&mut **tx)
        .await
}

/// The array of that id, locked until the transaction ends: no element of it is brought to life by
/// anybody else until then.
pub async fn lock(tx: &mut Tx, id: JobId) -> Result<Option<ArrayRow>, sqlx::Error> {
    select_arrays!("WHERE r.id = $1 FOR UPDATE OF r", id as JobId)
        .fetch_optional(&mut **tx)
        .await
}

/// Which arrays a list shows; the newest first.
#[derive(Debug, Clone, Default)]
pub struct ArrayFilter {
    /// Of these teams only; empty is all that may be seen.
    pub teams: Vec<TeamId>,
    /// Of this user only.
    pub user_id: Option<UserId>,
    /// Only those that the scheduler has not seen ended.
    pub unfinished: bool,
    /// Older than what the page before ended with.
    pub before: Option<(Timestamp, JobId)>,
}

/// A page of arrays, the newest first.
pub async fn list(
    tx: &mut Tx,
    filter: &ArrayFilter,
    limit: i64,
) -> Result<Vec<ArrayRow>, sqlx::Error> {
    let (before_at, before_id) = filter.before.unzip();
    select_arrays!(
        "WHERE (cardinality($1::uuid[]) = 0 OR r.team_id = ANY ($1))
           AND ($2::uuid IS NULL OR r.user_id = $2)
           AND (NOT $3::bool OR r.finished_at IS NULL)
           AND ($4::timestamptz IS NULL OR (r.created_at, r.id) < ($4, $5::uuid))
         ORDER BY r.created_at DESC, r.id DESC
         LIMIT $6",
        &filter.teams as &[TeamId],
        filter.user_id as Option<UserId>,
        filter.unfinished,
        before_at,
        before_id as Option<JobId>,
        limit,
    )
    .fetch_all(&mut **tx)
    .await
}

/// What the elements of an array that were brought to life come to.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// How many stand where.
    pub counts: ElementCounts,
    /// When the first attempt of those that run or have ended began to run.
    pub started_at: Option<Timestamp>,
    /// When the last one ended.
    pub finished_at: Option<Timestamp>,
}

/// The tallies of arrays; one of which no element was brought to life is absent.
pub async fn tallies(tx: &mut Tx, ids: &[JobId]) -> Result<Vec<(JobId, Tally)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT array_id AS "array_id!: JobId", state AS "state: JobState", count(*) AS "elements!",
                  min(started_at) AS started_at, max(finished_at) AS finished_at
           FROM jobs
           WHERE array_id = ANY ($1)
           GROUP BY array_id, state
           ORDER BY array_id, state"#,
        ids as &[JobId],
    )
    .fetch_all(&mut **tx)
    .await?;
    let mut tallies: Vec<(JobId, Tally)> = Vec::new();
    for row in rows {
        if tallies.last().is_none_or(|(id, _)| *id != row.array_id) {
            tallies.push((row.array_id, Tally::default()));
        }
        let (_, tally) = tallies.last_mut().expect("one was just pushed or is there");
        let elements = u32::try_from(row.elements).unwrap_or(u32::MAX);
        tally.counts.add(row.state, elements);
        tally.started_at = [tally.started_at, row.started_at]
            .into_iter()
            .flatten()
            .min();
        tally.finished_at = tally.finished_at.max(row.finished_at);
    }
    Ok(tallies)
}

/// Where jobs, arrays and elements stand, of those ids that are there and may be seen; with a team
/// only of those that are its own.
pub async fn states_of(
    tx: &mut Tx,
    team: Option<TeamId>,
    ids: &[JobId],
) -> Result<Vec<(JobId, JobState)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT id AS "id: JobId", state AS "state: JobState"
           FROM jobs
           WHERE ($1::uuid IS NULL OR team_id = $1) AND id = ANY ($2)"#,
        team as Option<TeamId>,
        ids as &[JobId],
    )
    .fetch_all(&mut **tx)
    .await?;
    let mut states: Vec<(JobId, JobState)> =
        rows.into_iter().map(|row| (row.id, row.state)).collect();
    let mut asked: Vec<JobId> = ids
        .iter()
        .filter(|id| !states.iter().any(|(known, _)| known == *id))
        .copied()
        .collect();
    asked.retain(|id| id.is_array() || id.array().is_some());
    if asked.is_empty() {
        return Ok(states);
    }
    let mut whole: Vec<JobId> = asked.iter().map(|id| id.array().unwrap_or(*id)).collect();
    whole.sort_unstable();
    whole.dedup();
    let mut arrays = find_all(tx, &whole).await?;
    arrays.retain(|array| team.is_none_or(|team| array.team_id == team));
    let tallies = tallies(tx, &whole).await?;
    for id in asked {
        let array = arrays
            .iter()
            .find(|array| array.id == id.array().unwrap_or(id));
        let state = array.and_then(|array| {
            if !id.is_array() {
                return array.untouched(id).map(|element| element.state);
            }
            let tally = tallies.iter().find(|(of, _)| *of == id);
            let brought = tally.map(|(_, tally)| &tally.counts);
            let counts = array.counts(brought.unwrap_or(&ElementCounts::default()));
            Some(counts.state(array.intent))
        });
        states.extend(state.map(|state| (id, state)));
    }
    Ok(states)
}

/// Whether anything was begun with an element of an array, or is over.
pub async fn begun(tx: &mut Tx, array: JobId) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (
               SELECT FROM jobs
               WHERE array_id = $1 AND (attempt > 0 OR state NOT IN ('queued', 'suspended'))
           ) AS "begun!""#,
        array as JobId,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Where those elements of an array stand that were brought to life, by index.
pub async fn states(tx: &mut Tx, array: JobId) -> Result<Vec<(u32, JobState)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT array_index AS "index!", state AS "state: JobState"
           FROM jobs
           WHERE array_id = $1
           ORDER BY array_index"#,
        array as JobId,
    )
    .fetch_all(&mut **tx)
    .await?;
    let states = rows.into_iter();
    Ok(states
        .map(|row| (row.index.unsigned_abs(), row.state))
        .collect())
}

/// Of each array the element that waits and would be looked at first, as the scheduler last found.
pub async fn first_waiting(tx: &mut Tx, arrays: &[JobId]) -> Result<Vec<JobId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT DISTINCT ON (array_id) id AS "id: JobId"
           FROM jobs
           WHERE array_id = ANY ($1) AND state IN ('queued', 'suspended')
           -- What at_most holds back says nothing of the rest.
           ORDER BY array_id, state, reason IS NULL, reason = 'dependency', array_index"#,
        arrays as &[JobId],
    )
    .fetch_all(&mut **tx)
    .await
}

/// The elements of an array that have not ended, in the order of their ids.
pub async fn living(tx: &mut Tx, array: JobId) -> Result<Vec<JobId>, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT id AS "id: JobId"
           FROM jobs
           WHERE array_id = $1 AND state NOT IN ('succeeded', 'failed', 'cancelled')
           ORDER BY id"#,
        array as JobId,
    )
    .fetch_all(&mut **tx)
    .await
}

/// The first elements of a locked array that were not brought to life yet.
pub async fn untouched(
    tx: &mut Tx,
    array: &ArrayRow,
    limit: i64,
) -> Result<Vec<JobId>, sqlx::Error> {
    let indices = sqlx::query_scalar!(
        r#"SELECT i AS "index!"
           FROM generate_series(0, $2::integer - 1) AS i
           WHERE NOT EXISTS (SELECT FROM jobs AS j WHERE j.array_id = $1 AND j.array_index = i)
           ORDER BY i
           LIMIT $3"#,
        array.id as JobId,
        array.count,
        limit,
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(indices
        .into_iter()
        .filter_map(|index| array.id.element(index.unsigned_abs()))
        .collect())
}

/// An array that the scheduler has not seen ended.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveArray {
    /// Its id.
    pub id: JobId,
    /// How many elements it has.
    pub count: i32,
    /// Most of them that hold their places at once.
    pub at_most: Option<i32>,
    /// What people want of it as a whole.
    pub intent: ArrayIntent,
    /// Elements that were brought to life, whatever came of them.
    pub brought: i64,
}

impl LiveArray {
    /// Elements that may still be brought to life.
    pub fn to_come(&self) -> i64 {
        match self.intent {
            ArrayIntent::Cancelled => 0,
            ArrayIntent::Open | ArrayIntent::Suspended => i64::from(self.count) - self.brought,
        }
    }
}

/// Arrays that the scheduler has not seen ended, by id; with `ids` those of them only.
pub async fn live(tx: &mut Tx, ids: Option<&[JobId]>) -> Result<Vec<LiveArray>, sqlx::Error> {
    sqlx::query_as!(
        LiveArray,
        r#"SELECT r.id AS "id: JobId", r.count, r.at_most, r.intent AS "intent: ArrayIntent",
                  (SELECT count(*) FROM jobs AS j WHERE j.array_id = r.id) AS "brought!"
           FROM arrays AS r
           WHERE r.finished_at IS NULL AND ($1::uuid[] IS NULL OR r.id = ANY ($1))
           ORDER BY r.id"#,
        ids as Option<&[JobId]>,
    )
    .fetch_all(&mut **tx)
    .await
}
