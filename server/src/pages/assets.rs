//! The embedded assets, kept by browsers for ever when their address names their content.

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::PageError;
use super::query::Checked;

/// Sends one asset.
pub async fn send(
    _: Checked,
    Path(path): Path<String>,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let asset = web::assets::find(&path).ok_or(PageError::status(StatusCode::NOT_FOUND))?;
    let etag = format!("\"{}\"", asset.hash);
    let cache = if asset.immutable {
        web::assets::CACHE_FOREVER
    } else {
        "no-cache"
    };
    let known = headers
        .get(IF_NONE_MATCH)
        .is_some_and(|given| given.as_bytes() == etag.as_bytes());
    let head = [(CACHE_CONTROL, cache.to_owned()), (ETAG, etag)];
    if known {
        return Ok((StatusCode::NOT_MODIFIED, head).into_response());
    }
    Ok((head, [(CONTENT_TYPE, asset.content_type)], asset.bytes).into_response())
}
