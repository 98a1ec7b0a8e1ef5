//! Applies what a node reports, beside its stream: heartbeats never wait for a row's lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use domain::ids::AssignmentId;
use protocol::report::{Fact, FactKind, Inventory};
use protocol::wire;
use tokio::time::Instant;
use tonic::Status;

use super::Shared;
use super::connection::{Outbox, send};
use super::facts::{FactError, InOrder, Run, Source};
use super::group;
use super::hello::{self, Begun};
use super::inbox::Inbox;
use super::inventory;
use super::losses::{Losses, Settled};
use crate::store::nodes;

/// How long a missing fact is waited for. Within a stream nothing overtakes, so that it was let
/// fall because too many waited; the agent sends it again after 30 s without an acknowledgement.
const GAP_TIMEOUT: Duration = Duration::from_secs(90);
/// Between tries while the database is away.
const RETRY_EVERY: Duration = Duration::from_millis(500);
/// Between tries to end work whose end was refused: rarely, since a person has to mend something.
const REFUSED_EVERY: Duration = Duration::from_secs(30);

/// One connection's writer.
pub struct Writer {
    shared: Shared,
    source: Source,
    connection: u64,
    outbox: Outbox,
    inbox: Arc<Inbox>,
    order: InOrder,
    held: BTreeSet<AssignmentId>,
    outstanding: u64,
    losses: Losses,
    /// Whether what the node has lost was ended, as far as it can be.
    settled: bool,
    refused: Option<Refused>,
    /// Whether the node beat before its losses were ended, so that it is yet to be looked at.
    look: bool,
}

/// Work that the node has lost and whose end was refused, and when it is tried again.
struct Refused {
    workers: BTreeSet<AssignmentId>,
    again_at: Instant,
}

impl Refused {
    fn of(workers: BTreeSet<AssignmentId>) -> Option<Self> {
        (!workers.is_empty()).then(|| Self {
            workers,
            again_at: Instant::now() + REFUSED_EVERY,
        })
    }
}

/// Since when the writer waits for a fact, and after which.
struct Missing {
    since: Instant,
    last: u64,
}

impl Writer {
    /// The writer of a connection that has begun, by its number in this replica.
    pub fn new(
        shared: Shared,
        source: Source,
        connection: u64,
        begun: Begun,
        outbox: Outbox,
        inbox: Arc<Inbox>,
    ) -> Self {
        Self {
            shared,
            source,
            connection,
            outbox,
            inbox,
            order: InOrder::after(begun.last_fact),
            held: begun.held,
            outstanding: begun.outstanding,
            losses: begun.losses,
            settled: false,
            refused: None,
            look: false,
        }
    }

    /// Runs until the connection cannot go on, and says why.
    pub async fn run(mut self) -> Status {
        loop {
            if let Err(status) = self.work().await {
                return status;
            }
        }
    }

    async fn work(&mut self) -> Result<(), Status> {
        let mut missing: Option<Missing> = None;
        loop {
            self.settle().await?;
            let waits = self.order.gap() || self.order.last() < self.outstanding;
            let last = self.order.last();
            missing = match missing {
                _ if !waits => None,
                Some(missing) if missing.last == last => Some(missing),
                _ => Some(Missing {
                    since: Instant::now(),
                    last,
                }),
            };
            let patience = missing.as_ref().map_or_else(Instant::now, |m| m.since) + GAP_TIMEOUT;
            let again_at = self.refused.as_ref().map(|refused| refused.again_at);
            let waiting = tokio::select! {
                waiting = self.inbox.take() => waiting,
                () = tokio::time::sleep_until(again_at.unwrap_or(patience)), if again_at.is_some() => {
                    self.settle_refused().await?;
                    continue;
                }
                () = tokio::time::sleep_until(patience), if missing.is_some() => {
                    self.go_on_without();
                    self.take_facts(BTreeMap::new()).await?;
                    continue;
                }
            };
            if let Some(inventory) = waiting.inventory {
                self.take_inventory(&inventory).await?;
            }
            if waiting.facts_came {
                self.take_facts(waiting.facts).await?;
            }
            if waiting.look {
                self.mark_ready().await;
            }
        }
    }

    /// Ends what the node has lost, once all that was outstanding is known. Only then may it be
    /// told what to hold: it would begin anew what it does not know of any more.
    async fn settle(&mut self) -> Result<(), Status> {
        if self.order.last() < self.outstanding {
            return Ok(());
        }
        if self.settled {
            return Ok(());
        }
        let (app, source) = (&self.shared.app, &self.source);
        let refused = loop {
            match self.losses.settle(app, &self.held, &source.actor).await {
                Ok(Settled::Done(refused)) => break refused,
                Ok(Settled::Superseded) => return Err(superseded()),
                Err(error) => {
                    tracing::warn!(node.id = %source.node_id, %error, "what a node has lost could not be ended yet");
                    tokio::time::sleep(RETRY_EVERY).await;
                }
            }
        };
        self.settled = true;
        self.shared
            .connections
            .open(source.node_id, self.connection, refused.clone());
        self.refused = Refused::of(refused);
        app.wake.agents.notify_one();
        if self.look {
            self.mark_ready().await;
        }
        Ok(())
    }

    /// Tries again what was refused. Also when the database is away: nothing waits for it.
    async fn settle_refused(&mut self) -> Result<(), Status> {
        let Some(before) = self.refused.take() else {
            return Ok(());
        };
        let (app, source) = (&self.shared.app, &self.source);
        let settled = self
            .losses
            .settle_refused(app, &self.held, &before.workers, &source.actor)
            .await;
        self.refused = match settled {
            Ok(Settled::Done(refused)) => Refused::of(refused),
            Ok(Settled::Superseded) => return Err(superseded()),
            Err(error) => {
                tracing::warn!(node.id = %source.node_id, %error, "what was refused could not be tried again");
                Refused::of(before.workers)
            }
        };
        Ok(())
    }

    fn go_on_without(&mut self) {
        tracing::error!(
            node.id = %self.source.node_id, last = self.order.last(), outstanding = self.outstanding,
            "facts do not come; going on without them"
        );
        if self.order.gap() {
            self.order.skip_gap();
        } else {
            self.outstanding = self.order.last();
        }
    }

    async fn take_facts(&mut self, facts: BTreeMap<u64, Fact>) -> Result<(), Status> {
        let mut released = false;
        for fact in facts.into_values() {
            self.order.put(fact);
        }
        loop {
            let run = self.order.next();
            let Some(last) = run.last() else { break };
            let last = last.number;
            let run = self.apply(run).await?;
            for fact in &run {
                match fact.kind {
                    FactKind::Accepted => {
                        self.held.insert(fact.assignment);
                    }
                    FactKind::Released => released |= self.held.remove(&fact.assignment),
                    FactKind::Refused { .. } | FactKind::Started { .. } | FactKind::Exited(_) => {}
                }
            }
            self.order.known(last);
        }
        // Also for what was known before: the acknowledgement may have been lost.
        send(
            &self.outbox,
            wire::to_agent::Message::FactsAcknowledged(wire::FactsAcknowledged {
                journal_id: self.source.journal.to_string(),
                up_to: self.order.last(),
            }),
        )
        .await?;
        if released {
            self.mark_ready().await;
        }
        Ok(())
    }

    async fn apply(&self, facts: Vec<Fact>) -> Result<Vec<Fact>, Status> {
        loop {
            let run = Run {
                source: self.source.clone(),
                facts: facts.clone(),
            };
            match group::apply(&self.shared.facts, run).await {
                Ok(()) => return Ok(facts),
                Err(FactError::Superseded) => return Err(superseded()),
                Err(FactError::Over) => return Err(Status::unavailable("the server stops")),
                Err(FactError::Unavailable(error)) => {
                    tracing::warn!(node.id = %self.source.node_id, %error, "facts wait for the database");
                    tokio::time::sleep(RETRY_EVERY).await;
                }
            }
        }
    }

    async fn take_inventory(&self, inventory: &Inventory) -> Result<(), Status> {
        loop {
            match self.apply_inventory(inventory).await {
                Ok(()) => return Ok(()),
                Err(error) if crate::store::passing(&error) => {
                    tokio::time::sleep(RETRY_EVERY).await;
                }
                Err(error) => {
                    tracing::error!(node.id = %self.source.node_id, %error, "an inventory cannot be applied");
                    return Err(Status::internal("the inventory cannot be applied"));
                }
            }
        }
    }

    async fn apply_inventory(&self, inventory: &Inventory) -> Result<(), sqlx::Error> {
        let app = &self.shared.app;
        let mut tx = app.db.begin_system().await?;
        nodes::lock(&mut tx, self.source.node_id).await?;
        let voice = nodes::voice(&mut tx, self.source.node_id).await?;
        if voice.incarnation != Some(self.source.incarnation) {
            return Ok(());
        }
        inventory::apply(&mut tx, self.source.node_id, &self.source.actor, inventory).await?;
        tx.commit().await?;
        app.wake.all();
        Ok(())
    }

    async fn mark_ready(&mut self) {
        self.look = !self.settled;
        if self.look {
            return;
        }
        let source = &self.source;
        let app = &self.shared.app;
        let marked = hello::mark_ready(app, source.node_id, &self.held, &source.actor).await;
        if let Err(error) = marked {
            // The next heartbeat asks again.
            tracing::warn!(node.id = %source.node_id, %error, "a node could not be marked as ready");
        }
    }
}

fn superseded() -> Status {
    Status::aborted("another connection speaks for the node")
}
