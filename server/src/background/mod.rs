//! Reconcilers: woken by a hint, driven by rows, and also run on a timer.
//!
//! Every replica runs them. What each finds due is only a hint as well: it locks the object,
//! looks again, and acts on what it then sees, so that two that find the same do it once.

pub mod budgets;
mod leases;
mod leaving;
pub mod outbox;
pub mod reckoning;
mod refusing;
pub mod retention;
mod windows;

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accounting::{closing, rating, reconciling, rerating};
use crate::app::{App, bookings, schedules};
use crate::lifecycle::LifecycleError;
use crate::store;

/// A round is followed by a rest of so many times its length: what is due by time is found some
/// milliseconds later, and a busy leader's commits do not each cause a round.
const RESTS: u32 = 9;
/// How often what ages is swept away.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// How often segments become ledger entries; they cover full hours, so that seconds do not matter.
const RATING_EVERY: Duration = Duration::from_secs(5);
/// How often samples are reckoned up; minutes are, so that seconds do not matter.
const RECKONING_EVERY: Duration = Duration::from_secs(5);
/// How often bookings are compared with what there is: they are made days ahead.
const BOOKINGS_EVERY: Duration = Duration::from_secs(5);
/// How often budgets are looked at: each is reckoned up anew, and a GPU costs little in so short a time.
const BUDGETS_EVERY: Duration = Duration::from_secs(15);
/// How often it is asked which reports are due; minutes tell them apart.
const REPORTS_EVERY: Duration = Duration::from_secs(5);
/// Heartbeats that a node may miss before this replica believes its own view of it, counted
/// from when the replica last began to see the database.
const BEATS_TO_SETTLE: u32 = 3;

/// Runs the reconcilers until `over` is cancelled.
pub async fn run(app: App, over: CancellationToken) {
    tokio::select! {
        () = over.cancelled() => {}
        () = work(app) => {}
    }
}

async fn work(app: App) {
    let tick = app.config.timers.tick;
    let mut steady = Steady::new(&app);
    let mut rated = Instant::now();
    let mut swept = Instant::now();
    let mut reckoned = Instant::now();
    let mut booked = Instant::now();
    let mut budgeted = Instant::now();
    let mut reported = Instant::now();
    loop {
        tokio::select! {
            () = app.wake.background.notified() => {}
            () = tokio::time::sleep(tick) => {}
        }
        let begun = Instant::now();
        let Round(mut round) = reconcile(&app, steady.settled()).await;
        if rated.elapsed() >= RATING_EVERY {
            rated = Instant::now();
            round.push((
                "rating",
                rating::rate_due(&app.db).await.map_err(Into::into),
            ));
            round.push((
                "rating anew",
                rerating::rerate_due(&app.db).await.map_err(Into::into),
            ));
            round.push((
                "closing",
                closing::close_due(&app.db).await.map_err(Into::into),
            ));
            round.push((
                "reconciliation",
                reconciling::reconcile_due(&app.db)
                    .await
                    .map_err(Into::into),
            ));
        }
        if booked.elapsed() >= BOOKINGS_EVERY {
            booked = Instant::now();
            if let Err(error) = bookings::watch(&app).await {
                tracing::warn!(reconciler = "bookings", %error, "a reconciler could not finish its round");
            }
        }
        if budgeted.elapsed() >= BUDGETS_EVERY {
            budgeted = Instant::now();
            if let Err(error) = budgets::watch(&app).await {
                tracing::warn!(reconciler = "budgets", %error, "a reconciler could not finish its round");
            }
        }
        if reported.elapsed() >= REPORTS_EVERY {
            reported = Instant::now();
            if let Err(error) = schedules::make_due(&app).await {
                tracing::warn!(reconciler = "reports", %error, "a reconciler could not finish its round");
            }
        }
        if reckoned.elapsed() >= RECKONING_EVERY {
            reckoned = Instant::now();
            round.push(("samples", reckoning::reckon(&app).await.map_err(Into::into)));
        }
        if swept.elapsed() >= RETENTION_EVERY {
            swept = Instant::now();
            round.push((
                "retention",
                retention::sweep(&app).await.map_err(Into::into),
            ));
        }
        for (reconciler, outcome) in round {
            let Err(error) = outcome else { continue };
            // Only a database that was away makes every heartbeat old; a fault of one object does not.
            if matches!(&error, LifecycleError::Database(e) if store::away(e)) {
                steady.disturbed();
            }
            tracing::warn!(reconciler, %error, "a reconciler could not finish its round");
        }
        tokio::time::sleep(begun.elapsed() * RESTS).await;
    }
}

/// Runs every reconciler once, whatever becomes of the others. `settled`: whether leases may be judged.
pub async fn reconcile(app: &App, settled: bool) -> Round {
    let mut round = Vec::new();
    if settled {
        round.push(("leases", leases::expire(app).await));
    }
    round.push(("lost nodes", leaving::lost_nodes(app).await));
    round.push(("failed devices", leaving::failed_devices(app).await));
    round.push(("draining nodes", leaving::draining_nodes(app).await));
    round.push(("refusing nodes", refusing::cordon(app).await));
    round.push(("time limits", windows::time_limits(app).await));
    round.push(("start windows", windows::start_windows(app).await));
    Round(round)
}

/// Takes up all that is due, each apart: what is wrong with one keeps no other from its turn. The
/// first fault is told at the end; a database that is away ends the round.
async fn each<T, Taken>(due: Vec<T>, take: impl Fn(T) -> Taken) -> Result<(), LifecycleError>
where
    Taken: Future<Output = Result<(), LifecycleError>>,
{
    let mut outcome = Ok(());
    for item in due {
        let taken = take(item).await;
        if matches!(&taken, Err(LifecycleError::Database(error)) if store::away(error)) {
            return taken;
        }
        outcome = outcome.and(taken);
    }
    outcome
}

/// What came of each reconciler.
#[derive(Debug)]
pub struct Round(Vec<(&'static str, Result<(), LifecycleError>)>);

impl Round {
    /// The first fault, if there was one.
    pub fn outcome(self) -> Result<(), LifecycleError> {
        self.0.into_iter().try_for_each(|(_, outcome)| outcome)
    }
}

/// Since when this replica sees the database without a break. After a break, or at the start,
/// every node's last heartbeat is old for a reason that is not the node's: they get the time
/// of some heartbeats before their leases are judged.
struct Steady {
    since: Instant,
    settle: Duration,
}

impl Steady {
    fn new(app: &App) -> Self {
        let timers = &app.config.timers;
        Self {
            since: Instant::now(),
            settle: (timers.heartbeat() * BEATS_TO_SETTLE).min(timers.node_lease()),
        }
    }

    fn disturbed(&mut self) {
        self.since = Instant::now();
    }

    fn settled(&self) -> bool {
        self.since.elapsed() >= self.settle
    }
}
