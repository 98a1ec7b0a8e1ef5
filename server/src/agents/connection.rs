//! One node's stream: heartbeats, facts and logs come up; leases, desired sets and log requests go down.

use std::sync::Arc;
use std::time::Duration;

use domain::ids::NodeId;
use protocol::report::{self, Hello, Message};
use protocol::wire;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Status, Streaming};

use super::Shared;
use super::authority::NodeCertificate;
use super::beats::{self, Answer, Heartbeat};
use super::clock::Clock;
use super::connections::Entry;
use super::desired::Told;
use super::facts::Source;
use super::hello::{self, Begun, HelloError};
use super::inbox::Inbox;
use super::logs::Reads;
use super::samples;
use super::writer::Writer;
use crate::app::links::LogRequest;
use crate::store::events::Actor;
use crate::store::leases::Beat;

/// A node says hello at once, or its stream is of no use.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// A node that takes nothing for so long is not served any more; it connects again.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a connection looks after what no message announces: readers that left, desired sets
/// that could not be read.
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// Answers to heartbeats that wait to be sent; there is one for each that a node has on its way.
const ANSWERS_WAITING_MAX: usize = 64;

/// Where messages for the node go.
pub type Outbox = mpsc::Sender<Result<wire::ToAgent, Status>>;

/// Serves a stream until it ends, one way or the other; the reason goes to the node.
pub async fn serve(
    shared: &Shared,
    certificate: NodeCertificate,
    good_for: Duration,
    mut inbound: Streaming<wire::FromAgent>,
    outbox: Outbox,
) {
    let node = certificate.node_id;
    let ended = hold(shared, &certificate, good_for, &mut inbound, &outbox).await;
    match &ended {
        Ok(()) => tracing::info!(node.id = %node, "connection ended by the node"),
        Err(status) => {
            tracing::info!(node.id = %node, reason = status.message(), "connection ended");
        }
    }
    if let Err(status) = ended {
        let _ = tokio::time::timeout(SEND_TIMEOUT, outbox.send(Err(status))).await;
    }
}

async fn hold(
    shared: &Shared,
    certificate: &NodeCertificate,
    good_for: Duration,
    inbound: &mut Streaming<wire::FromAgent>,
    outbox: &Outbox,
) -> Result<(), Status> {
    let hello = receive_hello(inbound).await?;
    let node = certificate.node_id;
    let begun = hello::begin(&shared.app, certificate, &hello)
        .await
        .map_err(refuse_hello)?;
    tracing::info!(
        node.id = %node, node = %begun.name, agent = %hello.agent_version, held = hello.held.len(),
        "connection began"
    );
    let entry = shared.connections.add(node, shared.over.child_token());
    let number = entry.number;
    let requests = shared.app.links.add(node, number);
    let terminals = shared.app.terminals.add(node, number);
    let (connection, writer) = Connection::new(shared, node, &hello, begun, entry, outbox.clone());
    let asked = (requests, terminals);
    let held = connection.run(writer, inbound, asked, good_for).await;
    shared.app.links.remove(node, number);
    shared.app.terminals.remove(node, number);
    shared.connections.remove(node, number);
    held
}

async fn receive_hello(inbound: &mut Streaming<wire::FromAgent>) -> Result<Hello, Status> {
    let first = tokio::time::timeout(HELLO_TIMEOUT, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("say hello within 10 s"))??
        .ok_or_else(|| Status::cancelled("the stream ended before its hello"))?;
    match Message::check(first).map_err(malformed)? {
        Message::Hello(hello) => Ok(*hello),
        _ => Err(Status::failed_precondition("say hello first")),
    }
}

fn refuse_hello(error: HelloError) -> Status {
    match error {
        HelloError::Unwelcome => Status::permission_denied(error.to_string()),
        HelloError::Lifecycle(error) => {
            tracing::warn!(%error, "a connection could not begin");
            Status::unavailable("the control plane cannot answer now: try again")
        }
    }
}

fn malformed(error: protocol::Malformed) -> Status {
    Status::invalid_argument(error.to_string())
}

/// What people ask of the node: logs, and terminals by their ids.
type Asked = (mpsc::Receiver<LogRequest>, mpsc::Receiver<String>);

struct Connection<'a> {
    shared: &'a Shared,
    name: String,
    beat: Beat,
    entry: Entry,
    outbox: Outbox,
    told: Told,
    /// What is wanted could not be read, or was told in part.
    tell_due: bool,
    more_to_tell: bool,
    reads: Reads,
    inbox: Arc<Inbox>,
    heard: Instant,
    clock: Clock,
}

impl<'a> Connection<'a> {
    fn new(
        shared: &'a Shared,
        node: NodeId,
        hello: &Hello,
        begun: Begun,
        entry: Entry,
        outbox: Outbox,
    ) -> (Self, Writer) {
        let inbox = Arc::new(Inbox::default());
        let name = begun.name.clone();
        let source = Source {
            node_id: node,
            actor: Actor::Agent(name.clone()),
            incarnation: hello.incarnation,
            journal: hello.journal_id,
        };
        let writer = Writer::new(
            shared.clone(),
            source,
            entry.number,
            begun,
            outbox.clone(),
            Arc::clone(&inbox),
        );
        let connection = Self {
            shared,
            name,
            beat: Beat {
                node_id: node,
                incarnation: hello.incarnation,
            },
            entry,
            outbox,
            told: Told::default(),
            tell_due: false,
            more_to_tell: false,
            reads: Reads::default(),
            inbox,
            heard: Instant::now(),
            clock: Clock::default(),
        };
        (connection, writer)
    }

    /// Runs until the node, the server or the certificate's time ends it. What a message waits
    /// for, such as a node that takes none, keeps none of these from ending it.
    async fn run(
        mut self,
        writer: Writer,
        inbound: &mut Streaming<wire::FromAgent>,
        mut asked: Asked,
        good_for: Duration,
    ) -> Result<(), Status> {
        let over = self.entry.over.clone();
        let mut writer = tokio::spawn(writer.run());
        let ended = tokio::select! {
            () = over.cancelled() => {
                Err(Status::aborted("another connection speaks for the node, or the server stops"))
            }
            () = tokio::time::sleep(good_for) => {
                Err(Status::unauthenticated("the certificate has expired: renew it and connect again"))
            }
            ended = &mut writer => {
                Err(ended.unwrap_or_else(|_| Status::internal("the connection's writer failed")))
            }
            ended = self.steer(inbound, &mut asked) => ended,
        };
        writer.abort();
        ended
    }

    async fn steer(
        &mut self,
        inbound: &mut Streaming<wire::FromAgent>,
        (requests, terminals): &mut Asked,
    ) -> Result<(), Status> {
        self.welcome().await?;
        let (answer, mut answers) = mpsc::channel(ANSWERS_WAITING_MAX);
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        loop {
            tokio::select! {
                message = inbound.message() => match message? {
                    Some(message) => self.receive(message, &answer).await?,
                    None => return Ok(()),
                },
                Some(answered) = answers.recv() => self.answer(answered).await?,
                Ok(()) = self.entry.wanted.changed() => self.tell().await?,
                () = std::future::ready(()), if self.more_to_tell => self.tell().await?,
                Some(request) = requests.recv() => {
                    if let Some(message) = self.reads.begin(request) {
                        self.send(message).await?;
                    }
                }
                Some(terminal_id) = terminals.recv() => {
                    let open = wire::OpenTerminal { terminal_id };
                    self.send(wire::to_agent::Message::OpenTerminal(open)).await?;
                }
                _ = sweep.tick() => self.sweep().await?,
            }
        }
    }

    async fn welcome(&self) -> Result<(), Status> {
        let timers = &self.shared.app.config.timers;
        self.send(wire::to_agent::Message::Welcome(wire::Welcome {
            node_name: self.name.clone(),
            heartbeat_ms: timers.heartbeat_ms,
            lease_ms: timers.node_lease_ms,
            kill_grace_ms: timers.kill_grace_ms,
        }))
        .await
    }

    async fn receive(
        &mut self,
        message: wire::FromAgent,
        answer: &mpsc::Sender<Answer>,
    ) -> Result<(), Status> {
        self.heard = Instant::now();
        match Message::check(message).map_err(malformed)? {
            Message::Hello(_) => Err(Status::failed_precondition("hello was said already")),
            Message::Heartbeat(report::Heartbeat { number, at_micros }) => {
                if let Some(at_micros) = at_micros {
                    self.clock.look(&self.shared.app, self.beat, at_micros);
                }
                let heartbeat = Heartbeat {
                    beat: self.beat,
                    number,
                    answer: answer.clone(),
                };
                match self.shared.beats.try_send(heartbeat) {
                    Ok(()) => Ok(()),
                    // The node beats again, and what else it says is heard until then.
                    Err(mpsc::error::TrySendError::Full(_)) => {
                        metrics::counter!("allotment_agent_heartbeats_put_off").increment(1);
                        Ok(())
                    }
                    Err(mpsc::error::TrySendError::Closed(_)) => {
                        Err(Status::unavailable("the server stops"))
                    }
                }
            }
            Message::Facts(facts) => {
                self.inbox.put_facts(facts);
                Ok(())
            }
            Message::Inventory(inventory) => {
                self.inbox.put_inventory(inventory);
                Ok(())
            }
            Message::Samples(samples) => {
                samples::put(&self.shared.samples, self.beat.node_id, samples);
                Ok(())
            }
            Message::LogChunk(chunk) => match self.reads.pass(chunk) {
                Some(message) => self.send(message).await,
                None => Ok(()),
            },
        }
    }

    async fn answer(&self, answered: Answer) -> Result<(), Status> {
        match answered {
            Answer::Superseded => Err(Status::aborted("another connection speaks for the node")),
            Answer::Renewed { number, ready } => {
                if !ready {
                    self.inbox.ask_look();
                }
                let lease_ms = self.shared.app.config.timers.node_lease_ms;
                self.send(beats::lease_renewed(number, lease_ms)).await
            }
        }
    }

    /// Tells the node what it is to hold, where that differs from what it was told, by one
    /// message; the rest comes in the next turns. When the database cannot be read it is told
    /// later: it keeps what it holds until then.
    async fn tell(&mut self) -> Result<(), Status> {
        self.tell_due = false;
        self.more_to_tell = false;
        let Some(wanted) = self.entry.wanted.borrow_and_update().clone() else {
            return Ok(());
        };
        let Some(difference) = self.told.difference(&wanted) else {
            return Ok(());
        };
        match self.told.tell(&self.shared.app, &wanted, &difference).await {
            Ok(set) => {
                self.more_to_tell = self.told.difference(&wanted).is_some();
                self.send(wire::to_agent::Message::Desired(set)).await
            }
            Err(error) => {
                tracing::warn!(node.id = %self.beat.node_id, %error, "a desired set could not be read");
                self.tell_due = true;
                Ok(())
            }
        }
    }

    async fn sweep(&mut self) -> Result<(), Status> {
        if self.heard.elapsed() > self.shared.app.config.timers.node_lease() {
            return Err(Status::deadline_exceeded(
                "nothing was heard for a whole lease",
            ));
        }
        for message in self.reads.sweep() {
            self.send(message).await?;
        }
        if self.tell_due {
            self.tell().await?;
        }
        Ok(())
    }

    async fn send(&self, message: wire::to_agent::Message) -> Result<(), Status> {
        send(&self.outbox, message).await
    }
}

/// Sends a message to a node; fails where it takes none.
pub async fn send(outbox: &Outbox, message: wire::to_agent::Message) -> Result<(), Status> {
    let message = wire::ToAgent {
        message: Some(message),
    };
    match tokio::time::timeout(SEND_TIMEOUT, outbox.send(Ok(message))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Status::cancelled("the node closed the stream")),
        Err(_) => Err(Status::deadline_exceeded("the node takes no messages")),
    }
}
