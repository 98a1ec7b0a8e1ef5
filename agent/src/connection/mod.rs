//! The one long stream to the server: kept up, with what must be said and what was asked.

mod heartbeats;
mod hold;
mod logs;
mod renewal;

use std::sync::Arc;
use std::time::Duration;

use domain::ids::IncarnationId;
use rand::RngExt as _;
use tokio::sync::mpsc;

pub use renewal::Keeper;

use crate::inventory::Machine;
use crate::node::{Command, Node};

/// First wait before a connection is tried again.
const BACKOFF: Duration = Duration::from_millis(200);
/// Longest wait: a server that is back has all its nodes within seconds, and thousands of
/// them, each at a time of its own, do not fall over it.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What a connection needs.
pub struct Connector {
    /// The node.
    pub node: Arc<Node>,
    /// What it tells of itself.
    pub machine: Machine,
    /// Who it is.
    pub keeper: Arc<Keeper>,
    /// The kernel's id of this boot.
    pub boot_id: String,
    /// This life of the agent.
    pub incarnation: IncarnationId,
    /// Where desired sets go.
    pub commands: mpsc::Sender<Command>,
}

impl Connector {
    /// Keeps a connection up for ever.
    pub async fn run(self) {
        let mut wait = BACKOFF;
        loop {
            let error = match self.keeper.renew_if_due().await {
                Ok(()) => hold::hold(&self, &mut wait).await,
                Err(error) => error.into(),
            };
            // The reconciler lives as long as we do.
            let _ = self.commands.send(Command::Ended).await;
            tracing::warn!(
                error = format!("{error:#}"),
                "no connection with the server; trying again"
            );
            tokio::time::sleep(jittered(wait)).await;
            wait = (wait * 2).min(BACKOFF_MAX);
        }
    }
}

/// A random wait of at most so long, at least a tenth of it.
fn jittered(most: Duration) -> Duration {
    let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(rand::rng().random_range(most / 10..=most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_differ_and_have_a_bound() {
        let waits: Vec<Duration> = (0..100).map(|_| jittered(BACKOFF_MAX)).collect();
        assert!(
            waits
                .iter()
                .all(|wait| *wait <= BACKOFF_MAX && *wait >= BACKOFF_MAX / 10)
        );
        assert!(waits.iter().any(|wait| *wait != waits[0]));
    }
}
