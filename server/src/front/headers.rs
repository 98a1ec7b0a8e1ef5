//! Headers that keep a browser from doing more with an answer than it should.

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use crate::app::App;

/// Nothing but our own files, no inline script or style, no frame around us, forms only to us.
const POLICY: &str = web::CONTENT_SECURITY_POLICY;

/// Where TLS ends before the server, a browser that came once comes by TLS only, for a year.
const TLS_ONLY: &str = "max-age=31536000";

/// Sets the guarding headers; an answer that says itself how it may be cached keeps that.
pub async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if app.config.sessions.secure_cookies {
        headers.insert(
            STRICT_TRANSPORT_SECURITY,
            HeaderValue::from_static(TLS_ONLY),
        );
    }
    let fixed: [(HeaderName, &'static str); 5] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "same-origin"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}
