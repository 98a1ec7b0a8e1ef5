//! Submitting many jobs at once: all of them are written, or none.

use std::sync::Arc;

use domain::name::Name;
use domain::spec::JobSpec;
use engine::world::{Workload, World};
use serde::Deserialize;
use utoipa::ToSchema;

use super::submit::{Foretold, check, foresee, write};
use super::view::{self, Job};
use crate::app::authorise::Action;
use crate::app::idempotency::{self, Answer, Repeat};
use crate::app::page::Page;
use crate::app::{App, AppError, Asker, planning, questions, teams};
use crate::store::{Tx, jobs};

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
    let fleet = Arc::new(questions::fleet(app).await?);
    let specs = Arc::new(batch.jobs);
    // Before the transaction begins: it is not kept open while others are being answered.
    let foretold = foresee_all(app, asker, &fleet, team, &specs).await;
    let mut work = idempotency::begin(app, asker, repeat).await?;
    let found = teams::find_as(&mut work.tx, asker, Action::SubmitJobs, team).await?;
    if let Some(answer) = work.repeated().await? {
        return Ok(answer);
    }
    check_all(&mut work.tx, &fleet, asker, team, &specs).await?;
    let mut ids = Vec::with_capacity(specs.len());
    for (spec, foretold) in specs.iter().zip(foretold?) {
        let action = Action::SubmitJobs;
        ids.push(
            write(
                &mut work.tx,
                &fleet,
                asker,
                action,
                found.id,
                spec,
                foretold,
            )
            .await?,
        );
    }
    // Ids made later sort later, so that the answer has the order of the request.
    let rows = jobs::find_all(&mut work.tx, &ids).await?;
    let items = view::show(&mut work.tx, rows).await?;
    let page = Page {
        items,
        next_cursor: None,
    };
    work.finish(app, Answer::created(page, None)).await
}

/// Refuses a batch of which one job is wrong, or that is too long.
async fn check_all(
    tx: &mut Tx,
    fleet: &World,
    asker: &Asker,
    team: &Name,
    specs: &[JobSpec],
) -> Result<(), AppError> {
    if !(1..=JOBS_MAX).contains(&specs.len()) {
        let remedy = format!("1 to {JOBS_MAX} jobs");
        return Err(AppError::invalid("jobs", specs.len(), remedy));
    }
    for (at, spec) in specs.iter().enumerate() {
        check(tx, fleet, asker, Action::SubmitJobs, team, spec)
            .await
            .map_err(|error| of_job(at, error))?;
    }
    Ok(())
}

/// What the engine foretells of each job of a batch that nothing else is wrong with, asked in
/// turn: jobs that ask for the same are asked for once.
async fn foresee_all(
    app: &App,
    asker: &Asker,
    fleet: &Arc<World>,
    team: &Name,
    specs: &Arc<Vec<JobSpec>>,
) -> Result<Vec<Option<Foretold>>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    check_all(&mut tx, fleet, asker, team, specs).await?;
    tx.commit().await?;
    let workloads = specs.iter();
    let workloads: Vec<Workload> = workloads
        .map(|spec| planning::workload(fleet, team.as_str(), asker.user_id, spec))
        .collect();
    let (fleet, specs) = (Arc::clone(fleet), Arc::clone(specs));
    let asked = move || {
        let mut known: Vec<(Workload, Option<Foretold>)> = Vec::new();
        let mut all = Vec::with_capacity(specs.len());
        for (at, (spec, workload)) in specs.iter().zip(workloads).enumerate() {
            let place = known.iter().position(|(asked, _)| *asked == workload);
            let place = match place {
                Some(place) => place,
                None => {
                    let foretold = foresee(&fleet, spec, workload.clone())
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
    let place = format!("jobs[{at}]");
    match error {
        AppError::Invalid(field) => AppError::Invalid(field.under(&place)),
        AppError::Impossible { code, field } => AppError::Impossible {
            code,
            field: field.under(&place),
        },
        other => other,
    }
}
