//! One node's stream: heartbeats, facts and logs come up; leases, desired sets and log requests go down.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::ids::{AssignmentId, NodeId};
use protocol::report::{Fact, FactKind, Hello, Inventory, Message};
use protocol::wire;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Status, Streaming};

use super::Shared;
use super::beats::{self, Answer, Heartbeat};
use super::desired::Told;
use super::facts::{self, FactError, InOrder, Source};
use super::hello::{self, Begun, HelloError};
use super::inventory;
use super::logs::Reads;
use super::sessions::Entry;
use crate::app::App;
use crate::app::links::LogRequest;
use crate::store::events::Actor;
use crate::store::nodes::{self, Beat};

/// A node says hello at once, or its connection is of no use.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// A node that takes nothing for so long is not served any more; it connects again.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a session looks after what no message announces: readers that left, gaps in the
/// facts, desired sets that could not be read.
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// How long a missing fact is waited for. Within a stream nothing overtakes, so that it is
/// missing only when the database lost what it had acknowledged.
const GAP_TIMEOUT: Duration = Duration::from_secs(5);
/// Messages for the node's rows that wait to be applied. When they are full the stream is not
/// read, and the node waits.
const WORK_WAITING_MAX: usize = 64;
/// Between tries while the database is away.
const RETRY_EVERY: Duration = Duration::from_millis(500);

/// Where messages for the node go.
pub type Outbox = mpsc::Sender<Result<wire::ToAgent, Status>>;

/// What a session does to the node's rows, in the order of its messages.
enum Work {
    Facts(Vec<Fact>),
    Inventory(Box<Inventory>),
    Ready,
}

/// Serves a stream until it ends, one way or the other; the reason goes to the node.
pub async fn serve(
    shared: &Shared,
    node: NodeId,
    good_for: Duration,
    mut inbound: Streaming<wire::FromAgent>,
    outbox: Outbox,
) {
    let ended = hold(shared, node, good_for, &mut inbound, &outbox).await;
    match &ended {
        Ok(()) => tracing::info!(node.id = %node, "session ended by the node"),
        Err(status) => {
            tracing::info!(node.id = %node, reason = status.message(), "session ended");
        }
    }
    if let Err(status) = ended {
        let _ = tokio::time::timeout(SEND_TIMEOUT, outbox.send(Err(status))).await;
    }
}

async fn hold(
    shared: &Shared,
    node: NodeId,
    good_for: Duration,
    inbound: &mut Streaming<wire::FromAgent>,
    outbox: &Outbox,
) -> Result<(), Status> {
    let hello = receive_hello(inbound).await?;
    let begun = hello::begin(&shared.app, node, &hello)
        .await
        .map_err(refuse_hello)?;
    tracing::info!(
        node.id = %node, node = %begun.name, agent = %hello.agent_version, held = hello.held.len(),
        "session began"
    );
    let entry = shared.sessions.add(node, shared.over.child_token());
    let number = entry.number;
    let requests = shared.app.links.add(node, number);
    let held = Session::new(shared, node, &hello, begun, entry, outbox.clone())
        .run(inbound, requests, good_for)
        .await;
    shared.app.links.remove(node, number);
    shared.sessions.remove(node, number);
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
            tracing::warn!(%error, "a session could not begin");
            Status::unavailable("the control plane cannot answer now: try again")
        }
    }
}

fn malformed(error: protocol::Malformed) -> Status {
    Status::invalid_argument(error.to_string())
}

struct Session<'a> {
    shared: &'a Shared,
    name: String,
    beat: Beat,
    entry: Entry,
    outbox: Outbox,
    told: Told,
    tell_due: bool,
    reads: Reads,
    work: mpsc::Sender<Work>,
    worker: tokio::task::JoinHandle<Status>,
    heard: Instant,
}

impl<'a> Session<'a> {
    fn new(
        shared: &'a Shared,
        node: NodeId,
        hello: &Hello,
        begun: Begun,
        entry: Entry,
        outbox: Outbox,
    ) -> Self {
        let (work, waiting) = mpsc::channel(WORK_WAITING_MAX);
        let name = begun.name.clone();
        let source = Source {
            node_id: node,
            actor: Actor::Agent(begun.name.clone()),
            incarnation: hello.incarnation,
            journal: hello.journal_id,
        };
        let worker = Worker {
            app: shared.app.clone(),
            source,
            outbox: outbox.clone(),
            order: InOrder::after(begun.last_fact),
            held: begun.held,
        };
        Self {
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
            reads: Reads::default(),
            work,
            worker: tokio::spawn(worker.run(waiting)),
            heard: Instant::now(),
        }
    }

    async fn run(
        mut self,
        inbound: &mut Streaming<wire::FromAgent>,
        mut requests: mpsc::Receiver<LogRequest>,
        good_for: Duration,
    ) -> Result<(), Status> {
        let ended = self.steer(inbound, &mut requests, good_for).await;
        self.worker.abort();
        ended
    }

    async fn steer(
        &mut self,
        inbound: &mut Streaming<wire::FromAgent>,
        requests: &mut mpsc::Receiver<LogRequest>,
        good_for: Duration,
    ) -> Result<(), Status> {
        self.welcome().await?;
        self.shared.app.wake.agents.notify_one();
        let (answer, mut answers) = mpsc::channel(WORK_WAITING_MAX);
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        let expiry = Instant::now() + good_for;
        loop {
            tokio::select! {
                () = self.entry.over.cancelled() => {
                    return Err(Status::aborted("another session speaks for the node, or the server stops"));
                }
                () = tokio::time::sleep_until(expiry) => {
                    return Err(Status::unauthenticated("the certificate has expired: renew it and connect again"));
                }
                ended = &mut self.worker => {
                    return Err(ended.unwrap_or_else(|_| Status::internal("the session's worker failed")));
                }
                message = inbound.message() => match message? {
                    Some(message) => self.receive(message, &answer).await?,
                    None => return Ok(()),
                },
                Some(answered) = answers.recv() => self.answer(answered).await?,
                Ok(()) = self.entry.wanted.changed() => self.tell().await?,
                Some(request) = requests.recv() => {
                    if let Some(message) = self.reads.begin(request) {
                        self.send(message).await?;
                    }
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
            Message::Heartbeat(number) => {
                let heartbeat = Heartbeat {
                    beat: self.beat,
                    number,
                    answer: answer.clone(),
                };
                self.shared
                    .beats
                    .send(heartbeat)
                    .await
                    .map_err(|_| Status::unavailable("the server stops"))
            }
            Message::Facts(facts) => self.put(Work::Facts(facts)).await,
            Message::Inventory(inventory) => self.put(Work::Inventory(inventory)).await,
            Message::LogChunk(chunk) => match self.reads.pass(chunk) {
                Some(message) => self.send(message).await,
                None => Ok(()),
            },
        }
    }

    async fn put(&self, work: Work) -> Result<(), Status> {
        self.work
            .send(work)
            .await
            .map_err(|_| Status::internal("the session's worker failed"))
    }

    async fn answer(&self, answered: Answer) -> Result<(), Status> {
        match answered {
            Answer::Superseded => Err(Status::aborted("another session speaks for the node")),
            Answer::Renewed { number, ready } => {
                if !ready {
                    self.put(Work::Ready).await?;
                }
                let lease_ms = self.shared.app.config.timers.node_lease_ms;
                self.send(beats::lease_renewed(number, lease_ms)).await
            }
        }
    }

    /// Tells the node what it is to hold, where that differs from what it was told. When the
    /// database cannot be read it is told later: it keeps what it holds until then.
    async fn tell(&mut self) -> Result<(), Status> {
        let Some(wanted) = self.entry.wanted.borrow_and_update().clone() else {
            return Ok(());
        };
        let Some(difference) = self.told.difference(&wanted) else {
            self.tell_due = false;
            return Ok(());
        };
        let app = &self.shared.app;
        let set = async {
            let mut tx = app.db.begin_system().await?;
            self.told
                .tell(&mut tx, app.config.unix_user_base, &wanted, &difference)
                .await
        };
        match set.await {
            Ok(set) => {
                self.tell_due = false;
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
        let lease = u64::try_from(self.shared.app.config.timers.node_lease_ms).unwrap_or(0);
        if self.heard.elapsed() > Duration::from_millis(lease) {
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

async fn send(outbox: &Outbox, message: wire::to_agent::Message) -> Result<(), Status> {
    let message = wire::ToAgent {
        message: Some(message),
    };
    match tokio::time::timeout(SEND_TIMEOUT, outbox.send(Ok(message))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Status::cancelled("the node closed the stream")),
        Err(_) => Err(Status::deadline_exceeded("the node takes no messages")),
    }
}

/// Applies what a node reports, beside the stream: heartbeats never wait for a row's lock.
struct Worker {
    app: App,
    source: Source,
    outbox: Outbox,
    order: InOrder,
    held: BTreeSet<AssignmentId>,
}

impl Worker {
    async fn run(mut self, mut waiting: mpsc::Receiver<Work>) -> Status {
        let mut gap_since: Option<Instant> = None;
        loop {
            let work = tokio::select! {
                work = waiting.recv() => work,
                () = tokio::time::sleep(SWEEP_EVERY), if gap_since.is_some() => {
                    if gap_since.is_some_and(|since| since.elapsed() > GAP_TIMEOUT) {
                        tracing::error!(
                            node.id = %self.source.node_id, last = self.order.last(),
                            "facts are missing that this database has not seen; going on without them"
                        );
                        self.order.skip_gap();
                    }
                    Some(Work::Facts(Vec::new()))
                }
            };
            let done = match work {
                None => return Status::cancelled("the session is over"),
                Some(Work::Facts(facts)) => self.take_facts(facts).await,
                Some(Work::Inventory(inventory)) => self.take_inventory(&inventory).await,
                Some(Work::Ready) => self.mark_ready().await,
            };
            if let Err(status) = done {
                return status;
            }
            gap_since = match (self.order.gap(), gap_since) {
                (false, _) => None,
                (true, since) => since.or_else(|| Some(Instant::now())),
            };
        }
    }

    async fn take_facts(&mut self, facts: Vec<Fact>) -> Result<(), Status> {
        let mut released = false;
        for fact in facts {
            self.order.put(fact);
        }
        loop {
            let run = self.order.next();
            let Some(last) = run.last() else { break };
            let last = last.number;
            loop {
                match facts::apply(&self.app, &self.source, &run).await {
                    Ok(()) => break,
                    Err(FactError::Superseded) => {
                        return Err(Status::aborted("another session speaks for the node"));
                    }
                    Err(FactError::Unavailable(error)) => {
                        tracing::warn!(node.id = %self.source.node_id, %error, "facts wait for the database");
                        tokio::time::sleep(RETRY_EVERY).await;
                    }
                }
            }
            for fact in &run {
                released |= fact.kind == FactKind::Released && self.held.remove(&fact.assignment);
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
            self.mark_ready().await?;
        }
        Ok(())
    }

    async fn take_inventory(&self, inventory: &Inventory) -> Result<(), Status> {
        loop {
            match self.apply_inventory(inventory).await {
                Ok(()) => return Ok(()),
                Err(error) if crate::store::unavailable(&error) => {
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
        let mut tx = self.app.db.begin_system().await?;
        nodes::lock(&mut tx, self.source.node_id).await?;
        let voice = nodes::voice(&mut tx, self.source.node_id).await?;
        if voice.incarnation != Some(self.source.incarnation) {
            return Ok(());
        }
        inventory::apply(&mut tx, self.source.node_id, &self.source.actor, inventory).await?;
        tx.commit().await?;
        self.app.wake.all();
        Ok(())
    }

    async fn mark_ready(&self) -> Result<(), Status> {
        let source = &self.source;
        let marked = hello::mark_ready(&self.app, source.node_id, &self.held, &source.actor).await;
        if let Err(error) = marked {
            // The next heartbeat asks again.
            tracing::warn!(node.id = %self.source.node_id, %error, "a node could not be marked as ready");
        }
        Ok(())
    }
}
