//! Facts of all connections: what comes at about the same time is applied in one transaction.
//!
//! While one group is being committed the next one gathers: an idle server applies a fact at once,
//! and a busy one pays a commit for many.

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::facts::{self, FactError, Run};
use crate::app::App;

/// Runs that wait to be applied: a connection has one at a time. Who comes later waits.
const WAITING_MAX: usize = 4_096;
/// Most runs of one group: a transaction holds its locks for about as long as a commit of a plan.
const GROUP_MAX: usize = 64;

/// A run with where its outcome goes.
pub struct Told {
    /// What is to be applied.
    pub run: Run,
    /// What became of it.
    pub done: oneshot::Sender<Result<(), FactError>>,
}

/// Starts the writer; it ends when `over` is cancelled.
pub fn start(app: App, over: CancellationToken) -> mpsc::Sender<Told> {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    tokio::spawn(async move {
        tokio::select! {
            () = over.cancelled() => {}
            () = write(app, receiver) => {}
        }
    });
    sender
}

async fn write(app: App, mut waiting: mpsc::Receiver<Told>) {
    let mut group = Vec::new();
    while waiting.recv_many(&mut group, GROUP_MAX).await > 0 {
        // A connection that is over says nothing any more: its node tells it again in the next.
        group.retain(|told| !told.done.is_closed());
        let runs: Vec<&Run> = group.iter().map(|told| &told.run).collect();
        let together = runs.len() > 1 && facts::apply_together(&app, &runs).await;
        for told in group.drain(..) {
            let outcome = if together {
                Ok(())
            } else {
                facts::apply(&app, &told.run).await
            };
            // Who asked may have gone.
            let _ = told.done.send(outcome);
        }
    }
}

/// Has a run applied, and says what became of it.
pub async fn apply(writer: &mpsc::Sender<Told>, run: Run) -> Result<(), FactError> {
    let (done, outcome) = oneshot::channel();
    let told = Told { run, done };
    writer.send(told).await.map_err(|_| FactError::Over)?;
    outcome.await.map_err(|_| FactError::Over)?
}
