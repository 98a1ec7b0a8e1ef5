//! Steering a job: cancel, suspend, resume, and change what may still be changed.

mod array;

use domain::FieldError;
use domain::elements::Elements;
use domain::ids::{JobId, TeamId};
use domain::name::Name;
use domain::spec::JobSpec;
use domain::state::{AttemptEnd, JobState};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::arrays::lock;
use super::find;
use super::prospect::{self, Prospect};
use super::submit::Foretold;
use super::view::{self, Job};
use crate::app::audit::{self, Change};
use crate::app::authorise::Action;
use crate::app::idempotency::{self, Answer, Repeat};
use crate::app::{App, AppError, Asker, RefusalCode, change, planning, questions};
use crate::lifecycle::{self, Stop, step_job};
use crate::store::events::{self, Actor, NewEvent, Subject};
use crate::store::jobs::{self, JobGuard, JobRow, JobStep};
use crate::store::{self, Tx};

/// What may be changed of a job while it waits; what is absent stays.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobPatch {
    /// Its priority class.
    #[serde(default, deserialize_with = "crate::app::some")]
    #[schema(nullable = false)]
    pub class: Option<Name>,
    /// Longest run of one attempt; null is no limit.
    #[serde(default, deserialize_with = "crate::app::some")]
    #[schema(value_type = Option<i64>)]
    pub time_limit_seconds: Option<Option<i64>>,
    /// Whether it may be preempted; null is as its class says.
    #[serde(default, deserialize_with = "crate::app::some")]
    #[schema(value_type = Option<bool>)]
    pub preemptible: Option<Option<bool>>,
}

impl JobPatch {
    /// The spec as it is changed.
    fn of(&self, before: &JobSpec) -> JobSpec {
        let mut after = before.clone();
        if let Some(class) = &self.class {
            after.class = class.clone();
        }
        if let Some(limit) = self.time_limit_seconds {
            after.time_limit_seconds = limit;
        }
        if let Some(preemptible) = self.preemptible {
            after.preemptible = preemptible;
        }
        after
    }
}

/// Cancels a job: at once where nothing of it runs, else as soon as its workers have left. It is
/// accepted in every state: a job that has ended already, however, is answered as it is.
pub async fn cancel(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    id: JobId,
) -> Result<Answer<Job>, AppError> {
    steer(app, asker, repeat, id, JobWish::Cancel).await
}

/// Holds a job back; what runs of it is stopped, and queues again when it is resumed.
pub async fn suspend(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    id: JobId,
) -> Result<Answer<Job>, AppError> {
    steer(app, asker, repeat, id, JobWish::Suspend).await
}

/// Lets a suspended job queue again.
pub async fn resume(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    id: JobId,
) -> Result<Answer<Job>, AppError> {
    steer(app, asker, repeat, id, JobWish::Resume).await
}

/// Of which elements of an array something is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Part {
    /// Indices and ranges, as `0-9,12`; absent is the whole job.
    #[schema(value_type = Option<String>)]
    pub elements: Option<Elements>,
}

/// What is wanted of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobWish {
    /// [`cancel`].
    Cancel,
    /// [`suspend`].
    Suspend,
    /// [`resume`].
    Resume,
}

impl JobWish {
    fn action(self) -> Action {
        match self {
            Self::Cancel => Action::CancelJob,
            Self::Suspend => Action::SuspendJob,
            Self::Resume => Action::ResumeJob,
        }
    }
}

/// Does to a job what is wanted of it.
pub async fn steer(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    id: JobId,
    wish: JobWish,
) -> Result<Answer<Job>, AppError> {
    steer_part(app, asker, repeat, id, Part::default(), wish).await
}

/// Does to a job, or to some elements of an array, what is wanted of it.
pub async fn steer_part(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    id: JobId,
    part: Part,
    wish: JobWish,
) -> Result<Answer<Job>, AppError> {
    let mut work = idempotency::begin(app, asker, repeat).await?;
    find(&mut work.tx, asker, wish.action(), id).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    if id.is_array() {
        return array::steer(app, asker, work, id, part.elements.as_ref(), wish).await;
    }
    if let Some(elements) = part.elements {
        let remedy = "null: only an array has elements";
        return Err(AppError::invalid("elements", elements, remedy));
    }
    let mut job = lock(&mut work.tx, asker, wish.action(), id).await?;
    let before = job.state;
    let actor = Actor::User(asker.name.to_string());
    match wish {
        JobWish::Cancel => cancel_locked(&mut work.tx, &mut job, &actor).await?,
        JobWish::Suspend => suspend_locked(&mut work.tx, &mut job, &actor).await?,
        JobWish::Resume => resume_locked(&mut work.tx, &mut job, &actor).await?,
    }
    if job.state != before {
        let change = Change {
            team_id: Some(job.team_id),
            before: Some(json!({ "state": before })),
            after: Some(json!({ "state": job.state })),
            ..Change::of(wish.action(), format!("job/{id}"))
        };
        audit::record(&mut work.tx, asker, change).await?;
    }
    let job = shown_again(&mut work.tx, id).await?;
    let version = job.version;
    work.finish(app, Answer::done(job, version)).await
}

async fn cancel_locked(tx: &mut Tx, job: &mut JobRow, actor: &Actor) -> Result<(), AppError> {
    if job.state == JobState::Cancelling || job.state.terminal() {
        return Ok(());
    }
    let message = format!("cancelled by {}", actor.name());
    let wish = Stop {
        job_to: Some(JobState::Cancelling),
        ..Stop::because(AttemptEnd::Cancelled, message.clone())
    };
    // A queued job whose last attempt is still leaving is cancelled at once all the same: it
    // never runs again, and what still leaves is told to already.
    if job.state == JobState::Queued || !lifecycle::stop(tx, job, &wish, actor).await? {
        lifecycle::cancel_waiting(tx, job, &message, actor).await?;
    }
    Ok(())
}

async fn suspend_locked(tx: &mut Tx, job: &mut JobRow, actor: &Actor) -> Result<(), AppError> {
    match job.state {
        JobState::Suspended => return Ok(()),
        JobState::Cancelling => {
            return Err(AppError::wrong_state(
                RefusalCode::BeingCancelled,
                "the job is being cancelled and cannot be suspended any more",
                job.state,
                "submit it anew",
            ));
        }
        state if state.terminal() => return Err(ended(job)),
        _ => {}
    }
    let message = format!("suspended by {}", actor.name());
    let wish = Stop {
        job_to: Some(JobState::Suspended),
        ..Stop::because(AttemptEnd::Preempted, message.clone())
    };
    if job.state == JobState::Queued || !lifecycle::stop(tx, job, &wish, actor).await? {
        let step = JobStep::to(JobState::Suspended).because("suspended", message);
        step_job(tx, job, &step, actor, json!({})).await?;
    }
    Ok(())
}

async fn resume_locked(tx: &mut Tx, job: &mut JobRow, actor: &Actor) -> Result<(), AppError> {
    if job.state != JobState::Suspended {
        return Err(AppError::wrong_state(
            RefusalCode::NotSuspended,
            format!("the job is {}", job.state),
            job.state,
            "only a suspended job is resumed",
        ));
    }
    let mut step = JobStep::to(JobState::Queued);
    step.message = format!("resumed by {}", actor.name());
    step.not_before = job.spec().ok().and_then(|spec| spec.not_before);
    step_job(tx, job, &step, actor, json!({})).await?;
    Ok(())
}

fn ended(job: &JobRow) -> AppError {
    AppError::wrong_state(
        RefusalCode::JobEnded,
        format!("the job has ended already: it is {}", job.state),
        job.state,
        "submit it anew",
    )
}

fn unreadable(error: &serde_json::Error) -> AppError {
    AppError::conflict(
        RefusalCode::SpecUnreadable,
        jobs::unreadable_spec(error),
        FieldError::new("spec", "unreadable", "submit it anew"),
    )
}

/// Changes class, time limit and whether it may be preempted of a job while it waits.
pub async fn update(
    app: &App,
    asker: &Asker,
    id: JobId,
    version: i64,
    patch: JobPatch,
) -> Result<Job, AppError> {
    if id.is_array() {
        return array::update(app, asker, id, version, patch).await;
    }
    // Asked before the row is locked: a transaction is not kept open while others are being answered.
    let foretold = foresee_change(app, asker, id, &patch).await;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = lock(&mut tx, asker, Action::UpdateJob, id).await?;
    if job.version != version {
        return Err(AppError::Stale {
            given: version.to_string(),
            present: job.version,
        });
    }
    if !matches!(job.state, JobState::Queued | JobState::Suspended) {
        return Err(AppError::wrong_state(
            RefusalCode::NotWaiting,
            format!("the job is {}", job.state),
            job.state,
            "it changes only while it waits",
        ));
    }
    let before: JobSpec = job.spec().map_err(|error| unreadable(&error))?;
    let after = changed(&mut tx, &before, patch).await?;
    if !change::leaves((version, job.version), &before, &after)? {
        let guard = JobGuard {
            id,
            state: job.state,
            version,
        };
        jobs::change_spec(&mut tx, guard, &after)
            .await?
            .ok_or_else(|| AppError::Stale {
                given: version.to_string(),
                present: job.version,
            })?;
        let changed = Changed {
            job: (job.team_id, id),
            state: job.state,
            before: &before,
            after: &after,
        };
        changed.record(&mut tx, asker).await?;
        if let Some(foretold) = foretold? {
            jobs::set_waiting(&mut tx, &[foretold.verdict(id)]).await?;
        }
    }
    let job = shown_again(&mut tx, id).await?;
    tx.commit().await?;
    app.wake.all();
    Ok(job)
}

/// What the engine foretells of a job as it is to be, where it waits and its spec can be read. That
/// no node could hold it any more is no reason to refuse the change: it was taken.
async fn foresee_change(
    app: &App,
    asker: &Asker,
    id: JobId,
    patch: &JobPatch,
) -> Result<Option<Foretold>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = find(&mut tx, asker, Action::UpdateJob, id).await?;
    tx.commit().await?;
    let Some(before) = job.spec().ok().filter(|_| job.state == JobState::Queued) else {
        return Ok(None);
    };
    let week = questions::week(app).await?;
    let spec = patch.of(&before);
    let workload = planning::workload(&week.now, &job.team, job.user_id, &spec);
    let asked = move || match prospect::of(&week, &spec, workload) {
        Prospect::BeyondQuota(beyond, verdict) => Some(Foretold::of(&beyond, &verdict)),
        Prospect::Open | Prospect::Closed { .. } => None,
    };
    app.questions.ask("foresee a change", asked).await
}

/// A spec as a patch makes it, if it may be.
async fn changed(tx: &mut Tx, before: &JobSpec, patch: JobPatch) -> Result<JobSpec, AppError> {
    if let Some(class) = &patch.class
        && store::classes::find(tx, class.as_str()).await?.is_none()
    {
        return Err(AppError::invalid(
            "class",
            class,
            "the name of a class that is there",
        ));
    }
    let after = patch.of(before);
    AppError::of_faults(after.faults())?;
    Ok(after)
}

/// A job whose spec was changed.
struct Changed<'a> {
    job: (TeamId, JobId),
    state: JobState,
    before: &'a JobSpec,
    after: &'a JobSpec,
}

impl Changed<'_> {
    /// Writes its event, which tells of the keys that differ, and its row of the audit log.
    async fn record(&self, tx: &mut Tx, asker: &Asker) -> Result<(), AppError> {
        let (team_id, id) = self.job;
        let (before, after) = (described(self.before), described(self.after));
        let differs = |key: &&String| before.get(*key) != after.get(*key);
        let changes: Map<String, Value> = after
            .keys()
            .filter(differs)
            .map(|key| {
                let change = json!({ "from": before.get(key), "to": after.get(key) });
                (key.clone(), change)
            })
            .collect();
        let event = NewEvent {
            subject: Subject::Job(id),
            job: Some(self.job),
            node_id: None,
            from: Some(self.state.as_str()),
            to: self.state.as_str(),
            actor: &Actor::User(asker.name.to_string()),
            reason: "changed",
            data: json!({ "changes": changes }),
        };
        events::insert(tx, &event).await?;
        let change = Change {
            team_id: Some(team_id),
            before: Some(before.into()),
            after: Some(after.into()),
            ..Change::of(Action::UpdateJob, format!("job/{id}"))
        };
        audit::record(tx, asker, change).await
    }
}

/// What may be changed of a spec.
fn described(spec: &JobSpec) -> Map<String, Value> {
    [
        ("class", json!(spec.class)),
        ("time_limit_seconds", json!(spec.time_limit_seconds)),
        ("preemptible", json!(spec.preemptible)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into_iter()
    .collect()
}

async fn shown_again(tx: &mut Tx, id: JobId) -> Result<Job, AppError> {
    let row = super::arrays::find(tx, id)
        .await?
        .ok_or_else(|| AppError::not_found("job", id))?;
    view::show_one(tx, row).await
}
