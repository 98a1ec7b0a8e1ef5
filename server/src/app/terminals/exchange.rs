//! Where who asks for a terminal meets the node that opens it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use domain::ids::{NodeId, RequestId};
use protocol::wire::{TerminalBegin, TerminalDown, TerminalUp};
use tokio::sync::mpsc;

/// Messages of a terminal that wait at each end of it, of 32 KiB each: enough to keep a line busy, and
/// what is not taken keeps its writer waiting.
pub const MESSAGES_WAITING_MAX: usize = 8;
/// Terminals on one node at a time, of all people; an agent opens no more than twice as many.
pub const PER_NODE_MAX: usize = 32;
/// Terminals that one replica holds at a time: a quarter of the connections that it accepts would
/// otherwise be theirs, since one is not counted any more once it has become a terminal's.
pub const IN_ALL_MAX: usize = 1_024;
/// Wishes that wait for a node's connection to pass them on.
const WISHES_MAX: usize = PER_NODE_MAX;

/// The asker's ends of a terminal; dropping them ends it.
pub struct Ends {
    /// To the node.
    pub down: mpsc::Sender<TerminalDown>,
    /// From the node.
    pub up: mpsc::Receiver<TerminalUp>,
    /// The place that it takes; none where another replica holds it.
    pub place: Option<Place>,
}

/// The node's ends of a terminal.
pub struct NodeEnds {
    /// From the asker.
    pub down: mpsc::Receiver<TerminalDown>,
    /// To the asker.
    pub up: mpsc::Sender<TerminalUp>,
}

/// A terminal's place among those of its node, until it is dropped.
pub struct Place {
    exchange: Arc<Inner>,
    node: NodeId,
    id: String,
}

/// Why a terminal could not be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// This replica does not hold the node's connection.
    NotHere,
    /// As many are open as may be.
    Full,
}

/// Opens terminals through another replica; `agents` brings it, since it knows the replicas' port.
pub trait Forward: Send + Sync {
    /// Asks the replica at `address`.
    fn open(
        &self,
        address: String,
        node: NodeId,
        begin: TerminalBegin,
    ) -> Pin<Box<dyn Future<Output = anyhow::Result<Ends>> + Send>>;
}

/// The meeting place of one replica. Cheap to clone.
#[derive(Clone, Default)]
pub struct Exchange(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    forward: OnceLock<Box<dyn Forward>>,
}

#[derive(Default)]
struct State {
    connections: HashMap<NodeId, (u64, mpsc::Sender<String>)>,
    /// Asked for, and yet to be opened by the node.
    waiting: HashMap<String, (NodeId, NodeEnds)>,
    open: HashMap<NodeId, usize>,
}

impl Exchange {
    /// Adds the connection of a node under its number: what it is to be asked comes out.
    pub fn add(&self, node: NodeId, connection: u64) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::channel(WISHES_MAX);
        self.0
            .state()
            .connections
            .insert(node, (connection, sender));
        receiver
    }

    /// Forgets a connection; a newer one of the same node stays.
    pub fn remove(&self, node: NodeId, connection: u64) {
        let mut state = self.0.state();
        let held = state.connections.get(&node);
        if held.is_some_and(|(number, _)| *number == connection) {
            state.connections.remove(&node);
        }
    }

    /// Asks a node for a terminal. What is sent waits until the node has opened it.
    pub fn ask(&self, node: NodeId, begin: TerminalBegin) -> Result<Ends, Refused> {
        let mut state = self.0.state();
        let (_, wishes) = state.connections.get(&node).ok_or(Refused::NotHere)?;
        let in_all: usize = state.open.values().sum();
        let on_node = state.open.get(&node).copied().unwrap_or(0);
        if on_node >= PER_NODE_MAX || in_all >= IN_ALL_MAX {
            return Err(Refused::Full);
        }
        // Random: whoever joins by it proves no more than that, its certificate says which node it is.
        let id = RequestId::new().to_string();
        wishes.try_send(id.clone()).map_err(|_| Refused::Full)?;
        let (down, node_down) = mpsc::channel(MESSAGES_WAITING_MAX);
        let (node_up, up) = mpsc::channel(MESSAGES_WAITING_MAX);
        let first = TerminalDown {
            message: Some(protocol::wire::terminal_down::Message::Begin(begin)),
        };
        down.try_send(first).map_err(|_| Refused::Full)?;
        let ends = NodeEnds {
            down: node_down,
            up: node_up,
        };
        state.waiting.insert(id.clone(), (node, ends));
        *state.open.entry(node).or_default() += 1;
        drop(state);
        let place = Place {
            exchange: Arc::clone(&self.0),
            node,
            id,
        };
        Ok(Ends {
            down,
            up,
            place: Some(place),
        })
    }

    /// Gives a node its ends of a terminal that was asked of it; once.
    pub fn join(&self, node: NodeId, id: &str) -> Option<NodeEnds> {
        let mut state = self.0.state();
        if state
            .waiting
            .get(id)
            .is_none_or(|(asked, _)| *asked != node)
        {
            return None;
        }
        state.waiting.remove(id).map(|(_, ends)| ends)
    }

    /// Brings what opens terminals through other replicas; once, at the start.
    pub fn forward_by(&self, forward: impl Forward + 'static) {
        // A second listener in one process, as tests have, keeps the first one's.
        let _ = self.0.forward.set(Box::new(forward));
    }

    /// Asks the replica at `address` for a terminal on a node whose connection it holds.
    pub async fn forward(
        &self,
        address: String,
        node: NodeId,
        begin: TerminalBegin,
    ) -> anyhow::Result<Ends> {
        let forward = self.0.forward.get();
        let forward =
            forward.ok_or_else(|| anyhow::anyhow!("this replica has no port for others"))?;
        forward.open(address, node, begin).await
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.exchange.state();
        state.waiting.remove(&self.id);
        if let Some(open) = state.open.get_mut(&self.node) {
            *open -= 1;
            if *open == 0 {
                state.open.remove(&self.node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_joined_once_and_by_its_node_alone() {
        let exchange = Exchange::default();
        let (node, other) = (NodeId::new(), NodeId::new());
        let begin = TerminalBegin::default();
        assert!(matches!(
            exchange.ask(node, begin.clone()),
            Err(Refused::NotHere)
        ));
        let mut wishes = exchange.add(node, 1);
        let ends = exchange.ask(node, begin).expect("room");
        let id = wishes.try_recv().expect("asked");
        assert!(exchange.join(other, &id).is_none());
        assert!(exchange.join(node, &id).is_some());
        assert!(exchange.join(node, &id).is_none());
        drop(ends);
        assert!(exchange.0.state().open.is_empty());
    }

    #[test]
    fn a_node_has_so_many_terminals_and_what_is_given_up_is_forgotten() {
        let exchange = Exchange::default();
        let node = NodeId::new();
        let mut wishes = exchange.add(node, 1);
        let ask = || exchange.ask(node, TerminalBegin::default());
        let mut open: Vec<Ends> = (0..PER_NODE_MAX).map(|_| ask().expect("room")).collect();
        assert!(matches!(ask(), Err(Refused::Full)));
        let first = wishes.try_recv().expect("asked");
        drop(open.remove(0));
        assert!(exchange.join(node, &first).is_none());
        assert!(ask().is_ok());
    }
}
