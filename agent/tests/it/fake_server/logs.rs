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
        let (_, bytes) = self.read_part(id, offset, follow, None).await?;
        Ok(String::from_utf8(bytes).expect("text"))
    }

    /// Reads a log, or what its job left, from a byte on: where the answer begins, and its bytes.
    pub async fn read_part(
        &self,
        id: &str,
        offset: i64,
        follow: bool,
        result: Option<wire::log_request::Result>,
    ) -> Result<(i64, Vec<u8>), String> {
        let request = self.fake.inner.lock().expect("no panic").next_request();
        let message = to_agent::Message::LogRequest(wire::LogRequest {
            request,
            assignment_id: id.to_owned(),
            offset,
            follow,
            result,
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
        let mut bytes = Vec::new();
        let begins = chunks.first().map_or(offset, |chunk| chunk.offset);
        for chunk in chunks {
            if !chunk.error.is_empty() {
                return Err(chunk.error);
            }
            let expected = begins.saturating_add(bytes.len() as i64);
            assert_eq!(chunk.offset, expected, "chunks follow one another");
            bytes.extend(chunk.data);
        }
        Ok((begins, bytes))
    }
}
