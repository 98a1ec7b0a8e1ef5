//! Reads requests strictly: who asks, path, query, headers and body, each fault named by its field.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, RawPathParams, Request};
use axum::http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, IF_MATCH, IF_NONE_MATCH,
};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method};
use domain::FieldError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::openapi::Required;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};

use super::json;
use crate::app::idempotency::Repeat;
use crate::app::page::PageAsk;
use crate::app::sessions::{self, SessionKind};
use crate::app::versions::Expected;
use crate::app::{App, AppError, Asker};
use crate::front::fields::read_query;
use crate::front::{self, RequestContext};

/// Largest body that is read; a job with all its files stays below.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Longest Idempotency-Key; a UUID has 36.
const KEY_CHARS_MAX: usize = 255;
const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The request's own context.
pub struct Context(pub Arc<RequestContext>);

impl<S: Send + Sync> FromRequestParts<S> for Context {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, AppError> {
        parts
            .extensions
            .get::<Arc<RequestContext>>()
            .cloned()
            .map(Self)
            .ok_or_else(|| AppError::Internal(anyhow::anyhow!("a route lacks its outer layer")))
    }
}

/// A person who has proved who it is: by a bearer token, or by a page's cookie for what only reads.
pub struct SignedIn(pub Asker);

impl FromRequestParts<App> for SignedIn {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, AppError> {
        let Context(context) = Context::from_request_parts(parts, app).await?;
        let bearer = parts
            .headers
            .get(AUTHORIZATION)
            .map(|value| value.to_str().map_err(|_| AppError::Unauthenticated));
        let session = if let Some(value) = bearer {
            let secret = bearer_secret(value?).ok_or(AppError::Unauthenticated)?;
            sessions::authenticate(app, secret, SessionKind::Token, context.request_id).await?
        } else {
            // A cookie comes by itself, even when another site made the browser ask: it never
            // suffices for a change.
            let reads = matches!(parts.method, Method::GET | Method::HEAD);
            let cookie = cookie(parts, sessions::cookie_name(&app.config.sessions));
            let secret = cookie.filter(|_| reads).ok_or(AppError::Unauthenticated)?;
            sessions::authenticate(app, secret, SessionKind::Page, context.request_id).await?
        };
        let _ = context.asker.set(session.asker.clone());
        Ok(Self(session.asker))
    }
}

fn bearer_secret(value: &str) -> Option<&str> {
    let (scheme, secret) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

fn cookie<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    parts
        .headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

/// Parts of the path. One that cannot be a name or an id names nothing that is there: 404.
pub struct ApiPath<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for ApiPath<T> {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AppError> {
        let failed = match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(value)) => return Ok(Self(value)),
            Err(PathRejection::FailedToDeserializePathParams(failed)) => failed,
            Err(other) => return Err(AppError::Internal(anyhow::Error::new(other))),
        };
        if let ErrorKind::InvalidUtf8InPathParam { key } = failed.kind() {
            let remedy = "percent-encoded UTF-8";
            return Err(AppError::Unreadable(FieldError::new(
                key,
                "not UTF-8",
                remedy,
            )));
        }
        // Our own types say which value they refuse; the part of the path that holds it is named.
        let message = failed.body_text();
        let params = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|e| AppError::Internal(anyhow::Error::new(e)))?;
        let refused = params
            .iter()
            .find(|(_, value)| message.contains(&domain::error::quote(value)));
        Err(refused.map_or_else(
            || AppError::not_found("resource", parts.uri.path()),
            |(key, value)| AppError::not_found(noun(key), value),
        ))
    }
}

/// The word for a part of a path.
fn noun(key: &str) -> &'static str {
    const NOUNS: [(&str, &str); 9] = [
        ("team", "team"),
        ("pool", "pool"),
        ("user", "user"),
        ("class", "class"),
        ("node", "node"),
        ("job", "job"),
        ("booking", "booking"),
        ("window", "window"),
        ("policy_version", "policy version"),
    ];
    NOUNS
        .into_iter()
        .find(|(part, _)| *part == key)
        .map_or("resource", |(_, noun)| noun)
}

/// The query; parameters that the operation does not have are refused by name.
pub struct ApiQuery<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, AppError> {
        read_query(&parts.uri).map(Self)
    }
}

/// The query of a list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PageQuery {
    /// Most items of the page, 1 to 500; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl PageQuery {
    /// Checks it.
    pub fn ask(self) -> Result<PageAsk, AppError> {
        PageAsk::new(self.limit, self.cursor)
    }
}

/// The query of a change of policies.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReasonQuery {
    /// Why, in words: kept with the change. At most 200 characters.
    #[serde(default)]
    #[param(required = false, max_length = 200)]
    pub reason: String,
}

/// A query without parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}

/// A body of JSON; fields that the operation does not have are refused by name.
pub struct ApiJson<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for ApiJson<T> {
    type Rejection = AppError;

    async fn from_request(request: Request, _: &S) -> Result<Self, AppError> {
        let (parts, body) = request.into_parts();
        let bytes = read_body(&parts, body, BODY_BYTES_MAX).await?;
        json::read(&bytes).map(Self)
    }
}

/// A POST: its body, of at most so many bytes, and how a repeat of it is told.
pub struct ApiPost<T, const BYTES_MAX: usize = BODY_BYTES_MAX> {
    /// The body.
    pub input: T,
    /// Its Idempotency-Key with what belongs to it.
    pub repeat: Repeat,
}

impl<T: DeserializeOwned, S: Send + Sync, const BYTES_MAX: usize> FromRequest<S>
    for ApiPost<T, BYTES_MAX>
{
    type Rejection = AppError;

    async fn from_request(request: Request, _: &S) -> Result<Self, AppError> {
        let (parts, body) = request.into_parts();
        let key = repeat_key(&parts)?;
        let bytes = read_body(&parts, body, BYTES_MAX).await?;
        let input = json::read(&bytes)?;
        let repeat = key.map_or_else(Repeat::none, |key| {
            let route = format!("{} {}", parts.method, parts.uri.path());
            Repeat::keyed(route, key, &bytes)
        });
        Ok(Self { input, repeat })
    }
}

/// The header of a POST that is done once however often it is sent, for the API's document.
pub struct RepeatKey;

impl utoipa::IntoParams for RepeatKey {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let words = "New for each piece of work. A repeat with the same key and body is not done \
                     again: it gets the first one's answer, with `Idempotent-Replay: true`.";
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .min_length(Some(1))
            .max_length(Some(KEY_CHARS_MAX));
        let parameter = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(words))
            .schema(Some(text));
        vec![parameter.build()]
    }
}

/// The body of a POST that needs none: empty, or an object without fields.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoInput {}

fn repeat_key(parts: &Parts) -> Result<Option<String>, AppError> {
    let Some(value) = parts.headers.get(KEY_HEADER) else {
        return Ok(None);
    };
    let refused = |value: &str| {
        AppError::invalid(
            "Idempotency-Key",
            value,
            format!("1 to {KEY_CHARS_MAX} printable ASCII characters, new for each piece of work"),
        )
    };
    let key = value
        .to_str()
        .map_err(|_| refused("not printable ASCII"))?
        .trim();
    if key.is_empty() || key.len() > KEY_CHARS_MAX {
        return Err(refused(key));
    }
    Ok(Some(key.to_owned()))
}

async fn read_body(parts: &Parts, body: Body, limit_bytes: usize) -> Result<Bytes, AppError> {
    let too_large = AppError::TooLarge { limit_bytes };
    // One that says that it is too large is refused before it is read.
    let announced = parts
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > limit_bytes as u64) {
        return Err(too_large);
    }
    let bytes = front::body::read(&parts.headers, body, limit_bytes).await?;
    let kind = parts
        .headers
        .get(CONTENT_TYPE)
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    if bytes.is_empty() && kind.is_none() {
        return Ok(Bytes::from_static(b"{}"));
    }
    let essence = kind
        .as_deref()
        .unwrap_or("")
        .split(';')
        .next()
        .unwrap_or("");
    if essence.trim().eq_ignore_ascii_case("application/json") {
        // An empty body stands for an object without fields, and is judged as such.
        return Ok(if bytes.is_empty() {
            Bytes::from_static(b"{}")
        } else {
            bytes
        });
    }
    Err(AppError::MediaType {
        given: domain::error::quote(kind.as_deref().unwrap_or("nothing")),
    })
}

/// The version that an update builds on; 428 without.
#[derive(Debug, Clone, Copy)]
pub struct IfMatch(pub i64);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, AppError> {
        match parts.headers.get(IF_MATCH) {
            Some(value) => version(value.to_str().unwrap_or("?")).map(Self),
            None => Err(AppError::PreconditionRequired),
        }
    }
}

/// What a PUT presupposes: a version, or that nothing is there yet; 428 without either.
#[derive(Debug, Clone, Copy)]
pub enum Presupposes {
    /// `If-Match: "N"`.
    Version(i64),
    /// `If-None-Match: *`.
    Nothing,
}

impl From<Presupposes> for Expected {
    fn from(presupposes: Presupposes) -> Self {
        match presupposes {
            Presupposes::Nothing => Self::Nothing,
            Presupposes::Version(version) => Self::Version(version),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Presupposes {
    type Rejection = AppError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AppError> {
        match parts.headers.get(IF_NONE_MATCH) {
            Some(value) if value.as_bytes() == b"*" => Ok(Self::Nothing),
            Some(value) => Err(AppError::invalid(
                "If-None-Match",
                value.to_str().unwrap_or("?"),
                "*, to create what is not there yet",
            )),
            None => IfMatch::from_request_parts(parts, state)
                .await
                .map(|IfMatch(version)| Self::Version(version)),
        }
    }
}

fn version(text: &str) -> Result<i64, AppError> {
    text.strip_prefix('"')
        .and_then(|t| t.strip_suffix('"'))
        .and_then(|t| t.parse().ok())
        .filter(|v| *v >= 0)
        .ok_or_else(|| {
            AppError::invalid(
                "If-Match",
                text,
                "the version that you read, in quotes, such as \"3\"",
            )
        })
}
