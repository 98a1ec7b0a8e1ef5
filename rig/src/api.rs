//! The product's REST interface, as the rig and the tests call it.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// A request that takes longer has been forgotten by its server.
const REQUEST_BOUND: Duration = Duration::from_secs(30);

/// A client signed in as one person.
#[derive(Debug, Clone)]
pub struct Api {
    base: String,
    token: String,
    http: reqwest::Client,
}

/// What a request was answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The body; null when there is none, a string when it is no JSON.
    pub body: Value,
    /// The ETag header.
    pub etag: Option<String>,
    /// Whether it repeats the answer to an earlier request with the same key.
    pub replayed: bool,
}

impl Answer {
    /// What a refusal says for people, its status where it says nothing.
    pub fn words(&self) -> String {
        match self.body["detail"].as_str() {
            Some(words) => words.to_owned(),
            None => format!("the server answered {}", self.status),
        }
    }

    /// The body of a success; else an error that shows the problem.
    pub fn success(self) -> anyhow::Result<Value> {
        if !self.status.is_success() {
            bail!("{}: {}", self.status, self.body);
        }
        Ok(self.body)
    }
}

/// A client without a person.
pub fn http_client() -> anyhow::Result<reqwest::Client> {
    // A second installation is refused, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .timeout(REQUEST_BOUND)
        .build()
        .context("make an HTTP client")
}

impl Api {
    /// Signs in at `url` (`http://…`).
    pub async fn log_in(url: &str, name: &str, password: &str) -> anyhow::Result<Self> {
        let http = http_client()?;
        let mut api = Self {
            base: format!("{url}/api/v1"),
            token: String::new(),
            http,
        };
        let session = api
            .call(
                Method::POST,
                "/auth/login",
                Some(&json!({"username": name, "password": password})),
                None,
            )
            .await?
            .success()
            .with_context(|| format!("sign in as {name}"))?;
        api.token = text(&session, "token")?.to_owned();
        Ok(api)
    }

    /// A client with a token that is at hand.
    pub fn with_token(url: &str, token: &str) -> anyhow::Result<Self> {
        Ok(Self {
            base: format!("{url}/api/v1"),
            token: token.to_owned(),
            http: http_client()?,
        })
    }

    /// Where it asks.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The bearer token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The same person at another server.
    pub fn at(&self, url: &str) -> Self {
        Self {
            base: format!("{url}/api/v1"),
            ..self.clone()
        }
    }

    /// Reads.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, None, None)
            .await
            .and_then(Answer::success)
            .with_context(|| format!("GET {path}"))
    }

    /// Makes, under a key of its own.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let key = domain::ids::RepeatKey::new().to_string();
        self.call(Method::POST, path, Some(body), Some(&key))
            .await
            .and_then(Answer::success)
            .with_context(|| format!("POST {path}"))
    }

    /// Puts what is not there yet.
    pub async fn put_new(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let request = self
            .request(Method::PUT, path)
            .header("If-None-Match", "*")
            .json(body);
        answer(request)
            .await
            .and_then(Answer::success)
            .with_context(|| format!("PUT {path}"))
    }

    /// Changes what is there, as it was just read.
    pub async fn change(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<Value> {
        let read = self.call(Method::GET, path, None, None).await?;
        let etag = read
            .etag
            .clone()
            .with_context(|| format!("GET {path} has no ETag: {} {}", read.status, read.body))?;
        let request = self
            .request(method.clone(), path)
            .header("If-Match", etag)
            .json(body);
        answer(request)
            .await
            .and_then(Answer::success)
            .with_context(|| format!("{method} {path}"))
    }

    /// Any call, with an Idempotency-Key if one is given; whatever the answer.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
    ) -> anyhow::Result<Answer> {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        answer(request).await
    }

    /// The text behind a path, as it is now.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        let response = self
            .request(Method::GET, path)
            .send()
            .await
            .with_context(|| format!("GET {path}"))?;
        let status = response.status();
        let bytes = response
            .bytes()
            .await
            .with_context(|| format!("GET {path}"))?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if !status.is_success() {
            bail!("GET {path}: {status}: {text}");
        }
        Ok(text)
    }

    /// A request that the caller finishes, for streams.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        if self.token.is_empty() {
            request
        } else {
            request.bearer_auth(&self.token)
        }
    }

    /// Every item of a list, page by page.
    pub async fn list(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        let mut items = Vec::new();
        let mut page = path.to_owned();
        loop {
            let answer = self.get(&page).await?;
            items.extend(
                answer["items"]
                    .as_array()
                    .with_context(|| format!("{path} has no items"))?
                    .clone(),
            );
            let Some(cursor) = answer["next_cursor"].as_str() else {
                return Ok(items);
            };
            let joint = if path.contains('?') { '&' } else { '?' };
            page = format!("{path}{joint}cursor={cursor}");
        }
    }
}

async fn answer(request: reqwest::RequestBuilder) -> anyhow::Result<Answer> {
    let response = request.send().await.context("ask the server")?;
    let header = |name: &str| {
        response
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    let (etag, replayed) = (
        header("etag"),
        header("idempotent-replay").as_deref() == Some("true"),
    );
    let status = response.status();
    let bytes = response.bytes().await.context("read the server's answer")?;
    let body = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned()))
    };
    Ok(Answer {
        status,
        body,
        etag,
        replayed,
    })
}

/// A text of an object, or an error that shows the object.
pub fn text<'a>(object: &'a Value, key: &str) -> anyhow::Result<&'a str> {
    object[key]
        .as_str()
        .with_context(|| format!("no text {key:?} in {object}"))
}
