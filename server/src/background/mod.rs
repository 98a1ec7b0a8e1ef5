//! Reconcilers: woken by a hint, driven by rows, and also run on a timer.
//!
//! Every replica runs them. What each finds due is only a hint as well: it locks the object,
//! looks again, and acts on what it then sees, so that two that find the same do it once.

mod leases;
mod leaving;
mod retention;
mod windows;

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accounting::rating;
use crate::app::App;
use crate::lifecycle::LifecycleError;

/// How often what ages is swept away.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// How often segments become ledger entries; they cover full hours, so that seconds do not matter.
const RATING_EVERY: Duration = Duration::from_secs(5);
/// Heartbeats that a node may miss before this replica believes its own view of it, counted
/// from when the replica last began to see the database.
const BEATS_TO_SETTLE: i64 = 3;

/// Runs the reconcilers until `over` is cancelled.
pub async fn run(app: App, over: CancellationToken) {
    tokio::select! {
        () = over.cancelled() => {}
        () = work(app) => {}
    }
}

async fn work(app: App) {
    let tick = Duration::from_millis(u64::try_from(app.config.timers.tick_ms).unwrap_or(1_000));
    let mut steady = Steady::new(&app);
    let mut rated = Instant::now();
    let mut swept = Instant::now();
    loop {
        tokio::select! {
            () = app.wake.background.notified() => {}
            () = tokio::time::sleep(tick) => {}
        }
        let mut round = reconcile(&app, steady.settled()).await;
        if round.is_ok() && rated.elapsed() >= RATING_EVERY {
            rated = Instant::now();
            round = rating::rate_due(&app.db).await.map_err(Into::into);
        }
        if round.is_ok() && swept.elapsed() >= RETENTION_EVERY {
            swept = Instant::now();
            round = retention::sweep(&app).await.map_err(Into::into);
        }
        if let Err(error) = round {
            steady.disturbed();
            tracing::warn!(%error, "the reconcilers could not finish a round");
        }
    }
}

/// Runs every reconciler once. `settled`: whether leases may be judged.
pub async fn reconcile(app: &App, settled: bool) -> Result<(), LifecycleError> {
    if settled {
        leases::expire(app).await?;
    }
    leaving::lost_nodes(app).await?;
    leaving::failed_devices(app).await?;
    leaving::draining_nodes(app).await?;
    windows::time_limits(app).await?;
    windows::start_windows(app).await
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
        let settle = (timers.heartbeat_ms * BEATS_TO_SETTLE).min(timers.node_lease_ms);
        Self {
            since: Instant::now(),
            settle: Duration::from_millis(u64::try_from(settle).unwrap_or(0)),
        }
    }

    fn disturbed(&mut self) {
        self.since = Instant::now();
    }

    fn settled(&self) -> bool {
        self.since.elapsed() >= self.settle
    }
}
