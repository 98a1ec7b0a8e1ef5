//! Answers with what belongs to them in headers: the version as ETag, and whether it is a replay.

use axum::Json;
use axum::http::header::ETAG;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::app::idempotency::Answer;

const REPLAY_HEADER: HeaderName = HeaderName::from_static("idempotent-replay");

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK);
        let mut response = if status == StatusCode::NO_CONTENT {
            status.into_response()
        } else {
            (status, Json(self.value)).into_response()
        };
        let headers = response.headers_mut();
        if let Some(version) = self.version {
            headers.insert(ETAG, etag(version));
        }
        if self.replayed {
            headers.insert(REPLAY_HEADER, HeaderValue::from_static("true"));
        }
        response
    }
}

/// One object with its version as ETag.
pub struct Versioned<T>(pub T, pub i64);

impl<T: Serialize> IntoResponse for Versioned<T> {
    fn into_response(self) -> Response {
        let mut response = Json(self.0).into_response();
        response.headers_mut().insert(ETAG, etag(self.1));
        response
    }
}

fn etag(version: i64) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{version}\"")).expect("digits are plain ASCII")
}
