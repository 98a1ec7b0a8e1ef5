//! Limits that let work have more, since other work gives way in this cycle.

use super::Cycle;
use super::dead::Dead;
use crate::ledger::Standing;
use crate::order::Picker;

impl Cycle<'_, '_> {
    /// Says that work gives way, or ends.
    pub(super) fn loses(&mut self, work: usize) {
        let team = self.index.works[work].team;
        self.lost.push(team);
        self.losers.insert(team);
    }

    /// Forgets who found no start, where limits may let them have what victims leave.
    pub(super) fn ease(&mut self, pool: usize, dead: &mut Dead) {
        let lost = std::mem::take(&mut self.lost);
        if lost.is_empty() {
            return;
        }
        let root = |team: usize| self.index.teams[team].path.last();
        let eased = |team: usize| lost.iter().any(|&other| root(other) == root(team));
        (self.failed).retain(|&(there, team, _), _| there != pool || !eased(team));
        dead.ease(eased);
    }

    /// Starts what was looked at before others of its team, or below the same limit, gave way, if that was all that
    /// kept it from starting.
    pub(super) fn start_eased(&mut self) {
        if self.losers.is_empty() {
            return;
        }
        for pool in 0..self.index.pools.len() {
            let passed = self.passed[pool].iter().copied();
            let waits = passed.filter(|&work| {
                self.ledger.standing(work) == Standing::Idle && self.is_eased(work, pool)
            });
            let mut eased: Vec<usize> = waits.collect();
            eased.retain(|&work| self.could_start(work, pool));
            if eased.is_empty() {
                continue;
            }
            for &work in &eased {
                let facts = &self.index.works[work];
                self.failed.remove(&(pool, facts.team, facts.shape));
            }
            let picker = Picker::of(self.index, pool, &eased);
            let order = self.passed[pool].clone();
            self.start_each(pool, picker, false);
            self.passed[pool] = order;
        }
    }

    /// Whether a limit binds a workload and any who lost something, or the guarantee of what starts in it alone.
    fn is_eased(&self, work: usize, pool: usize) -> bool {
        let rows = &self.index.pools[pool].rows;
        let team = self.index.works[work].team;
        if self.is_firm(work, pool) && self.losers.contains(&team) {
            return true;
        }
        let path = self.index.teams[team].path.iter();
        let mut bound =
            path.filter(|&&team| rows[team].limit.is_some() || rows[team].max_per_user.is_some());
        bound.any(|team| {
            let mut losers = self.losers.iter();
            losers.any(|&loser| self.index.teams[loser].path.contains(team))
        })
    }
}
