//! The ports of agents and replicas: TLS by our own authority, bounded TCP connections and messages.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use protocol::wire::agents_server::{Agents, AgentsServer};
use protocol::{MESSAGE_BYTES_MAX, wire};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use super::admit::incoming;
use super::authority::Authority;
use super::connections::Connections;
use super::{Shared, beats, connection, dispatch, enrol, group, replicas, samples, terminals};
use crate::app::App;
use crate::store;

/// Largest message that an agent may send, in bytes: thousands of facts, or a piece of a log.
const RECEIVED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A TCP connection that has not finished its handshake by then is closed.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a silent TCP connection is asked whether it is there, and how long it may take to say so.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls on one TCP connection: the connection of a node, a renewal, and some room.
const STREAMS_MAX: u32 = 16;
/// Messages that wait for a node to take them.
const OUTBOX_MAX: usize = 64;
/// Calls of other replicas on one TCP connection: logs that are read at a time.
const REPLICA_STREAMS_MAX: u32 = 1_024;

/// The ports that were opened, and what serves them.
pub struct Listening {
    /// Where agents call.
    pub agents: SocketAddr,
    /// Where other replicas call.
    pub internal: SocketAddr,
    /// The authority that signed the ports' certificates.
    pub authority: Authority,
    tasks: JoinSet<()>,
}

impl Listening {
    /// Waits until everything that serves the ports has ended, after `over` was cancelled.
    pub async fn ended(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Opens both ports and serves them until `over` is cancelled.
pub async fn start(app: App, over: CancellationToken) -> anyhow::Result<Listening> {
    let authority = Authority::open(&app.db).await?;
    let mut tx = app.db.begin_system().await.context("read the clock")?;
    let now = store::clock(&mut tx).await.context("read the clock")?;
    tx.commit().await.context("read the clock")?;
    let server = authority.issue_server(&app.config.agents.server_names, now)?;
    let replica = authority.issue_replica(app.replica, now)?;

    let (agents_port, agents) = open(app.config.listen.agents).await?;
    let (internal_port, internal) = open(app.config.listen.internal).await?;
    let shared = Shared {
        beats: beats::start(app.clone(), over.clone()),
        facts: group::start(app.clone(), over.clone()),
        samples: samples::start(app.clone(), over.clone()),
        app: app.clone(),
        authority: authority.clone(),
        connections: Arc::new(Connections::default()),
        refusals: Arc::default(),
        over: over.clone(),
    };
    let caller = replicas::Caller::new(&authority, &replica);
    app.terminals.forward_by(caller.clone());
    app.links.forward_by(caller);
    app.links.opened(agents);

    let mut tasks = JoinSet::new();
    let service = AgentsServer::new(Service(shared.clone()))
        .max_decoding_message_size(RECEIVED_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let served = builder(STREAMS_MAX)
        .tls_config(tls(&authority, &server, true))
        .context("configure the agents' port")?
        .add_service(service)
        .serve_with_incoming_shutdown(incoming(agents_port), over.clone().cancelled_owned());
    tasks.spawn(log_failure("the agents' port", served));
    let served = builder(REPLICA_STREAMS_MAX)
        .tls_config(tls(&authority, &replica, false))
        .context("configure the replicas' port")?
        .add_service(replicas::service(app.clone(), authority.clone()))
        .serve_with_incoming_shutdown(incoming(internal_port), over.clone().cancelled_owned());
    tasks.spawn(log_failure("the replicas' port", served));
    tasks.spawn(dispatch::run(shared));
    tasks.spawn(replicas::announce(app, internal, over));
    Ok(Listening {
        agents,
        internal,
        authority,
        tasks,
    })
}

async fn open(address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}"))?;
    let taken = listener
        .local_addr()
        .with_context(|| format!("listen on {address}"))?;
    Ok((listener, taken))
}

fn builder(streams: u32) -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .tcp_keepalive(Some(KEEPALIVE_EVERY))
        .max_concurrent_streams(Some(streams))
}

fn tls(
    authority: &Authority,
    identity: &super::authority::Identity,
    anonymous: bool,
) -> ServerTlsConfig {
    ServerTlsConfig::new()
        .identity(Identity::from_pem(&identity.chain_pem, &identity.key_pem))
        .client_ca_root(Certificate::from_pem(authority.pem()))
        .client_auth_optional(anonymous)
        .timeout(HANDSHAKE_TIMEOUT)
}

async fn log_failure(
    port: &'static str,
    served: impl Future<Output = Result<(), tonic::transport::Error>>,
) {
    if let Err(error) = served.await {
        tracing::error!(error = %anyhow::Error::from(error), "{port} failed");
    }
}

/// The agents' calls. Only enrolment, and the renewal of a node that was cut off, are answered
/// without a certificate.
struct Service(Shared);

#[tonic::async_trait]
impl Agents for Service {
    async fn enrol(
        &self,
        request: Request<wire::EnrolRequest>,
    ) -> Result<Response<wire::EnrolReply>, Status> {
        let shared = &self.0;
        let request = request.into_inner();
        let reply = enrol::enrol(&shared.app, &shared.authority, &shared.refusals, request).await?;
        Ok(Response::new(reply))
    }

    async fn renew(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Result<Response<wire::RenewReply>, Status> {
        let peer = peer(&request);
        let reply = enrol::renew(
            &self.0.app,
            &self.0.authority,
            peer.as_deref(),
            request.get_ref(),
        )
        .await?;
        Ok(Response::new(reply))
    }

    type ConnectionStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<wire::ToAgent, Status>> + Send>>;

    async fn connection(
        &self,
        request: Request<Streaming<wire::FromAgent>>,
    ) -> Result<Response<Self::ConnectionStream>, Status> {
        let peer = peer(&request);
        let (certificate, good_for) =
            enrol::check_connection(&self.0.app, &self.0.authority, peer.as_deref()).await?;
        let (outbox, messages) = mpsc::channel(OUTBOX_MAX);
        let shared = self.0.clone();
        let inbound = request.into_inner();
        tokio::spawn(async move {
            connection::serve(&shared, certificate, good_for, inbound, outbox).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }

    type TerminalStream = terminals::Down;

    async fn terminal(
        &self,
        request: Request<Streaming<wire::TerminalUp>>,
    ) -> Result<Response<Self::TerminalStream>, Status> {
        let peer = peer(&request);
        let (certificate, _) =
            enrol::check_connection(&self.0.app, &self.0.authority, peer.as_deref()).await?;
        terminals::open(&self.0.app, certificate.node_id, request.into_inner()).await
    }
}

/// The certificate that a caller showed.
pub(super) fn peer<T>(request: &Request<T>) -> Option<Vec<u8>> {
    let certificates = request.peer_certs()?;
    certificates.first().map(|certificate| certificate.to_vec())
}
