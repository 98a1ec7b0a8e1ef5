//! The connections that this replica holds: one for each node, the newest.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use domain::ids::{AssignmentId, NodeId};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::desired::Wanted;

/// The connections by node.
#[derive(Debug, Default)]
pub struct Connections {
    numbers: AtomicU64,
    nodes: Mutex<HashMap<NodeId, Handle>>,
}

#[derive(Debug)]
struct Handle {
    number: u64,
    /// Once its node may be told what to hold: of which assignments it is told nothing.
    open: Option<BTreeSet<AssignmentId>>,
    over: CancellationToken,
    wanted: watch::Sender<Option<Wanted>>,
}

/// A connection's own end of its entry.
#[derive(Debug)]
pub struct Entry {
    /// Its number, higher than that of every connection before it.
    pub number: u64,
    /// Cancelled when another connection takes the node over, or the server stops.
    pub over: CancellationToken,
    /// What its node is to hold.
    pub wanted: watch::Receiver<Option<Wanted>>,
}

impl Connections {
    /// Adds a connection; an older one of the same node is over with that.
    pub fn add(&self, node: NodeId, over: CancellationToken) -> Entry {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, wanted) = watch::channel(None);
        let handle = Handle {
            number,
            open: None,
            over: over.clone(),
            wanted: sender,
        };
        let mut nodes = self.lock();
        if let Some(older) = nodes.insert(node, handle) {
            older.over.cancel();
        }
        metrics::gauge!("allotment_agent_connections").set(count(&nodes));
        Entry {
            number,
            over,
            wanted,
        }
    }

    /// Forgets a connection; a newer one of the same node stays.
    pub fn remove(&self, node: NodeId, number: u64) {
        let mut nodes = self.lock();
        if nodes
            .get(&node)
            .is_some_and(|handle| handle.number == number)
        {
            nodes.remove(&node);
        }
        metrics::gauge!("allotment_agent_connections").set(count(&nodes));
    }

    /// Lets a connection be told what its node is to hold: what had not survived there is ended, so
    /// that what is read from now on asks nothing of the node a second time. Of what is `withheld`
    /// that is not so: its end was refused.
    pub fn open(&self, node: NodeId, number: u64, withheld: BTreeSet<AssignmentId>) {
        let mut nodes = self.lock();
        if let Some(handle) = nodes
            .get_mut(&node)
            .filter(|handle| handle.number == number)
        {
            handle.open = Some(withheld);
        }
    }

    /// The nodes that may be told what to hold, with the numbers of their connections.
    pub fn open_nodes(&self) -> Vec<(NodeId, u64)> {
        let nodes = self.lock();
        let open = nodes.iter().filter(|(_, handle)| handle.open.is_some());
        let mut open: Vec<_> = open.map(|(node, handle)| (*node, handle.number)).collect();
        open.sort_unstable();
        open
    }

    /// Hands a connection what its node is to hold; the connection is woken if that differs. What was
    /// read for an older connection of the node is not for a newer one.
    pub fn want(&self, node: NodeId, number: u64, mut wanted: Wanted) {
        let nodes = self.lock();
        if let Some(handle) = nodes.get(&node).filter(|handle| handle.number == number) {
            let withheld = handle.open.iter().flatten();
            for assignment in withheld {
                wanted.wants.remove(assignment);
            }
            handle.wanted.send_if_modified(|held| {
                let differs = held.as_ref() != Some(&wanted);
                if differs {
                    *held = Some(wanted);
                }
                differs
            });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, Handle>> {
        self.nodes
            .lock()
            .expect("no holder of this lock can panic: it only moves values")
    }
}

#[allow(clippy::cast_precision_loss)]
fn count(nodes: &HashMap<NodeId, Handle>) -> f64 {
    nodes.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_connection_ends_the_older_and_outlives_its_removal() {
        let connections = Connections::default();
        let node = NodeId::new();
        let older = connections.add(node, CancellationToken::new());
        let newer = connections.add(node, CancellationToken::new());
        assert!(older.over.is_cancelled());
        connections.remove(node, older.number);
        connections.open(node, older.number, BTreeSet::new());
        assert!(connections.open_nodes().is_empty());
        connections.open(node, newer.number, BTreeSet::new());
        assert_eq!(connections.open_nodes(), vec![(node, newer.number)]);
        assert!(!newer.over.is_cancelled());
        connections.remove(node, newer.number);
        assert!(connections.open_nodes().is_empty());
    }
}
