//! The one long stream to the server: kept up, with what must be said and what was asked.

mod heartbeats;
mod hold;
mod logs;
mod renewal;
mod results;

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::ids::IncarnationId;
use rand::RngExt as _;
use tokio::sync::mpsc;
use tonic::Code;

pub use renewal::Keeper;

use crate::enrol::{self, EnrolError};
use crate::inventory::Machine;
use crate::node::{Command, Node};

/// First wait before a connection is tried again.
const BACKOFF: Duration = Duration::from_millis(200);
/// Longest wait: a server that is back has all its nodes within seconds, and thousands of
/// them, each at a time of its own, do not fall over it.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Longest wait after the server refused the node as such: that changes only when a person does
/// something about it, and they wait for it.
const REFUSED_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// A cause that stays is told again after so long, for whoever looks at the end of a log.
const TOLD_AGAIN: Duration = Duration::from_secs(600);

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
    /// Keeps a connection up, until the server says that the node is retired and it holds nothing
    /// any more.
    pub async fn run(self) -> Retired {
        let mut wait = BACKOFF;
        let mut told = Told::default();
        loop {
            let error = match self.keeper.renew_if_due().await {
                Ok(()) => hold::hold(&self, &mut wait).await,
                Err(error) => error.into(),
            };
            // The reconciler lives as long as we do.
            let _ = self.commands.send(Command::Ended).await;
            let refused = refusal(&error);
            if refused.is_some_and(enrol::retired) && self.holds_nothing() {
                return Retired {
                    node: self.keeper.identity().await.node_name,
                };
            }
            let words = format!("{error:#}");
            if told.is_due(&words, Instant::now()) {
                tracing::warn!(error = words, "no connection with the server; trying on");
            } else {
                tracing::debug!(error = words, "still no connection with the server");
            }
            tokio::time::sleep(jittered(wait)).await;
            let denied = refused.is_some_and(|status| status.code() == Code::PermissionDenied);
            let most = if denied {
                REFUSED_BACKOFF_MAX
            } else {
                BACKOFF_MAX
            };
            wait = (wait * 2).min(most);
        }
    }

    fn holds_nothing(&self) -> bool {
        let node = &self.node;
        node.held(&node.journal.state()).is_empty()
    }
}

/// The node of this agent is retired, and nothing is left to be done for it.
#[derive(Debug, thiserror::Error)]
#[error(
    "node {node} is retired and holds nothing any more, so its agent has ended; to use this machine \
     again enrol it under another name: allotment-agent enrol --replace --name NAME"
)]
pub struct Retired {
    /// The node's name.
    pub node: String,
}

/// What was told last, and when: a cause that stays is not told with every try.
#[derive(Debug, Default)]
struct Told {
    last: Option<(String, Instant)>,
}

impl Told {
    fn is_due(&mut self, words: &str, now: Instant) -> bool {
        if let Some((last, at)) = &self.last
            && last == words
            && now.duration_since(*at) < TOLD_AGAIN
        {
            return false;
        }
        self.last = Some((words.to_owned(), now));
        true
    }
}

/// The answer of a server that took the connection and refused.
fn refusal(error: &anyhow::Error) -> Option<&tonic::Status> {
    match error.downcast_ref::<EnrolError>() {
        Some(EnrolError::Refused(status)) => Some(status),
        _ => error.downcast_ref::<tonic::Status>(),
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
    fn a_cause_that_stays_is_told_once_and_again_after_a_while() {
        let (mut told, now) = (Told::default(), Instant::now());
        assert!(told.is_due("a", now));
        assert!(!told.is_due("a", now + Duration::from_secs(5)));
        assert!(told.is_due("b", now + Duration::from_secs(6)));
        assert!(told.is_due("a", now + Duration::from_secs(7)));
        assert!(told.is_due("a", now + Duration::from_secs(7) + TOLD_AGAIN));
    }

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
