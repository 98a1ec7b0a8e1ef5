//! A terminal's WebSocket, as the server's REST contract has it, and how what came through it ended.

use anyhow::Context;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::client::Client;
use crate::failure::{Failure, REFUSED};
use crate::foreign::plain;

/// Bytes sent at once; the server takes no message that is larger than twice this.
pub const PIECE_BYTES: usize = 32 * 1024;
/// What a shell adds to the number of the signal that ended a command.
const SIGNALLED: u8 = 128;

/// A terminal that is open.
pub struct Socket {
    /// To the server.
    pub to: ToServer,
    /// From the server.
    pub from: FromServer,
}

/// The half that is written to.
pub struct ToServer(SplitSink<WebSocketStream<reqwest::Upgraded>, Message>);

/// The half that is read.
pub struct FromServer(SplitStream<WebSocketStream<reqwest::Upgraded>>);

/// What comes from the server.
pub enum Told {
    /// It has begun.
    Begun,
    /// Output, or what came from the port.
    Output(Vec<u8>),
    /// What was written to standard error.
    Errors(Vec<u8>),
    /// How it ended.
    End(End),
}

/// How a terminal ended.
#[derive(Debug)]
pub struct End {
    /// The exit code.
    pub code: Option<i64>,
    /// Or the signal.
    pub signal: Option<i64>,
    /// Or why it was ended.
    pub reason: String,
}

impl Socket {
    /// Opens one at `path` below /api/v1.
    pub async fn open(
        client: &Client,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<Self, Failure> {
        let (to, from) = client.socket(path, query).await?.split();
        Ok(Self {
            to: ToServer(to),
            from: FromServer(from),
        })
    }
}

impl ToServer {
    /// Sends bytes, in as many messages as they need.
    pub async fn input(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        for piece in bytes.chunks(PIECE_BYTES) {
            self.send(Message::Binary(piece.to_vec().into())).await?;
        }
        Ok(())
    }

    /// Says something that steers it.
    pub async fn say(&mut self, said: &Value) -> Result<(), Failure> {
        self.send(Message::Text(said.to_string().into())).await
    }

    /// Says that no input follows.
    pub async fn input_over(&mut self) -> Result<(), Failure> {
        self.say(&json!({"input_over": true})).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Failure> {
        let sent = self.0.send(message).await;
        Ok(sent.context("the connection to the server broke off")?)
    }
}

impl FromServer {
    /// The next that comes.
    pub async fn next(&mut self) -> Result<Told, Failure> {
        loop {
            let broken = "the connection to the server broke off";
            match self.0.next().await.context(broken)?.context(broken)? {
                Message::Binary(bytes) => match bytes.split_first() {
                    Some((1, bytes)) => return Ok(Told::Output(bytes.to_vec())),
                    Some((2, bytes)) => return Ok(Told::Errors(bytes.to_vec())),
                    // A newer server's kind: what it is for, this program does not do.
                    _ => {}
                },
                Message::Text(text) => {
                    let told: Value =
                        serde_json::from_str(&text).context("the server's word is not JSON")?;
                    if told["begun"].as_bool() == Some(true) {
                        return Ok(Told::Begun);
                    }
                    if let Some(end) = told.get("end") {
                        return Ok(Told::End(End {
                            code: end["code"].as_i64(),
                            signal: end["signal"].as_i64(),
                            reason: end["reason"].as_str().unwrap_or_default().to_owned(),
                        }));
                    }
                }
                Message::Close(_) => {
                    return Err(Failure::Refused("the server closed the connection".into()));
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}

impl End {
    /// Ends this program as the command ended.
    pub fn as_own(&self) -> Result<(), Failure> {
        let status = |number: i64| u8::try_from(number & 0xff).unwrap_or(REFUSED);
        match (self.code, self.signal) {
            (Some(0), _) => Ok(()),
            (Some(code), _) => Err(Failure::Ended(status(code))),
            (None, Some(signal)) => Err(Failure::Ended(status(signal).saturating_add(SIGNALLED))),
            (None, None) => Err(Failure::Refused(plain(&self.reason))),
        }
    }

    /// The same as JSON.
    pub fn as_json(&self) -> Value {
        json!({"code": self.code, "signal": self.signal, "reason": self.reason})
    }
}
