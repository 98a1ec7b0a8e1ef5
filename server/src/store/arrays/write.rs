//! Arrays as they are written: submitted, brought to life element by element, and steered as one.

use domain::Timestamp;
use domain::ids::{JobId, TeamId, UserId};
use domain::spec::{Array, JobSpec};
use domain::state::{ArrayIntent, JobState};

use super::{ArrayRow, submitted};
use crate::store::Tx;
use crate::store::events::Actor;
use crate::store::jobs::Verdict;

/// An array to be written.
#[derive(Debug, Clone)]
pub struct NewArray<'a> {
    /// Its id.
    pub id: JobId,
    /// Its team.
    pub team_id: TeamId,
    /// Who submits it.
    pub user_id: UserId,
    /// How many elements.
    pub array: Array,
    /// What each asks for.
    pub spec: &'a JobSpec,
    /// What is known of its wait before the scheduler has looked at it.
    pub foretold: Option<&'a Verdict>,
}

/// Writes an array; none of its elements is brought to life.
pub async fn insert(tx: &mut Tx, new: &NewArray<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO arrays (id, team_id, user_id, name, kind, class, spec, count, at_most, reason, message)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        new.id as JobId,
        new.team_id as TeamId,
        new.user_id as UserId,
        new.spec.name.as_str(),
        new.spec.kind.as_str(),
        new.spec.class.as_str(),
        sqlx::types::Json(new.spec) as _,
        small(new.array.count),
        new.array.at_most.map(small),
        new.foretold.map(|verdict| verdict.code.as_str()),
        new.foretold.map_or("", |verdict| verdict.message.as_str()),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

fn small(number: u32) -> i32 {
    i32::try_from(number).expect("a count within the bounds of a spec")
}

/// How elements come to life.
#[derive(Debug, Clone, Copy)]
pub struct Birth<'a> {
    /// The state that they begin in.
    pub state: JobState,
    /// Why, as a stable word.
    pub reason: &'a str,
    /// The same in words.
    pub message: &'a str,
    /// Who brings them about.
    pub actor: &'a Actor,
}

/// Brings elements of a locked array to life, with an event each.
pub async fn bring(
    tx: &mut Tx,
    array: &ArrayRow,
    elements: &[JobId],
    birth: Birth<'_>,
) -> Result<(), sqlx::Error> {
    let indices: Vec<i32> = elements
        .iter()
        .filter_map(|id| id.index().map(small))
        .collect();
    let submitted: Vec<Timestamp> = elements
        .iter()
        .filter_map(|id| Some(submitted(array.created_at, id.index()?)))
        .collect();
    let queued = birth.state == JobState::Queued;
    sqlx::query!(
        "WITH brought AS (
             INSERT INTO jobs (id, team_id, user_id, name, kind, class, state, not_before, reason, message,
                               created_at, queued_at, finished_at, array_id, array_index)
             SELECT e.id, r.team_id, r.user_id, r.name, r.kind, r.class, $4, (r.spec ->> 'not_before')::timestamptz,
                    CASE WHEN NOT $5::bool THEN $6 END, $7, e.submitted, e.submitted,
                    CASE WHEN $4 IN ('succeeded', 'failed', 'cancelled') THEN allotment.clock() END, r.id, e.index
             FROM arrays AS r
             CROSS JOIN unnest($2::uuid[], $3::integer[], $8::timestamptz[]) AS e (id, index, submitted)
             WHERE r.id = $1
             RETURNING id, team_id)
         INSERT INTO events (team_id, subject, subject_id, job_id, to_state, actor_kind, actor_name, reason)
         SELECT team_id, 'job', id, id, $4, $9, $10, $6
         FROM brought
         ORDER BY id",
        array.id as JobId,
        elements as &[JobId],
        &indices,
        birth.state as JobState,
        queued,
        birth.reason,
        birth.message,
        &submitted,
        birth.actor.kind(),
        birth.actor.name(),
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Says what people want of a locked array as a whole; its new version.
pub async fn set_intent(
    tx: &mut Tx,
    array: JobId,
    intent: ArrayIntent,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        "UPDATE arrays
         SET intent = $2,
             cancelled_at = CASE WHEN $2 = 'cancelled' THEN allotment.clock() END,
             version = version + 1
         WHERE id = $1
         RETURNING version",
        array as JobId,
        intent as ArrayIntent,
    )
    .fetch_one(&mut **tx)
    .await
}

/// Replaces what each element of a locked array asks for that has no spec of its own.
pub async fn change_spec(tx: &mut Tx, array: JobId, spec: &JobSpec) -> Result<i64, sqlx::Error> {
    sqlx::query!(
        "UPDATE jobs SET class = $2, version = version + 1 WHERE array_id = $1 AND spec IS NULL",
        array as JobId,
        spec.class.as_str(),
    )
    .execute(&mut **tx)
    .await?;
    sqlx::query_scalar!(
        "UPDATE arrays SET spec = $2, class = $3, version = version + 1 WHERE id = $1 RETURNING version",
        array as JobId,
        sqlx::types::Json(spec) as _,
        spec.class.as_str(),
    )
    .fetch_one(&mut **tx)
    .await
}

/// Notes that no element of an array is left.
pub async fn set_finished(tx: &mut Tx, array: JobId) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE arrays SET finished_at = allotment.clock() WHERE id = $1 AND finished_at IS NULL",
        array as JobId,
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
