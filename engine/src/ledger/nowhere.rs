//! Gangs that have no place to start, and from which node on none takes a worker, kept until a node that has come to
//! have more free could; and where those that have a place were placed, as long as all stands where it does.

use std::collections::BTreeSet;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::{Ledger, Slot};
use crate::place::{Gang, Query, gang, holds_one, place};

/// Gangs that are kept in mind at most: a cluster sees some hundred kinds of work.
const GANGS_MAX: usize = 100_000;
/// Nodes that are kept in mind, for each node that there is: then all is forgotten, which costs a
/// look for each kind of work that waits.
const GAINED_EACH: usize = 4;

/// What had been found out, and what was gained since.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    looks: u64,
    gained: usize,
}

impl Mark {
    /// Before everything: what is gained on the way there counts.
    pub const START: Self = Self {
        looks: u64::MAX,
        gained: 0,
    };
}

/// What is known to have no place.
#[derive(Debug, Default)]
pub(crate) struct Nowhere {
    /// By gang: nodes before this one in `gained` are known to do nothing for it.
    gangs: FxHashMap<Gang, usize>,
    /// By gang of one worker: which of the last nodes of its pool do not take it.
    full: FxHashMap<Gang, Full>,
    /// Nodes on which something has become free, in that order.
    gained: Vec<usize>,
    /// By node: how long `gained` was when it was last written there.
    last: Vec<usize>,
    /// How long `gained` was when anybody last read it to its end.
    read: usize,
    /// How often anybody did.
    looks: u64,
}

/// The last nodes of a pool, by their places in its list, that do not take a worker.
#[derive(Debug)]
struct Full {
    /// From this place on none did.
    from: usize,
    /// Places after it that may by now.
    but: BTreeSet<usize>,
    /// Nodes before this one in `gained` are known.
    read: usize,
}

impl Nowhere {
    /// A point to go back to.
    pub fn mark(&self) -> Mark {
        Mark {
            looks: self.looks,
            gained: self.gained.len(),
        }
    }

    /// Whether something was found out since a point. If not, all is as whoever looked before has
    /// seen it once it is gone back to, and nothing was gained.
    pub fn seen_since(&mut self, mark: Mark) -> bool {
        if self.looks != mark.looks {
            return true;
        }
        for node in self.gained.drain(mark.gained.min(self.gained.len())..) {
            self.last[node] = 0;
        }
        false
    }

    /// Something has become free on a node.
    pub fn gain(&mut self, node: usize) {
        if self.last.len() <= node {
            self.last.resize(node + 1, 0);
        }
        // Whom it matters to has it before him still.
        if self.last[node] > self.read {
            return;
        }
        self.gained.push(node);
        self.last[node] = self.gained.len();
        if self.gained.len() > GAINED_EACH * self.last.len() + 1000 {
            self.forget();
        }
    }

    fn forget(&mut self) {
        *self = Self {
            looks: self.looks,
            ..Self::default()
        };
    }

    fn insert(&mut self, gang: Gang) {
        if self.gangs.len() > GANGS_MAX {
            self.forget();
        }
        let read = self.read_all();
        self.gangs.insert(gang, read);
    }

    /// How much there is to know, now that somebody knows it.
    fn read_all(&mut self) -> usize {
        self.looks += 1;
        self.read = self.gained.len();
        self.read
    }
}

impl Ledger<'_, '_> {
    /// Whether a gang is known to have no place to start. Whoever has the place that nobody had
    /// before has a worker on a node on which something became free.
    pub fn goes_nowhere(&mut self, query: Query<'_>) -> bool {
        let Some(gang) = gang(self.index, query) else {
            return false;
        };
        let Some(&from) = self.nowhere.gangs.get(&gang) else {
            return false;
        };
        let gained = &self.nowhere.gained[from..];
        if gained.iter().any(|&node| holds_one(self, query, node)) {
            self.nowhere.gangs.remove(&gang);
            return false;
        }
        if from < self.nowhere.gained.len() {
            self.nowhere.insert(gang);
        }
        true
    }

    /// A place for a gang to start, looked for where it is not known.
    pub fn place_to_start(&mut self, query: Query<'_>) -> Option<Vec<Rc<Slot>>> {
        if self.goes_nowhere(query) {
            return None;
        }
        let gang = gang(self.index, query);
        if let Some((stands, slots)) = gang.and_then(|gang| self.placed.get(&gang))
            && *stands == self.stands
        {
            return Some(slots.clone());
        }
        let found = place(self, query);
        if let Some(gang) = gang {
            match &found {
                Some(slots) => {
                    self.placed.insert(gang, (self.stands, slots.clone()));
                }
                None => self.nowhere.insert(gang),
            }
        }
        found
    }

    /// A place for one worker on the last node that takes it: what starts takes it last, where nodes are
    /// filled one after another, so that it stays known for long.
    pub fn last_place(&mut self, query: Query<'_>) -> Option<Vec<Rc<Slot>>> {
        let gang = gang(self.index, query)?;
        let nodes = &self.index.pools[query.pool].nodes;
        let known = self.nowhere.full.remove(&gang);
        let mut full = known.unwrap_or_else(|| Full {
            from: nodes.len(),
            but: BTreeSet::new(),
            read: self.nowhere.gained.len(),
        });
        let gained = self.nowhere.gained[full.read..].iter();
        let places = gained.filter_map(|node| nodes.binary_search(node).ok());
        full.but.extend(places.filter(|at| *at >= full.from));
        let mut found = None;
        while let Some(at) = full.but.last().copied().or(full.from.checked_sub(1)) {
            let last = [nodes[at]];
            if holds_one(self, query, nodes[at]) {
                found = place(self, query.only(&last));
            }
            if found.is_some() {
                break;
            }
            if full.but.pop_last().is_none() {
                full.from = at;
            }
        }
        if self.nowhere.full.len() > GANGS_MAX {
            self.nowhere.forget();
        }
        full.read = self.nowhere.read_all();
        self.nowhere.full.insert(gang, full);
        found
    }
}
