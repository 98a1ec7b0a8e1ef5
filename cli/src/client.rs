//! The REST client: one request, one answer or one refusal in words.

mod socket;

use std::time::Duration;

use anyhow::Context;
use domain::ids::RepeatKey;
use reqwest::{Method, Response};
use serde_json::Value;

use crate::failure::{Failure, from_problem};
use crate::login::Login;

/// Longest wait for a connection; a server that is there answers at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Rows asked for at a time; the server's own bound is 500.
const PAGE_ROWS: usize = 200;

/// Longest silence of a server that owes an answer: it gives up on its own work before that.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Tries of one request whose answer was lost: one loss is a restart or a router's, two are a
/// server that is away.
const TRIES: u32 = 2;

/// A client of one server, as one person.
pub struct Client {
    http: reqwest::Client,
    /// For streams, whose news may be long in coming.
    patient: reqwest::Client,
    login: Login,
    silence_max: Duration,
}

/// A request that can be sent again as it is.
struct Request<'a> {
    method: Method,
    url: reqwest::Url,
    body: Option<&'a Value>,
    /// By it the server knows a repeat; for what makes or changes something.
    key: Option<RepeatKey>,
    /// What it presupposes of what is to be changed.
    presumes: Option<Presumed>,
}

/// What a change presupposes of its object, as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presumed {
    /// That it has this version.
    Version(i64),
    /// That it is not there.
    Nothing,
}

impl Client {
    /// A client that asks as `login` says.
    pub fn new(login: Login) -> Result<Self, Failure> {
        Self::with_silence(login, SILENCE_MAX)
    }

    fn with_silence(login: Login, silence_max: Duration) -> Result<Self, Failure> {
        Ok(Self {
            http: http(Some(silence_max))?,
            patient: http(None)?,
            login,
            silence_max,
        })
    }

    /// A client as the environment or the kept log-in says.
    pub fn found() -> Result<Self, Failure> {
        Self::new(Login::find()?)
    }

    /// Reads `path` below /api/v1.
    pub async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value, Failure> {
        let request = Request {
            method: Method::GET,
            url: self.url(path, query)?,
            body: None,
            key: None,
            presumes: None,
        };
        self.answer(&request).await
    }

    /// Sends `body` to `path` below /api/v1; once more under the same key where the answer was
    /// lost, so that nothing is done twice.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = Request {
            method: Method::POST,
            url: self.url(path, &[])?,
            body: Some(body),
            key: Some(RepeatKey::new()),
            presumes: None,
        };
        self.answer(&request).await
    }

    /// The same with parameters, for what presupposes something of its object or nothing.
    pub async fn post_as(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: &Value,
        presumes: Option<Presumed>,
    ) -> Result<Value, Failure> {
        let request = Request {
            method: Method::POST,
            url: self.url(path, query)?,
            body: Some(body),
            key: Some(RepeatKey::new()),
            presumes,
        };
        self.answer(&request).await
    }

    /// Puts `body` in the place of what is there as presumed.
    pub async fn put(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: &Value,
        presumes: Presumed,
    ) -> Result<Value, Failure> {
        let request = Request {
            method: Method::PUT,
            url: self.url(path, query)?,
            body: Some(body),
            key: None,
            presumes: Some(presumes),
        };
        self.answer(&request).await
    }

    /// Changes what has this version by `body`.
    pub async fn patch(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: &Value,
        version: i64,
    ) -> Result<Value, Failure> {
        let request = Request {
            method: Method::PATCH,
            url: self.url(path, query)?,
            body: Some(body),
            key: None,
            presumes: Some(Presumed::Version(version)),
        };
        self.answer(&request).await
    }

    /// Removes what has this version.
    pub async fn delete(
        &self,
        path: &str,
        query: &[(&str, String)],
        version: i64,
    ) -> Result<(), Failure> {
        let request = Request {
            method: Method::DELETE,
            url: self.url(path, query)?,
            body: None,
            key: None,
            presumes: Some(Presumed::Version(version)),
        };
        self.answer(&request).await.map(drop)
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

    /// Opens `path`, to be read as it comes.
    pub async fn open(&self, path: &str, query: &[(&str, String)]) -> Result<Response, Failure> {
        let request = Request {
            method: Method::GET,
            url: self.url(path, query)?,
            body: None,
            key: None,
            presumes: None,
        };
        let sent = self.send(&self.http, &request).await;
        granted(sent.map_err(|error| self.away(&error))?).await
    }

    /// Opens `path` as a stream, which may be silent for as long as it likes once it is open.
    pub async fn follow(&self, path: &str, query: &[(&str, String)]) -> Result<Response, Failure> {
        let request = Request {
            method: Method::GET,
            url: self.url(path, query)?,
            body: None,
            key: None,
            presumes: None,
        };
        let opened = tokio::time::timeout(self.silence_max, self.send(&self.patient, &request));
        match opened.await {
            Ok(sent) => granted(sent.map_err(|error| self.away(&error))?).await,
            Err(_) => Err(Failure::Away(format!(
                "{} does not answer within {} s",
                self.login.url,
                self.silence_max.as_secs()
            ))),
        }
    }

    fn url(&self, path: &str, query: &[(&str, String)]) -> Result<reqwest::Url, Failure> {
        let mut url = reqwest::Url::parse(&format!("{}/api/v1{path}", self.login.url))
            .ok()
            .filter(|url| ["http", "https"].contains(&url.scheme()))
            .ok_or_else(|| {
                Failure::Words(format!(
                    "{} is not a server's address; write one such as http://127.0.0.1:8080",
                    self.login.url
                ))
            })?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    /// The whole answer to a request, which is sent once more where the answer was lost.
    async fn answer(&self, request: &Request<'_>) -> Result<Value, Failure> {
        let mut tries = 0;
        let text = loop {
            tries += 1;
            let lost = match self.send(&self.http, request).await {
                Ok(response) => match granted(response).await?.text().await {
                    Ok(text) => break text,
                    Err(lost) => lost,
                },
                Err(lost) => lost,
            };
            // Who cannot be reached, or was silent for so long, is so a moment later too. A change of
            // a version would find another one, were it made already.
            let once = request.presumes.is_some() && request.key.is_none();
            if once || tries == TRIES || lost.is_connect() || lost.is_timeout() {
                return Err(self.away(&lost));
            }
        };
        if text.is_empty() {
            return Ok(Value::Null);
        }
        Ok(serde_json::from_str(&text).context("the answer is not JSON")?)
    }

    async fn send(
        &self,
        http: &reqwest::Client,
        request: &Request<'_>,
    ) -> Result<Response, reqwest::Error> {
        let mut sent = http.request(request.method.clone(), request.url.clone());
        if !self.login.token.is_empty() {
            sent = sent.bearer_auth(&self.login.token);
        }
        if let Some(key) = &request.key {
            sent = sent.header("Idempotency-Key", key.to_string());
        }
        sent = match request.presumes {
            Some(Presumed::Version(version)) => sent.header("If-Match", format!("\"{version}\"")),
            Some(Presumed::Nothing) => sent.header("If-None-Match", "*"),
            None => sent,
        };
        if let Some(body) = request.body {
            sent = sent.json(body);
        }
        sent.send().await
    }

    fn away(&self, error: &reqwest::Error) -> Failure {
        let url = &self.login.url;
        if error.is_timeout() && !error.is_connect() {
            let seconds = self.silence_max.as_secs();
            return Failure::Away(format!("{url} does not answer within {seconds} s"));
        }
        // The innermost cause says what happened; those around it repeat the address.
        let causes = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source());
        let cause = causes.last().map_or_else(String::new, ToString::to_string);
        Failure::Away(format!(
            "{url} does not answer: {cause}; check the address, and that the server runs"
        ))
    }
}

fn http(silence_max: Option<Duration>) -> Result<reqwest::Client, Failure> {
    let mut builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("allot/", env!("CARGO_PKG_VERSION")));
    if let Some(silence_max) = silence_max {
        builder = builder.read_timeout(silence_max);
    }
    if let Ok(path) = std::env::var("ALLOTMENT_CA") {
        let pem =
            std::fs::read(&path).with_context(|| format!("read the CA certificate {path}"))?;
        let authority = reqwest::Certificate::from_pem(&pem)
            .with_context(|| format!("CA certificate {path}"))?;
        builder = builder.add_root_certificate(authority);
    }
    Ok(builder.build().context("make an HTTP client")?)
}

/// The answer where it grants what was asked, else the refusal in words.
async fn granted(response: Response) -> Result<Response, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    // A refusal whose words are lost is told by its number.
    let text = response.text().await.unwrap_or_default();
    Err(from_problem(status.as_u16(), &text))
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
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A server that does with each connection as it is told.
    struct Listener {
        socket: TcpListener,
        client: Client,
    }

    impl Listener {
        async fn open() -> Self {
            Self::patient_for(SILENCE_MAX).await
        }

        async fn patient_for(silence_max: Duration) -> Self {
            let _ = rustls::crypto::ring::default_provider().install_default();
            let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let url = format!("http://{}", socket.local_addr().expect("an address"));
            let token = "token".to_owned();
            let client = Client::with_silence(Login { url, token }, silence_max).expect("a client");
            Self { socket, client }
        }

        /// Takes the next request, head and short body, and leaves it unanswered.
        async fn take(&self) -> (TcpStream, String) {
            let (mut stream, _) = self.socket.accept().await.expect("a connection");
            let mut text = String::new();
            while !(text.contains("\r\n\r\n") && (text.starts_with("GET") || text.ends_with('}'))) {
                let mut bytes = [0; 4096];
                let read = stream.read(&mut bytes).await.expect("a request");
                assert!(read > 0, "it broke off: {text}");
                text.push_str(std::str::from_utf8(&bytes[..read]).expect("text"));
            }
            (stream, text)
        }
    }

    const SHORT: Duration = Duration::from_millis(200);
    const DONE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"id\": \"j1\"}";

    fn key(request: &str) -> &str {
        let line = |line: &&str| line.to_ascii_lowercase().starts_with("idempotency-key:");
        request.lines().find(line).expect("a key")
    }

    #[tokio::test]
    async fn a_request_whose_answer_was_lost_is_sent_once_more_under_the_same_key() {
        let listener = Listener::open().await;
        let serve = async {
            let (closed, first) = listener.take().await;
            drop(closed);
            let (mut stream, second) = listener.take().await;
            stream.write_all(DONE).await.expect("answered");
            (first, second)
        };
        let body = json!({"name": "digits"});
        let (told, (first, second)) = tokio::join!(listener.client.post("/jobs", &body), serve);
        assert_eq!(told.expect("done")["id"], "j1");
        assert_eq!(key(&first), key(&second));
    }

    #[tokio::test]
    async fn a_change_says_which_version_was_read_and_is_not_sent_twice() {
        let listener = Listener::open().await;
        let serve = async {
            let (closed, request) = listener.take().await;
            drop(closed);
            request
        };
        let body = json!({"gpus": 4});
        let change = listener
            .client
            .patch("/pools/h100/bookings/demo", &[], &body, 7);
        let (told, request) = tokio::join!(change, serve);
        assert!(matches!(told, Err(Failure::Away(_))), "{told:?}");
        let line = |line: &str| line.eq_ignore_ascii_case("if-match: \"7\"");
        assert!(request.lines().any(line), "{request}");
    }

    #[tokio::test]
    async fn two_requests_have_two_keys() {
        let listener = Listener::open().await;
        let body = json!({"name": "digits"});
        let mut keys = Vec::new();
        for _ in 0..2 {
            let serve = async {
                let (mut stream, request) = listener.take().await;
                stream.write_all(DONE).await.expect("answered");
                key(&request).to_owned()
            };
            let (told, key) = tokio::join!(listener.client.post("/jobs", &body), serve);
            told.expect("done");
            keys.push(key);
        }
        assert_ne!(keys[0], keys[1]);
    }

    #[tokio::test]
    async fn a_server_that_loses_two_answers_is_away() {
        let listener = Listener::open().await;
        let serve = async {
            drop(listener.take().await);
            drop(listener.take().await);
        };
        let body = json!({"name": "digits"});
        let (told, ()) = tokio::join!(listener.client.post("/jobs", &body), serve);
        assert!(matches!(told, Err(Failure::Away(_))), "{told:?}");
    }

    #[tokio::test]
    async fn a_server_that_is_silent_does_not_hang_a_command() {
        let listener = Listener::patient_for(SHORT).await;
        let client = &listener.client;
        let (asked, _held) = tokio::join!(client.get("/jobs", &[]), listener.take());
        assert!(matches!(asked, Err(Failure::Away(_))), "{asked:?}");
        let (opened, _held) = tokio::join!(client.open("/jobs/j1/logs", &[]), listener.take());
        assert!(matches!(opened, Err(Failure::Away(_))), "{opened:?}");
        let (opened, _held) = tokio::join!(client.follow("/jobs/j1/logs", &[]), listener.take());
        assert!(matches!(opened, Err(Failure::Away(_))), "{opened:?}");
    }

    #[tokio::test]
    async fn a_stream_may_be_silent_for_longer_than_an_answer() {
        let listener = Listener::patient_for(SHORT).await;
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        let serve = async {
            let (mut stream, _) = listener.take().await;
            stream.write_all(head).await.expect("opened");
            stream
        };
        let (opened, mut stream) =
            tokio::join!(listener.client.follow("/jobs/j1/logs", &[]), serve);
        let opened = opened.expect("open");
        // The passing of time itself is what is tested.
        tokio::time::sleep(2 * SHORT).await;
        stream.write_all(b"ok").await.expect("written");
        assert_eq!(opened.text().await.expect("read"), "ok");
    }

    #[test]
    fn a_part_of_a_path_stays_one_part() {
        assert_eq!(part("a/../b?c#d"), "a%2F..%2Fb%3Fc%23d");
        assert_eq!(part("h100-1"), "h100-1");
    }
}
