//! Work that must leave where it is: its node is lost or drained, or its device has failed.

use chrono::SecondsFormat;
use domain::eviction::EvictionRule;
use domain::ids::{AssignmentId, JobId};
use domain::state::{AttemptEnd, AttemptState, JobState};

use super::each;
use crate::accounting::meter;
use crate::app::App;
use crate::lifecycle::end::lose_node;
use crate::lifecycle::{Eviction, LifecycleError, Stop, give_up, stop};
use crate::store::attempts::{self, AttemptRow, Leaving};
use crate::store::events::Actor;
use crate::store::jobs::{self, JobRow};
use crate::store::{self, Tx, assignments, audit};

/// Fences work on lost nodes, but for work that is kept: that waits for its node to answer or
/// for a person to declare it dead.
pub async fn lost_nodes(app: &App) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let due = attempts::on_lost_nodes(&mut tx).await?;
    tx.commit().await?;
    each(due, |leaving| fence(app, leaving)).await
}

async fn fence(app: &App, leaving: Leaving) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let (timers, node) = (&app.config.timers, &leaving.node);
    let why = format!("node {node} was lost");
    if !lose_node(&mut tx, timers, leaving.job_id, node, why, &Actor::System).await? {
        return Ok(());
    }
    tx.commit().await?;
    tracing::warn!(job.id = %leaving.job_id, node = %node, "work on a lost node was fenced");
    app.wake.all();
    Ok(())
}

/// Stops work that holds a failed device; an elastic gang goes on without the workers that do, where
/// enough of it is left.
pub async fn failed_devices(app: &App) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let due = attempts::on_failed_devices(&mut tx).await?;
    tx.commit().await?;
    each(due, |leaving| fail(app, leaving)).await
}

async fn fail(app: &App, leaving: Leaving) -> Result<(), LifecycleError> {
    let message = format!("device {}", leaving.what);
    let mut tx = app.db.begin_system().await?;
    let Some(mut job) = jobs::lock(&mut tx, leaving.job_id).await? else {
        return Ok(());
    };
    let Some(attempt) = live(&mut tx, &job).await? else {
        return Ok(());
    };
    let failed = assignments::on_failed_devices(&mut tx, attempt.id).await?;
    let Some(at) = failed.iter().map(|worker| worker.at).min() else {
        return Ok(());
    };
    let failed: Vec<AssignmentId> = failed.into_iter().map(|worker| worker.id).collect();
    let actor = &Actor::System;
    let goes_on = give_up(&mut tx, &mut job, &attempt, &failed, message.clone(), actor).await?;
    // What its work did since its device failed is lost, and so is the time until it has left: nobody's team pays it.
    let lost = match goes_on {
        true => failed,
        false => assignments::taken_of_attempt(&mut tx, attempt.id).await?,
    };
    let now = store::clock(&mut tx).await?;
    for worker in lost {
        meter::failed(&mut tx, worker, at, now).await?;
    }
    if !goes_on {
        let wish = Stop::because(AttemptEnd::NodeLost, message);
        stop(&mut tx, &mut job, &wish, actor).await?;
    }
    tx.commit().await?;
    tracing::info!(job.id = %job.id, "work on a failed device was stopped");
    app.wake.all();
    Ok(())
}

/// Preempts work on nodes that are being emptied: what may be preempted at once, other work when it has
/// not ended by itself by the deadline, if there is one.
pub async fn draining_nodes(app: &App) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let due = attempts::on_draining_nodes(&mut tx, None).await?;
    tx.commit().await?;
    each(due, |drained| drain(app, drained.job_id)).await
}

async fn drain(app: &App, job: JobId) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let Some(mut job) = jobs::lock(&mut tx, job).await? else {
        return Ok(());
    };
    // The node may be open again, or its deadline another.
    let due = attempts::on_draining_nodes(&mut tx, Some(job.id)).await?;
    let Some(drained) = due.first() else {
        return Ok(());
    };
    let node = &drained.node;
    let (rule, message) = match drained.deadline_at {
        None => (EvictionRule::Drain, format!("node {node} is being drained")),
        Some(at) => (
            EvictionRule::DrainDeadline,
            format!(
                "drain deadline: node {node} was to be empty by {}",
                at.to_rfc3339_opts(SecondsFormat::Secs, true)
            ),
        ),
    };
    let wish = Stop {
        evicted: Some(Eviction::drained(rule)),
        job_to: Some(JobState::Preempting),
        ..Stop::because(AttemptEnd::Preempted, message)
    };
    stop(&mut tx, &mut job, &wish, &Actor::System).await?;
    if rule == EvictionRule::DrainDeadline {
        let object = format!("job/{}", job.id);
        audit::insert_of_system(&mut tx, "evict_job", &object, &wish.message).await?;
    }
    tx.commit().await?;
    app.wake.all();
    Ok(())
}

/// Stops a job's live attempt with the wish that `decide` makes of the locked rows, if any.
pub(super) async fn stop_live(
    app: &App,
    job: JobId,
    decide: impl FnOnce(&JobRow, &AttemptRow) -> Option<Stop>,
) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let Some(mut job) = jobs::lock(&mut tx, job).await? else {
        return Ok(());
    };
    let Some(attempt) = live(&mut tx, &job).await? else {
        return Ok(());
    };
    let Some(wish) = decide(&job, &attempt) else {
        return Ok(());
    };
    stop(&mut tx, &mut job, &wish, &Actor::System).await?;
    tx.commit().await?;
    tracing::info!(job.id = %job.id, end = %wish.end, "attempt stopped");
    app.wake.all();
    Ok(())
}

/// The live attempt of a locked job, unless it is being stopped already.
async fn live(tx: &mut Tx, job: &JobRow) -> Result<Option<AttemptRow>, LifecycleError> {
    let attempt = attempts::lock_live(tx, job.id).await?;
    Ok(attempt.filter(|attempt| attempt.state != AttemptState::Stopping))
}
