//! A machine with an agent as the server sees it: real TLS and gRPC, and no processes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use domain::ids::{AssignmentId, AttemptId, IncarnationId, JournalId, NodeId};
use protocol::wire::agents_client::AgentsClient;
use protocol::wire::{self, from_agent, to_agent};
use rcgen::{CertificateParams, KeyPair};
use server::agents::{self, Listening};
use server::app::App;
use server::app::nodes::{NewJoinToken, create_join_token};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Status, Streaming};

use super::fleet::Fleet;

/// Longest wait for a message that must come; generous, since two cores run many tests at once.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long nothing must come for a test to believe that nothing will.
pub const SILENCE: Duration = Duration::from_millis(300);

/// A server's ports for agents and replicas; closed when it is dropped.
pub struct Ports {
    pub app: App,
    pub listening: Listening,
    over: CancellationToken,
}

impl Drop for Ports {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

/// Opens the ports of an application, on free addresses.
pub async fn open(app: &App) -> Ports {
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let mut app = app.clone();
    let mut config = (*app.config).clone();
    config.listen.agents = ([127, 0, 0, 1], 0).into();
    config.listen.internal = ([127, 0, 0, 1], 0).into();
    app.config = std::sync::Arc::new(config);
    let over = CancellationToken::new();
    let listening = agents::start(app.clone(), over.clone())
        .await
        .expect("the ports open");
    Ports {
        app,
        listening,
        over,
    }
}

/// A machine that has enrolled.
pub struct Machine {
    pub node: NodeId,
    pub name: String,
    pub key: KeyPair,
    pub certificate: Vec<u8>,
    pub journal: JournalId,
    pub boot: String,
    /// The number that its journal's next fact has, as far as it has reported.
    next_fact: Arc<AtomicU64>,
    ca: Vec<u8>,
    address: std::net::SocketAddr,
}

impl Machine {
    /// Enrols a machine with a token of an administrator's.
    pub async fn join(fleet: &Fleet, ports: &Ports, name: &str) -> Self {
        let new: NewJoinToken =
            serde_json::from_value(serde_json::json!({ "pool": "h100" })).expect("a pool");
        let token = create_join_token(&ports.app, &fleet.root(), new)
            .await
            .expect("a token");
        Self::enrol(ports, &token.token, name)
            .await
            .expect("it joins")
    }

    /// Enrols a machine with a token.
    pub async fn enrol(ports: &Ports, token: &str, name: &str) -> Result<Self, Status> {
        let key = KeyPair::generate().expect("a key");
        let ca = ports.listening.authority.der().to_vec();
        let address = ports.listening.agents;
        let request = wire::EnrolRequest {
            join_token: token.to_owned(),
            csr_der: signing_request(&key),
            node_name: name.to_owned(),
        };
        let reply = client(address, &ca, None)
            .await
            .enrol(request)
            .await?
            .into_inner();
        assert_eq!(reply.ca_der, ca);
        Ok(Self {
            node: reply.node_id.parse().expect("an id"),
            name: reply.node_name,
            key,
            certificate: reply.certificate_der,
            journal: JournalId::new(),
            boot: "boot-1".to_owned(),
            next_fact: Arc::new(AtomicU64::new(1)),
            ca,
            address,
        })
    }

    /// The same machine, calling another replica.
    pub fn calling(mut self, ports: &Ports) -> Self {
        self.address = ports.listening.agents;
        self
    }

    /// A client that shows the machine's certificate.
    pub async fn client(&self) -> AgentsClient<Channel> {
        let identity = Identity::from_pem(
            pem("CERTIFICATE", &self.certificate),
            self.key.serialize_pem(),
        );
        client(self.address, &self.ca, Some(identity)).await
    }

    /// A client that shows nothing.
    pub async fn stranger(&self) -> AgentsClient<Channel> {
        client(self.address, &self.ca, None).await
    }

    /// Says hello with so many devices, and nothing held.
    pub async fn connect(&self, gpus: u32) -> Connection {
        self.connect_holding(gpus, &[]).await
    }

    /// Says hello with what it holds; of its facts none was acknowledged.
    pub async fn connect_holding(
        &self,
        gpus: u32,
        held: &[(AssignmentId, AttemptId)],
    ) -> Connection {
        let facts = (1, self.next_fact.load(Ordering::Relaxed));
        self.connect_with(gpus, held, facts).await
    }

    /// Says hello with what it holds, and with the number of the first fact that was not
    /// acknowledged and of the next that there will be.
    pub async fn connect_with(
        &self,
        gpus: u32,
        held: &[(AssignmentId, AttemptId)],
        (first_fact, next_fact): (u64, u64),
    ) -> Connection {
        let life = IncarnationId::new();
        self.connect_as(life, gpus, held, (first_fact, next_fact))
            .await
    }

    /// The same in a life of the agent process that may have had connections before.
    pub async fn connect_as(
        &self,
        life: IncarnationId,
        gpus: u32,
        held: &[(AssignmentId, AttemptId)],
        (first_fact, next_fact): (u64, u64),
    ) -> Connection {
        let hello = wire::Hello {
            agent_version: "test".into(),
            incarnation: life.to_string(),
            boot_id: self.boot.clone(),
            journal_id: self.journal.to_string(),
            epoch: None,
            inventory: Some(inventory(&self.name, gpus)),
            held: held
                .iter()
                .map(|(assignment, attempt)| wire::Held {
                    assignment_id: assignment.to_string(),
                    attempt_id: attempt.to_string(),
                    phase: "running".into(),
                })
                .collect(),
            first_fact,
            next_fact,
        };
        let mut connection = self.call().await.expect("the call is taken");
        connection.send(from_agent::Message::Hello(hello)).await;
        connection
    }

    /// Opens a stream and says nothing yet.
    pub async fn call(&self) -> Result<Connection, Status> {
        let (out, messages) = mpsc::channel(64);
        let inbound = self
            .client()
            .await
            .connection(ReceiverStream::new(messages))
            .await?
            .into_inner();
        Ok(Connection {
            out,
            inbound,
            beats: 0,
            next_fact: Arc::clone(&self.next_fact),
            passed_over: VecDeque::new(),
        })
    }

    /// A signing request for its own key.
    pub fn signing_request(&self) -> Vec<u8> {
        signing_request(&self.key)
    }
}

/// A stream to the server.
pub struct Connection {
    out: mpsc::Sender<wire::FromAgent>,
    inbound: Streaming<wire::ToAgent>,
    beats: u64,
    next_fact: Arc<AtomicU64>,
    passed_over: VecDeque<to_agent::Message>,
}

impl Connection {
    /// Sends a message.
    pub async fn send(&mut self, message: from_agent::Message) {
        self.out
            .send(wire::FromAgent {
                message: Some(message),
            })
            .await
            .expect("the stream is open");
    }

    /// The next message; an error when the server ends the stream.
    pub async fn receive(&mut self) -> Result<to_agent::Message, Status> {
        let message = tokio::time::timeout(PATIENCE, self.inbound.message())
            .await
            .expect("a message comes in time")?;
        let message = message.ok_or_else(|| Status::cancelled("the stream ended"))?;
        Ok(message.message.expect("it holds something"))
    }

    /// The reason for which the server ends the stream.
    pub async fn ended(&mut self) -> Status {
        loop {
            if let Err(status) = self.receive().await {
                return status;
            }
        }
    }

    /// Beats, and waits until the lease is renewed.
    pub async fn beat(&mut self) {
        self.beat_at(0).await;
    }

    /// The same from a machine whose clock shows that.
    pub async fn beat_at(&mut self, at_micros: i64) {
        self.beats += 1;
        let number = self.beats;
        self.send(from_agent::Message::Heartbeat(wire::Heartbeat {
            number,
            at_micros,
        }))
        .await;
        self.take(|message| match message {
            to_agent::Message::LeaseRenewed(renewed) if renewed.heartbeat == number => Some(()),
            _ => None,
        })
        .await;
    }

    /// The first message, of those passed over and those to come, that is what is looked for;
    /// the others are kept for later.
    async fn take<T>(&mut self, wanted: impl Fn(&to_agent::Message) -> Option<T>) -> T {
        for at in 0..self.passed_over.len() {
            if let Some(found) = wanted(&self.passed_over[at]) {
                self.passed_over.remove(at);
                return found;
            }
        }
        loop {
            let message = self.receive().await.expect("the connection goes on");
            if let Some(found) = wanted(&message) {
                return found;
            }
            self.passed_over.push_back(message);
        }
    }

    /// The next desired set.
    pub async fn desired(&mut self) -> wire::DesiredSet {
        self.take(|message| match message {
            to_agent::Message::Desired(set) => Some(set.clone()),
            _ => None,
        })
        .await
    }

    /// Waits for a desired set that wants something of an assignment.
    pub async fn wanted(&mut self, want: wire::Want) -> wire::Assignment {
        loop {
            let set = self.desired().await;
            if let Some(found) = set.assignments.into_iter().find(|a| a.want() == want) {
                return found;
            }
        }
    }

    /// The next log request.
    pub async fn log_request(&mut self) -> wire::LogRequest {
        self.take(|message| match message {
            to_agent::Message::LogRequest(request) => Some(request.clone()),
            _ => None,
        })
        .await
    }

    /// The next log request that is taken back.
    pub async fn log_cancel(&mut self) -> u64 {
        self.take(|message| match message {
            to_agent::Message::LogCancel(cancel) => Some(cancel.request),
            _ => None,
        })
        .await
    }

    /// Sends facts.
    pub async fn report(&mut self, facts: Vec<wire::Fact>) {
        let next = facts.iter().map(|fact| fact.number + 1).max();
        self.next_fact
            .fetch_max(next.unwrap_or(1), Ordering::Relaxed);
        self.send(from_agent::Message::Facts(wire::Facts { facts }))
            .await;
    }

    /// Sends facts and waits until they are known up to `number`.
    pub async fn report_known(&mut self, facts: Vec<wire::Fact>, number: u64) {
        self.report(facts).await;
        self.take(|message| match message {
            to_agent::Message::FactsAcknowledged(known) if known.up_to >= number => Some(()),
            _ => None,
        })
        .await;
    }
}

/// A fact about an assignment.
pub fn fact(
    number: u64,
    (assignment, attempt): (AssignmentId, AttemptId),
    kind: wire::fact::Kind,
) -> wire::Fact {
    wire::Fact {
        number,
        assignment_id: assignment.to_string(),
        attempt_id: attempt.to_string(),
        at_micros: 0,
        kind: Some(kind),
    }
}

pub fn accepted() -> wire::fact::Kind {
    wire::fact::Kind::Accepted(wire::Accepted {})
}

pub fn started() -> wire::fact::Kind {
    wire::fact::Kind::Started(wire::Started {
        pid: 7,
        ..Default::default()
    })
}

pub fn exited(code: i32) -> wire::fact::Kind {
    wire::fact::Kind::Exited(wire::Exited {
        code: Some(code),
        ..Default::default()
    })
}

/// It was gone when its agent came back.
pub fn unseen() -> wire::fact::Kind {
    wire::fact::Kind::Exited(wire::Exited {
        reason: "unseen".into(),
        ..Default::default()
    })
}

/// It was told to end, and did.
pub fn killed() -> wire::fact::Kind {
    wire::fact::Kind::Exited(wire::Exited {
        signal: Some(15),
        asked: true,
        ..Default::default()
    })
}

pub fn refused(message: &str) -> wire::fact::Kind {
    wire::fact::Kind::Refused(wire::Refused {
        code: "start_refused".into(),
        message: message.into(),
        exit_code: None,
    })
}

pub fn released() -> wire::fact::Kind {
    wire::fact::Kind::Released(wire::Released::default())
}

/// An inventory of so many H100.
pub fn inventory(name: &str, gpus: u32) -> wire::Inventory {
    wire::Inventory {
        devices: (0..gpus)
            .map(|index| wire::Device {
                uuid: format!("GPU-{name}-{index}"),
                index,
                product_name: "NVIDIA H100 80GB HBM3".into(),
                memory_mib: super::fleet::DEVICE_MIB,
                pci_bus_id: format!("00000000:{index:02X}:00.0"),
                health: "healthy".into(),
                ..wire::Device::default()
            })
            .collect(),
        nvlink: vec![wire::Clique {
            indices: (0..gpus).collect(),
        }],
        driver_version: "570.1".into(),
        cpus_milli: 96_000,
        memory_mib: 1_048_576,
        address: "10.0.0.1".into(),
        sharing: vec!["exclusive".into(), "time_slice".into()],
        runners: vec!["process".into()],
        cgroup: "none".into(),
        mps_across_teams: true,
        ..Default::default()
    }
}

async fn client(
    address: std::net::SocketAddr,
    ca: &[u8],
    identity: Option<Identity>,
) -> AgentsClient<Channel> {
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(pem("CERTIFICATE", ca)))
        .domain_name("localhost");
    if let Some(identity) = identity {
        tls = tls.identity(identity);
    }
    let channel = Endpoint::from_shared(format!("https://{address}"))
        .expect("an address")
        .tls_config(tls)
        .expect("TLS")
        .connect()
        .await
        .expect("the port is open");
    AgentsClient::new(channel)
}

fn signing_request(key: &KeyPair) -> Vec<u8> {
    let params = CertificateParams::new(Vec::<String>::new()).expect("parameters");
    params
        .serialize_request(key)
        .expect("a request")
        .der()
        .to_vec()
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).expect("ASCII"))
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}

/// Waits until something is so.
pub async fn eventually(what: &str, so: impl AsyncFn() -> bool) {
    let begun = tokio::time::Instant::now();
    while !so().await {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
