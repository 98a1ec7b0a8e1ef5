//! One request: its id, who asks once that is known, its log line, and the note of what it was denied.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use domain::ids::RequestId;
use tracing::Instrument;

use super::{metrics, origin};
use crate::app::{App, Asker, audit};

/// The header that carries a request's id, so that people can quote it.
pub const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// What is known of a request; shared by its middleware, extractors and answer.
#[derive(Debug)]
pub struct RequestContext {
    /// Its id.
    pub request_id: RequestId,
    /// Where it came from, where the listener told; behind a trusted proxy who asked the proxy.
    pub address: Option<IpAddr>,
    /// Who asks; set once by the extractor that found out.
    pub asker: OnceLock<Asker>,
}

/// Put on a response whose request was denied.
#[derive(Debug, Clone, Copy)]
pub struct Denied(pub &'static str);

/// Outermost layer: gives the request its context, and writes its log line and numbers.
pub async fn carry(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let context = Arc::new(RequestContext {
        request_id: RequestId::new(),
        address: request
            .extensions()
            .get::<ConnectInfo<SocketAddr>>()
            .map(|ConnectInfo(peer)| {
                origin::address(&app.config.proxies, peer.ip(), request.headers())
            }),
        asker: OnceLock::new(),
    });
    request.extensions_mut().insert(Arc::clone(&context));
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "none".to_owned(), |m| m.as_str().to_owned());
    let span = tracing::info_span!("request", request.id = %context.request_id);
    let mut response = next.run(request).instrument(span.clone()).await;
    response.headers_mut().insert(
        REQUEST_ID_HEADER,
        HeaderValue::from_str(&context.request_id.to_string()).expect("an id is plain ASCII"),
    );
    let denied = response.extensions().get::<Denied>().copied();
    note_denial(&app, &context, denied, &path).await;
    let elapsed = begun.elapsed();
    metrics::record_request(method.as_str(), &route, response.status().as_u16(), elapsed);
    span.in_scope(|| {
        tracing::info!(
            method = %method,
            route = %route,
            status = response.status().as_u16(),
            duration_ms = elapsed.as_millis() as u64,
            "request answered"
        );
    });
    response
}

async fn note_denial(app: &App, context: &RequestContext, denied: Option<Denied>, path: &str) {
    let (Some(Denied(action)), Some(asker)) = (denied, context.asker.get()) else {
        return;
    };
    let object = domain::error::quote(path);
    if let Err(error) = audit::record_denial(app, asker, action, &object).await {
        tracing::warn!(request.id = %context.request_id, "a denial could not be recorded: {error}");
    }
}
