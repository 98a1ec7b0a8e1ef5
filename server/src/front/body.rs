//! Bodies of requests: read whole, within a size and a time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use domain::FieldError;
use http_body_util::LengthLimitError;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time::Sleep;

use crate::app::AppError;

/// Reads a body of at most `limit_bytes`. One that says that it is encoded is not unpacked, and so
/// not taken for what it is not.
pub async fn read(headers: &HeaderMap, body: Body, limit_bytes: usize) -> Result<Bytes, AppError> {
    check_encoding(headers)?;
    axum::body::to_bytes(body, limit_bytes)
        .await
        .map_err(|error| refused(&error, limit_bytes))
}

fn check_encoding(headers: &HeaderMap) -> Result<(), AppError> {
    for value in headers.get_all(CONTENT_ENCODING) {
        let given = String::from_utf8_lossy(value.as_bytes());
        if !given.trim().eq_ignore_ascii_case("identity") {
            return Err(AppError::Encoding {
                given: domain::error::quote(&given),
            });
        }
    }
    Ok(())
}

/// Says why a body could not be read: its error lies somewhere below those of the readers.
fn refused(error: &axum::Error, limit_bytes: usize) -> AppError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return AppError::TooLarge { limit_bytes };
        }
        if let Some(late) = error.downcast_ref::<Late>() {
            return AppError::TooSlow {
                limit_seconds: late.limit.as_secs(),
            };
        }
        cause = error.source();
    }
    AppError::Unreadable(FieldError::new("body", "it broke off", "the whole body"))
}

/// A body had not come in time.
#[derive(Debug, thiserror::Error)]
#[error("the body had not come within {} s", limit.as_secs())]
struct Late {
    limit: Duration,
}

/// A body that must have come whole within a time from when its reading begins, however it
/// drips in.
pub struct Punctual {
    inner: Incoming,
    limit: Duration,
    due: Option<Pin<Box<Sleep>>>,
}

impl Punctual {
    /// Gives `inner` so long.
    pub fn new(inner: Incoming, limit: Duration) -> Self {
        Self {
            inner,
            limit,
            due: None,
        }
    }
}

impl HttpBody for Punctual {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let limit = self.limit;
        let due = self
            .due
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        due.as_mut()
            .poll(context)
            .map(|()| Some(Err(Late { limit }.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
