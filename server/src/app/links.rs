//! The nodes whose streams this replica holds, and how a reader of logs gets at them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Mutex, OnceLock};

use bytes::Bytes;
use domain::ids::{AssignmentId, NodeId};
use tokio::sync::mpsc;

/// Chunks of a log that wait for a slow reader, of 64 KiB each; when they are full the reader
/// is cut off, since the node's one stream must not wait for it.
pub const CHUNKS_WAITING_MAX: usize = 32;
/// Requests that wait for a node's stream to take them, as many as it reads; more are refused.
pub const REQUESTS_WAITING_MAX: usize = 512;

/// One piece of a log, or how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogPiece {
    /// Bytes, in order.
    Bytes(Bytes),
    /// What follows begins at that byte: what is before it was dropped.
    Skip(i64),
    /// It is complete.
    End,
    /// The node does not have it: not yet, or not any more.
    Missing,
    /// It could not be read, or not to its end; the reason in words.
    Broken(String),
}

/// What is read of an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Its log.
    Log,
    /// The list of what it left, as JSON.
    Results,
    /// The file of that number in the list.
    Result(u32),
}

/// What is read, and from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Whose.
    pub assignment: AssignmentId,
    /// Which part.
    pub part: Part,
    /// The first byte.
    pub offset: i64,
    /// Whether to go on as it grows.
    pub follow: bool,
}

/// A wish to read a log, as handed to the holder of the node's stream. It is over when the
/// receiver of `pieces` is dropped.
#[derive(Debug)]
pub struct LogRequest {
    /// What is read.
    pub wanted: Wanted,
    /// Where the pieces go.
    pub pieces: mpsc::Sender<LogPiece>,
}

/// Reads a log through another replica; `agents` brings it, since it knows the replicas' port.
pub trait Forward: Send + Sync {
    /// Asks the replica at `address`.
    fn read(
        &self,
        address: String,
        node: NodeId,
        wanted: Wanted,
    ) -> Pin<Box<dyn Future<Output = anyhow::Result<mpsc::Receiver<LogPiece>>> + Send>>;
}

/// The streams by node. A node has at most one; a newer one replaces it.
#[derive(Default)]
pub struct Links {
    nodes: Mutex<HashMap<NodeId, (u64, mpsc::Sender<LogRequest>)>>,
    forward: OnceLock<Box<dyn Forward>>,
    agents_address: OnceLock<SocketAddr>,
}

impl Links {
    /// Adds the stream of a node under its connection's number.
    pub fn add(&self, node: NodeId, connection: u64) -> mpsc::Receiver<LogRequest> {
        let (sender, receiver) = mpsc::channel(REQUESTS_WAITING_MAX);
        self.lock().insert(node, (connection, sender));
        receiver
    }

    /// Forgets a connection's stream; a newer one's stays.
    pub fn remove(&self, node: NodeId, connection: u64) {
        let mut nodes = self.lock();
        if nodes
            .get(&node)
            .is_some_and(|(held, _)| *held == connection)
        {
            nodes.remove(&node);
        }
    }

    /// Asks a node for a log. Nothing when this replica does not hold its stream, or when too
    /// many requests wait for it already.
    pub fn request(&self, node: NodeId, wanted: Wanted) -> Option<mpsc::Receiver<LogPiece>> {
        let (pieces, receiver) = mpsc::channel(CHUNKS_WAITING_MAX);
        let request = LogRequest { wanted, pieces };
        let nodes = self.lock();
        let (_, sender) = nodes.get(&node)?;
        sender.try_send(request).ok()?;
        Some(receiver)
    }

    /// Notes where agents call; once, at the start.
    pub fn opened(&self, agents_address: SocketAddr) {
        let _ = self.agents_address.set(agents_address);
    }

    /// Where agents call, once that port is open.
    pub fn agents_address(&self) -> Option<SocketAddr> {
        self.agents_address.get().copied()
    }

    /// Brings what reads logs through other replicas; once, at the start.
    pub fn forward_by(&self, forward: impl Forward + 'static) {
        // A second listener in one process, as tests have, keeps the first one's.
        let _ = self.forward.set(Box::new(forward));
    }

    /// Asks the replica at `address` for a log of a node whose stream it holds.
    pub async fn forward(
        &self,
        address: String,
        node: NodeId,
        wanted: Wanted,
    ) -> anyhow::Result<mpsc::Receiver<LogPiece>> {
        let forward = self
            .forward
            .get()
            .ok_or_else(|| anyhow::anyhow!("this replica has no port for others"))?;
        forward.read(address, node, wanted).await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, (u64, mpsc::Sender<LogRequest>)>> {
        self.nodes
            .lock()
            .expect("no holder of this lock can panic: it only moves values")
    }
}
