//! Terminals over WebSocket: a command beside a job, its output, or one of its ports.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use bytes::Bytes;
use domain::ids::JobId;
use protocol::wire::{TerminalDown, TerminalEnd, terminal_down, terminal_up};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiPath, ApiQuery, SignedIn};
use super::problem::Refusals;
use crate::app::authorise::Action;
use crate::app::terminals::{self, Allowed, Size, Terminal, Wish};
use crate::app::{App, AppError};

/// Largest message from outside, in bytes; what is typed or sent at once is cut by who sends it.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The first message, which says what is to be run, comes by then.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// The node begins by then or not at all: an agent that is older than terminals does not know the wish.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// A terminal through which nothing has passed for so long is closed: somebody has left it.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// What nobody takes for so long ends the terminal.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// The first byte of a binary message: what it carries.
const OUTPUT: u8 = 1;
const ERRORS: u8 = 2;

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(exec_job))
        .routes(routes!(attach_job))
        .routes(routes!(forward_job))
}

/// Which worker.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WorkerQuery {
    /// The worker's rank; 0 unless given.
    #[param(minimum = 0)]
    worker: Option<i32>,
}

/// Which port of which worker.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PortQuery {
    /// The worker's rank; 0 unless given.
    #[param(minimum = 0)]
    worker: Option<i32>,
    /// The TCP port on the job's loopback, on which a process of the job listens.
    #[param(minimum = 1, maximum = 65535)]
    port: i32,
}

/// What comes as text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Said {
    Exec {
        command: Vec<String>,
        terminal: Option<Size>,
    },
    Size(Size),
    InputOver(bool),
}

/// Run a command beside a worker of a job.
///
/// A WebSocket. The first message is text: `{"exec": {"command": ["bash"], "terminal": {"columns": 80,
/// "rows": 24}}}`, without `terminal` for a command that has none. Binary messages are its input. Text
/// `{"size": {"columns": 80, "rows": 24}}` and `{"input_over": true}` steer it. What comes back is
/// `{"begun": true}`, binary messages whose first byte is 1 for output and 2 for standard error, and in the
/// end `{"end": {"code": 0, "signal": null, "reason": ""}}`. The command runs as the job does, counts
/// against its limits, and ends with the job and with this connection. A browser is asked for an `Origin` of this server.
#[utoipa::path(
    get, path = "/jobs/{job}/exec", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), WorkerQuery),
    responses((status = 101, description = "The connection is a WebSocket now."), Refusals)
)]
async fn exec_job(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(job): ApiPath<JobId>,
    ApiQuery(query): ApiQuery<WorkerQuery>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, AppError> {
    let worker = query.worker.unwrap_or(0);
    let allowed = terminals::allow(&app, &asker, Action::ExecJob, job, worker).await?;
    upgraded(&headers, upgrade, allowed, None)
}

/// Follow what a worker of a job writes, from its last lines on.
///
/// A WebSocket, as `exec_job` describes it, without a first message: the end tells how the worker's first process
/// ended. What is sent is let fall, since a job's standard input is empty.
#[utoipa::path(
    get, path = "/jobs/{job}/attach", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), WorkerQuery),
    responses((status = 101, description = "The connection is a WebSocket now."), Refusals)
)]
async fn attach_job(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(job): ApiPath<JobId>,
    ApiQuery(query): ApiQuery<WorkerQuery>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, AppError> {
    let worker = query.worker.unwrap_or(0);
    let allowed = terminals::allow(&app, &asker, Action::AttachJob, job, worker).await?;
    upgraded(&headers, upgrade, allowed, Some(Wish::Attach))
}

/// Reach a port on which a worker of a job listens.
///
/// A WebSocket, as `exec_job` describes it, without a first message: it carries one TCP connection to the port.
#[utoipa::path(
    get, path = "/jobs/{job}/forward", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), PortQuery),
    responses((status = 101, description = "The connection is a WebSocket now."), Refusals)
)]
async fn forward_job(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(job): ApiPath<JobId>,
    ApiQuery(query): ApiQuery<PortQuery>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, AppError> {
    let port = u16::try_from(query.port).ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| AppError::invalid("port", query.port, "1 to 65535"))?;
    let worker = query.worker.unwrap_or(0);
    let allowed = terminals::allow(&app, &asker, Action::ForwardJob, job, worker).await?;
    upgraded(&headers, upgrade, allowed, Some(Wish::Port(port)))
}

fn upgraded(
    headers: &HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    allowed: Allowed,
    wish: Option<Wish>,
) -> Result<Response, AppError> {
    check_origin(headers)?;
    let upgrade = upgrade.map_err(|error| {
        AppError::invalid("upgrade", error, "a WebSocket handshake of version 13")
    })?;
    Ok(upgrade
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX)
        .on_upgrade(|socket| serve(socket, allowed, wish)))
}

/// A cookie comes by itself, even when another site's page opens the connection, and the answer to a
/// WebSocket may be read by any page: such a page is told by its origin.
fn check_origin(headers: &HeaderMap) -> Result<(), AppError> {
    if headers.contains_key(AUTHORIZATION) {
        return Ok(());
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = text(ORIGIN).unwrap_or_default();
    let from: Option<Uri> = origin.parse().ok();
    // Without a scheme it is a host's name, which no browser sends as an origin.
    let from = from.as_ref().filter(|from| from.scheme().is_some());
    let from = from.and_then(Uri::authority).map(|at| at.as_str());
    match (from, text(HOST)) {
        (Some(from), Some(host)) if from.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(AppError::invalid(
            "origin",
            origin,
            "the address of this server: open the terminal from its own page, or send a bearer token",
        )),
    }
}

async fn serve(mut socket: WebSocket, allowed: Allowed, wish: Option<Wish>) {
    let wish = match wish {
        Some(wish) => Ok(wish),
        None => first(&mut socket).await,
    };
    let begun = match wish {
        Ok(wish) => allowed.begin(wish).await,
        Err(error) => Err(error),
    };
    match begun {
        Ok(terminal) => Carried::new(socket, terminal).run().await,
        Err(error) => close(&mut socket, &TerminalEnd::default(), &error.to_string()).await,
    }
}

/// What is to be run.
async fn first(socket: &mut WebSocket) -> Result<Wish, AppError> {
    let remedy = "text such as {\"exec\": {\"command\": [\"bash\"]}} within 10 s";
    let received = tokio::time::timeout(FIRST_TIMEOUT, socket.recv()).await;
    let Ok(Some(Ok(Message::Text(text)))) = received else {
        return Err(AppError::invalid("message", "another first one", remedy));
    };
    match serde_json::from_str(text.as_str()) {
        Ok(Said::Exec { command, terminal }) => Ok(Wish::Command(command, terminal)),
        _ => Err(AppError::invalid("message", text.as_str(), remedy)),
    }
}

/// Says how it ended, and ends the connection. Nobody may be there to hear it.
async fn close(socket: &mut WebSocket, end: &TerminalEnd, reason: &str) {
    let end = json!({"end": {"code": end.code, "signal": end.signal, "reason": reason}});
    let said = async {
        let _ = socket.send(Message::Text(end.to_string().into())).await;
        let _ = socket.send(Message::Close(None)).await;
    };
    let _ = tokio::time::timeout(SEND_TIMEOUT, said).await;
}

/// A terminal with the connection that it is carried by.
struct Carried {
    socket: WebSocket,
    terminal: Terminal,
    /// What came from outside and finds no room yet; nothing more is read until it does.
    waits: Option<TerminalDown>,
    sent: u64,
    received: u64,
}

impl Carried {
    fn new(socket: WebSocket, terminal: Terminal) -> Self {
        Self {
            socket,
            terminal,
            waits: None,
            sent: 0,
            received: 0,
        }
    }

    async fn run(mut self) {
        let (end, reason) = self.carry().await;
        close(&mut self.socket, &end, &reason).await;
        let how = match (end.code, end.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (_, Some(signal)) => format!("signal {signal}"),
            _ => reason,
        };
        self.terminal.finish(self.sent, self.received, &how).await;
    }

    /// Carries it until it ends: how, and why where the node did not end it.
    async fn carry(&mut self) -> (TerminalEnd, String) {
        let ended = |reason: &str| (TerminalEnd::default(), reason.to_owned());
        let down = self.terminal.down();
        let mut idle_at = Instant::now() + IDLE_MAX;
        let begin_by = Instant::now() + BEGIN_TIMEOUT;
        let mut begun = false;
        loop {
            let waits = self.waits.is_some();
            tokio::select! {
                () = self.terminal.rights.outdated() => {
                    if let Err(refused) = self.terminal.check().await {
                        return ended(&refused.to_string());
                    }
                }
                up = self.terminal.ends.up.recv() => match up {
                    None => return ended("the node is gone"),
                    Some(up) => {
                        begun = true;
                        let message = match up.message {
                            Some(terminal_up::Message::End(end)) => {
                                let reason = end.reason.clone();
                                return (end, reason);
                            }
                            Some(terminal_up::Message::Output(bytes)) => self.output(OUTPUT, &bytes),
                            Some(terminal_up::Message::Errors(bytes)) => self.output(ERRORS, &bytes),
                            Some(terminal_up::Message::Begun(_)) => {
                                Message::Text(json!({"begun": true}).to_string().into())
                            }
                            _ => continue,
                        };
                        idle_at = Instant::now() + IDLE_MAX;
                        let sent = tokio::time::timeout(SEND_TIMEOUT, self.socket.send(message));
                        if !matches!(sent.await, Ok(Ok(()))) {
                            return ended("the other end takes nothing any more");
                        }
                    }
                },
                room = down.reserve(), if waits => match room {
                    Ok(room) => {
                        if let Some(message) = self.waits.take() {
                            room.send(message);
                        }
                    }
                    Err(_) => return ended("the node is gone"),
                },
                said = self.socket.recv(), if !waits => match said {
                    Some(Ok(Message::Close(_))) | None => return ended("closed by the person"),
                    Some(Ok(said)) => {
                        idle_at = Instant::now() + IDLE_MAX;
                        match self.take(said) {
                            Ok(message) => self.waits = message,
                            Err(error) => return ended(&error.to_string()),
                        }
                    }
                    Some(Err(error)) => return ended(&format!("the connection broke off: {error}")),
                },
                () = tokio::time::sleep_until(begin_by), if !begun => {
                    return ended("the node did not open it within 30 s: its agent may be older than terminals");
                }
                () = tokio::time::sleep_until(idle_at) => {
                    return ended("nothing has passed for 30 minutes");
                }
            }
        }
    }

    fn output(&mut self, kind: u8, bytes: &[u8]) -> Message {
        self.received += bytes.len() as u64;
        let mut framed = Vec::with_capacity(bytes.len() + 1);
        framed.push(kind);
        framed.extend_from_slice(bytes);
        Message::Binary(Bytes::from(framed))
    }

    /// What goes on to the node of what was said.
    fn take(&mut self, said: Message) -> Result<Option<TerminalDown>, AppError> {
        let message = match said {
            Message::Binary(bytes) => {
                self.sent += bytes.len() as u64;
                terminal_down::Message::Input(bytes.to_vec())
            }
            Message::Text(text) => match serde_json::from_str(text.as_str()) {
                Ok(Said::Size(size)) => terminal_down::Message::Size(size.checked()?),
                Ok(Said::InputOver(over)) => terminal_down::Message::InputOver(over),
                _ => {
                    let remedy =
                        "text {\"size\": …} or {\"input_over\": true}, and binary for input";
                    return Err(AppError::invalid("message", text.as_str(), remedy));
                }
            },
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return Ok(None),
        };
        Ok(Some(TerminalDown {
            message: Some(message),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_site_opens_no_terminal() {
        let asked = |lines: &[(axum::http::HeaderName, &str)]| {
            let lines = lines
                .iter()
                .map(|(name, value)| (name.clone(), value.parse().expect("a header's value")));
            check_origin(&lines.collect()).is_ok()
        };
        assert!(asked(&[
            (HOST, "gpus.example:8080"),
            (ORIGIN, "http://gpus.example:8080")
        ]));
        assert!(asked(&[
            (HOST, "gpus.example"),
            (AUTHORIZATION, "Bearer x")
        ]));
        for origin in [
            "https://evil.example",
            "null",
            "http://gpus.example.evil",
            "gpus.example",
            "",
        ] {
            assert!(
                !asked(&[(HOST, "gpus.example"), (ORIGIN, origin)]),
                "{origin}"
            );
        }
        assert!(!asked(&[(HOST, "gpus.example")]));
    }
}
