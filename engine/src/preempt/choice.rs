//! Which victim is next, and whether it may be taken as things stand.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::rc::Rc;

use super::search::{Candidate, Search, Unit};
use super::{Right, cost};
use crate::index::{Amount, Index};
use crate::ledger::{Ledger, Slot, Standing};
use crate::quota;
use crate::share::{Everybody, coarse, not_above, share};

impl Search<'_> {
    /// Whether a team borrows and, where shares are to be evened out, whether what holds it
    /// at the level where it parts from the newcomer's does. Two subtrees that are both
    /// within their guarantees owe each other nothing: else each would displace the other
    /// in turn, for ever.
    pub(super) fn borrows(&self, ledger: &Ledger<'_, '_>, team: usize, right: Right) -> bool {
        let index = ledger.index;
        let above = |t: usize| {
            ledger.held(self.newcomer.pool, t).gpu
                > index.pools[self.newcomer.pool].rows[t].guaranteed
        };
        above(team)
            && (right != Right::Share
                || self
                    .parting(index, team)
                    .is_some_and(|(_, loses)| above(loses)))
    }

    /// The teams in which the newcomer's and another's branches of the tree part.
    fn parting(&self, index: &Index<'_>, other: usize) -> Option<(usize, usize)> {
        let own = index.works[self.newcomer.work].team;
        let below = |of: usize, other: usize| {
            let path = index.teams[of].path.iter();
            path.take_while(|t| !index.teams[other].path.contains(t))
                .last()
                .copied()
        };
        Some((below(own, other)?, below(other, own)?))
    }

    /// Whether the newcomer is in the guarantee of its team, and of each team above it
    /// below the lowest one that it shares with the victim, with that amount.
    pub(super) fn inside_against(
        &self,
        ledger: &Ledger<'_, '_>,
        victim: usize,
        amount: Amount,
    ) -> bool {
        let index = ledger.index;
        let shared = &index.teams[victim].path;
        let own = &index.teams[index.works[self.newcomer.work].team].path;
        own.iter()
            .take_while(|t| !shared.contains(t))
            .all(|&t| quota::in_guarantee(ledger, self.newcomer.pool, t, amount))
    }

    /// Whether the newcomer's share with the workload is not above the loser's without
    /// the victim, at the level of the tree where the two part.
    pub(super) fn evens_out(
        &self,
        ledger: &mut Ledger<'_, '_>,
        victim: usize,
        amount: Amount,
    ) -> bool {
        let index = ledger.index;
        let pool = self.newcomer.pool;
        let Some((gains, loses)) = self.parting(index, victim) else {
            return false;
        };
        let mark = ledger.mark();
        let node = index.pools[pool].nodes[0];
        let each = amount / Amount::from(self.newcomer.workers.max(1));
        let slot = |_| {
            Rc::new(Slot {
                node,
                parts: Vec::new(),
                amount: each,
            })
        };
        ledger.settle(
            self.newcomer.work,
            (0..self.newcomer.workers).map(slot).collect(),
            Standing::Nominated,
        );
        let even = not_above(ledger, pool, gains, loses);
        ledger.rollback(mark);
        even
    }

    /// Whether what a team lost was borrowed however it may return: displacing its own
    /// team's lower work would not bring it into the guarantee, from where it would reclaim.
    pub(super) fn stays_out(&self, ledger: &Ledger<'_, '_>, unit: &Unit) -> bool {
        let index = ledger.index;
        let pool = self.newcomer.pool;
        let victim = &index.works[unit.victim];
        let lower = (0..index.works.len())
            .filter(|&w| index.works[w].team == victim.team)
            .filter(|&w| self.rules.open_to(ledger, unit.victim, w, Right::Priority))
            .flat_map(|w| ledger.slots(w))
            .filter(|slot| index.nodes[slot.node].pool == pool)
            .map(|slot| slot.amount)
            .sum::<Amount>();
        let left = ledger.held(pool, victim.team).gpu - lower;
        left + unit.amount > index.pools[pool].rows[victim.team].guaranteed
    }

    /// The next step of harm: of the borrower with the highest share, its lowest
    /// priority, the least cost, the latest start, the name.
    pub(super) fn next_unit(
        &self,
        ledger: &mut Ledger<'_, '_>,
        site: Option<&[usize]>,
        taken: &[Unit],
        spare: bool,
    ) -> Option<Unit> {
        // An elastic victim that has begun to shrink goes on until it is at its least.
        let inside = quota::in_guarantee(
            ledger,
            self.newcomer.pool,
            ledger.index.works[self.newcomer.work].team,
            self.newcomer.amount,
        );
        let mut shares: HashMap<usize, i128> = HashMap::new();
        let mut options: Vec<(Preference, Unit)> = Vec::new();
        for at in self.at_site(site) {
            let candidate = &self.candidates[at];
            let Some(unit) = self.unit(ledger, candidate) else {
                continue;
            };
            let own = candidate.right == Right::Priority;
            if !own && !self.borrows(ledger, candidate.team, candidate.right) {
                continue;
            }
            let team_share = if own {
                0
            } else {
                let fresh = || {
                    coarse(share(
                        ledger,
                        self.newcomer.pool,
                        candidate.team,
                        &Everybody,
                    ))
                };
                *shares.entry(candidate.team).or_insert_with(fresh)
            };
            let preference = Preference {
                // While the newcomer is outside its guarantee only its own team's work brings it in.
                own: own == inside,
                share: Reverse(team_share),
                priority: candidate.priority,
                cost: unit.cost,
                started: Reverse(candidate.started),
                at,
            };
            options.push((preference, unit));
        }
        options.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        // Equal amounts of one team and priority are rightful or not together.
        let mut known: HashMap<(usize, Amount, i64), bool> = HashMap::new();
        options.into_iter().find_map(|(preference, unit)| {
            let candidate = &self.candidates[preference.at];
            (self.open(ledger, candidate, &unit, taken)
                && (candidate.right == Right::Priority
                    || *known
                        .entry((candidate.team, unit.amount, candidate.priority))
                        .or_insert_with(|| self.rightful(ledger, candidate, &unit, spare))))
            .then_some(unit)
        })
    }

    /// The candidates that stand on a site, each once.
    fn at_site(&self, site: Option<&[usize]>) -> Vec<usize> {
        let Some(nodes) = site else {
            return (0..self.candidates.len()).collect();
        };
        let mut here: Vec<usize> = nodes
            .iter()
            .filter_map(|n| self.on_node.get(n))
            .flatten()
            .copied()
            .collect();
        if nodes.len() > 1 {
            here.sort_unstable();
            here.dedup();
        }
        here
    }

    /// The next thing that a candidate can lose: its highest rank, or at its least everything.
    fn unit(&self, ledger: &Ledger<'_, '_>, candidate: &Candidate) -> Option<Unit> {
        let slots = ledger.slots(candidate.work);
        if slots.is_empty() || ledger.standing(candidate.work) != Standing::Running {
            return None;
        }
        let least = ledger.index.works[candidate.work].row.workers_least() as usize;
        let keep = if slots.len() > least {
            slots.len() - 1
        } else {
            0
        };
        Some(Unit {
            victim: candidate.work,
            right: candidate.right,
            keep,
            amount: slots[keep..].iter().map(|s| s.amount).sum(),
            cost: cost(ledger.index, candidate.work, &slots[keep..]),
        })
    }

    /// Whether what the hour and the service allow leaves a victim open.
    fn open(
        &self,
        ledger: &Ledger<'_, '_>,
        candidate: &Candidate,
        unit: &Unit,
        taken: &[Unit],
    ) -> bool {
        let first = !taken.iter().any(|t| t.victim == unit.victim);
        let evicted = ledger.evicted(candidate.team);
        let team = candidate.team;
        (!first
            || self
                .rules
                .team_can_lose(ledger.index, self.newcomer.pool, team, evicted))
            && (unit.keep > 0 || service_can_lose(ledger, unit.victim))
    }

    /// Whether a victim of another team may be taken as things stand.
    fn rightful(
        &self,
        ledger: &mut Ledger<'_, '_>,
        candidate: &Candidate,
        unit: &Unit,
        spare: bool,
    ) -> bool {
        let mark = ledger.mark();
        let before = self.undercut_of(ledger, candidate.team);
        ledger.release(unit.victim, unit.keep);
        // What is guaranteed is not borrowed, and evening out what is borrowed leaves it alone.
        let undercuts = (spare || candidate.right == Right::Share)
            && self.undercut_of(ledger, candidate.team) > before;
        let rightful = match candidate.right {
            // In a mixed set the newcomer may come into its guarantee by the end.
            Right::Reclaim => {
                self.newcomer.rights.len() > 1
                    || self.inside_against(ledger, candidate.team, self.newcomer.amount)
            }
            _ => {
                self.stays_out(ledger, unit)
                    && self.evens_out(ledger, candidate.team, self.newcomer.amount)
            }
        };
        ledger.rollback(mark);
        rightful && !undercuts
    }

    /// How far a victim's team, and those above it below what it shares with the
    /// newcomer, are under their guarantees.
    fn undercut_of(&self, ledger: &Ledger<'_, '_>, team: usize) -> Amount {
        let index = ledger.index;
        let own = &index.teams[index.works[self.newcomer.work].team].path;
        let rows = &index.pools[self.newcomer.pool].rows;
        let above = index.teams[team]
            .path
            .iter()
            .take_while(|t| !own.contains(t));
        above
            .map(|&t| (rows[t].guaranteed - ledger.held(self.newcomer.pool, t).gpu).max(0))
            .sum()
    }

    pub(super) fn undercut(&self, ledger: &Ledger<'_, '_>, units: &[Unit]) -> Amount {
        let mut teams: Vec<usize> = units
            .iter()
            .filter(|u| u.right != Right::Priority)
            .map(|u| ledger.index.works[u.victim].team)
            .collect();
        teams.sort_unstable();
        teams.dedup();
        teams.into_iter().map(|t| self.undercut_of(ledger, t)).sum()
    }
}

/// The order in which victims are taken; the least is next.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    own: bool,
    share: Reverse<i128>,
    priority: i64,
    cost: i128,
    started: Reverse<i64>,
    /// The candidates are in the order of their names.
    at: usize,
}

/// Whether a service keeps its least replicas without one more.
pub(crate) fn service_can_lose(ledger: &Ledger<'_, '_>, victim: usize) -> bool {
    let index = ledger.index;
    let Some(service) = index.works[victim].service else {
        return true;
    };
    let facts = &index.services[service];
    let running = facts
        .replicas
        .iter()
        .filter(|&&r| ledger.standing(r) == Standing::Running)
        .count();
    running > facts.min_replicas as usize
}
