//! Logs that are being read through one connection: what was asked of the node, and for whom.

use std::collections::HashMap;

use bytes::Bytes;
use protocol::report::LogChunk;
use protocol::wire;
use protocol::wire::log_request::Result as Asked;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::app::links::{LogPiece, LogRequest, Part};

/// Most logs that are read through one connection at a time; more are refused. An agent reads no more.
const READS_MAX: usize = 512;

/// The reads under way, by the number that the node knows them by.
#[derive(Debug, Default)]
pub struct Reads {
    last: u64,
    open: HashMap<u64, Read>,
}

/// A read under way.
#[derive(Debug)]
struct Read {
    pieces: mpsc::Sender<LogPiece>,
    /// Where the next piece begins, unless something was dropped.
    offset: i64,
}

impl Reads {
    /// Begins a read: the message for the node, unless too many are under way.
    pub fn begin(&mut self, request: LogRequest) -> Option<wire::to_agent::Message> {
        if self.open.len() >= READS_MAX {
            let broken = LogPiece::Broken("too many logs of this node are being read".to_owned());
            // A reader that is gone already needs no answer.
            let _ = request.pieces.try_send(broken);
            return None;
        }
        self.last += 1;
        let LogRequest { wanted, pieces } = request;
        let offset = wanted.offset;
        self.open.insert(self.last, Read { pieces, offset });
        Some(wire::to_agent::Message::LogRequest(wire::LogRequest {
            request: self.last,
            assignment_id: wanted.assignment.to_string(),
            offset,
            follow: wanted.follow,
            result: match wanted.part {
                Part::Log => None,
                Part::Results => Some(Asked::Listed(true)),
                Part::Result(number) => Some(Asked::Number(number)),
            },
        }))
    }

    /// Passes a piece on. A reader that is too slow, or gone, is cut off, since the node's one
    /// stream must not wait for it; it asks again from where it stopped. Returns the message
    /// that tells the node so.
    pub fn pass(&mut self, chunk: LogChunk) -> Option<wire::to_agent::Message> {
        let read = self.open.get_mut(&chunk.request)?;
        let pieces = read.pieces.clone();
        let mut sent = Ok(());
        if !chunk.data.is_empty() {
            let expected = std::mem::replace(&mut read.offset, chunk.offset);
            // What goes back would be given twice: it is given as what follows.
            if chunk.offset > expected {
                sent = pieces.try_send(LogPiece::Skip(chunk.offset));
            } else {
                read.offset = expected;
            }
            read.offset += i64::try_from(chunk.data.len()).unwrap_or(0);
            sent = sent.and_then(|()| pieces.try_send(LogPiece::Bytes(Bytes::from(chunk.data))));
        }
        if let Err(error) = sent {
            if let TrySendError::Full(_) = error {
                metrics::counter!("allotment_log_reads_cut").increment(1);
            }
            self.open.remove(&chunk.request);
            return Some(cancel(chunk.request));
        }
        if chunk.end {
            let end = match chunk.error.as_str() {
                "" => LogPiece::End,
                "not_found" => LogPiece::Missing,
                error => LogPiece::Broken(format!("the node could not read the log: {error}")),
            };
            // When this does not fit either, the reader asks again and gets it then.
            let _ = pieces.try_send(end);
            self.open.remove(&chunk.request);
        }
        None
    }

    /// Forgets reads whose readers are gone: the messages that tell the node so.
    pub fn sweep(&mut self) -> Vec<wire::to_agent::Message> {
        let gone: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, read)| read.pieces.is_closed())
            .map(|(request, _)| *request)
            .collect();
        gone.into_iter()
            .map(|request| {
                self.open.remove(&request);
                cancel(request)
            })
            .collect()
    }
}

fn cancel(request: u64) -> wire::to_agent::Message {
    wire::to_agent::Message::LogCancel(wire::LogCancel { request })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::links::Wanted;
    use domain::ids::AssignmentId;

    fn begin(reads: &mut Reads, room: usize) -> mpsc::Receiver<LogPiece> {
        let (pieces, receiver) = mpsc::channel(room);
        let request = LogRequest {
            wanted: Wanted {
                assignment: AssignmentId::new(),
                part: Part::Log,
                offset: 0,
                follow: true,
            },
            pieces,
        };
        assert!(reads.begin(request).is_some());
        receiver
    }

    fn chunk(request: u64, data: &[u8], end: bool) -> LogChunk {
        LogChunk {
            request,
            offset: 0,
            data: data.to_vec(),
            end,
            error: String::new(),
        }
    }

    #[test]
    fn a_slow_reader_is_cut_off_and_the_node_told() {
        let mut reads = Reads::default();
        let mut receiver = begin(&mut reads, 1);
        assert!(reads.pass(chunk(1, b"a", false)).is_none());
        assert!(reads.pass(chunk(1, b"b", false)).is_some(), "it is full");
        assert!(
            reads.pass(chunk(1, b"c", false)).is_none(),
            "it is forgotten"
        );
        assert_eq!(
            receiver.try_recv().ok(),
            Some(LogPiece::Bytes(Bytes::from_static(b"a")))
        );
        assert!(receiver.try_recv().is_err());
    }

    #[test]
    fn what_was_dropped_is_told_before_what_follows() {
        let mut reads = Reads::default();
        let mut receiver = begin(&mut reads, 8);
        for (offset, data) in [(0, b"ab"), (2, b"cd"), (100, b"yz"), (102, b"xx")] {
            reads.pass(LogChunk {
                offset,
                ..chunk(1, data, false)
            });
        }
        let mut told = Vec::new();
        while let Ok(piece) = receiver.try_recv() {
            told.push(piece);
        }
        let bytes = |text: &'static [u8]| LogPiece::Bytes(Bytes::from_static(text));
        assert_eq!(
            told,
            [
                bytes(b"ab"),
                bytes(b"cd"),
                LogPiece::Skip(100),
                bytes(b"yz"),
                bytes(b"xx")
            ]
        );
    }

    #[test]
    fn a_reader_that_went_away_is_swept() {
        let mut reads = Reads::default();
        drop(begin(&mut reads, 1));
        assert_eq!(reads.sweep().len(), 1);
        assert!(reads.sweep().is_empty());
    }

    #[test]
    fn the_end_of_a_log_is_passed_on() {
        let mut reads = Reads::default();
        let mut receiver = begin(&mut reads, 4);
        reads.pass(chunk(1, b"a", true));
        assert!(receiver.try_recv().is_ok());
        assert_eq!(receiver.try_recv().ok(), Some(LogPiece::End));
    }
}
