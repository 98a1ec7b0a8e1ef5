//! The scheduling loop: one leader keeps the world in memory, plans with the engine, and commits under guard.
//!
//! Who leads is said by an advisory lock on a connection of its own; what a leader may still
//! commit is said by the epoch, which it raised when it took over and which every commit
//! checks. A leader that was paused and comes back finds another epoch, and changes nothing.

mod arrays;
pub mod capable;
mod commit;
mod cycle;
pub mod discreet;
mod gang;
mod gauges;
mod kept;
mod planner;
mod poison;
mod settle;
mod slices;
pub mod starved;
mod think;
mod told;
pub mod translate;
pub mod week;
pub mod windows;
pub mod world;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::store::epochs::{Candidate, Epoch};
use crate::store::{self, epochs};

pub use commit::{Outcome, commit};
pub use cycle::{Cycle, Turn};
pub use think::think;

/// Longest wait for an answer on the leader's connection; without one the lead counts as lost.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs until `stop`: waits for the lead, leads until it is lost, and waits again.
pub async fn run(app: App, stop: CancellationToken) {
    let tick = app.config.timers.tick;
    while !stop.is_cancelled() {
        if let Err(error) = stand(&app, tick, &stop).await {
            gauges::clear();
            tracing::warn!(error = %error, "lead lost or not to be had, trying again");
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(tick) => {}
        }
    }
}

/// Stands for election on one connection, and leads once elected.
async fn stand(app: &App, tick: Duration, stop: &CancellationToken) -> Result<(), sqlx::Error> {
    let mut candidate = Candidate::connect(app.db.system_pool()).await?;
    while !candidate.try_lead().await? {
        // Somebody else has the lock, and the database says so: this replica is well.
        app.pulse.scheduler_beats();
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(tick) => {}
        }
    }
    let epoch = take_over(app).await?;
    tracing::info!(
        epoch.timeline = epoch.timeline,
        epoch.number = epoch.number,
        "leads now"
    );
    metrics::gauge!("allotment_scheduler_leads").set(1.0);
    let led = lead(app, &mut candidate, epoch, tick, stop).await;
    gauges::clear();
    led?;
    candidate.resign().await
}

/// Raises the epoch: whatever an earlier leader still tries to commit is void from now on.
pub async fn take_over(app: &App) -> Result<Epoch, sqlx::Error> {
    let mut tx = app.db.begin_system().await?;
    let epoch = epochs::raise(&mut tx, &app.replica.to_string()).await?;
    tx.commit().await?;
    Ok(epoch)
}

async fn lead(
    app: &App,
    candidate: &mut Candidate,
    epoch: Epoch,
    tick: Duration,
    stop: &CancellationToken,
) -> Result<(), sqlx::Error> {
    let mut cycle = Cycle::begin(app.clone(), epoch).await?;
    loop {
        match tokio::time::timeout(PING_TIMEOUT, candidate.ping()).await {
            Ok(answer) => answer?,
            Err(_) => return Err(sqlx::Error::PoolTimedOut),
        }
        match cycle.turn().await {
            Ok(Turn::Done | Turn::Settled) => app.pulse.scheduler_beats(),
            // No beat: a loop that starts nothing, however often it turns, is not ready.
            Ok(Turn::Spoiled) => {}
            Ok(Turn::Stuck) => app.pulse.plan_was_refused(),
            Ok(Turn::Fenced) => {
                tracing::warn!("another leader took over, this one stops");
                return Ok(());
            }
            Err(error) if store::away(&error) => return Err(error),
            // A deadlock, or a statement that is wrong: the next turn tries again, and a loop
            // that never succeeds turns /readyz red, since it does not beat.
            Err(error) => {
                metrics::counter!("allotment_scheduler_errors_total").increment(1);
                tracing::error!(error = %error, "scheduling turn failed");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = app.wake.scheduler.notified() => {}
            () = tokio::time::sleep(tick) => {}
        }
    }
}
