//! A WebSocket to the server, over a connection that reqwest opened.

use reqwest::StatusCode;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Client, granted};
use crate::failure::Failure;

impl Client {
    /// Opens a WebSocket at `path`, over which what follows is between the two ends.
    pub async fn socket(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<WebSocketStream<reqwest::Upgraded>, Failure> {
        let key = generate_key();
        let asked = self
            .patient
            .get(self.url(path, query)?)
            .bearer_auth(&self.login.token)
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", &key);
        let answered = tokio::time::timeout(self.silence_max, asked.send()).await;
        let answered = answered.map_err(|_| {
            let seconds = self.silence_max.as_secs();
            Failure::Away(format!(
                "{} does not answer within {seconds} s",
                self.login.url
            ))
        })?;
        let response = answered.map_err(|error| self.away(&error))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let refused = granted(response).await.err();
            let words = "the server, or a proxy before it, opens no WebSocket";
            return Err(refused.unwrap_or_else(|| Failure::Refused(words.to_owned())));
        }
        let accepted = response.headers().get("Sec-WebSocket-Accept");
        if accepted.is_none_or(|accepted| *accepted != derive_accept_key(key.as_bytes())) {
            let words =
                "the answer is not to this handshake: a proxy answers in the server's place";
            return Err(Failure::Refused(words.to_owned()));
        }
        let upgraded = response
            .upgrade()
            .await
            .map_err(|error| self.away(&error))?;
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await)
    }
}
