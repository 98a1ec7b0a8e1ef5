//! Submitting: everything that can be wrong with a job is said before it is written.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::FieldError;
use domain::ids::{JobId, TeamId};
use domain::name::Name;
use domain::spec::JobSpec;
use domain::state::JobState;
use engine::plan::Waiting;
use engine::world::{Workload, World};
use serde_json::{Value, json};

use super::arrays;
use super::prospect::{self, BeyondQuota, Prospect};
use super::view::{self, Job};
use crate::app::audit::{self, Change};
use crate::app::authorise::Action;
use crate::app::idempotency::{self, Answer, Repeat};
use crate::app::{App, AppError, Asker, planning, questions, teams};
use crate::scheduler::capable;
use crate::store::arrays::NewArray;
use crate::store::events::{self, Actor, NewEvent, Subject};
use crate::store::jobs::{self, NewJob, Verdict};
use crate::store::teams::Team;
use crate::store::{self, Tx};

/// Labels that a refusal names: enough to recognise the one that was meant.
const LABELS_NAMED_MAX: usize = 20;

/// Writes a job as queued.
pub async fn submit(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    team: &Name,
    spec: JobSpec,
) -> Result<Answer<Job>, AppError> {
    // Read before the transaction begins, so that none waits for another connection.
    let fleet = Arc::new(questions::fleet(app).await?);
    // Asked before it, too: a transaction is not kept open while others are being answered. A
    // repetition is answered below whatever came of it.
    let foretold = foresee_one(app, asker, &fleet, team, &spec).await;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    teams::find_as(&mut work.tx, asker, Action::SubmitJob, team).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    let team = check(&mut work.tx, &fleet, asker, Action::SubmitJob, team, &spec).await?;
    let id = new_id(&spec);
    let action = Action::SubmitJob;
    let new = New {
        id,
        team_id: team.id,
        spec: &spec,
        foretold: foretold?,
    };
    write(&mut work.tx, &fleet, asker, action, new).await?;
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
    fleet: &Arc<World>,
    team: &Name,
    spec: &JobSpec,
) -> Result<Option<Foretold>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = check(&mut tx, fleet, asker, Action::SubmitJob, team, spec).await?;
    tx.commit().await?;
    let workload = planning::workload(fleet, team.name.as_str(), asker.user_id, spec);
    let (fleet, spec) = (Arc::clone(fleet), spec.clone());
    let asked = move || foresee(&fleet, &spec, workload);
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
        Self {
            code: verdict.code.as_str(),
            message: beyond.to_string(),
            whole: serde_json::to_value(verdict).expect("a verdict's keys are texts"),
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
    fleet: &World,
    spec: &JobSpec,
    workload: Workload,
) -> Result<Option<Foretold>, AppError> {
    match prospect::of(fleet, spec, workload) {
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

/// Writes a checked job or array as queued, with its event and audit row.
pub(super) async fn write(
    tx: &mut Tx,
    fleet: &World,
    asker: &Asker,
    action: Action,
    new: New<'_>,
) -> Result<(), AppError> {
    let (id, team_id, spec) = (new.id, new.team_id, new.spec);
    let foretold = new.foretold.map(|told| told.verdict(id));
    arrays::bring_followed(tx, spec).await?;
    let written = match spec.array {
        Some(array) => {
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
            store::arrays::insert(tx, &new).await
        }
        None => {
            let new = NewJob {
                id,
                team_id,
                user_id: asker.user_id,
                spec,
                foretold: foretold.as_ref(),
            };
            jobs::insert(tx, &new).await
        }
    };
    written.map_err(|error| unknown_class(error, spec))?;
    let actor = Actor::User(asker.name.to_string());
    let event = NewEvent {
        subject: Subject::Job(id),
        job: Some((team_id, id)),
        node_id: None,
        from: None,
        to: JobState::Queued.as_str(),
        actor: &actor,
        reason: "submitted",
        data: submission_note(fleet, spec),
    };
    events::insert(tx, &event).await?;
    let change = Change {
        team_id: Some(team_id),
        after: Some(json!({ "name": spec.name, "class": spec.class, "array": spec.array })),
        ..Change::of(action, format!("job/{id}"))
    };
    audit::record(tx, asker, change).await
}

/// Everything that is wrong with a spec for its own sake, or beside the names that it uses.
/// Returns the team that it is for.
pub(in crate::app) async fn check(
    tx: &mut Tx,
    fleet: &World,
    asker: &Asker,
    action: Action,
    team: &Name,
    spec: &JobSpec,
) -> Result<Team, AppError> {
    check_among(tx, fleet, asker, action, team, spec, &[]).await
}

/// The same of a job that is submitted with others, whose ids are known already: it may follow them.
pub(super) async fn check_among(
    tx: &mut Tx,
    fleet: &World,
    asker: &Asker,
    action: Action,
    team: &Name,
    spec: &JobSpec,
    others: &[JobId],
) -> Result<Team, AppError> {
    let team = teams::find_as(tx, asker, action, team).await?;
    if store::teams::with_children(tx, team.id).await?.len() > 1 {
        let remedy = "a team without teams below it: work belongs to leaves";
        return Err(AppError::invalid("team", &team.name, remedy));
    }
    spec.check()?;
    for pool in &spec.pools {
        if store::pools::find(tx, pool.as_str()).await?.is_none() {
            return Err(AppError::invalid(
                "pools",
                pool,
                "names of pools that are there",
            ));
        }
    }
    if store::classes::find(tx, spec.class.as_str())
        .await?
        .is_none()
    {
        return Err(AppError::invalid(
            "class",
            &spec.class,
            "the name of a class that is there",
        ));
    }
    check_after(tx, team.id, spec, others).await?;
    check_topology(fleet, spec)?;
    if let Some(node) = &spec.node
        && !fleet.nodes.iter().any(|n| n.name == node.as_str())
    {
        return Err(AppError::invalid(
            "node",
            node,
            "the name of a node that is there",
        ));
    }
    Ok(team)
}

/// The labels of nodes in the pools that a spec accepts.
fn labels_known<'f>(fleet: &'f World, spec: &'f JobSpec) -> BTreeSet<&'f str> {
    prospect::nodes(fleet, spec)
        .flat_map(|node| node.labels.keys())
        .map(String::as_str)
        .filter(|label| !capable::internal(label))
        .collect()
}

/// A label that no node of its pools has is no domain of anything: what requires it would be
/// waited for in vain.
fn check_topology(fleet: &World, spec: &JobSpec) -> Result<(), AppError> {
    let known = labels_known(fleet, spec);
    for (field, label) in [
        ("topology.require", &spec.topology.require),
        ("anti_affinity", &spec.anti_affinity),
    ] {
        if let Some(label) = label.as_deref().filter(|label| !known.contains(label)) {
            let named: Vec<&str> = known.iter().copied().take(LABELS_NAMED_MAX).collect();
            let remedy = if named.is_empty() {
                "null, since the nodes of its pools have no labels".to_owned()
            } else {
                format!("a label that nodes of its pools have: {}", named.join(", "))
            };
            return Err(AppError::invalid(field, label, remedy));
        }
    }
    Ok(())
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

/// The jobs that it follows must be its own team's, and not have failed already. None of them can
/// follow it in turn: it has no id yet, and of `others` it follows those before it.
async fn check_after(
    tx: &mut Tx,
    team_id: TeamId,
    spec: &JobSpec,
    others: &[JobId],
) -> Result<(), AppError> {
    let mut ids = spec
        .after
        .iter()
        .map(|id| {
            id.parse::<JobId>().map_err(|error| {
                AppError::Invalid(FieldError {
                    field: "after".into(),
                    ..error
                })
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    ids.retain(|id| !others.contains(&id.array().unwrap_or(*id)));
    if ids.is_empty() {
        return Ok(());
    }
    let states = store::arrays::states_of(tx, Some(team_id), &ids).await?;
    for id in ids {
        match states.iter().find(|(known, _)| *known == id) {
            None => {
                let remedy = "ids of jobs of the same team that are there";
                return Err(AppError::invalid("after", id, remedy));
            }
            Some((_, JobState::Failed | JobState::Cancelled)) => {
                return Err(AppError::invalid(
                    "after",
                    id,
                    "a job that may still end well; this one has not",
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn unknown_class(error: sqlx::Error, spec: &JobSpec) -> AppError {
    if matches!(store::violated(&error), Some("job_class" | "array_class")) {
        return AppError::invalid("class", &spec.class, "the name of a class that is there");
    }
    error.into()
}
