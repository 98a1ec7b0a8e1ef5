//! Bounds in time: how long an attempt may run, and how long a gang may take to be acknowledged.

use domain::ids::JobId;
use domain::state::{AssignmentPhase, AttemptEnd, AttemptState};

use super::each;
use super::leaving::stop_live;
use crate::app::App;
use crate::lifecycle::{Actor, LifecycleError, Stop, refuse_growth};
use crate::store::{assignments, attempts, jobs};

/// Stops attempts that have reached their time limit.
pub async fn time_limits(app: &App) -> Result<(), LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let due = attempts::over_time(&mut tx).await?;
    tx.commit().await?;
    each(due, |job| {
        stop_live(app, job, |job, attempt| {
            let limit = job.spec().ok()?.time_limit_seconds?;
            (attempt.state == AttemptState::Running).then(|| {
                Stop::because(
                    AttemptEnd::TimeLimit,
                    format!("it ran into its time limit of {limit} s"),
                )
            })
        })
    })
    .await
}

/// Takes back what was granted to gangs that some node has not acknowledged in time: all or
/// none start. A gang that runs goes on as it is.
pub async fn start_windows(app: &App) -> Result<(), LifecycleError> {
    let window_ms = app.config.timers.start_window_ms;
    let mut tx = app.db.begin_system().await?;
    let due = attempts::not_taken(&mut tx, window_ms).await?;
    tx.commit().await?;
    each(due, |job| take_back(app, job, window_ms)).await?;
    let mut tx = app.db.begin_system().await?;
    let due = attempts::growth_not_taken(&mut tx, window_ms).await?;
    tx.commit().await?;
    each(due, |job| give_up_growth(app, job, window_ms)).await
}

/// Lets a gang go on without the workers to grow by from the first that was not taken on.
async fn give_up_growth(app: &App, job: JobId, window_ms: i64) -> Result<(), LifecycleError> {
    let Some(message) = who_is_missing(app, job, window_ms).await? else {
        return Ok(());
    };
    let mut tx = app.db.begin_system().await?;
    let Some(mut job) = jobs::lock(&mut tx, job).await? else {
        return Ok(());
    };
    let live = attempts::lock_live(&mut tx, job.id).await?;
    let Some(attempt) = live.filter(|attempt| attempt.state == AttemptState::Running) else {
        return Ok(());
    };
    let workers = assignments::lock_of_attempt(&mut tx, attempt.id).await?;
    let mut waiting = workers
        .iter()
        .filter(|w| w.phase == AssignmentPhase::Granted);
    if let Some(first) = waiting.next() {
        let (timers, from) = (&app.config.timers, first.worker);
        let actor = &Actor::System;
        refuse_growth(&mut tx, timers, &mut job, &attempt, from, message, actor).await?;
        tx.commit().await?;
        app.wake.all();
    }
    Ok(())
}

async fn take_back(app: &App, job: JobId, window_ms: i64) -> Result<(), LifecycleError> {
    let Some(message) = who_is_missing(app, job, window_ms).await? else {
        return Ok(());
    };
    stop_live(app, job, |_, attempt| {
        (attempt.state == AttemptState::Starting)
            .then(|| Stop::because(AttemptEnd::StartRefused, message))
    })
    .await
}

async fn who_is_missing(
    app: &App,
    job: JobId,
    window_ms: i64,
) -> Result<Option<String>, LifecycleError> {
    let mut tx = app.db.begin_system().await?;
    let nodes = assignments::nodes_in_phase(&mut tx, job, AssignmentPhase::Granted).await?;
    tx.commit().await?;
    if nodes.is_empty() {
        return Ok(None);
    }
    let seconds = window_ms / 1_000;
    Ok(Some(format!(
        "not acknowledged within {seconds} s by {}",
        nodes.join(", ")
    )))
}
