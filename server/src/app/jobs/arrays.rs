//! Arrays as jobs: one row for all elements, and each element as a job of its own.

use std::collections::BTreeMap;

use domain::ids::JobId;
use domain::spec::JobSpec;
use domain::state::{ElementCounts, JobState};
use domain::words;
use engine::plan::Code;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::view::{self, Job};
use super::{allowed, find as find_allowed};
use crate::app::authorise::Action;
use crate::app::page::{self, Page, PageAsk};
use crate::app::{App, AppError, Asker};
use crate::scheduler::discreet;
use crate::store::Tx;
use crate::store::arrays::{self, ArrayFilter, ArrayRow, Birth, Tally};
use crate::store::events::Actor;
use crate::store::jobs::{self, JobRow};

/// What makes a job an array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArrayOf {
    /// How many elements it has: those with the indices from 0 to one less.
    pub count: u32,
    /// Most of them that hold their places at once; null is no limit.
    pub at_most: Option<u32>,
    /// How many stand in each state that one has; the array's own state follows from it.
    pub elements: ElementCounts,
}

/// The job, array or element of that id, as far as the transaction may see it.
pub(super) async fn find(tx: &mut Tx, id: JobId) -> Result<Option<JobRow>, sqlx::Error> {
    if id.is_array() {
        let found = arrays::find(tx, id).await?;
        let mut heads = heads(tx, found.into_iter().collect()).await?;
        return Ok(heads.pop());
    }
    let Some(array) = id.array() else {
        return jobs::find(tx, id).await;
    };
    match jobs::find(tx, id).await? {
        Some(row) => Ok(Some(row)),
        None => Ok(arrays::find(tx, array)
            .await?
            .and_then(|array| untouched(&array, id))),
    }
}

/// An element with which nothing was done yet, with why it waits: where only so many run at once, those
/// that are looked at come first.
fn untouched(array: &ArrayRow, id: JobId) -> Option<JobRow> {
    let mut row = array.untouched(id)?;
    if row.state == JobState::Queued && array.at_most.is_some() {
        let code = Code::Dependency.as_str();
        let scope = discreet::array_scope(array.id);
        let message = discreet::HELD_BY_ARRAY;
        row.reason = Some(code.to_owned());
        row.message = message.to_owned();
        row.waiting = Some(json!({ "code": code, "scope": scope, "message": message }));
    }
    Some(row)
}

/// The jobs and arrays of these ids, in this order, as far as the transaction may see them.
pub(super) async fn find_all(tx: &mut Tx, ids: &[JobId]) -> Result<Vec<JobRow>, sqlx::Error> {
    let (of_arrays, of_jobs): (Vec<JobId>, Vec<JobId>) = ids.iter().partition(|id| id.is_array());
    let mut rows = jobs::find_all(tx, &of_jobs).await?;
    if !of_arrays.is_empty() {
        let found = arrays::find_all(tx, &of_arrays).await?;
        rows.extend(heads(tx, found).await?);
    }
    let places: BTreeMap<JobId, usize> = ids.iter().copied().zip(0..).collect();
    rows.sort_by_key(|row| places.get(&row.id).copied());
    Ok(rows)
}

/// The job or element of that id, locked for a change. An element that nothing was done with yet is
/// brought to life for it; one of a cancelled array is over, and stays as it is.
pub(super) async fn lock(
    tx: &mut Tx,
    asker: &Asker,
    action: Action,
    id: JobId,
) -> Result<JobRow, AppError> {
    if let Some(row) = jobs::lock(tx, id).await? {
        return allowed(asker, action, id, Some(row));
    }
    let seen = find(tx, id).await?;
    let untouched = allowed(asker, action, id, seen)?;
    let Some(array) = id.array() else {
        return Err(AppError::not_found("job", id));
    };
    if untouched.state.terminal() {
        return Ok(untouched);
    }
    bring(tx, array, &[id]).await?;
    let row = jobs::lock(tx, id).await?;
    allowed(asker, action, id, row)
}

/// Brings elements of an array to life as they stand, unless somebody else just has.
async fn bring(tx: &mut Tx, array: JobId, ids: &[JobId]) -> Result<(), AppError> {
    let Some(array) = arrays::lock(tx, array).await? else {
        return Ok(());
    };
    let brought = jobs::find_all(tx, ids).await?;
    let new: Vec<JobId> = ids
        .iter()
        .filter(|id| array.untouched(**id).is_some())
        .filter(|id| !brought.iter().any(|row| row.id == **id))
        .copied()
        .collect();
    let birth = Birth {
        state: array.intent.untouched(),
        reason: "submitted",
        message: "",
        actor: &Actor::User(array.user.clone()),
    };
    arrays::bring(tx, &array, &new, birth).await?;
    Ok(())
}

/// Brings elements to life that a spec follows by themselves, so that whoever plans knows each of
/// them: what is not among the jobs that live is over.
pub(super) async fn bring_followed(tx: &mut Tx, spec: &JobSpec) -> Result<(), AppError> {
    let mut elements: Vec<JobId> = spec.after.iter().filter_map(|id| id.parse().ok()).collect();
    elements.retain(|id: &JobId| id.array().is_some());
    elements.sort_unstable();
    for together in elements.chunk_by(|one, other| one.array() == other.array()) {
        if let Some(array) = together.first().and_then(|id| id.array()) {
            bring(tx, array, together).await?;
        }
    }
    Ok(())
}

/// Arrays as rows of jobs.
async fn heads(tx: &mut Tx, arrays: Vec<ArrayRow>) -> Result<Vec<JobRow>, sqlx::Error> {
    if arrays.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<JobId> = arrays.iter().map(|array| array.id).collect();
    let tallies: BTreeMap<JobId, Tally> = arrays::tallies(tx, &ids).await?.into_iter().collect();
    let first = arrays::first_waiting(tx, &ids).await?;
    let waiting = jobs::find_all(tx, &first).await?;
    let heads = arrays.into_iter().map(|array| {
        let tally = tallies.get(&array.id).cloned().unwrap_or_default();
        let waiting = waiting.iter().find(|row| row.id.array() == Some(array.id));
        head(array, &tally, waiting)
    });
    Ok(heads.collect())
}

/// An array as a row of jobs: where it stands follows from its elements, and why it waits is what
/// the first one that waits was told.
fn head(array: ArrayRow, tally: &Tally, waiting: Option<&JobRow>) -> JobRow {
    let counts = array.counts(&tally.counts);
    let state = counts.state(array.intent);
    let all = words::counted(counts.all().into(), "element");
    let of = |state| format!("{} of {all}", counts.in_state(state));
    let (reason, message) = match (state, waiting) {
        (JobState::Queued | JobState::Suspended, Some(row)) => {
            (row.reason.clone(), row.message.clone())
        }
        (JobState::Queued | JobState::Suspended, None) => (array.reason, array.message),
        (JobState::Failed, _) => (None, format!("{} failed", of(state))),
        (JobState::Cancelled, _) => (
            Some("cancelled".to_owned()),
            format!(
                "{} {} cancelled",
                of(state),
                words::form(counts.in_state(state).into(), ("was", "were"))
            ),
        ),
        _ => (None, String::new()),
    };
    let mut spec = array.spec;
    if let Some(keys) = spec.as_object_mut() {
        let asked = json!({ "count": array.count, "at_most": array.at_most });
        keys.insert("array".to_owned(), asked);
    }
    JobRow {
        id: array.id,
        team_id: array.team_id,
        team: array.team,
        user_id: array.user_id,
        user: array.user,
        name: array.name,
        kind: array.kind,
        class: array.class,
        spec,
        state,
        reason,
        message,
        attempt: 0,
        retries_used: 0,
        requeues: 0,
        exit_code: None,
        exit_signal: None,
        not_before: None,
        waiting: waiting
            .filter(|_| state == JobState::Queued)
            .and_then(|row| row.waiting.clone()),
        nominated: None,
        created_at: array.created_at,
        queued_at: array.created_at,
        started_at: tally.started_at,
        finished_at: tally
            .finished_at
            .max(array.cancelled_at)
            .filter(|_| state.terminal()),
        version: array.version,
    }
}

/// Which arrays a page of jobs shows, as rows of jobs, the newest first.
pub(super) async fn list(
    tx: &mut Tx,
    filter: &jobs::Filter,
    limit: i64,
) -> Result<Vec<JobRow>, AppError> {
    let states = &filter.states;
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut ask = ArrayFilter {
        teams: filter.teams.clone(),
        user_id: filter.user_id,
        unfinished: !states.is_empty() && states.iter().all(|state| !state.terminal()),
        before: filter.before,
    };
    let mut found = Vec::new();
    // Bounded by the number of arrays: where one stands is known only from its elements.
    loop {
        let page = arrays::list(tx, &ask, limit).await?;
        let Some(last) = page.last().map(|array| (array.created_at, array.id)) else {
            return Ok(found);
        };
        let full = page.len() >= wanted;
        let mut rows = heads(tx, page).await?;
        rows.retain(|row| states.is_empty() || states.contains(&row.state));
        found.extend(rows);
        if !full || found.len() >= wanted {
            found.truncate(wanted);
            return Ok(found);
        }
        ask.before = Some(last);
    }
}

/// The arrays among rows of jobs, each with what makes it one.
pub(super) async fn arrays_of(
    tx: &mut Tx,
    rows: &[JobRow],
) -> Result<BTreeMap<JobId, ArrayOf>, AppError> {
    let ids: Vec<JobId> = rows.iter().map(|row| row.id).collect();
    let ids: Vec<JobId> = ids.into_iter().filter(|id| id.is_array()).collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let tallies: BTreeMap<JobId, Tally> = arrays::tallies(tx, &ids).await?.into_iter().collect();
    let arrays = arrays::find_all(tx, &ids).await?.into_iter();
    let arrays = arrays.map(|array| {
        let brought = tallies.get(&array.id).map(|tally| &tally.counts);
        let asked = array.array();
        let of = ArrayOf {
            count: asked.count,
            at_most: asked.at_most,
            elements: array.counts(brought.unwrap_or(&ElementCounts::default())),
        };
        (array.id, of)
    });
    Ok(arrays.collect())
}

/// Of an array that the transaction may see, how many elements stand where.
pub(in crate::app) async fn counts(
    tx: &mut Tx,
    id: JobId,
) -> Result<Option<ElementCounts>, AppError> {
    let Some(array) = arrays::find(tx, id).await? else {
        return Ok(None);
    };
    let tallies = arrays::tallies(tx, &[id]).await?;
    let brought = tallies.into_iter().next().map(|(_, tally)| tally.counts);
    Ok(Some(array.counts(&brought.unwrap_or_default())))
}

/// The elements of an array in the order of their indices, those in one of `states`, or all.
pub async fn elements(
    app: &App,
    asker: &Asker,
    id: JobId,
    states: &[JobState],
    ask: &PageAsk,
) -> Result<Page<Job>, AppError> {
    let after: Option<u32> = ask.after("element")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let array = of_array(&mut tx, asker, Action::ListJobElements, id).await?;
    let stand = states_of(&mut tx, &array).await?;
    let from = after.map_or(0, |index| index as usize + 1);
    let wanted = usize::try_from(ask.rows_wanted()).unwrap_or(usize::MAX);
    let shown: Vec<JobId> = (from..stand.len())
        .filter(|index| states.is_empty() || states.contains(&stand[*index]))
        .take(wanted)
        .filter_map(|index| array.id.element(u32::try_from(index).ok()?))
        .collect();
    let mut brought: BTreeMap<JobId, JobRow> = jobs::find_all(&mut tx, &shown)
        .await?
        .into_iter()
        .map(|row| (row.id, row))
        .collect();
    let rows = shown
        .into_iter()
        .filter_map(|id| brought.remove(&id).or_else(|| untouched(&array, id)));
    let jobs = view::show(&mut tx, rows.collect()).await?;
    tx.commit().await?;
    Ok(page::cut(ask, "element", jobs, |job: &Job| job.id.index()))
}

/// Where each element of an array stands, by its index.
pub async fn grid(app: &App, asker: &Asker, id: JobId) -> Result<Vec<JobState>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let array = of_array(&mut tx, asker, Action::ListJobElements, id).await?;
    let states = states_of(&mut tx, &array).await?;
    tx.commit().await?;
    Ok(states)
}

async fn states_of(tx: &mut Tx, array: &ArrayRow) -> Result<Vec<JobState>, AppError> {
    let mut states = vec![array.intent.untouched(); array.elements() as usize];
    for (index, state) in arrays::states(tx, array.id).await? {
        if let Some(place) = states.get_mut(index as usize) {
            *place = state;
        }
    }
    Ok(states)
}

/// An array whose elements the asker may list; what is none has none.
async fn of_array(
    tx: &mut Tx,
    asker: &Asker,
    action: Action,
    id: JobId,
) -> Result<ArrayRow, AppError> {
    find_allowed(tx, asker, action, id).await?;
    let array = arrays::find(tx, id).await?;
    array.ok_or_else(|| {
        AppError::invalid("id", id, "the id of an array: only an array has elements")
    })
}
