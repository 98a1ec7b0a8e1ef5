//! One visit to a page: who makes it, by which cookies, and what surrounds the page that it gets.

use std::sync::{Arc, OnceLock};

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::header::COOKIE;
use axum::http::request::Parts;
use domain::FieldError;
use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use web::messages::Messages;
use web::shell::{Notice, Reader, Section, Shell, Theme, Tone};

use super::fault::PageError;
use super::query::Checked;
use crate::app::authorise::{Action, Needs, may_somewhere};
use crate::app::sessions::{self, SessionKind};
use crate::app::{App, AppError, Asker, clock};
use crate::front::fields::field_fault;
use crate::front::{self, RequestContext};

/// Largest form that is read: a job's file with room for its encoding.
const FORM_BYTES_MAX: usize = 1024 * 1024;
/// The cookie that keeps the theme; scripts never read it.
pub const THEME_COOKIE: &str = "theme";
/// Longest path with query that a page leads back to; ours are far shorter.
const BACK_BYTES_MAX: usize = 2000;
/// The header by which a page asks for its live parts alone.
const LIVE_HEADER: &str = "hx-request";

/// What the error page of a request can know: set by the visit as it finds out.
#[derive(Debug, Default)]
pub struct Known {
    /// Who reads.
    pub reader: OnceLock<Reader>,
}

/// A signed-in person's visit.
#[derive(Debug)]
pub struct Visit {
    /// Who.
    pub asker: Asker,
    /// Whether only the live parts of the page are wanted.
    pub live: bool,
    reader: Reader,
    theme: Theme,
    here: String,
    done: Option<String>,
}

impl FromRequestParts<App> for Visit {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, PageError> {
        let context = context(parts)?;
        let secret = cookie(&parts.headers, sessions::cookie_name(&app.config.sessions));
        let secret = secret.ok_or(AppError::Unauthenticated)?;
        let session =
            sessions::authenticate(app, secret, SessionKind::Page, context.request_id).await?;
        // The same request may ask twice; it is the same person.
        let _ = context.asker.set(session.asker.clone());
        let reader = reader_of(&session.asker, session.csrf_token);
        if let Some(known) = parts.extensions.get::<Arc<Known>>() {
            let _ = known.reader.set(reader.clone());
        }
        Checked::from_request_parts(parts, app).await?;
        Ok(Self {
            theme: theme_of(&parts.headers),
            live: parts.headers.contains_key(LIVE_HEADER),
            here: here_of(parts),
            done: done_of(parts.uri.query().unwrap_or("")),
            asker: session.asker,
            reader,
        })
    }
}

impl Visit {
    /// The token that this person's forms carry.
    pub fn csrf(&self) -> &str {
        &self.reader.csrf
    }

    /// What surrounds a page of a section.
    pub async fn shell(&self, app: &App, section: Section) -> Result<Shell, PageError> {
        let t = Messages::english();
        let notice = self.done.as_deref().filter(|done| t.knows("done", done));
        Ok(Shell {
            notice: notice.map(|done| Notice {
                tone: Tone::Ok,
                text: t.word("done", done),
            }),
            ..shell(
                Some(self.reader.clone()),
                self.theme,
                section,
                &self.here,
                clock::now(app).await?,
            )
        })
    }
}

/// What surrounds a page, for whoever reads it.
pub fn shell(
    reader: Option<Reader>,
    theme: Theme,
    section: Section,
    here: &str,
    now: domain::Timestamp,
) -> Shell {
    Shell {
        t: Messages::english(),
        theme,
        reader,
        section,
        here: here.to_owned(),
        now,
        notice: None,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// A form that a signed-in person sent, with the token that proves it was our page's.
#[derive(Debug)]
pub struct Posted<T> {
    /// Who sent it.
    pub visit: Visit,
    /// Its fields, without the token.
    pub fields: T,
}

impl<T: DeserializeOwned> FromRequest<App> for Posted<T> {
    type Rejection = PageError;

    async fn from_request(request: Request, app: &App) -> Result<Self, PageError> {
        let (mut parts, body) = request.into_parts();
        let visit = Visit::from_request_parts(&mut parts, app).await?;
        let (token, fields) = read_form(Request::from_parts(parts, body)).await?;
        if !same(&token, visit.csrf()) {
            return Err(forged());
        }
        Ok(Self { visit, fields })
    }
}

/// A form's token, and its other fields.
pub async fn read_form<T: DeserializeOwned>(request: Request) -> Result<(String, T), PageError> {
    let (parts, body) = request.into_parts();
    let bytes = front::body::read(&parts.headers, body, FORM_BYTES_MAX).await?;
    let mut token = String::new();
    let mut pairs = Vec::new();
    for pair in bytes
        .split(|byte| *byte == b'&')
        .filter(|pair| !pair.is_empty())
    {
        let mut halves = pair.splitn(2, |byte| *byte == b'=');
        let name = decode(halves.next().unwrap_or_default())?;
        let value = decode(halves.next().unwrap_or_default())?;
        if name == "csrf" {
            token = value;
        } else {
            pairs.push((name, value));
        }
    }
    let fields = T::deserialize(MapDeserializer::<_, serde::de::value::Error>::new(
        pairs.into_iter(),
    ))
    .map_err(|error| {
        // Which field it is; what else a parser says is of its own types.
        let fault = field_fault("", &error.to_string(), |_| None);
        AppError::Unreadable(FieldError::new(
            "form",
            fault.field,
            "the fields of the page's form",
        ))
    })?;
    Ok((token, fields))
}

/// Undoes the percent-encoding of a form or an address.
pub fn decode(text: &[u8]) -> Result<String, PageError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next(), rest.next()]
                    .map(|digit| digit.and_then(|d| (*d as char).to_digit(16)));
                match digits {
                    [Some(high), Some(low)] => {
                        u8::try_from(high * 16 + low).expect("two hexadecimal digits are a byte")
                    }
                    _ => return Err(unreadable("a broken percent-encoding")),
                }
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).map_err(|_| unreadable("invalid UTF-8"))
}

fn unreadable(what: &str) -> PageError {
    AppError::Unreadable(FieldError::new("form", what, "percent-encoded UTF-8")).into()
}

/// The refusal of a form whose token is not this session's.
pub fn forged() -> PageError {
    let error = AppError::Forbidden {
        action: "send_form",
        needs: Needs::PageToken,
    };
    error.into()
}

/// Compares without telling by its time where two tokens differ.
pub fn same(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .fold(0, |acc, (x, y)| acc | (x ^ y))
            == 0
}

/// The request's own context.
pub fn context(parts: &Parts) -> Result<Arc<RequestContext>, AppError> {
    parts
        .extensions
        .get::<Arc<RequestContext>>()
        .cloned()
        .ok_or_else(|| AppError::Internal(anyhow::anyhow!("a page lacks its outer layer")))
}

/// The cookies, each with its value, in the order in which the browser sent them.
pub fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
}

/// The value of a cookie.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    cookies(headers).find_map(|(key, value)| (key == name).then_some(value))
}

/// The theme that the browser's cookie asks for.
pub fn theme_of(headers: &HeaderMap) -> Theme {
    cookie(headers, THEME_COOKIE).map_or(Theme::System, Theme::from_cookie)
}

/// A path of this site to go back to, or `/`: never another site's address.
pub fn back(path: &str) -> &str {
    let own = path.starts_with('/') && !path.starts_with("//") && !path.starts_with("/\\");
    let plain = path.len() <= BACK_BYTES_MAX && path.bytes().all(|byte| byte.is_ascii_graphic());
    if own && plain { path } else { "/" }
}

/// The page's address without the word that says what was done.
fn here_of(parts: &Parts) -> String {
    let path = parts.uri.path();
    let query: Vec<&str> = parts
        .uri
        .query()
        .unwrap_or("")
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.starts_with("done="))
        .collect();
    if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", query.join("&"))
    }
}

fn done_of(query: &str) -> Option<String> {
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix("done="))
        .map(str::to_owned)
}

fn reader_of(asker: &Asker, csrf: String) -> Reader {
    Reader {
        name: asker.name.to_string(),
        platform_role: asker.platform_role.map(|role| role.as_str().to_owned()),
        sees_users: asker.platform_role.is_some(),
        submits: may_somewhere(asker, Action::SubmitJob),
        csrf,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_this_site_are_gone_back_to() {
        assert_eq!(back("/jobs?state=failed"), "/jobs?state=failed");
        for elsewhere in [
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "",
            "jobs",
            "/a\r\nb",
        ] {
            assert_eq!(back(elsewhere), "/", "{elsewhere:?}");
        }
    }

    #[test]
    fn a_forms_encoding_is_undone_strictly() {
        assert_eq!(decode(b"a+b%26%C3%A9").ok().as_deref(), Some("a b&\u{e9}"));
        for bad in [&b"%"[..], b"%4", b"%zz", b"%ff"] {
            assert!(decode(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same("abc", "abc") && !same("abc", "abd") && !same("abc", "ab"));
    }
}
