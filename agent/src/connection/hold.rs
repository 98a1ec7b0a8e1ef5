//! One connection, from its hello to its loss.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures_util::stream::{PollNext, select_with_strategy};
use protocol::desired::{DesiredSet, GRACE_MS_MAX};
use protocol::wire::agents_client::AgentsClient;
use protocol::wire::{
    Facts, FactsAcknowledged, FromAgent, Heartbeat, Hello, LeaseRenewed, Samples, ToAgent, Welcome,
    from_agent, to_agent,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::heartbeats::Heartbeats;
use super::logs::Streams;
use super::{BACKOFF, Connector};
use crate::clock;
use crate::inventory::inventory;
use crate::node::Command;
use crate::terminal::Terminals;

/// Messages that wait to be sent; more would only hide that the way is blocked.
const OUT_MAX: usize = 64;
/// Log messages that wait: they are large, and must not keep heartbeats waiting.
const LOG_OUT_MAX: usize = 4;
/// Longest wait for the server's first word, and for a place in the queue to be sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Facts in one message.
const FACTS_AT_ONCE: usize = 256;
/// Samples in one message.
const SAMPLES_AT_ONCE: usize = 512;
/// Unacknowledged facts are sent again after so long.
const RESEND: Duration = Duration::from_secs(30);
/// Heartbeats that may go unanswered before the connection is given up.
const SILENT_HEARTBEATS_MAX: u32 = 3;
/// Shortest silence that ends a connection: a busy server may pause for seconds.
const SILENCE_MIN: Duration = Duration::from_secs(5);
/// Fastest heartbeat that is believed.
const HEARTBEAT_MIN: Duration = Duration::from_millis(20);

/// Holds a connection until it is lost, and says why. Resets the wait once it was up.
pub async fn hold(connector: &Connector, wait: &mut Duration) -> anyhow::Error {
    match connect_and_hold(connector, wait).await {
        Ok(()) => anyhow::anyhow!("the server ended the connection"),
        Err(error) => error,
    }
}

async fn connect_and_hold(connector: &Connector, wait: &mut Duration) -> anyhow::Result<()> {
    let identity = connector.keeper.identity().await;
    let unreachable = || format!("{} cannot be reached", identity.server());
    // Bounded as a whole: each step of connecting may hang in its own way.
    let channel = tokio::time::timeout(ANSWER_TIMEOUT, identity.endpoint()?.connect())
        .await
        .with_context(unreachable)?
        .with_context(unreachable)?;
    let mut client = AgentsClient::new(channel)
        .max_decoding_message_size(protocol::MESSAGE_BYTES_MAX)
        .max_encoding_message_size(protocol::MESSAGE_BYTES_MAX);

    let (out, control) = mpsc::channel(OUT_MAX);
    let (log_out, logs) = mpsc::channel(LOG_OUT_MAX);
    // Control first: a heartbeat never waits behind a log.
    let outgoing = select_with_strategy(
        ReceiverStream::new(control),
        ReceiverStream::new(logs),
        |_: &mut ()| PollNext::Left,
    );
    send(&out, from_agent::Message::Hello(hello(connector))).await?;
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, client.connection(outgoing));
    let mut incoming = answer
        .await
        .context("the server did not answer the hello")??
        .into_inner();
    let welcome = read_welcome(&mut incoming).await?;
    tracing::info!(
        node.name = welcome.node_name,
        server = identity.server(),
        "connection with the server"
    );
    connector.node.kill_grace_ms.store(
        welcome.kill_grace_ms.clamp(0, GRACE_MS_MAX),
        Ordering::Relaxed,
    );
    connector.commands.send(Command::Began).await?;
    *wait = BACKOFF;

    let mut connection = Connection {
        connector,
        out,
        heartbeats: Heartbeats::default(),
        streams: Streams::new(Arc::clone(&connector.node), log_out),
        terminals: Terminals::new(Arc::clone(&connector.node), Arc::clone(&connector.keeper)),
        sent_up_to: 0,
        acknowledged_at: Instant::now(),
        heard_at: Instant::now(),
    };
    connection.run(&welcome, incoming).await
}

fn hello(connector: &Connector) -> Hello {
    let node = &connector.node;
    let inventory = inventory(node, &connector.machine);
    // In one look: what is not held any more has its end among the facts up to `next_fact`.
    let state = node.journal.state();
    Hello {
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        incarnation: connector.incarnation.to_string(),
        boot_id: connector.boot_id.clone(),
        journal_id: state.journal_id.clone(),
        epoch: state.epoch.map(Into::into),
        inventory: Some(inventory),
        held: node.held(&state),
        first_fact: state.first_untold(),
        next_fact: state.next_fact,
    }
}

async fn read_welcome(incoming: &mut Streaming<ToAgent>) -> anyhow::Result<Welcome> {
    let first = tokio::time::timeout(ANSWER_TIMEOUT, incoming.message())
        .await
        .context("the server did not say welcome")??;
    match first.and_then(|first| first.message) {
        Some(to_agent::Message::Welcome(welcome)) => Ok(welcome),
        Some(_) => bail!("the server began with something else than a welcome"),
        None => bail!("the server ended the connection at once"),
    }
}

struct Connection<'a> {
    connector: &'a Connector,
    out: mpsc::Sender<FromAgent>,
    heartbeats: Heartbeats,
    streams: Streams,
    terminals: Terminals,
    sent_up_to: u64,
    acknowledged_at: Instant,
    heard_at: Instant,
}

impl Connection<'_> {
    async fn run(
        &mut self,
        welcome: &Welcome,
        mut incoming: Streaming<ToAgent>,
    ) -> anyhow::Result<()> {
        let node = &self.connector.node;
        let beat = Duration::from_millis(u64::try_from(welcome.heartbeat_ms).unwrap_or_default());
        let mut tick = tokio::time::interval(beat.max(HEARTBEAT_MIN));
        // After a pause one heartbeat says as much as the missed ones.
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let silence_max = SILENCE_MIN.max(beat * SILENT_HEARTBEATS_MAX);
        let mut last_fact = node.journal.last_fact();
        let mut gpus = node.gpus.clone();
        let mut kept_out = node.gate.changes();
        let mut disk = node.disk.changes();
        let mut clock_warning = node.clock_warning.subscribe();
        let mut containers = node.containers.subscribe();
        let mut misfits = node.layout_changes();
        self.send_facts().await?;
        loop {
            tokio::select! {
                received = incoming.message() => match received? {
                    Some(received) => self.take(received).await?,
                    None => return Ok(()),
                },
                _ = tick.tick() => {
                    if self.heard_at.elapsed() > silence_max {
                        bail!("the server has been silent for {} s", silence_max.as_secs());
                    }
                    self.beat().await?;
                }
                changed = last_fact.changed() => {
                    changed.context("the journal is closed")?;
                    // What keeps a device out is told before the release of who had it, and that the
                    // disk is full before what was refused for it.
                    let kept = kept_out.take();
                    if kept || disk.has_changed().unwrap_or(false) {
                        disk.borrow_and_update();
                        self.send_inventory().await?;
                    }
                    self.send_facts().await?;
                }
                changed = gpus.changed() => {
                    changed.context("no GPUs are read any more")?;
                    self.send_inventory().await?;
                }
                () = node.samples.filled() => self.send_samples().await?,
                changed = kept_out.changed() => {
                    changed.context("nobody looks after devices any more")?;
                    self.send_inventory().await?;
                }
                changed = disk.changed() => {
                    changed.context("nobody looks after the disk any more")?;
                    self.send_inventory().await?;
                }
                changed = containers.changed() => {
                    changed.context("nobody looks at the container runtime any more")?;
                    self.send_inventory().await?;
                }
                changed = clock_warning.changed() => {
                    changed.context("nobody looks at the clock any more")?;
                    self.send_inventory().await?;
                }
                changed = misfits.changed() => {
                    changed.context("nobody cuts devices any more")?;
                    self.send_inventory().await?;
                }
            }
        }
    }

    async fn beat(&mut self) -> anyhow::Result<()> {
        let heartbeat = Heartbeat {
            number: self.heartbeats.next(),
            at_micros: clock::wall_micros(),
        };
        send(&self.out, from_agent::Message::Heartbeat(heartbeat)).await?;
        if self.acknowledged_at.elapsed() > RESEND
            && !self.connector.node.journal.state().facts.is_empty()
        {
            self.sent_up_to = 0;
            self.acknowledged_at = Instant::now();
            self.send_facts().await?;
        }
        Ok(())
    }

    async fn send_inventory(&self) -> anyhow::Result<()> {
        let now = inventory(&self.connector.node, &self.connector.machine);
        send(&self.out, from_agent::Message::Inventory(now)).await
    }

    async fn send_samples(&self) -> anyhow::Result<()> {
        loop {
            let samples = &self.connector.node.samples;
            let devices = samples.take(SAMPLES_AT_ONCE, Instant::now());
            if devices.is_empty() {
                return Ok(());
            }
            let message = from_agent::Message::Samples(Samples { devices });
            send(&self.out, message).await?;
        }
    }

    async fn send_facts(&mut self) -> anyhow::Result<()> {
        loop {
            let facts = self
                .connector
                .node
                .journal
                .facts_after(self.sent_up_to, FACTS_AT_ONCE);
            let Some(last) = facts.last() else {
                return Ok(());
            };
            self.sent_up_to = last.number;
            let facts = Facts {
                facts: facts.iter().map(Into::into).collect(),
            };
            send(&self.out, from_agent::Message::Facts(facts)).await?;
        }
    }

    async fn take(&mut self, received: ToAgent) -> anyhow::Result<()> {
        self.heard_at = Instant::now();
        match received.message {
            Some(to_agent::Message::LeaseRenewed(renewed)) => self.renew_lease(&renewed),
            Some(to_agent::Message::Desired(set)) => {
                let set = DesiredSet::try_from(set).context("a desired set is malformed")?;
                let health = &self.connector.node.health;
                for (uuid, findings) in &set.found {
                    health.take_found(uuid, findings);
                }
                for (uuid, up_to) in &set.cleared {
                    health.clear(uuid, *up_to);
                }
                self.connector
                    .commands
                    .send(Command::Desired(Box::new(set)))
                    .await?;
            }
            Some(to_agent::Message::FactsAcknowledged(acknowledged)) => {
                self.acknowledge(&acknowledged)
            }
            Some(to_agent::Message::LogRequest(request)) => self.streams.begin(request),
            Some(to_agent::Message::LogCancel(cancel)) => self.streams.cancel(cancel.request),
            Some(to_agent::Message::OpenTerminal(open)) => self.terminals.open(open.terminal_id),
            Some(to_agent::Message::Welcome(_)) => bail!("the server said welcome twice"),
            // A newer server's message: what it is for, this agent does not do.
            None => tracing::debug!("a message of an unknown kind is ignored"),
        }
        Ok(())
    }

    fn renew_lease(&mut self, renewed: &LeaseRenewed) {
        let Some(sent_at_ms) = self.heartbeats.answered(renewed.heartbeat) else {
            return;
        };
        if let Err(error) = self
            .connector
            .node
            .lease
            .renew(sent_at_ms, renewed.lease_ms)
        {
            tracing::error!(%error, "the lease cannot be written; jobs will be stopped at its end");
        }
    }

    fn acknowledge(&mut self, acknowledged: &FactsAcknowledged) {
        let journal = &self.connector.node.journal;
        let progress = {
            let state = journal.state();
            state.journal_id == acknowledged.journal_id
                && state.first_untold() <= acknowledged.up_to
        };
        // One that says nothing new does not put off sending again what the server let fall.
        if progress {
            self.acknowledged_at = Instant::now();
            journal.acknowledge(acknowledged.up_to);
        }
    }
}

async fn send(out: &mpsc::Sender<FromAgent>, message: from_agent::Message) -> anyhow::Result<()> {
    let message = FromAgent {
        message: Some(message),
    };
    tokio::time::timeout(ANSWER_TIMEOUT, out.send(message))
        .await
        .context("the way to the server is blocked")?
        .context("the connection is over")
}
