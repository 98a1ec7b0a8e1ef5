//! Between replicas: a log is read through the replica that holds the node's stream.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use anyhow::Context;
use domain::ids::NodeId;
use protocol::replicas as wire;
use protocol::replicas::read_log_request::Result as Asked;
use protocol::replicas::replicas_client::ReplicasClient;
use protocol::replicas::replicas_server::{Replicas, ReplicasServer};
use protocol::wire::{TerminalBegin, TerminalDown, terminal_down};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Response, Status, Streaming};

use super::authority::{self, Authority, REPLICA_HOST};
use super::listen::peer;
use crate::app::App;
use crate::app::links::{CHUNKS_WAITING_MAX, Forward, LogPiece, Part, Wanted};
use crate::app::terminals;
use crate::app::terminals::exchange::{Ends, MESSAGES_WAITING_MAX};
use crate::store::replicas;

/// How often a replica says that it is there.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(10);
/// A replica that has not said so for this long is forgotten, in milliseconds.
const SILENT_MS_MAX: i64 = 60_000;
/// A replica that cannot be reached by then is taken for gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

type Client = ReplicasClient<Channel>;

/// Calls other replicas.
#[derive(Debug, Clone)]
pub struct Caller {
    tls: ClientTlsConfig,
}

impl Caller {
    /// Calls with this replica's own certificate.
    pub fn new(authority: &Authority, identity: &authority::Identity) -> Self {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority.pem()))
            .identity(Identity::from_pem(&identity.chain_pem, &identity.key_pem))
            .domain_name(REPLICA_HOST);
        Self { tls }
    }

    async fn channel(self, address: &str) -> anyhow::Result<Channel> {
        Endpoint::from_shared(format!("https://{address}"))
            .context("the replica's address")?
            .tls_config(self.tls)
            .context("configure the call")?
            .connect_timeout(CONNECT_TIMEOUT)
            .connect()
            .await
            .context("reach the replica")
    }

    /// Over a connection of its own: a terminal that nobody reads keeps nothing else waiting.
    async fn open_terminal(
        self,
        address: String,
        node: NodeId,
        begin: TerminalBegin,
    ) -> anyhow::Result<Ends> {
        let channel = self.channel(&address).await?;
        let (down, messages) = mpsc::channel(MESSAGES_WAITING_MAX);
        let begin = TerminalDown {
            message: Some(terminal_down::Message::Begin(begin)),
        };
        down.send(begin).await.context("ask the replica")?;
        let mut node_id = node.to_string();
        let inputs = ReceiverStream::new(messages).map(move |message| wire::TerminalInput {
            node_id: std::mem::take(&mut node_id),
            down: Some(message),
        });
        let mut stream = Client::new(channel)
            .terminal(inputs)
            .await
            .context("ask the replica")?
            .into_inner();
        let (node_up, up) = mpsc::channel(MESSAGES_WAITING_MAX);
        tokio::spawn(async move {
            while let Some(Ok(message)) = stream.next().await {
                if node_up.send(message).await.is_err() {
                    return;
                }
            }
        });
        Ok(Ends {
            down,
            up,
            place: None,
        })
    }

    async fn call(
        self,
        address: String,
        request: wire::ReadLogRequest,
    ) -> anyhow::Result<mpsc::Receiver<LogPiece>> {
        let channel = self.channel(&address).await?;
        let mut stream = Client::new(channel)
            .read_log(request)
            .await
            .context("ask the replica")?
            .into_inner();
        let (pieces, receiver) = mpsc::channel(CHUNKS_WAITING_MAX);
        tokio::spawn(async move {
            while let Some(Ok(piece)) = stream.next().await {
                let piece = match piece.piece {
                    Some(wire::log_piece::Piece::Data(data)) => LogPiece::Bytes(data.into()),
                    Some(wire::log_piece::Piece::Skip(to)) => LogPiece::Skip(to),
                    Some(wire::log_piece::Piece::End(_)) => LogPiece::End,
                    Some(wire::log_piece::Piece::Broken(words)) => LogPiece::Broken(words),
                    Some(wire::log_piece::Piece::Missing(_)) => LogPiece::Missing,
                    None => continue,
                };
                // The other replica waits: its stream is this reader's alone.
                if pieces.send(piece).await.is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }
}

impl Forward for Caller {
    fn read(
        &self,
        address: String,
        node: NodeId,
        wanted: Wanted,
    ) -> Pin<Box<dyn Future<Output = anyhow::Result<mpsc::Receiver<LogPiece>>> + Send>> {
        let request = wire::ReadLogRequest {
            node_id: node.to_string(),
            assignment_id: wanted.assignment.to_string(),
            offset: wanted.offset,
            follow: wanted.follow,
            result: match wanted.part {
                Part::Log => None,
                Part::Results => Some(Asked::Listed(true)),
                Part::Result(number) => Some(Asked::Number(number)),
            },
        };
        Box::pin(self.clone().call(address, request))
    }
}

impl terminals::exchange::Forward for Caller {
    fn open(
        &self,
        address: String,
        node: NodeId,
        begin: TerminalBegin,
    ) -> Pin<Box<dyn Future<Output = anyhow::Result<Ends>> + Send>> {
        Box::pin(self.clone().open_terminal(address, node, begin))
    }
}

/// What other replicas may ask of this one.
pub fn service(app: App, authority: Authority) -> ReplicasServer<Service> {
    ReplicasServer::new(Service { app, authority })
}

/// Answers other replicas.
pub struct Service {
    app: App,
    authority: Authority,
}

impl Service {
    /// Lets replicas alone ask.
    fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let peer = peer(request).ok_or_else(|| Status::unauthenticated("show a certificate"))?;
        let checked = self.authority.check_replica(&peer);
        checked.map_err(|error| Status::permission_denied(error.to_string()))
    }
}

#[tonic::async_trait]
impl Replicas for Service {
    type ReadLogStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<wire::LogPiece, Status>> + Send>>;

    type TerminalStream = super::terminals::Up;

    async fn terminal(
        &self,
        request: Request<Streaming<wire::TerminalInput>>,
    ) -> Result<Response<Self::TerminalStream>, Status> {
        self.check(&request)?;
        super::terminals::open_for_replica(&self.app, request.into_inner()).await
    }

    async fn read_log(
        &self,
        request: Request<wire::ReadLogRequest>,
    ) -> Result<Response<Self::ReadLogStream>, Status> {
        self.check(&request)?;
        let request = request.into_inner();
        let invalid = |error: domain::FieldError| Status::invalid_argument(error.to_string());
        let node = request.node_id.parse().map_err(invalid)?;
        let wanted = Wanted {
            assignment: request.assignment_id.parse().map_err(invalid)?,
            part: match request.result {
                None => Part::Log,
                Some(Asked::Listed(_)) => Part::Results,
                Some(Asked::Number(number)) => Part::Result(number),
            },
            offset: request.offset,
            follow: request.follow,
        };
        let pieces = self
            .app
            .links
            .request(node, wanted)
            .ok_or_else(|| Status::not_found("the node's stream is not here"))?;
        let stream = ReceiverStream::new(pieces).map(|piece| {
            let piece = match piece {
                LogPiece::Bytes(data) => wire::log_piece::Piece::Data(data.to_vec()),
                LogPiece::Skip(to) => wire::log_piece::Piece::Skip(to),
                LogPiece::End => wire::log_piece::Piece::End(true),
                LogPiece::Missing => wire::log_piece::Piece::Missing(true),
                LogPiece::Broken(words) => wire::log_piece::Piece::Broken(words),
            };
            Ok(wire::LogPiece { piece: Some(piece) })
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// Says again and again that this replica runs and where it is reached, until it stops.
pub async fn announce(app: App, address: SocketAddr, over: CancellationToken) {
    loop {
        if let Err(error) = announce_once(&app, address).await {
            tracing::warn!(%error, "this replica could not say that it runs");
        }
        tokio::select! {
            () = tokio::time::sleep(ANNOUNCE_EVERY) => {}
            () = over.cancelled() => break,
        }
    }
    let removed = async {
        let mut tx = app.db.begin_system().await?;
        replicas::remove(&mut tx, app.replica).await?;
        tx.commit().await
    };
    if let Err(error) = removed.await {
        tracing::warn!(%error, "this replica could not say that it stops");
    }
}

/// Where others reach a listener. One on all interfaces (0.0.0.0) has no address of its own
/// to tell them; the one by which this machine reaches the database leads back to it. With a
/// database on the same machine there is none, and no replica elsewhere either.
fn reachable(listener: SocketAddr, own_host: Option<String>) -> SocketAddr {
    if !listener.ip().is_unspecified() {
        return listener;
    }
    let host = own_host.and_then(|host| host.parse().ok());
    SocketAddr::new(host.unwrap_or(Ipv4Addr::LOCALHOST.into()), listener.port())
}

async fn announce_once(app: &App, address: SocketAddr) -> Result<(), sqlx::Error> {
    let mut tx = app.db.begin_system().await?;
    let address = reachable(address, replicas::own_host(&mut tx).await?);
    replicas::announce(&mut tx, app.replica, &address.to_string()).await?;
    replicas::forget_silent(&mut tx, SILENT_MS_MAX).await?;
    tx.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_interfaces_is_announced_by_the_address_that_the_database_sees() {
        let announced = |listener: &str, own_host: Option<&str>| {
            let listener = listener.parse().expect("an address with a port");
            reachable(listener, own_host.map(str::to_owned)).to_string()
        };
        let seen = Some("10.0.0.7");
        assert_eq!(announced("0.0.0.0:8444", seen), "10.0.0.7:8444");
        assert_eq!(announced("[::]:8444", Some("fd00::7")), "[fd00::7]:8444");
        assert_eq!(announced("0.0.0.0:8444", None), "127.0.0.1:8444");
        assert_eq!(announced("192.168.1.2:8444", seen), "192.168.1.2:8444");
    }
}
