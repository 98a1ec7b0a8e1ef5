//! What needs no plan: jobs whose spec cannot be read, jobs that follow one that failed, and what arrays need.

use std::collections::{BTreeMap, BTreeSet};

use domain::ids::JobId;
use domain::state::{AttemptEnd, AttemptState, JobState};
use serde_json::json;

use super::arrays;
use super::world::{JobRecord, Records};
use crate::app::App;
use crate::lifecycle::{Actor, LifecycleError, Stop, step_job, stop};
use crate::store::epochs::{self, Epoch};
use crate::store::jobs::{self, JobRow, JobStep};
use crate::store::{self, Tx, attempts};

/// Jobs that others follow and that have ended well, so that they are asked for once.
pub type Followed = BTreeSet<JobId>;

/// What settling did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// There was nothing to settle.
    Nothing,
    /// Jobs were ended.
    Changed,
    /// Another leader has raised the epoch.
    Fenced,
}

/// Ends what can never be planned.
pub async fn settle(
    app: &App,
    epoch: Epoch,
    records: &Records,
    followed: &mut Followed,
) -> Result<Settled, sqlx::Error> {
    let mut doomed: Vec<(JobId, &'static str, String)> = records
        .jobs
        .values()
        .filter_map(|job| {
            let error = job.spec.as_ref().err()?;
            Some((
                job.row.id,
                AttemptEnd::Invalid.as_str(),
                jobs::unreadable_spec(error),
            ))
        })
        .collect();
    doomed.extend(without_predecessor(app, records, followed).await?);
    if doomed.is_empty() {
        return arrays::settle(app, epoch, records).await;
    }
    fail_waiting(app, epoch, &doomed).await
}

/// Waiting jobs that follow one that ended otherwise than well.
async fn without_predecessor(
    app: &App,
    records: &Records,
    followed: &mut Followed,
) -> Result<Vec<(JobId, &'static str, String)>, sqlx::Error> {
    let mut asked: BTreeMap<JobId, Vec<&JobRecord>> = BTreeMap::new();
    for job in records
        .jobs
        .values()
        .filter(|job| job.row.state == JobState::Queued)
    {
        let Ok(spec) = &job.spec else { continue };
        for before in spec.after.iter().filter_map(|id| id.parse().ok()) {
            let lives = records.jobs.contains_key(&before) || records.arrays.contains_key(&before);
            if !lives && !followed.contains(&before) {
                asked.entry(before).or_default().push(job);
            }
        }
    }
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<JobId> = asked.keys().copied().collect();
    let mut tx = app.db.begin_system().await?;
    let states = store::arrays::states_of(&mut tx, None, &ids).await?;
    tx.commit().await?;
    let mut doomed = Vec::new();
    for (id, state) in states {
        if state == JobState::Succeeded {
            followed.insert(id);
        } else if state.terminal() {
            let after = asked.get(&id).into_iter().flatten();
            doomed.extend(after.map(|job| {
                (
                    job.row.id,
                    "dependency",
                    format!("it follows job {id}, which {state}"),
                )
            }));
        }
    }
    Ok(doomed)
}

/// Fails jobs that will never run, with a reason and a sentence each; what already runs is stopped.
pub async fn fail_waiting(
    app: &App,
    epoch: Epoch,
    doomed: &[(JobId, &'static str, String)],
) -> Result<Settled, sqlx::Error> {
    let mut tx = app.db.begin_system().await?;
    if epochs::share(&mut tx).await? != epoch {
        return Ok(Settled::Fenced);
    }
    let mut changed = false;
    for (id, reason, message) in doomed {
        let Some(mut job) = jobs::lock(&mut tx, *id).await? else {
            continue;
        };
        match end(&mut tx, &mut job, reason, message).await {
            Ok(ended) => changed |= ended,
            Err(LifecycleError::Database(error)) => return Err(error),
            Err(error) => {
                tracing::warn!(job.id = %id, error = %error, "job could not be failed");
            }
        }
    }
    tx.commit().await?;
    Ok(if changed {
        Settled::Changed
    } else {
        Settled::Nothing
    })
}

/// Fails a job that holds nothing, or stops what it holds; whether anything changed.
async fn end(
    tx: &mut Tx,
    job: &mut JobRow,
    reason: &str,
    message: &str,
) -> Result<bool, LifecycleError> {
    if job.state.terminal() {
        return Ok(false);
    }
    match attempts::lock_live(tx, job.id).await? {
        Some(attempt) if attempt.state == AttemptState::Stopping => Ok(false),
        Some(_) => {
            let wish = Stop::because(AttemptEnd::Invalid, message);
            stop(tx, job, &wish, &Actor::Scheduler).await
        }
        None => {
            let step = JobStep::to(JobState::Failed).because(reason, message);
            step_job(tx, job, &step, &Actor::Scheduler, json!({})).await?;
            Ok(true)
        }
    }
}
