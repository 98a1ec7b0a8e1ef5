//! Streams jobs' logs to whoever asks, while they are written and long after.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use domain::ids::AssignmentId;
use protocol::wire::{FromAgent, LogChunk, LogRequest, from_agent};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::results;
use crate::logs::cursor::{Cursor, Piece};
use crate::node::Node;

/// Bytes in one message.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;
/// Most logs that are streamed at once, as many as a server asks of a node; more are told to come back.
const STREAMS_MAX: usize = 512;
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
    if let Some(result) = request.result {
        let folder = node.folders.results(id);
        return results::send(folder, request.request, result, offset, out).await;
    }
    let folder = node.folders.log(id);
    let run = node.folders.run(id);
    let mut cursor = Cursor::new(folder, offset);
    loop {
        // Looked at before the log: what was written until then is read below.
        let over = !run.exists() || matches!(run.exit(), Ok(Some(_)));
        let (back, read) = read_chunk(cursor).await;
        cursor = back;
        let piece = match read {
            Ok(piece) => piece,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !over => Piece {
                offset,
                bytes: Vec::new(),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // It never started, or its log was too old to keep.
                return Some("not_found");
            }
            Err(error) => {
                tracing::warn!(assignment.id = %id, %error, "a log cannot be read");
                return Some("unreadable");
            }
        };
        let exhausted = piece.bytes.is_empty();
        let end = exhausted && (over || !request.follow);
        if !exhausted || end {
            offset = piece.offset + piece.bytes.len() as u64;
            let chunk = LogChunk {
                request: request.request,
                offset: i64::try_from(piece.offset).unwrap_or(i64::MAX),
                end,
                data: piece.bytes,
                error: String::new(),
            };
            if out.send(message(chunk)).await.is_err() || end {
                return None;
            }
        }
        if exhausted {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Reads on, apart from what else this agent does; the cursor comes back.
async fn read_chunk(mut cursor: Cursor) -> (Cursor, io::Result<Piece>) {
    let read = tokio::task::spawn_blocking(move || {
        let piece = cursor.read(CHUNK_BYTES);
        (cursor, piece)
    });
    read.await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

pub(super) fn message(chunk: LogChunk) -> FromAgent {
    FromAgent {
        message: Some(from_agent::Message::LogChunk(chunk)),
    }
}
