//! Signing in and out, and the reader's theme.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::{RETRY_AFTER, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use web::messages::{Messages, Phrase};
use web::shell::Section;
use web::views::SigninView;

use super::query::Checked;
use super::visit::{self, Posted, THEME_COOKIE, Visit, cookie, cookies};
use super::{PageError, page};
use crate::app::sessions::{self, LogIn, Opened, SessionKind};
use crate::app::{App, AppError, browsers, clock};
use crate::front::RequestContext;
use crate::front::fields::read_query;

/// The cookie that ties a sign-in form to the browser that asked for it: there is no session yet.
const FORM_COOKIE: &str = "allotment-signin";
/// Random bytes of its value.
const TOKEN_BYTES: usize = 32;
/// How long a browser keeps its theme and its proof: a year, the longest that all browsers grant.
const KEPT_SECONDS: i64 = 31_536_000;

/// What the sign-in page may be asked with.
#[derive(Debug, Default, Deserialize)]
pub struct SigninQuery {
    /// Where to go afterwards.
    #[serde(default)]
    next: String,
}

/// Shows the sign-in form.
pub async fn show_signin(
    State(app): State<App>,
    _: Checked,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, PageError> {
    let query: SigninQuery = read_query(&uri)?;
    form(&app, &headers, visit::back(&query.next), "", None).await
}

/// What was typed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Typed {
    username: String,
    password: String,
    #[serde(default)]
    next: String,
}

/// Signs in and leads to where the person wanted to go.
pub async fn sign_in(
    State(app): State<App>,
    _: Checked,
    Extension(context): Extension<Arc<RequestContext>>,
    request: Request,
) -> Result<Response, PageError> {
    let headers = request.headers().clone();
    let (token, typed) = visit::read_form::<Typed>(request).await?;
    let next = visit::back(&typed.next).to_owned();
    let t = Messages::english();
    if !cookie(&headers, FORM_COOKIE).is_some_and(|given| visit::same(given, &token)) {
        let stale = Refused::at_once(t.say("signin.stale"));
        return form(&app, &headers, &next, &typed.username, Some(stale)).await;
    }
    let name = typed.username.trim().to_owned();
    let proof_cookie = browsers::cookie_name(&app.config.sessions, &name);
    let ask = LogIn {
        name: name.clone(),
        password: typed.password,
        kind: SessionKind::Page,
        address: context.address,
        browser: cookie(&headers, &proof_cookie).map(str::to_owned),
        request_id: context.request_id,
    };
    let refused = match sessions::log_in(&app, ask).await {
        Ok(opened) => {
            let mut response = signed_in(&app, &opened, &next);
            if let Some(proof) = &opened.browser {
                keep_proof(&app, &headers, &mut response, &proof_cookie, proof);
            }
            return Ok(response);
        }
        Err(AppError::WrongCredentials) => Refused::at_once(t.say("signin.wrong")),
        Err(AppError::TooMany {
            retry_after_seconds: seconds,
        }) => Refused {
            status: StatusCode::TOO_MANY_REQUESTS,
            words: t
                .say("signin.too_many")
                .nest("duration", t.duration(seconds)),
            retry_after: Some(seconds),
        },
        Err(AppError::TooBusy {
            retry_after_seconds: seconds,
        }) => Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            words: t
                .say("signin.too_busy")
                .nest("duration", t.duration(seconds)),
            retry_after: Some(seconds),
        },
        Err(error) => return Err(error.into()),
    };
    form(&app, &headers, &next, &name, Some(refused)).await
}

/// Gives the browser its session.
fn signed_in(app: &App, opened: &Opened, next: &str) -> Response {
    let config = &app.config.sessions;
    let name = sessions::cookie_name(config);
    let kept = set_cookie(app, name, &opened.secret, Some(config.seconds));
    ([(SET_COOKIE, kept)], Redirect::to(next)).into_response()
}

/// Gives the browser what proves later that it has signed in with this name, and takes the oldest
/// of its other proofs where it has too many.
fn keep_proof(app: &App, came: &HeaderMap, answer: &mut Response, name: &str, proof: &str) {
    let prefix = browsers::cookie_prefix(&app.config.sessions);
    // Browsers send the oldest first (RFC 6265, 5.4).
    let others: Vec<&str> = cookies(came)
        .map(|(known, _)| known)
        .filter(|known| known.starts_with(prefix) && *known != name)
        .collect();
    let surplus = others.len().saturating_sub(browsers::NAMES_MAX - 1);
    let gone = others[..surplus]
        .iter()
        .map(|known| set_cookie(app, known, "", Some(0)));
    let kept = set_cookie(app, name, proof, Some(KEPT_SECONDS));
    for header in gone.chain([kept]) {
        answer.headers_mut().append(SET_COOKIE, header);
    }
}

/// Why somebody is not signed in, and when to try again.
struct Refused {
    status: StatusCode,
    words: Phrase,
    retry_after: Option<u64>,
}

impl Refused {
    fn at_once(words: Phrase) -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            words,
            retry_after: None,
        }
    }
}

async fn form(
    app: &App,
    headers: &HeaderMap,
    next: &str,
    username: &str,
    refused: Option<Refused>,
) -> Result<Response, PageError> {
    // A token that the browser has already stays: another tab's form goes on working.
    let kept = cookie(headers, FORM_COOKIE).filter(|token| token.len() >= TOKEN_BYTES);
    let token = kept.map_or_else(
        || URL_SAFE_NO_PAD.encode(rand::random::<[u8; TOKEN_BYTES]>()),
        str::to_owned,
    );
    let status = refused
        .as_ref()
        .map_or(StatusCode::OK, |refused| refused.status);
    let retry_after = refused.as_ref().and_then(|refused| refused.retry_after);
    let view = SigninView {
        shell: visit::shell(
            None,
            visit::theme_of(headers),
            Section::Nowhere,
            "/signin",
            clock::now(app).await?,
        ),
        csrf: token.clone(),
        next: next.to_owned(),
        username: username.to_owned(),
        refused: refused.map(|refused| refused.words),
    };
    let mut response = page(&view)?;
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.append(SET_COOKIE, set_cookie(app, FORM_COOKIE, &token, None));
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}

/// A form without fields of its own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Signs out.
pub async fn sign_out(
    State(app): State<App>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Response, PageError> {
    sessions::log_out(&app, &visit.asker).await?;
    let gone = set_cookie(
        &app,
        sessions::cookie_name(&app.config.sessions),
        "",
        Some(0),
    );
    Ok(([(SET_COOKIE, gone)], Redirect::to("/signin")).into_response())
}

/// The theme that was asked for, and the page to come back to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThemeChoice {
    theme: String,
    #[serde(default)]
    back: String,
}

/// Keeps the theme.
pub async fn choose_theme(
    State(app): State<App>,
    Posted {
        visit: Visit { .. },
        fields,
    }: Posted<ThemeChoice>,
) -> Response {
    let theme = web::shell::Theme::from_cookie(&fields.theme).attribute();
    let kept = set_cookie(&app, THEME_COOKIE, theme, Some(KEPT_SECONDS));
    (
        [(SET_COOKIE, kept)],
        Redirect::to(visit::back(&fields.back)),
    )
        .into_response()
}

/// A cookie that scripts cannot read and other sites' forms do not carry.
fn set_cookie(app: &App, name: &str, value: &str, seconds: Option<i64>) -> HeaderValue {
    let secure = if app.config.sessions.secure_cookies {
        "; Secure"
    } else {
        ""
    };
    let age = seconds
        .map(|seconds| format!("; Max-Age={seconds}"))
        .unwrap_or_default();
    HeaderValue::from_str(&format!(
        "{name}={value}; Path=/; HttpOnly; SameSite=Lax{secure}{age}"
    ))
    .expect("our names and values are plain ASCII")
}
