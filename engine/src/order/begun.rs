//! What is put back into a queue: work that is looked at after another, and elastic work that starts with what is in
//! its guarantee, to be taken once more as a borrower's for the rest.

use std::rc::Rc;

use super::Picker;
use crate::index::Index;
use crate::ledger::Slot;

impl Picker {
    /// Puts back what was taken last, to be taken as if it had not been.
    pub fn untake(&mut self, index: &Index<'_>, work: usize) {
        let Some(at) = self.line.position(index, self.pool, work) else {
            return;
        };
        let team = index.works[work].team;
        self.put_at(index, team, at);
        let amount = self.line.queues[team][at].amount;
        if let Some(amounts) = self.amounts[team].as_mut().filter(|_| amount > 0) {
            *amounts.entry(amount).or_default() += 1;
        }
        self.inside.version = None;
    }

    /// Whether anything of other teams is in their guarantees, as far as was looked at last.
    pub fn others_inside(&self, team: usize) -> bool {
        let found = self.inside.found.iter().enumerate();
        found
            .filter(|(other, _)| *other != team)
            .any(|(_, (_, at))| at.is_some())
    }

    fn put_at(&mut self, index: &Index<'_>, team: usize, at: usize) {
        self.done[team][at] = false;
        self.first[team] = self.first[team].min(at);
        self.total += 1;
        for &above in &index.teams[team].path {
            self.left[above] += 1;
        }
    }

    /// Puts back what was taken as in its guarantee and starts so with fewer workers than it asks for; where
    /// it would have the others is kept in mind.
    pub fn put_back(&mut self, index: &Index<'_>, work: usize, others: Vec<Rc<Slot>>) {
        let Some(at) = self.line.position(index, self.pool, work) else {
            return;
        };
        let team = index.works[work].team;
        self.put_at(index, team, at);
        self.begun.insert((team, at), others);
    }

    /// Where work that was taken would have its other workers, if it had been put back.
    pub fn take_begun(&mut self, index: &Index<'_>, work: usize) -> Option<Vec<Rc<Slot>>> {
        if self.begun.is_empty() {
            return None;
        }
        let at = self.line.position(index, self.pool, work)?;
        self.begun.remove(&(index.works[work].team, at))
    }

    /// Whether anything of a team was put back.
    pub fn has_begun(&self, team: usize) -> bool {
        let all = (team, 0)..(team + 1, 0);
        self.begun.range(all).next().is_some()
    }

    /// Takes all that was put back out of the queue, with where it would have its other workers.
    pub fn take_all_begun(&mut self, index: &Index<'_>) -> Vec<(usize, Vec<Rc<Slot>>)> {
        let places: Vec<(usize, usize)> = self.begun.keys().copied().collect();
        let taken = places.into_iter().filter_map(|(team, at)| {
            self.strike(index, team, at);
            let others = self.begun.remove(&(team, at))?;
            Some((self.line.queues[team][at].work, others))
        });
        taken.collect()
    }
}
