//! The REST client: one request, one answer or one refusal in words.

use std::time::Duration;

use anyhow::Context;
use reqwest::{Method, Response};
use serde_json::Value;

use crate::failure::{Failure, from_problem};
use crate::login::Login;

/// Longest wait for a connection; a server that is there answers at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Rows asked for at a time; the server's own bound is 500.
const PAGE_ROWS: usize = 200;

/// A client of one server, as one person.
pub struct Client {
    http: reqwest::Client,
    login: Login,
}

impl Client {
    /// A client that asks as `login` says.
    pub fn new(login: Login) -> Result<Self, Failure> {
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("allot/", env!("CARGO_PKG_VERSION")));
        if let Ok(path) = std::env::var("ALLOTMENT_CA") {
            let pem =
                std::fs::read(&path).with_context(|| format!("read the CA certificate {path}"))?;
            let authority = reqwest::Certificate::from_pem(&pem)
                .with_context(|| format!("CA certificate {path}"))?;
            builder = builder.add_root_certificate(authority);
        }
        let http = builder.build().context("make an HTTP client")?;
        Ok(Self { http, login })
    }

    /// A client as the environment or the kept log-in says.
    pub fn found() -> Result<Self, Failure> {
        Self::new(Login::find()?)
    }

    /// Reads `path` below /api/v1.
    pub async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        json(self.send(Method::GET, path, query, None).await?).await
    }

    /// Sends `body` to `path` below /api/v1; a repeat after a lost answer does nothing twice.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        json(self.send(Method::POST, path, &[], Some(body)).await?).await
    }

    /// Reads a list to its end, or to `most` rows.
    pub async fn list(
        &self,
        path: &str,
        query: &[(&str, String)],
        most: usize,
    ) -> Result<Vec<Value>, Failure> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        while items.len() < most {
            let mut query = query.to_vec();
            query.push(("limit", PAGE_ROWS.min(most - items.len()).to_string()));
            if let Some(cursor) = cursor.take() {
                query.push(("cursor", cursor));
            }
            let page = self.get(path, &query).await?;
            items.extend(page["items"].as_array().cloned().unwrap_or_default());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => break,
            }
        }
        Ok(items)
    }

    /// Opens `path` as a stream.
    pub async fn open(&self, path: &str, query: &[(&str, String)]) -> Result<Response, Failure> {
        self.send(Method::GET, path, query, None).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<&Value>,
    ) -> Result<Response, Failure> {
        let mut url = reqwest::Url::parse(&format!("{}/api/v1{path}", self.login.url))
            .map_err(|e| Failure::Words(format!("{} is not an address: {e}", self.login.url)))?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method.clone(), url);
        if !self.login.token.is_empty() {
            request = request.bearer_auth(&self.login.token);
        }
        if method == Method::POST {
            request = request.header("Idempotency-Key", uuid::Uuid::new_v4().to_string());
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request
            .send()
            .await
            .map_err(|e| Failure::Away(format!("{} does not answer: {e}", self.login.url)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.unwrap_or_default();
        Err(from_problem(status.as_u16(), &text))
    }
}

async fn json(response: Response) -> Result<Value, Failure> {
    let text = response.text().await.context("the answer broke off")?;
    if text.is_empty() {
        return Ok(Value::Null);
    }
    Ok(serde_json::from_str(&text).context("the answer is not JSON")?)
}

/// One part of a path, with everything escaped that could make it two.
pub fn part(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn a_part_of_a_path_stays_one_part() {
        assert_eq!(part("a/../b?c#d"), "a%2F..%2Fb%3Fc%23d");
        assert_eq!(part("h100-1"), "h100-1");
    }
}
