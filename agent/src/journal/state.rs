//! What the journal's records add up to.

use std::collections::{BTreeMap, HashSet, VecDeque};

use domain::ids::AssignmentId;
use protocol::desired::Epoch;

use super::record::{Fact, FactKind, Kept, Record, VERSION};

/// Most tombstones kept. A connection begins with a full set, so that only what was sent
/// shortly before an end can come after it: days' worth of ends on a busy node.
const TOMBSTONES_MAX: usize = 20_000;

/// All that an agent remembers.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The journal's id.
    pub journal_id: String,
    /// The boot during which the last records were written.
    pub boot_id: String,
    /// The highest epoch seen.
    pub epoch: Option<Epoch>,
    /// What the node holds.
    pub kept: BTreeMap<AssignmentId, Kept>,
    /// What the server has not acknowledged, in order.
    pub facts: VecDeque<Fact>,
    /// The number of the next fact; the first is 1.
    pub next_fact: u64,
    tombstones: HashSet<AssignmentId>,
    tombstones_by_age: VecDeque<AssignmentId>,
}

impl State {
    /// Takes a record in.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Head {
                journal_id,
                next_fact,
                ..
            } => {
                self.journal_id = journal_id;
                self.next_fact = next_fact;
            }
            Record::Boot { boot_id } => self.boot_id = boot_id,
            Record::Epoch { timeline, number } => {
                self.epoch = self.epoch.max(Some(Epoch { timeline, number }));
            }
            Record::Accepted(kept) => {
                self.kept.insert(kept.assignment_id, kept);
            }
            Record::Fact(fact) => self.apply_fact(fact),
            Record::Acknowledged { up_to } => {
                while self.facts.front().is_some_and(|fact| fact.number <= up_to) {
                    self.facts.pop_front();
                }
            }
            Record::Tombstone { assignment_id } => self.bury(assignment_id),
        }
    }

    fn apply_fact(&mut self, fact: Fact) {
        let kept = self.kept.get_mut(&fact.assignment_id);
        match (&fact.kind, kept) {
            (FactKind::Accepted, _) => {}
            (FactKind::Started { .. }, Some(kept)) => kept.started = true,
            (FactKind::Exited { .. } | FactKind::Refused { .. }, Some(kept)) => kept.ended = true,
            (FactKind::Started { .. } | FactKind::Exited { .. }, None) => {}
            (FactKind::Refused { .. }, None) | (FactKind::Released, _) => {
                self.bury(fact.assignment_id);
            }
        }
        self.next_fact = self.next_fact.max(fact.number + 1);
        self.facts.push_back(fact);
    }

    fn bury(&mut self, id: AssignmentId) {
        self.kept.remove(&id);
        if self.tombstones.insert(id) {
            self.tombstones_by_age.push_back(id);
        }
        if self.tombstones_by_age.len() > TOMBSTONES_MAX
            && let Some(oldest) = self.tombstones_by_age.pop_front()
        {
            self.tombstones.remove(&oldest);
        }
    }

    /// Whether an assignment has ended here for good.
    pub fn buried(&self, id: AssignmentId) -> bool {
        self.tombstones.contains(&id)
    }

    /// The number of the first fact that the server has not acknowledged; that of the next one
    /// where it knows all.
    pub fn first_untold(&self) -> u64 {
        self.facts
            .front()
            .map_or(self.next_fact, |fact| fact.number)
    }

    /// Whether the server has yet to learn that an assignment was released.
    pub fn release_untold(&self, id: AssignmentId) -> bool {
        let mut facts = self.facts.iter();
        facts.any(|fact| fact.assignment_id == id && fact.kind == FactKind::Released)
    }

    /// Whether the server has yet to learn something of an assignment.
    pub fn untold(&self, id: AssignmentId) -> bool {
        self.facts.iter().any(|fact| fact.assignment_id == id)
    }

    /// The fewest records that add up to the same.
    pub fn records(&self) -> Vec<Record> {
        // What acknowledged facts said is in `kept` and the tombstones, so that they go.
        let head = Record::Head {
            version: VERSION,
            journal_id: self.journal_id.clone(),
            next_fact: self.next_fact,
        };
        let boot = Record::Boot {
            boot_id: self.boot_id.clone(),
        };
        let tombstones = self.tombstones_by_age.iter();
        [head, boot]
            .into_iter()
            .chain(self.epoch.map(Record::from))
            .chain(tombstones.map(|id| Record::Tombstone { assignment_id: *id }))
            .chain(self.kept.values().cloned().map(Record::Accepted))
            .chain(self.facts.iter().cloned().map(Record::Fact))
            .collect()
    }
}
