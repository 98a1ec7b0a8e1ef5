//! Heartbeats: the leases of all nodes that beat at about the same time are renewed in one statement.

use std::collections::HashMap;

use domain::ids::NodeId;
use protocol::wire;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::store::leases::{self, Beat, Renewed};

/// Heartbeats that wait to be written. Each node has at most one on its way in the usual case;
/// what comes when it is full is let fall, and its node beats again.
const WAITING_MAX: usize = 4_096;
/// Most leases renewed by one statement.
const BATCH_MAX: usize = 1_024;

/// A heartbeat with where its answer goes.
pub struct Heartbeat {
    /// Whose it is.
    pub beat: Beat,
    /// Its number in its connection.
    pub number: u64,
    /// What becomes of it.
    pub answer: mpsc::Sender<Answer>,
}

/// What became of a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The lease runs anew; whether the node counts as ready.
    Renewed {
        /// The heartbeat's number.
        number: u64,
        /// Whether the node counts as ready.
        ready: bool,
    },
    /// Another connection speaks for the node now, or nobody may.
    Superseded,
}

/// Starts the writer; it ends when `over` is cancelled.
pub fn start(app: App, over: CancellationToken) -> mpsc::Sender<Heartbeat> {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    tokio::spawn(async move {
        tokio::select! {
            () = over.cancelled() => {}
            () = write(app, receiver) => {}
        }
    });
    sender
}

async fn write(app: App, mut waiting: mpsc::Receiver<Heartbeat>) {
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
        // Only the newest beat of a node matters: the lease runs from when it was sent.
        let mut latest: HashMap<NodeId, Heartbeat> = HashMap::new();
        for heartbeat in batch.drain(..) {
            latest.insert(heartbeat.beat.node_id, heartbeat);
        }
        match renew(&app, latest.values().map(|h| h.beat).collect()).await {
            Ok(renewed) => {
                for (node, heartbeat) in latest {
                    let answer = match renewed.iter().find(|r| r.node_id == node) {
                        Some(renewed) => Answer::Renewed {
                            number: heartbeat.number,
                            ready: renewed.ready,
                        },
                        None => Answer::Superseded,
                    };
                    // A connection that is full or gone gets its next beat answered.
                    let _ = heartbeat.answer.try_send(answer);
                }
            }
            // No lease is renewed unless it is written: the nodes beat again, and stop their
            // work by their own clocks if that lasts longer than the lease.
            Err(error) => tracing::warn!(%error, "heartbeats could not be written"),
        }
    }
}

async fn renew(app: &App, mut beats: Vec<Beat>) -> Result<Vec<Renewed>, sqlx::Error> {
    beats.sort_by_key(|beat| beat.node_id);
    let mut tx = app.db.begin_system().await?;
    let renewed = leases::renew(
        &mut tx,
        app.replica,
        &beats,
        app.config.timers.node_lease_ms,
    )
    .await?;
    tx.commit().await?;
    Ok(renewed)
}

/// The message that tells a node of its lease.
pub fn lease_renewed(number: u64, lease_ms: i64) -> wire::to_agent::Message {
    wire::to_agent::Message::LeaseRenewed(wire::LeaseRenewed {
        heartbeat: number,
        lease_ms,
    })
}
