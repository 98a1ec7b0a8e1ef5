//! Submitting many jobs at once: all of them are written, or none.

use std::sync::Arc;

use domain::ids::JobId;
use domain::name::Name;
use domain::spec::{FAULTS_MAX, JobSpec};
use engine::world::{Workload, World};
use serde::Deserialize;
use utoipa::ToSchema;

use super::arrays;
use super::check::Known;
use super::submit::{Foretold, New, foresee, new_id, write};
use super::view::{self, Job};
use crate::app::authorise::Action;
use crate::app::idempotency::{self, Answer, Repeat};
use crate::app::page::Page;
use crate::app::{App, AppError, Asker, budgets, planning, questions, teams};
use crate::scheduler::week::Week;
use crate::store::Tx;

/// Most jobs of one batch: what one transaction writes in a second or two.
const JOBS_MAX: usize = 1_000;

/// Jobs that are submitted together.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// What is asked for, in the order in which they are to be looked at.
    #[schema(min_items = 1, max_items = 1000)]
    pub jobs: Vec<JobSpec>,
}

/// Writes all jobs of a batch as queued, or says what is wrong with one and writes none.
pub async fn submit_batch(
    app: &App,
    asker: &Asker,
    repeat: Repeat,
    team: &Name,
    batch: Batch,
) -> Result<Answer<Page<Job>>, AppError> {
    let week = Arc::new(questions::week(app).await?);
    let mut specs = batch.jobs;
    let ids: Arc<Vec<JobId>> = Arc::new(specs.iter().map(new_id).collect());
    for (at, spec) in specs.iter_mut().enumerate() {
        name_others(at, &ids, spec).map_err(|error| of_job(at, error))?;
    }
    let specs = Arc::new(specs);
    // Before the transaction begins: it is not kept open while others are being answered.
    let foretold = foresee_all(app, asker, &week, team, &specs, &ids).await;
    let fleet = &week.now;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    let found = teams::find_as(&mut work.tx, asker, Action::SubmitJobs, team).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    check_all(&mut work.tx, fleet, asker, team, &specs, &ids).await?;
    let asked: Vec<&JobSpec> = specs.iter().collect();
    budgets::admit(app, &mut work.tx, asker, &found, &asked).await?;
    let new = specs.iter().zip(ids.iter()).zip(foretold?);
    let new = new.map(|((spec, id), foretold)| New {
        id: *id,
        team_id: found.id,
        spec,
        foretold,
    });
    write(
        &mut work.tx,
        fleet,
        asker,
        Action::SubmitJobs,
        new.collect(),
    )
    .await?;
    let rows = arrays::find_all(&mut work.tx, &ids).await?;
    let items = view::show(&mut work.tx, rows).await?;
    let page = Page {
        items,
        next_cursor: None,
    };
    work.finish(app, Answer::created(page, None)).await
}

/// Puts ids in place of what a spec says of the batch's other jobs: `#0` is its first. Only one
/// before it may be named, so that none waits for itself.
fn name_others(at: usize, ids: &[JobId], spec: &mut JobSpec) -> Result<(), AppError> {
    for name in &mut spec.after {
        let Some(place) = name.strip_prefix('#') else {
            continue;
        };
        let before = place
            .parse()
            .ok()
            .and_then(|place: usize| ids[..at].get(place));
        let Some(id) = before.filter(|_| place.bytes().all(|b| b.is_ascii_digit())) else {
            let remedy = match at {
                0 => "ids: the first job of a batch has none before it".to_owned(),
                _ => format!("#0 to #{}, a job before it in the batch, or an id", at - 1),
            };
            return Err(AppError::invalid("after", &*name, remedy));
        };
        *name = id.to_string();
    }
    Ok(())
}

/// Refuses a batch of which jobs are wrong, with what is wrong with each, or that is too long.
async fn check_all(
    tx: &mut Tx,
    fleet: &World,
    asker: &Asker,
    team: &Name,
    specs: &[JobSpec],
    ids: &[JobId],
) -> Result<(), AppError> {
    if !(1..=JOBS_MAX).contains(&specs.len()) {
        let remedy = format!("1 to {JOBS_MAX} jobs");
        return Err(AppError::invalid("jobs", specs.len(), remedy));
    }
    let known = Known::load(tx, asker, Action::SubmitJobs, team, specs).await?;
    let mut faults = Vec::new();
    for (at, spec) in specs.iter().enumerate() {
        match known
            .check(fleet, spec, &ids[..at])
            .map_err(|error| of_job(at, error))
        {
            Ok(()) => {}
            Err(AppError::Invalid(fault)) => faults.push(fault),
            Err(AppError::InvalidAll(all)) => faults.extend(all),
            Err(other) => return Err(other),
        }
        if faults.len() >= FAULTS_MAX {
            break;
        }
    }
    AppError::of_faults(faults)
}

/// What the engine foretells of each job of a batch that nothing else is wrong with, asked in
/// turn: jobs that ask for the same are asked for once.
async fn foresee_all(
    app: &App,
    asker: &Asker,
    week: &Arc<Week>,
    team: &Name,
    specs: &Arc<Vec<JobSpec>>,
    ids: &[JobId],
) -> Result<Vec<Option<Foretold>>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let fleet = &week.now;
    check_all(&mut tx, fleet, asker, team, specs, ids).await?;
    tx.commit().await?;
    let workloads = specs.iter();
    let workloads: Vec<Workload> = workloads
        .map(|spec| Workload {
            // Whom it follows, when it may begin and how long it runs make no other kind of work of
            // it: what could ever run is asked.
            after: Vec::new(),
            not_before: None,
            time_limit_seconds: None,
            predicted_seconds: None,
            checkpoint_seconds: None,
            ..planning::workload(fleet, team.as_str(), asker.user_id, spec)
        })
        .collect();
    let (week, specs) = (Arc::clone(week), Arc::clone(specs));
    let asked = move || {
        let mut known: Vec<(Workload, Option<Foretold>)> = Vec::new();
        let mut all = Vec::with_capacity(specs.len());
        for (at, (spec, workload)) in specs.iter().zip(workloads).enumerate() {
            let place = known.iter().position(|(asked, _)| *asked == workload);
            let place = match place {
                Some(place) => place,
                None => {
                    let foretold = foresee(&week, spec, workload.clone())
                        .map_err(|error| of_job(at, error))?;
                    known.push((workload, foretold));
                    known.len() - 1
                }
            };
            all.push(known[place].1.clone());
        }
        Ok(all)
    };
    app.questions.ask("foresee a batch", asked).await?
}

/// Says of which job of the batch a value was refused.
fn of_job(at: usize, error: AppError) -> AppError {
    error.under(&format!("jobs[{at}]"))
}
