//! What the fake server reads of jobs' logs.

use protocol::wire::{self, to_agent};

use super::FakeServer;

impl FakeServer {
    /// Reads a log through the connection to its end.
    pub async fn read_log(&self, id: &str, follow: bool) -> Result<String, String> {
        self.read_log_from(id, 0, follow).await
    }

    /// Reads a log from a byte on.
    pub async fn read_log_from(
        &self,
        id: &str,
        offset: i64,
        follow: bool,
    ) -> Result<String, String> {
        let request = self.fake.inner.lock().expect("no panic").next_request();
        let message = to_agent::Message::LogRequest(wire::LogRequest {
            request,
            assignment_id: id.to_owned(),
            offset,
            follow,
        });
        self.send(message).await;
        let chunks = self
            .wait("the end of a log", |inner| {
                let chunks: Vec<wire::LogChunk> = inner
                    .chunks
                    .iter()
                    .filter(|chunk| chunk.request == request)
                    .cloned()
                    .collect();
                chunks.last()?.end.then_some(chunks)
            })
            .await;
        let mut text = Vec::new();
        for chunk in chunks {
            if !chunk.error.is_empty() {
                return Err(chunk.error);
            }
            let expected = offset.saturating_add(text.len() as i64);
            assert_eq!(chunk.offset, expected, "chunks follow one another");
            text.extend(chunk.data);
        }
        Ok(String::from_utf8(text).expect("text"))
    }
}
