//! Refusals and failures as pages that say what happened and where to go.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, REFERER};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use domain::Timestamp;
use web::Template as _;
use web::messages::{Messages, Phrase};
use web::shell::Section;
use web::views::ErrorView;

use super::told;
use super::visit::{self, Known};
use crate::app::{App, AppError};
use crate::front::RequestContext;

/// An error on its way to a page.
#[derive(Debug)]
pub struct PageError {
    cause: Cause,
    /// What its page says, where the cause alone does not. Boxed, since most errors have none.
    detail: Option<Box<Phrase>>,
}

#[derive(Debug)]
enum Cause {
    App(AppError),
    Render(web::RenderError),
    Status(StatusCode),
}

impl PageError {
    /// A refusal that is told by its status alone.
    pub fn status(status: StatusCode) -> Self {
        Cause::Status(status).into()
    }

    /// The same error, told in these words.
    pub fn told(self, words: Phrase) -> Self {
        Self {
            detail: Some(Box::new(words)),
            ..self
        }
    }
}

impl From<Cause> for PageError {
    fn from(cause: Cause) -> Self {
        Self {
            cause,
            detail: None,
        }
    }
}

impl From<AppError> for PageError {
    fn from(error: AppError) -> Self {
        Cause::App(error).into()
    }
}

impl From<web::RenderError> for PageError {
    fn from(error: web::RenderError) -> Self {
        Cause::Render(error).into()
    }
}

/// What the layer writes on the error's page; travels as an extension of the response.
#[derive(Debug, Clone, Default)]
struct Told {
    detail: Option<Phrase>,
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let (mut response, detail) = match self.cause {
            Cause::App(error) => {
                match &error {
                    AppError::Internal(source) => tracing::error!("page failed: {source:#}"),
                    AppError::Unavailable(source) => tracing::warn!("database away: {source}"),
                    _ => {}
                }
                let detail = told::detail(&Messages::english(), &error);
                // The API's answer has the right status and headers; only its body is another.
                (error.into_response(), detail)
            }
            Cause::Render(error) => {
                tracing::error!("page failed: {error}");
                (StatusCode::INTERNAL_SERVER_ERROR.into_response(), None)
            }
            Cause::Status(status) => (status.into_response(), None),
        };
        response.extensions_mut().insert(Told {
            detail: self.detail.map(|words| *words).or(detail),
        });
        response
    }
}

/// Layer: gives each refused request its page; who is not signed in is led to the sign-in.
pub async fn render(State(_): State<App>, mut request: Request, next: Next) -> Response {
    let known = Arc::new(Known::default());
    request.extensions_mut().insert(Arc::clone(&known));
    let asked = Asked::of(&request);
    let response = next.run(request).await;
    let status = response.status();
    // What the framework refuses by itself, such as a path that is no UTF-8, is bare text.
    let finished = response.headers().get(CONTENT_TYPE).is_some_and(is_html)
        && response.extensions().get::<Told>().is_none();
    if !(status.is_client_error() || status.is_server_error()) || finished {
        return response;
    }
    if status == StatusCode::UNAUTHORIZED && !asked.live {
        let next = if asked.reads {
            asked.here.as_str()
        } else {
            "/"
        };
        return Redirect::to(&format!("/signin?next={}", encode(next))).into_response();
    }
    asked.page(&known, response)
}

/// What is remembered of a request for its error page.
struct Asked {
    here: String,
    reads: bool,
    live: bool,
    theme: web::shell::Theme,
    request_id: Option<String>,
    back: Option<String>,
}

impl Asked {
    fn of(request: &Request) -> Self {
        let headers = request.headers();
        let referer = headers.get(REFERER).and_then(|value| value.to_str().ok());
        let path = request
            .uri()
            .path_and_query()
            .map_or("/", |path| path.as_str());
        Self {
            here: path.to_owned(),
            reads: matches!(*request.method(), Method::GET | Method::HEAD),
            live: headers.contains_key("hx-request"),
            theme: visit::theme_of(headers),
            request_id: request
                .extensions()
                .get::<Arc<RequestContext>>()
                .map(|c| c.request_id.to_string()),
            back: referer.and_then(path_of).filter(|back| back != path),
        }
    }

    /// The page, with the head of the response that it takes the place of.
    fn page(self, known: &Known, response: Response) -> Response {
        let (mut parts, _) = response.into_parts();
        let told = parts.extensions.remove::<Told>().unwrap_or_default();
        let here = if self.reads { self.here.as_str() } else { "/" };
        let view = ErrorView {
            // Nothing on this page tells an age, and the database may be what failed.
            shell: visit::shell(
                known.reader.get().cloned(),
                self.theme,
                Section::Nowhere,
                here,
                Timestamp::default(),
            ),
            status: parts.status.as_u16(),
            detail: told.detail,
            request_id: self.request_id,
            back: self.back,
        };
        match view.render() {
            Ok(html) => {
                parts.headers.remove(axum::http::header::CONTENT_LENGTH);
                parts
                    .headers
                    .insert(CONTENT_TYPE, HeaderValue::from_static(HTML));
                Response::from_parts(parts, html.into())
            }
            Err(error) => {
                tracing::error!("the page of an error failed: {error}");
                parts.status.into_response()
            }
        }
    }
}

fn is_html(kind: &HeaderValue) -> bool {
    kind.as_bytes().starts_with(b"text/html")
}

/// The type of every page.
pub const HTML: &str = "text/html; charset=utf-8";

/// The path of an address, to go back to; the site is always our own.
fn path_of(address: &str) -> Option<String> {
    let rest = address.split_once("://")?.1;
    let path = &rest[rest.find('/')?..];
    Some(visit::back(path).to_owned())
}

/// Percent-encodes a text for a query.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// What a panic in a handler of a page is answered.
pub fn answer_panic(_: Box<dyn std::any::Any + Send + 'static>) -> Response {
    PageError::from(AppError::Internal(anyhow::anyhow!(
        "a handler of a page panicked"
    )))
    .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_is_a_path_of_this_site() {
        assert_eq!(
            path_of("http://127.0.0.1:8080/submit?team=a").as_deref(),
            Some("/submit?team=a")
        );
        assert_eq!(path_of("https://evil.example//x").as_deref(), Some("/"));
        assert_eq!(path_of("about:blank"), None);
    }

    #[test]
    fn a_query_is_encoded() {
        assert_eq!(encode("/jobs?a=b&c=\u{e9}"), "/jobs%3Fa%3Db%26c%3D%C3%A9");
    }
}
