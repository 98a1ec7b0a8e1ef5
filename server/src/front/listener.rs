//! A listener for HTTP that is bounded: in connections, and in the time that a request may take to come.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::body::Punctual;
use crate::config::Timers;

/// Connections at the same time, live streams among them; the next one waits to be accepted. A
/// connection takes some 20 KiB, and each a file that the system must allow.
const CONNECTIONS_MAX: usize = 10_000;
/// After a connection could not be accepted, as when files run out, so long until the next try.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// How long a client may take to send its request. How long it takes to read the answer is its
/// own affair: streams have no end.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// To the end of the head, from when the one before was answered: an idle connection ends by it.
    pub head: Duration,
    /// From there to the end of the body.
    pub body: Duration,
}

impl Limits {
    /// As configured.
    pub fn of(timers: &Timers) -> Self {
        Self {
            head: timers.request_head,
            body: timers.request_body,
        }
    }
}

/// Serves `router` until `stop`, and then until every answer under way has ended.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let open = TaskTracker::new();
    loop {
        let place = Arc::clone(&places).acquire_owned();
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            (place, accepted) = async { (place.await, listener.accept().await) } => accepted.map(|taken| (place, taken)),
        };
        match accepted {
            Ok((place, (stream, address))) => {
                let carried = carry(stream, address, router.clone(), limits, stop.clone());
                open.spawn(async move {
                    carried.await;
                    drop(place);
                });
            }
            // It went away before it was accepted: its own affair.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
                ) => {}
            Err(error) => {
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    open.close();
    open.wait().await;
}

async fn carry(
    stream: TcpStream,
    address: SocketAddr,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(|body| Body::new(Punctual::new(body, limits.body)));
        request.extensions_mut().insert(ConnectInfo(address));
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection broke off: {error}");
    }
}
