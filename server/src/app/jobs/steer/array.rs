//! Steering an array: as a whole, or some of its elements.

use domain::elements::Elements;
use domain::ids::JobId;
use domain::spec::JobSpec;
use domain::state::{ArrayIntent, JobState};
use serde_json::json;

use super::super::arrays as heads;
use super::super::view::Job;
use super::{
    Changed, JobPatch, JobWish, cancel_locked, changed, resume_locked, shown_again, suspend_locked,
    unreadable,
};
use crate::app::audit::{self, Change};
use crate::app::authorise::Action;
use crate::app::idempotency::{Answer, Work};
use crate::app::{App, AppError, Asker, RefusalCode, change};
use crate::store::Tx;
use crate::store::arrays::{self, ArrayRow, Birth};
use crate::store::events::{self, Actor, NewEvent, Subject};
use crate::store::jobs::{self, JobRow};

/// Does to an array, or to some elements of it, what is wanted. What has ended stays as it is.
pub(super) async fn steer(
    app: &App,
    asker: &Asker,
    mut work: Work,
    id: JobId,
    elements: Option<&Elements>,
    wish: JobWish,
) -> Result<Answer<Job>, AppError> {
    let tx = &mut work.tx;
    let array = lock(tx, id).await?;
    if let Some(elements) = elements {
        elements.check(array.elements())?;
    }
    let before = state(tx, id).await?;
    let actor = Actor::User(asker.name.to_string());
    match elements {
        None => whole(tx, &array, before, wish, &actor).await?,
        Some(elements) => part(tx, &array, elements, wish, &actor).await?,
    }
    let after = state(tx, id).await?;
    if elements.is_some() || after != before {
        let change = Change {
            team_id: Some(array.team_id),
            before: Some(json!({ "state": before })),
            after: Some(json!({ "state": after, "elements": elements })),
            ..Change::of(wish.action(), format!("job/{id}"))
        };
        audit::record(tx, asker, change).await?;
    }
    let job = shown_again(tx, id).await?;
    let version = job.version;
    work.finish(app, Answer::done(job, version)).await
}

async fn lock(tx: &mut Tx, id: JobId) -> Result<ArrayRow, AppError> {
    let array = arrays::lock(tx, id).await?;
    array.ok_or_else(|| AppError::not_found("job", id))
}

/// Where the array stands now.
async fn state(tx: &mut Tx, id: JobId) -> Result<JobState, AppError> {
    let head = heads::find(tx, id).await?;
    head.map(|head| head.state)
        .ok_or_else(|| AppError::not_found("job", id))
}

/// The array's intent follows the wish, and its living elements with it; those that nothing was
/// done with yet stand where the intent says.
async fn whole(
    tx: &mut Tx,
    array: &ArrayRow,
    before: JobState,
    wish: JobWish,
    actor: &Actor,
) -> Result<(), AppError> {
    let ended = |state: JobState| {
        AppError::wrong_state(
            RefusalCode::JobEnded,
            format!("the array has {state} already"),
            state,
            "submit it anew",
        )
    };
    let intent = match wish {
        // It is accepted in every state, as of any job.
        JobWish::Cancel if before.terminal() => return Ok(()),
        JobWish::Cancel => ArrayIntent::Cancelled,
        JobWish::Suspend | JobWish::Resume if before.terminal() => return Err(ended(before)),
        _ if array.intent == ArrayIntent::Cancelled => {
            return Err(AppError::wrong_state(
                RefusalCode::BeingCancelled,
                "the array is being cancelled and can be neither suspended nor resumed any more",
                before,
                "submit it anew",
            ));
        }
        JobWish::Suspend => ArrayIntent::Suspended,
        JobWish::Resume => ArrayIntent::Open,
    };
    let living = arrays::living(tx, array.id).await?;
    if wish == JobWish::Resume && array.intent == ArrayIntent::Open {
        let rows = jobs::find_all(tx, &living).await?;
        if !rows.iter().any(|row| row.state == JobState::Suspended) {
            return Err(AppError::wrong_state(
                RefusalCode::NotSuspended,
                format!("the array is {before}, and no element of it is suspended"),
                before,
                "only what is suspended is resumed",
            ));
        }
    }
    if array.intent != intent {
        arrays::set_intent(tx, array.id, intent).await?;
        // The whole takes the steps of its intent; those between are its elements' own.
        let event = NewEvent {
            subject: Subject::Job(array.id),
            job: Some((array.team_id, array.id)),
            node_id: None,
            from: Some(array.intent.untouched().as_str()),
            to: intent.untouched().as_str(),
            actor,
            reason: reason(wish),
            data: json!({ "message": format!("{} by {}", reason(wish), actor.name()) }),
        };
        events::insert(tx, &event).await?;
    }
    each(tx, &living, wish, actor).await
}

/// Some elements: those that live are steered as any job, those that nothing was done with yet are
/// brought to life where the wish wants them.
async fn part(
    tx: &mut Tx,
    array: &ArrayRow,
    elements: &Elements,
    wish: JobWish,
    actor: &Actor,
) -> Result<(), AppError> {
    let ids: Vec<JobId> = elements
        .indices()
        .filter_map(|index| array.id.element(index))
        .collect();
    let brought = arrays::states(tx, array.id).await?;
    let known = |id: &JobId| {
        let place = brought.binary_search_by_key(&id.index(), |(index, _)| Some(*index));
        place.ok().map(|place| brought[place].1)
    };
    let untouched = array.intent.untouched();
    let stand: Vec<JobState> = ids
        .iter()
        .map(|id| known(id).unwrap_or(untouched))
        .collect();
    check_part(elements, &stand, wish)?;
    let living: Vec<JobId> = ids
        .iter()
        .filter(|id| known(id).is_some_and(|state| !state.terminal()))
        .copied()
        .collect();
    let state = match (wish, array.intent) {
        (_, ArrayIntent::Cancelled)
        | (JobWish::Suspend, ArrayIntent::Suspended)
        | (JobWish::Resume, ArrayIntent::Open) => None,
        (JobWish::Cancel, _) => Some(JobState::Cancelled),
        (JobWish::Suspend, _) => Some(JobState::Suspended),
        (JobWish::Resume, _) => Some(JobState::Queued),
    };
    if let Some(state) = state {
        let new: Vec<JobId> = ids.into_iter().filter(|id| known(id).is_none()).collect();
        let birth = Birth {
            state,
            reason: reason(wish),
            message: &format!("{} by {}", reason(wish), actor.name()),
            actor,
        };
        arrays::bring(tx, array, &new, birth).await?;
    }
    each(tx, &living, wish, actor).await
}

/// Refuses a wish that none of these elements can follow, as it is refused of one by its own id.
fn check_part(elements: &Elements, stand: &[JobState], wish: JobWish) -> Result<(), AppError> {
    let over = |state: &JobState| state.terminal() || *state == JobState::Cancelling;
    let (code, what, remedy) = match wish {
        JobWish::Suspend if stand.iter().all(|state| state.terminal()) => (
            RefusalCode::JobEnded,
            "have ended already",
            "submit them anew",
        ),
        JobWish::Suspend if stand.iter().all(over) => (
            RefusalCode::BeingCancelled,
            "are being cancelled and cannot be suspended any more",
            "submit them anew",
        ),
        JobWish::Resume if !stand.contains(&JobState::Suspended) => (
            RefusalCode::NotSuspended,
            "are not suspended",
            "only what is suspended is resumed",
        ),
        _ => return Ok(()),
    };
    let mut states: Vec<&str> = Vec::new();
    for state in stand {
        if !states.contains(&state.as_str()) {
            states.push(state.as_str());
        }
    }
    let message = format!("the elements {elements} {what}");
    Err(AppError::wrong_state(
        code,
        message,
        states.join(", "),
        remedy,
    ))
}

/// Steers living elements of a locked array. All are locked before anything of one is changed, as
/// whoever changes several jobs does.
async fn each(tx: &mut Tx, living: &[JobId], wish: JobWish, actor: &Actor) -> Result<(), AppError> {
    jobs::lock_all(tx, living).await?;
    for id in living {
        let Some(mut element) = jobs::lock(tx, *id).await? else {
            continue;
        };
        one(tx, &mut element, wish, actor).await?;
    }
    Ok(())
}

/// What cannot be done to one element leaves the others to be steered.
async fn one(
    tx: &mut Tx,
    element: &mut JobRow,
    wish: JobWish,
    actor: &Actor,
) -> Result<(), AppError> {
    let over = element.state.terminal() || element.state == JobState::Cancelling;
    match wish {
        _ if over => Ok(()),
        JobWish::Cancel => cancel_locked(tx, element, actor).await,
        JobWish::Suspend => suspend_locked(tx, element, actor).await,
        JobWish::Resume if element.state == JobState::Suspended => {
            resume_locked(tx, element, actor).await
        }
        JobWish::Resume => Ok(()),
    }
}

fn reason(wish: JobWish) -> &'static str {
    match wish {
        JobWish::Cancel => "cancelled",
        JobWish::Suspend => "suspended",
        JobWish::Resume => "resumed",
    }
}

/// Changes class and time limit of an array of which nothing has begun; elements that have one of
/// their own keep it.
pub(super) async fn update(
    app: &App,
    asker: &Asker,
    id: JobId,
    version: i64,
    patch: JobPatch,
) -> Result<Job, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    super::super::find(&mut tx, asker, Action::UpdateJob, id).await?;
    let array = lock(&mut tx, id).await?;
    if array.version != version {
        return Err(AppError::Stale {
            given: version.to_string(),
            present: array.version,
        });
    }
    if array.intent == ArrayIntent::Cancelled || arrays::begun(&mut tx, id).await? {
        return Err(AppError::wrong_state(
            RefusalCode::NotWaiting,
            "elements of the array have begun",
            state(&mut tx, id).await?,
            "change those that wait by their own ids",
        ));
    }
    let before: JobSpec = array.spec().map_err(|error| unreadable(&error))?;
    let after = changed(&mut tx, &before, patch).await?;
    if !change::leaves((version, array.version), &before, &after)? {
        arrays::change_spec(&mut tx, id, &after).await?;
        let changed = Changed {
            job: (array.team_id, id),
            state: state(&mut tx, id).await?,
            before: &before,
            after: &after,
        };
        changed.record(&mut tx, asker).await?;
    }
    let job = shown_again(&mut tx, id).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(job)
}
