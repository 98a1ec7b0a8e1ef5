//! Submitting: everything that can be wrong with a job is said before it is written.

use std::sync::Arc;

use domain::ids::{JobId, TeamId};
use domain::name::Name;
use domain::spec::JobSpec;
use domain::state::JobState;
use engine::plan::Waiting;
use engine::world::{Workload, World};
use serde_json::{Value, json};

use super::arrays;
use super::check::{check, labels_known};
use super::prospect::{self, BeyondQuota, Prospect};
use super::view::{self, Job};
use crate::app::audit::{self, Change};
use crate::app::authorise::Action;
use crate::app::idempotency::{self, Answer, Repeat};
use crate::app::{App, AppError, Asker, budgets, planning, questions, teams};
use crate::scheduler::week::Week;
use crate::store::arrays::NewArray;
use crate::store::events::{self, Actor, NewEvent, Subject};
use crate::store::jobs::{self, NewJob, Verdict};
use crate::store::{self, Tx};

/// Writes a job as queued.
pub async fn submit(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    team: &Name,
    spec: JobSpec,
) -> Result<Answer<Job>, AppError> {
    // Read before the transaction begins, so that none waits for another connection.
    let week = Arc::new(questions::week(app).await?);
    // Asked before it, too: a transaction is not kept open while others are being answered. A
    // repetition is answered below whatever came of it.
    let foretold = foresee_one(app, asker, &week, team, &spec).await;
    let fleet = &week.now;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    teams::find_as(&mut work.tx, asker, Action::SubmitJob, team).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let team = check(&mut work.tx, fleet, asker, Action::SubmitJob, team, &spec).await?;
    budgets::admit(app, &mut work.tx, asker, &team, &[&spec]).await?;
    let id = new_id(&spec);
    let action = Action::SubmitJob;
    let new = New {
        id,
        team_id: team.id,
        spec: &spec,
        foretold: foretold?,
    };
    write(&mut work.tx, fleet, asker, action, vec![new]).await?;
    let row = arrays::find(&mut work.tx, id)
        .await?
        .ok_or_else(|| AppError::not_found("job", id))?;
    let job = view::show_one(&mut work.tx, row).await?;
    let version = job.version;
    work.finish(app, Answer::created(job, version)).await
}

/// What the engine foretells of a job that nothing else is wrong with, asked in turn.
async fn foresee_one(
    app: &App,
    asker: &Asker,
    week: &Arc<Week>,
    team: &Name,
    spec: &JobSpec,
) -> Result<Option<Foretold>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = check(&mut tx, &week.now, asker, Action::SubmitJob, team, spec).await?;
    tx.commit().await?;
    let workload = planning::workload(&week.now, team.name.as_str(), asker.user_id, spec);
    let (week, spec) = (Arc::clone(week), spec.clone());
    let asked = move || foresee(&week, &spec, workload);
    app.questions.ask("foresee a job", asked).await?
}

/// What of its quota can never admit a job, as it is kept with the job's row.
#[derive(Debug, Clone)]
pub(super) struct Foretold {
    code: &'static str,
    message: String,
    /// The engine's verdict as JSON.
    whole: Value,
}

impl Foretold {
    /// A quota that never admits a job, with the engine's verdict.
    pub(super) fn of(beyond: &BeyondQuota, verdict: &Waiting) -> Self {
        let mut whole = serde_json::to_value(verdict).expect("a verdict's keys are texts");
        beyond.keep(&mut whole);
        Self {
            code: verdict.code.as_str(),
            message: beyond.to_string(),
            whole,
        }
    }

    /// The same of a job that has an id.
    pub(super) fn verdict(self, id: JobId) -> Verdict {
        Verdict {
            id,
            code: self.code.to_owned(),
            message: self.message,
            whole: self.whole,
        }
    }
}

/// Refuses what can never run here, and says what is known of the rest already.
pub(super) fn foresee(
    week: &Week,
    spec: &JobSpec,
    workload: Workload,
) -> Result<Option<Foretold>, AppError> {
    match prospect::of(week, spec, workload) {
        Prospect::Open => Ok(None),
        Prospect::Closed { code, field } => Err(AppError::Impossible { code, field }),
        Prospect::BeyondQuota(beyond, verdict) => Ok(Some(Foretold::of(&beyond, &verdict))),
    }
}

/// The id that a job of this spec is given.
pub(super) fn new_id(spec: &JobSpec) -> JobId {
    match spec.array {
        Some(_) => JobId::new_array(),
        None => JobId::new(),
    }
}

/// A checked job or array to be written.
pub(super) struct New<'a> {
    pub(super) id: JobId,
    pub(super) team_id: TeamId,
    pub(super) spec: &'a JobSpec,
    pub(super) foretold: Option<Foretold>,
}

/// Writes checked jobs and arrays as queued, each with its event and audit row.
pub(super) async fn write(
    tx: &mut Tx,
    fleet: &World,
    asker: &Asker,
    action: Action,
    new: Vec<New<'_>>,
) -> Result<(), AppError> {
    let actor = Actor::User(asker.name.to_string());
    let mut jobs_new = Vec::with_capacity(new.len());
    let mut events_new = Vec::with_capacity(new.len());
    let mut changes = Vec::with_capacity(new.len());
    for New {
        id,
        team_id,
        spec,
        foretold,
    } in new
    {
        arrays::bring_followed(tx, spec).await?;
        let foretold = foretold.map(|told| told.verdict(id));
        match spec.array {
            Some(array) => {
                // What is written first is looked at first.
                write_jobs(tx, &mut jobs_new).await?;
                let new = NewArray {
                    id,
                    team_id,
                    user_id: asker.user_id,
                    array,
                    spec: &JobSpec {
                        array: None,
                        ..spec.clone()
                    },
                    foretold: foretold.as_ref(),
                };
                let written = store::arrays::insert(tx, &new).await;
                written.map_err(|error| unknown_class(error, &[spec]))?;
            }
            None => jobs_new.push(NewJob {
                id,
                team_id,
                user_id: asker.user_id,
                spec,
                foretold,
            }),
        }
        events_new.push(NewEvent {
            subject: Subject::Job(id),
            job: Some((team_id, id)),
            node_id: None,
            from: None,
            to: JobState::Queued.as_str(),
            actor: &actor,
            reason: "submitted",
            data: submission_note(fleet, spec),
        });
        changes.push(Change {
            team_id: Some(team_id),
            after: Some(json!({ "name": spec.name, "class": spec.class, "array": spec.array })),
            ..Change::of(action, format!("job/{id}"))
        });
    }
    write_jobs(tx, &mut jobs_new).await?;
    events::insert_all(tx, &events_new).await?;
    audit::record_all(tx, asker, changes).await
}

/// Writes these jobs, and takes them out.
async fn write_jobs(tx: &mut Tx, new: &mut Vec<NewJob<'_>>) -> Result<(), AppError> {
    let new = std::mem::take(new);
    if new.is_empty() {
        return Ok(());
    }
    let specs: Vec<&JobSpec> = new.iter().map(|job| job.spec).collect();
    let written = jobs::insert(tx, &new).await;
    written.map_err(|error| unknown_class(error, &specs))
}

/// What a job's first event says besides: that it prefers what there is not.
fn submission_note(fleet: &World, spec: &JobSpec) -> Value {
    match &spec.topology.prefer {
        Some(label) if !labels_known(fleet, spec).contains(label.as_str()) => json!({
            "unknown_label": label,
            "message": format!("no node of its pools has the label {label}, which it prefers"),
        }),
        _ => json!({}),
    }
}

fn unknown_class(error: sqlx::Error, specs: &[&JobSpec]) -> AppError {
    if let (Some("job_class" | "array_class"), Some(spec)) =
        (store::violated(&error), specs.first())
    {
        return AppError::invalid("class", &spec.class, "the name of a class that is there");
    }
    error.into()
}
