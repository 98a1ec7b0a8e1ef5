//! Streams jobs' logs to whoever asks, while they are written and long after.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use domain::ids::AssignmentId;
use protocol::wire::{FromAgent, LogChunk, LogRequest, from_agent};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::node::Node;

/// Bytes in one message.
const CHUNK_BYTES: usize = 64 * 1024;
/// Most logs that are streamed at once; more are told to come back.
const STREAMS_MAX: usize = 64;
/// How often a log that is being written is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// The streams of one connection. Dropping it ends them.
pub struct Streams {
    node: Arc<Node>,
    out: mpsc::Sender<FromAgent>,
    running: BTreeMap<u64, AbortHandle>,
}

impl Streams {
    /// No streams yet.
    pub fn new(node: Arc<Node>, out: mpsc::Sender<FromAgent>) -> Self {
        Self {
            node,
            out,
            running: BTreeMap::new(),
        }
    }

    /// Begins a stream. One of the same number is replaced.
    pub fn begin(&mut self, request: LogRequest) {
        self.running.retain(|_, stream| !stream.is_finished());
        let full = self.running.len() >= STREAMS_MAX;
        let (node, out, number) = (Arc::clone(&self.node), self.out.clone(), request.request);
        let task = tokio::spawn(async move {
            let refusal = if full {
                Some("busy")
            } else {
                stream(&node, &out, &request).await
            };
            if let Some(refusal) = refusal {
                let end = LogChunk {
                    request: request.request,
                    end: true,
                    error: refusal.to_owned(),
                    ..LogChunk::default()
                };
                // The connection may have ended meanwhile.
                let _ = out.send(message(end)).await;
            }
        });
        if let Some(former) = self.running.insert(number, task.abort_handle()) {
            former.abort();
        }
    }

    /// Ends a stream that nobody reads any more.
    pub fn cancel(&mut self, number: u64) {
        if let Some(stream) = self.running.remove(&number) {
            stream.abort();
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        self.running.values().for_each(AbortHandle::abort);
    }
}

/// Sends a log to its end, or says why there is none.
async fn stream(
    node: &Node,
    out: &mpsc::Sender<FromAgent>,
    request: &LogRequest,
) -> Option<&'static str> {
    let Ok(id) = request.assignment_id.parse::<AssignmentId>() else {
        return Some("not_found");
    };
    let Ok(mut offset) = u64::try_from(request.offset) else {
        return Some("invalid_offset");
    };
    let path = node.folders.log(id);
    let run = node.folders.run(id);
    loop {
        // Looked at before the log: what was written until then is read below.
        let over = !run.exists() || matches!(run.exit(), Ok(Some(_)));
        let bytes = match read_chunk(path.clone(), offset).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !over => Vec::new(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // It never started, or its log was too old to keep.
                return Some("not_found");
            }
            Err(error) => {
                tracing::warn!(assignment.id = %id, %error, "a log cannot be read");
                return Some("unreadable");
            }
        };
        let exhausted = bytes.len() < CHUNK_BYTES;
        let end = exhausted && (over || !request.follow);
        if !bytes.is_empty() || end {
            let chunk = LogChunk {
                request: request.request,
                offset: i64::try_from(offset).unwrap_or(i64::MAX),
                end,
                data: bytes,
                error: String::new(),
            };
            offset += chunk.data.len() as u64;
            if out.send(message(chunk)).await.is_err() || end {
                return None;
            }
        }
        if exhausted {
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn read_chunk(path: std::path::PathBuf, offset: u64) -> io::Result<Vec<u8>> {
    let read = tokio::task::spawn_blocking(move || read_at(&path, offset));
    read.await.map_err(io::Error::other)?
}

/// Nothing beyond the end; what no file can be as long as is beyond it, too, and no place to seek to.
fn read_at(path: &Path, offset: u64) -> io::Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    if offset >= file.metadata()?.len() {
        return Ok(Vec::new());
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(CHUNK_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn message(chunk: LogChunk) -> FromAgent {
    FromAgent {
        message: Some(from_agent::Message::LogChunk(chunk)),
    }
}
