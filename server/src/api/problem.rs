//! Refusals and failures as `application/problem+json`, each with a stable type, the field, its value and a remedy.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT_ENCODING, ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use domain::FieldError;
use domain::ids::RequestId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::streams::Kind;
use crate::app::{App, AppError};
use crate::front::RequestContext;
use crate::front::context::Denied;

/// Seconds after which a client may try again when the database was away.
const RETRY_AFTER_SECONDS: u64 = 5;

/// What went wrong, as RFC 9457 has it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A stable word for programs, as a relative URI.
    #[serde(rename = "type")]
    #[schema(example = "/problems/invalid-value")]
    pub kind: String,
    /// The same in words.
    pub title: String,
    /// HTTP's status.
    pub status: u16,
    /// What is the matter here, in a sentence.
    pub detail: String,
    /// The field, parameter or header at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What it held; `nothing` where the field is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What would be accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Where several values are refused, all of them; the first is the one above.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub errors: Vec<Fault>,
    /// The request, to be quoted to an operator.
    pub request_id: Option<RequestId>,
}

/// A value that is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fault {
    /// The field, parameter or header.
    pub field: String,
    /// What it held; `nothing` where it is missing.
    pub value: String,
    /// What would be accepted.
    pub remedy: String,
}

impl From<FieldError> for Fault {
    fn from(fault: FieldError) -> Self {
        Self {
            field: fault.field,
            value: if fault.missing {
                "nothing".to_owned()
            } else {
                fault.value
            },
            remedy: fault.remedy,
        }
    }
}

impl Problem {
    fn new(status: StatusCode, kind: &str, title: &str, detail: String) -> Self {
        Self {
            kind: format!("/problems/{kind}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail,
            field: None,
            value: None,
            remedy: None,
            errors: Vec::new(),
            request_id: None,
        }
    }

    fn of(self, field: &str, value: &str, remedy: impl Into<String>) -> Self {
        self.with(FieldError::new(field, value, remedy))
    }

    fn with(mut self, field: FieldError) -> Self {
        let fault = Fault::from(field);
        self.field = Some(fault.field);
        self.value = Some(fault.value);
        self.remedy = Some(fault.remedy);
        self
    }

    /// What the router itself refuses, of a request for `path` by `method`.
    fn of_status(status: StatusCode, (method, path): (&Method, &str)) -> Self {
        let (kind, detail) = match status {
            StatusCode::NOT_FOUND => (
                "no-such-route",
                "nothing is at this address: /api/v1 with the paths of openapi.yaml is",
            ),
            StatusCode::METHOD_NOT_ALLOWED => (
                "method-not-allowed",
                "this address has other methods: the header Allow names them",
            ),
            StatusCode::PAYLOAD_TOO_LARGE => ("too-large", "the body is larger than is read"),
            StatusCode::REQUEST_TIMEOUT => ("timeout", "the request took too long"),
            _ if status.is_server_error() => ("internal", "internal error"),
            _ => ("refused", "the request is refused"),
        };
        let title = status.canonical_reason().unwrap_or("refused");
        let problem = Self::new(status, kind, &title.to_lowercase(), detail.to_owned());
        match status {
            StatusCode::NOT_FOUND => problem.of("path", path, "a path of openapi.yaml"),
            StatusCode::METHOD_NOT_ALLOWED => {
                problem.of("method", method.as_str(), "one that the header Allow names")
            }
            _ => problem,
        }
    }
}

/// What an error needs beside its problem; travels as an extension to the layer that renders it.
#[derive(Clone)]
struct Pending {
    problem: Problem,
    source: Option<Arc<AppError>>,
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        let (status, kind, title) = classify(&self);
        let mut problem = Problem::new(status, &kind, title, self.to_string());
        let mut response = status.into_response();
        let headers = response.headers_mut();
        match &self {
            Self::Invalid(field)
            | Self::Unreadable(field)
            | Self::Impossible { field, .. }
            | Self::Conflict { field, .. }
            | Self::NoLog { field, .. } => {
                problem = problem.with(field.clone());
            }
            Self::InvalidAll(faults) => {
                problem.errors = faults.iter().cloned().map(Fault::from).collect();
                if let Some(first) = faults.first() {
                    problem = problem.with(first.clone());
                }
            }
            Self::Exceeded(excess) => problem = problem.with(excess.fault()),
            Self::NotFound { what, name } => {
                problem.field = Some((*what).to_owned());
                problem.value = Some(name.clone());
                problem.remedy = Some(format!("the name or id of a {what} that you may see"));
            }
            Self::Encoding { given } => {
                problem.field = Some("Content-Encoding".into());
                problem.value = Some(given.clone());
                problem.remedy = Some("identity, or no such header".into());
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            Self::MediaType { given } => {
                problem = problem.of("Content-Type", given, "application/json");
            }
            Self::TooLarge { limit_bytes } => {
                let more = format!("more than {limit_bytes} bytes");
                let remedy = format!("at most {limit_bytes} bytes: send less, or in parts");
                problem = problem.of("body", &more, remedy);
            }
            Self::Forbidden { action, needs } => {
                problem = problem.of("operation", action, needs.to_string());
            }
            Self::Unauthenticated | Self::WrongCredentials => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Stale { given, present } => {
                problem.field = Some("If-Match".into());
                problem.value = Some(domain::error::quote(given));
                problem.remedy = Some(format!("\"{present}\", once you have read what changed"));
            }
            Self::AlreadyThere { present } => {
                problem.field = Some("If-None-Match".into());
                problem.value = Some("*".into());
                problem.remedy = Some(format!("If-Match: \"{present}\", once you have read it"));
            }
            Self::PreconditionRequired => {
                let remedy = "the version that you read, in quotes, as ETag gave it";
                problem = problem.with(FieldError::missing("If-Match", remedy));
            }
            Self::TooMany {
                retry_after_seconds,
            }
            | Self::TooBusy {
                retry_after_seconds,
            } => {
                headers.insert(RETRY_AFTER, HeaderValue::from(*retry_after_seconds));
            }
            Self::TooManyStreams { kind, open } => {
                problem.field = Some("streams".into());
                problem.value = Some(open.to_string());
                problem.remedy = Some(match kind {
                    Kind::Events => "close a stream: one tells of everything that changes".into(),
                    Kind::Logs => {
                        "close a log that you read, or ask again when one has ended".into()
                    }
                    Kind::Terminals => "close a terminal or a forwarded connection".into(),
                });
                headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
            }
            Self::Unavailable(_) | Self::NodeAway { .. } | Self::LogBusy { .. } => {
                headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
            }
            _ => {}
        }
        if let Self::Forbidden { action, .. } = &self {
            response.extensions_mut().insert(Denied(action));
        }
        response.extensions_mut().insert(Pending {
            problem,
            source: Some(Arc::new(self)),
        });
        response
    }
}

fn classify(error: &AppError) -> (StatusCode, String, &'static str) {
    let (status, kind, title) = match error {
        AppError::Invalid(_) | AppError::InvalidAll(_) | AppError::Exceeded(_) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid-value",
            "a value is refused",
        ),
        AppError::Impossible { code, .. } => {
            return (
                StatusCode::UNPROCESSABLE_ENTITY,
                code.as_str().replace('_', "-"),
                "it can never be done here",
            );
        }
        AppError::Unreadable(_) => (
            StatusCode::BAD_REQUEST,
            "unreadable",
            "the request cannot be read",
        ),
        AppError::Unauthenticated => (
            StatusCode::UNAUTHORIZED,
            "unauthenticated",
            "nobody is signed in",
        ),
        AppError::WrongCredentials => (
            StatusCode::UNAUTHORIZED,
            "wrong-credentials",
            "the log-in is refused",
        ),
        AppError::Forbidden { .. } => (StatusCode::FORBIDDEN, "forbidden", "not for this role"),
        AppError::NotFound { .. } | AppError::NoLog { .. } => {
            (StatusCode::NOT_FOUND, "not-found", "it is not there")
        }
        AppError::Conflict { code, .. } => {
            let kind = code.as_str().replace('_', "-");
            return (
                StatusCode::CONFLICT,
                kind,
                "it contradicts the present state",
            );
        }
        AppError::Stale { .. } => (
            StatusCode::PRECONDITION_FAILED,
            "stale-version",
            "somebody changed it meanwhile",
        ),
        AppError::AlreadyThere { .. } => (
            StatusCode::PRECONDITION_FAILED,
            "already-there",
            "it is there already",
        ),
        AppError::PreconditionRequired => (
            StatusCode::PRECONDITION_REQUIRED,
            "precondition-required",
            "the version is missing",
        ),
        AppError::TooMany { .. } => (
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-attempts",
            "too many attempts",
        ),
        AppError::TooManyStreams { .. } => (
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-streams",
            "too many streams",
        ),
        AppError::TooBusy { .. } => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too-busy",
            "too many people at once",
        ),
        AppError::TooSlow { .. } => (
            StatusCode::REQUEST_TIMEOUT,
            "too-slow",
            "the request came too slowly",
        ),
        AppError::TooLarge { .. } => (
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            "the body is too large",
        ),
        AppError::MediaType { .. } => (
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            "the body's kind is not read",
        ),
        AppError::Encoding { .. } => (
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported-encoding",
            "the body's encoding is not read",
        ),
        AppError::Unavailable(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "the database is away",
        ),
        AppError::NodeAway { .. } => (
            StatusCode::SERVICE_UNAVAILABLE,
            "node-away",
            "the node does not answer",
        ),
        AppError::LogBusy { .. } => (
            StatusCode::SERVICE_UNAVAILABLE,
            "log-busy",
            "the node reads no more logs now",
        ),
        AppError::Internal(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "internal error",
        ),
    };
    (status, kind.to_owned(), title)
}

/// Layer: writes each refusal of the API, whoever made it, as a problem with the request's id.
pub async fn render(State(_): State<App>, request: Request, next: Next) -> Response {
    let asked = (request.method().clone(), request.uri().path().to_owned());
    let request_id = request
        .extensions()
        .get::<Arc<RequestContext>>()
        .map(|c| c.request_id);
    let mut response = next.run(request).await;
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let pending = response.extensions_mut().remove::<Pending>();
    if let Some(AppError::Internal(source)) = pending.as_ref().and_then(|p| p.source.as_deref()) {
        tracing::error!("request failed: {source:#}");
    }
    if let Some(AppError::Unavailable(source)) = pending.as_ref().and_then(|p| p.source.as_deref())
    {
        tracing::warn!("database away: {source}");
    }
    let mut problem = pending.map_or_else(
        || Problem::of_status(status, (&asked.0, &asked.1)),
        |p| p.problem,
    );
    problem.request_id = request_id;
    let denied = response.extensions().get::<Denied>().copied();
    let mut rendered = (status, Json(problem)).into_response();
    for name in [WWW_AUTHENTICATE, RETRY_AFTER, ALLOW, ACCEPT_ENCODING] {
        if let Some(value) = response.headers().get(&name) {
            rendered.headers_mut().insert(name, value.clone());
        }
    }
    rendered.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    if let Some(denied) = denied {
        rendered.extensions_mut().insert(denied);
    }
    rendered
}

/// What a panic is answered: the layer above gives it its id.
pub fn answer_panic(_: Box<dyn std::any::Any + Send + 'static>) -> Response {
    AppError::Internal(anyhow::anyhow!("a handler panicked")).into_response()
}

/// The refusals that any operation may give.
pub struct Refusals;
/// The refusals of an operation that needs If-Match.
pub struct UpdateRefusals;

type Described =
    std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>>;

fn described(statuses: &[(&str, &str)]) -> Described {
    use utoipa::openapi::{ContentBuilder, Ref, ResponseBuilder};
    statuses
        .iter()
        .map(|(status, words)| {
            let content = ContentBuilder::new()
                .schema(Some(Ref::from_schema_name("Problem")))
                .build();
            let response = ResponseBuilder::new()
                .description(*words)
                .content("application/problem+json", content)
                .build();
            ((*status).to_owned(), response.into())
        })
        .collect()
}

const ANY: &[(&str, &str)] = &[
    ("400", "The request cannot be read."),
    ("401", "Nobody is signed in."),
    ("403", "The asker's role does not allow it."),
    ("404", "It is not there, or not to be seen by the asker."),
    ("408", "The body came too slowly."),
    ("409", "It contradicts the present state."),
    ("413", "The body is larger than is read."),
    ("415", "The body is of a kind that is not read."),
    (
        "422",
        "A value is refused; field, value and remedy are named.",
    ),
    (
        "429",
        "Too many attempts, or too many streams of one person.",
    ),
    (
        "500",
        "Our fault; the id of the request is for an operator.",
    ),
    (
        "503",
        "The database or a node is away, or too many ask at once; try again after Retry-After.",
    ),
];

impl utoipa::IntoResponses for Refusals {
    fn responses() -> Described {
        described(ANY)
    }
}

impl utoipa::IntoResponses for UpdateRefusals {
    fn responses() -> Described {
        let mut all = described(ANY);
        all.extend(described(&[
            (
                "412",
                "If-Match names another version, or it is there already.",
            ),
            ("428", "If-Match is missing."),
        ]));
        all
    }
}
