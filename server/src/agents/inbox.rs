//! What a node has said and what is yet to be applied: bounded and merged, so that its stream can
//! be read on whatever the database does, and its heartbeats wait for nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use protocol::report::{Fact, Inventory};
use tokio::sync::Notify;

/// Facts that wait at a time, a few MiB. Of more the later ones are let fall: the node sends again
/// what is not acknowledged.
const FACTS_MAX: usize = 4_096;

/// The inbox of one connection.
#[derive(Debug, Default)]
pub struct Inbox {
    waiting: Mutex<Waiting>,
    more: Notify,
}

/// What waits.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Facts by number.
    pub facts: BTreeMap<u64, Fact>,
    /// Whether facts came, which are to be acknowledged even where all of them were known.
    pub facts_came: bool,
    /// The newest inventory.
    pub inventory: Option<Box<Inventory>>,
    /// Whether the node is to be looked at: it beats and does not count as ready.
    pub look: bool,
}

impl Waiting {
    fn empty(&self) -> bool {
        !self.facts_came && self.inventory.is_none() && !self.look
    }
}

impl Inbox {
    /// Puts facts in.
    pub fn put_facts(&self, facts: Vec<Fact>) {
        self.put(|waiting| {
            waiting.facts_came = true;
            for fact in facts {
                keep_first(&mut waiting.facts, fact, FACTS_MAX);
            }
        });
    }

    /// Puts an inventory in, in place of one that waits.
    pub fn put_inventory(&self, inventory: Box<Inventory>) {
        self.put(|waiting| waiting.inventory = Some(inventory));
    }

    /// Asks for a look at whether the node is ready.
    pub fn ask_look(&self) {
        self.put(|waiting| waiting.look = true);
    }

    /// Takes out what waits; waits for something.
    pub async fn take(&self) -> Waiting {
        loop {
            let waiting = std::mem::take(&mut *self.lock());
            if !waiting.empty() {
                return waiting;
            }
            self.more.notified().await;
        }
    }

    fn put(&self, change: impl FnOnce(&mut Waiting)) {
        change(&mut self.lock());
        self.more.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        // A panic elsewhere leaves nothing half put: values are only moved.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the facts with the lowest numbers: those are applied first, and a later one that is let
/// fall is sent again.
pub fn keep_first(facts: &mut BTreeMap<u64, Fact>, fact: Fact, most: usize) {
    facts.insert(fact.number, fact);
    if facts.len() > most {
        facts.pop_last();
        metrics::counter!("allotment_agent_facts_put_off").increment(1);
    }
}
