//! A server that says what a test wants and remembers what the agent said.

mod logs;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use protocol::wire::agents_server::{Agents, AgentsServer};
use protocol::wire::fact::Kind;
use protocol::wire::{self, FromAgent, ToAgent, from_agent, to_agent};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer,
    KeyPair,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

/// Longest wait for any state; a loaded machine with two cores builds at the same time.
const WAIT_MAX: Duration = Duration::from_secs(40);

pub struct Inner {
    pub heartbeat_ms: i64,
    pub lease_ms: i64,
    pub grace_ms: i64,
    /// Whether heartbeats renew the lease.
    pub renew_leases: bool,
    /// Whether connections are taken.
    pub reachable: bool,
    /// Whether the node counts as retired, and how often it was told so.
    pub retired: bool,
    pub denials: u32,
    pub acknowledge: bool,
    /// Whether certificates are handed out that have expired already.
    pub issue_expired: bool,
    pub renew_after_seconds: i64,
    pub epoch: (i64, i64),
    pub revision: u64,
    pub desired: Vec<wire::Assignment>,
    pub cleared: Vec<wire::Cleared>,
    /// What was found of devices, as each set tells it.
    pub found: Vec<wire::Found>,
    pub facts: Vec<wire::Fact>,
    pub hellos: Vec<wire::Hello>,
    pub inventories: Vec<wire::Inventory>,
    pub chunks: Vec<wire::LogChunk>,
    pub heartbeats: u64,
    /// Sessions that were not taken while it was not reachable.
    pub turned_away: u64,
    pub renewals: u64,
    /// Serial numbers of the certificates that connections were opened with.
    pub connection_certificates: Vec<Vec<u8>>,
    to_agent: Option<mpsc::Sender<Result<ToAgent, Status>>>,
}

pub struct Fake {
    inner: Mutex<Inner>,
    changed: Notify,
    ca: Issuer<'static, KeyPair>,
    ca_der: Vec<u8>,
}

#[derive(Clone)]
pub struct FakeServer {
    pub url: String,
    pub ca_file: PathBuf,
    pub ca_sha256: String,
    pub fake: Arc<Fake>,
    _folder: Arc<tempfile::TempDir>,
}

impl FakeServer {
    pub async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "tests");
        let ca_certificate = params.self_signed(&ca_key).expect("a certificate");
        let ca = Issuer::new(params, ca_key);
        let key = KeyPair::generate().expect("a key");
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()])
            .expect("names")
            .signed_by(&key, &ca)
            .expect("signed");
        let chain = format!("{}{}", certificate.pem(), ca_certificate.pem());
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(chain, key.serialize_pem()))
            .client_ca_root(Certificate::from_pem(ca_certificate.pem()))
            .client_auth_optional(true);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address: SocketAddr = listener.local_addr().expect("an address");
        let folder = tempfile::tempdir().expect("a folder");
        let ca_file = folder.path().join("ca.pem");
        std::fs::write(&ca_file, ca_certificate.pem()).expect("written");
        let fake = Arc::new(Fake {
            inner: Mutex::new(Inner {
                heartbeat_ms: 200,
                lease_ms: 60_000,
                grace_ms: 10_000,
                renew_leases: true,
                reachable: true,
                retired: false,
                denials: 0,
                acknowledge: true,
                issue_expired: false,
                renew_after_seconds: 3600,
                epoch: (1, 1),
                revision: 0,
                desired: Vec::new(),
                cleared: Vec::new(),
                found: Vec::new(),
                facts: Vec::new(),
                hellos: Vec::new(),
                inventories: Vec::new(),
                chunks: Vec::new(),
                heartbeats: 0,
                turned_away: 0,
                renewals: 0,
                connection_certificates: Vec::new(),
                to_agent: None,
            }),
            changed: Notify::new(),
            ca,
            ca_der: ca_certificate.der().to_vec(),
        });
        let service = AgentsServer::new(Service(Arc::clone(&fake)));
        tokio::spawn(
            Server::builder()
                .tls_config(tls)
                .expect("a TLS configuration")
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Self {
            url: format!("https://{address}"),
            ca_file,
            ca_sha256: hex::encode(Sha256::digest(ca_certificate.der())),
            fake,
            _folder: Arc::new(folder),
        }
    }

    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.fake.inner.lock().expect("no test panicked inside")
    }

    /// Wants exactly these, now and in connections to come.
    pub async fn desire(&self, assignments: &[wire::Assignment]) {
        self.inner().desired = assignments.to_vec();
        let message = self.inner().desired_set(true, None);
        self.send(message).await;
    }

    /// Sends a message to the agent that is connected, if one is.
    pub async fn send(&self, message: to_agent::Message) {
        let sender = self.inner().to_agent.clone();
        if let Some(sender) = sender {
            let _ = sender.send(Ok(message_of(message))).await;
        }
    }

    /// Ends the connection; the agent opens another one unless it is not to.
    pub fn drop_connection(&self) {
        self.inner().to_agent = None;
    }

    /// Waits for a state of what the agent said.
    pub async fn wait<T>(&self, what: &str, look: impl Fn(&Inner) -> Option<T>) -> T {
        let deadline = tokio::time::Instant::now() + WAIT_MAX;
        loop {
            let changed = self.fake.changed.notified();
            if let Some(found) = look(&self.inner()) {
                return found;
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                let inner = self.inner();
                panic!("waited in vain for {what}; facts: {:#?}", inner.facts);
            }
        }
    }

    /// Waits for a fact of an assignment.
    pub async fn fact<T>(&self, id: &str, what: &str, look: impl Fn(&Kind) -> Option<T>) -> T {
        self.wait(what, |inner| {
            let mut facts = inner.facts.iter().filter(|fact| fact.assignment_id == id);
            facts.find_map(|fact| look(fact.kind.as_ref()?))
        })
        .await
    }

    pub async fn accepted(&self, id: &str) {
        self.fact(id, "accepted", |kind| {
            matches!(kind, Kind::Accepted(_)).then_some(())
        })
        .await;
    }

    pub async fn started(&self, id: &str) -> i64 {
        self.fact(id, "started", |kind| match kind {
            Kind::Started(started) => Some(started.pid),
            _ => None,
        })
        .await
    }

    pub async fn exited(&self, id: &str) -> wire::Exited {
        self.fact(id, "exited", |kind| match kind {
            Kind::Exited(exited) => Some(exited.clone()),
            _ => None,
        })
        .await
    }

    pub async fn refused(&self, id: &str) -> wire::Refused {
        self.fact(id, "refused", |kind| match kind {
            Kind::Refused(refused) => Some(refused.clone()),
            _ => None,
        })
        .await
    }

    pub async fn released(&self, id: &str) {
        self.fact(id, "released", |kind| {
            matches!(kind, Kind::Released(_)).then_some(())
        })
        .await;
    }

    /// For how long the node says that it kept what it releases.
    pub async fn kept_micros(&self, id: &str) -> i64 {
        self.fact(id, "released", |kind| match kind {
            Kind::Released(released) => Some(released.kept_micros),
            _ => None,
        })
        .await
    }

    /// The kinds of an assignment's facts, in order.
    pub fn story(&self, id: &str) -> Vec<&'static str> {
        let inner = self.inner();
        let facts = inner.facts.iter().filter(|fact| fact.assignment_id == id);
        facts
            .map(|fact| match fact.kind {
                Some(Kind::Accepted(_)) => "accepted",
                Some(Kind::Refused(_)) => "refused",
                Some(Kind::Started(_)) => "started",
                Some(Kind::Exited(_)) => "exited",
                Some(Kind::Released(_)) => "released",
                None => "nothing",
            })
            .collect()
    }
}

impl Inner {
    /// A set of all that is desired, as the newest of its epoch unless told otherwise.
    pub fn desired_set(&mut self, full: bool, epoch: Option<(i64, i64)>) -> to_agent::Message {
        self.revision += 1;
        let (timeline, number) = epoch.unwrap_or(self.epoch);
        to_agent::Message::Desired(wire::DesiredSet {
            epoch: Some(wire::Epoch { timeline, number }),
            revision: self.revision,
            full,
            assignments: self.desired.clone(),
            cleared: self.cleared.clone(),
            found: self.found.clone(),
            ..wire::DesiredSet::default()
        })
    }

    fn next_request(&mut self) -> u64 {
        self.revision += 1;
        1_000_000 + self.revision
    }
}

pub fn message_of(message: to_agent::Message) -> ToAgent {
    ToAgent {
        message: Some(message),
    }
}

struct Service(Arc<Fake>);

impl Fake {
    fn issue(&self, csr_der: Vec<u8>, expired: bool) -> Result<Vec<u8>, Status> {
        let mut csr = CertificateSigningRequestParams::from_der(&csr_der.into())
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        if expired {
            csr.params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        let certificate = csr
            .signed_by(&self.ca)
            .map_err(|e| Status::internal(e.to_string()))?;
        Ok(certificate.der().to_vec())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panicked inside")
    }

    async fn take(&self, message: FromAgent, to_agent: &mpsc::Sender<Result<ToAgent, Status>>) {
        let mut answers = Vec::new();
        {
            let mut inner = self.lock();
            match message.message {
                Some(from_agent::Message::Heartbeat(heartbeat)) => {
                    inner.heartbeats += 1;
                    if inner.renew_leases {
                        answers.push(to_agent::Message::LeaseRenewed(wire::LeaseRenewed {
                            heartbeat: heartbeat.number,
                            lease_ms: inner.lease_ms,
                        }));
                    }
                }
                Some(from_agent::Message::Samples(_)) => {}
                Some(from_agent::Message::Facts(facts)) => {
                    let journal_id = inner
                        .hellos
                        .last()
                        .map(|h| h.journal_id.clone())
                        .unwrap_or_default();
                    for fact in facts.facts {
                        let last = inner.facts.last().map_or(0, |fact| fact.number);
                        if fact.number > last {
                            assert_eq!(fact.number, last + 1, "facts come without gaps");
                            inner.facts.push(fact);
                        }
                    }
                    if inner.acknowledge {
                        answers.push(to_agent::Message::FactsAcknowledged(
                            wire::FactsAcknowledged {
                                journal_id,
                                up_to: inner.facts.last().map_or(0, |fact| fact.number),
                            },
                        ));
                    }
                }
                Some(from_agent::Message::Inventory(inventory)) => {
                    inner.inventories.push(inventory)
                }
                Some(from_agent::Message::LogChunk(chunk)) => inner.chunks.push(chunk),
                Some(from_agent::Message::Hello(_)) | None => panic!("a second hello or nothing"),
            }
        }
        self.changed.notify_waiters();
        for answer in answers {
            let _ = to_agent.send(Ok(message_of(answer))).await;
        }
    }
}

#[tonic::async_trait]
impl Agents for Service {
    async fn enrol(
        &self,
        request: Request<wire::EnrolRequest>,
    ) -> Result<Response<wire::EnrolReply>, Status> {
        let request = request.into_inner();
        if request.join_token != "token" {
            return Err(Status::permission_denied(
                "the join token is not known or was used",
            ));
        }
        let expired = self.0.lock().issue_expired;
        Ok(Response::new(wire::EnrolReply {
            certificate_der: self.0.issue(request.csr_der, expired)?,
            ca_der: self.0.ca_der.clone(),
            node_id: "0190b6f2-5c1e-7cc3-98c4-dc0c0c07398f".to_owned(),
            node_name: request.node_name,
            pool: "h100".to_owned(),
            renew_after_seconds: self.0.lock().renew_after_seconds,
        }))
    }

    async fn renew(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Result<Response<wire::RenewReply>, Status> {
        let with_certificate = request.peer_certs().is_some_and(|certs| !certs.is_empty());
        let request = request.into_inner();
        if !with_certificate {
            let (_, old) = x509_parser::parse_x509_certificate(&request.expired_certificate_der)
                .map_err(|_| Status::unauthenticated("no certificate"))?;
            let csr = CertificateSigningRequestParams::from_der(&request.csr_der.clone().into())
                .map_err(|e| Status::invalid_argument(e.to_string()))?;
            use rcgen::PublicKeyData as _;
            if old.public_key().subject_public_key.data.as_ref() != csr.public_key.der_bytes() {
                return Err(Status::unauthenticated("the request is of another key"));
            }
        }
        let mut inner = self.0.lock();
        inner.renewals += 1;
        let renew_after_seconds = inner.renew_after_seconds;
        drop(inner);
        self.0.changed.notify_waiters();
        Ok(Response::new(wire::RenewReply {
            certificate_der: self.0.issue(request.csr_der, false)?,
            ca_der: self.0.ca_der.clone(),
            renew_after_seconds,
        }))
    }

    type TerminalStream = ReceiverStream<Result<wire::TerminalDown, Status>>;

    async fn terminal(
        &self,
        _: Request<Streaming<wire::TerminalUp>>,
    ) -> Result<Response<Self::TerminalStream>, Status> {
        // No test here asks for one.
        Err(Status::not_found("nobody waits for that terminal"))
    }

    type ConnectionStream = ReceiverStream<Result<ToAgent, Status>>;

    async fn connection(
        &self,
        request: Request<Streaming<FromAgent>>,
    ) -> Result<Response<Self::ConnectionStream>, Status> {
        let certificate = request
            .peer_certs()
            .and_then(|certs| certs.first().map(|c| c.to_vec()))
            .ok_or_else(|| Status::unauthenticated("no certificate"))?;
        if !self.0.lock().reachable {
            self.0.lock().turned_away += 1;
            self.0.changed.notify_waiters();
            return Err(Status::unavailable("partitioned"));
        }
        if self.0.lock().retired {
            self.0.lock().denials += 1;
            self.0.changed.notify_waiters();
            let mut refused = Status::permission_denied("node n1 is retired");
            refused.metadata_mut().insert(
                protocol::REFUSAL,
                protocol::REFUSAL_RETIRED.parse().expect("ASCII"),
            );
            return Err(refused);
        }
        let mut incoming = request.into_inner();
        let first = incoming.message().await?.and_then(|first| first.message);
        let Some(from_agent::Message::Hello(hello)) = first else {
            return Err(Status::invalid_argument("the first message is no hello"));
        };
        let (to_agent, outgoing) = mpsc::channel(64);
        let opening = {
            let mut inner = self.0.lock();
            inner.inventories.extend(hello.inventory.clone());
            inner.hellos.push(hello);
            inner.connection_certificates.push(certificate);
            inner.to_agent = Some(to_agent.clone());
            let welcome = to_agent::Message::Welcome(wire::Welcome {
                node_name: "n1".to_owned(),
                heartbeat_ms: inner.heartbeat_ms,
                lease_ms: inner.lease_ms,
                kill_grace_ms: inner.grace_ms,
            });
            [welcome, inner.desired_set(true, None)]
        };
        for message in opening {
            let _ = to_agent.send(Ok(message_of(message))).await;
        }
        self.0.changed.notify_waiters();
        let fake = Arc::clone(&self.0);
        // Holds no sender of its own: the stream ends when the test lets go of the connection.
        let weak = to_agent.downgrade();
        drop(to_agent);
        tokio::spawn(async move {
            while let Ok(Some(message)) = incoming.message().await {
                let Some(to_agent) = weak.upgrade() else {
                    break;
                };
                fake.take(message, &to_agent).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}
