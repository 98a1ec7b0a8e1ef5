//! Which team loses next in a whole pool: the borrowers in the order of their shares, and what each may lose.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::Right;
use super::herd::{Known, Member};
use super::search::{Search, Unit};
use crate::ledger::{Held, Ledger};

/// What the teams of a pool may lose.
#[derive(Debug, Default, Clone)]
pub(super) struct Front {
    /// Whether the newcomer was in its guarantee then.
    inside: bool,
    /// The first to lose something first.
    flocks: Vec<Flock>,
}

/// Who may lose something to whom before anything is taken: pool and team of the newcomer, whether
/// it may take its own team's work, by which right that of others, and whether it is in its guarantee.
type Asked = (usize, usize, bool, Option<Right>, bool);

/// What was told so.
#[derive(Debug, Default)]
pub(crate) struct Fronts {
    /// The number of what teams held then.
    version: u64,
    told: FxHashMap<Asked, Front>,
}

/// A team that may lose something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flock {
    /// What decides between teams, the least first: whose work is taken first at all, and the
    /// highest borrower share.
    pub(super) first: (bool, Reverse<i128>),
    team: usize,
    pub(super) right: Right,
}

impl Search<'_> {
    /// The next step of harm in the whole pool, in the same order.
    pub(super) fn next_anywhere(
        &self,
        ledger: &mut Ledger<'_, '_>,
        front: &mut Front,
        known: &mut Known,
        taken: &[Unit],
        spare: bool,
    ) -> Option<Unit> {
        if let Some(last) = taken.last() {
            known.step(ledger.index, self.rules, last, self.newcomer.work);
        }
        self.look_again(ledger, front, taken);
        let shrunk = taken.iter().filter(|t| t.keep > 0);
        let shrunk = shrunk.map(|t| (t.victim, t.right));
        // What this plan has shrunk for another before is a candidate like all else.
        let before = self.rules.shrunk();
        let before = before.filter(|&(work, right)| self.is_candidate(ledger, work, right));
        let shrunk: Vec<(usize, Right)> = shrunk.chain(before).collect();
        let mut even = FxHashMap::default();
        front
            .flocks
            .chunk_by(|a, b| a.first == b.first)
            .find_map(|alike| {
                let left = alike.iter().filter(|flock| !known.is_spent(flock.team));
                let left: Vec<Flock> = left.copied().collect();
                if left.is_empty() {
                    return None;
                }
                let alike = self.open_with(ledger, &left, &mut even);
                let shrunk = self.shrunk(ledger, &alike, &shrunk);
                let next = self.next_of(ledger, &alike, shrunk, taken, spare, known);
                if next.is_none() {
                    known.spend(left.iter().map(|flock| flock.team));
                }
                next
            })
    }

    /// What teams may lose now. Only those of which something may have changed with the last step
    /// are weighed anew: a victim changes what its team and those above it hold. That decides of
    /// others only where their branch of the tree, which is the victim's too, borrows no more, or
    /// where the newcomer comes into its guarantee.
    fn look_again(&self, ledger: &mut Ledger<'_, '_>, front: &mut Front, taken: &[Unit]) {
        let inside = self.inside(ledger);
        let Some(last) = taken.last() else {
            *front = self.first_look(ledger, inside);
            return;
        };
        if front.inside != inside {
            *front = self.look_at_all(ledger, inside);
            return;
        }
        let index = ledger.index;
        let tree = |team: usize| index.teams[team].path.last().copied();
        let loser = index.works[last.victim].team;
        let alone = last.right != Right::Share || self.borrows(ledger, loser, Right::Share);
        let stale: Vec<usize> = if alone {
            index.teams[loser].path.clone()
        } else {
            let teams = self.herd.teams();
            teams.filter(|&team| tree(team) == tree(loser)).collect()
        };
        front.flocks.retain(|flock| !stale.contains(&flock.team));
        for team in stale {
            if let Some(flock) = self.flock(ledger, team, inside) {
                let key = (flock.first, flock.team);
                let before = |there: &Flock| (there.first, there.team) < key;
                let at = front.flocks.partition_point(before);
                front.flocks.insert(at, flock);
            }
        }
    }

    fn look_at_all(&self, ledger: &mut Ledger<'_, '_>, inside: bool) -> Front {
        let teams = self.herd.teams();
        let flocks = teams.filter_map(|team| self.flock(ledger, team, inside));
        let mut flocks: Vec<Flock> = flocks.collect();
        flocks.sort_by_key(|flock| (flock.first, flock.team));
        Front { inside, flocks }
    }

    /// The same before anything is taken, which is told once for all that a team asks for.
    fn first_look(&self, ledger: &mut Ledger<'_, '_>, inside: bool) -> Front {
        let rights = self.newcomer.rights;
        let other = rights.iter().find(|r| **r != Right::Priority).copied();
        let own = ledger.index.works[self.newcomer.work].team;
        let priority = rights.contains(&Right::Priority);
        let asked = (self.newcomer.pool, own, priority, other, inside);
        if ledger.fronts.version != ledger.version() {
            ledger.fronts.told.clear();
            ledger.fronts.version = ledger.version();
        }
        if let Some(told) = ledger.fronts.told.get(&asked) {
            return told.clone();
        }
        let front = self.look_at_all(ledger, inside);
        ledger.fronts.told.insert(asked, front.clone());
        front
    }

    /// What a team may lose, and by which right.
    pub(super) fn flock(
        &self,
        ledger: &mut Ledger<'_, '_>,
        team: usize,
        inside: bool,
    ) -> Option<Flock> {
        if !self.herd.has(team) {
            return None;
        }
        let rights = self.newcomer.rights;
        if team == ledger.index.works[self.newcomer.work].team {
            // While the newcomer is outside its guarantee only its own team's work brings it in.
            return rights.contains(&Right::Priority).then_some(Flock {
                first: (inside, Reverse(0)),
                team,
                right: Right::Priority,
            });
        }
        let right = *rights.iter().find(|r| **r != Right::Priority)?;
        if !self.borrows(ledger, team, right) {
            return None;
        }
        let share = ledger.share(self.newcomer.pool, team);
        Some(Flock {
            first: (!inside, Reverse(share)),
            team,
            right,
        })
    }

    /// The next steps of what is shrunk already: others than those that are kept in order.
    fn shrunk(
        &self,
        ledger: &Ledger<'_, '_>,
        alike: &[Flock],
        shrunk: &[(usize, Right)],
    ) -> Vec<(Member, Right)> {
        let mut begun: Vec<(Member, Right)> = Vec::new();
        for &(work, right) in shrunk {
            let team = ledger.index.works[work].team;
            let open = alike.iter().any(|f| f.team == team && f.right == right);
            if open && begun.iter().all(|(known, _)| known.work != work) {
                begun.extend(self.member_now(ledger, work).map(|member| (member, right)));
            }
        }
        begun.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        begun
    }

    /// The next step of teams between which nothing decides but what they run.
    fn next_of(
        &self,
        ledger: &mut Ledger<'_, '_>,
        alike: &[Flock],
        begun: Vec<(Member, Right)>,
        taken: &[Unit],
        spare: bool,
        known: &mut Known,
    ) -> Option<Unit> {
        let mut begun = begun.into_iter().peekable();
        let mut ahead: Vec<(std::slice::Iter<'_, Member>, Right)> = alike
            .iter()
            .map(|flock| (self.herd.team(flock.team).iter(), flock.right))
            .collect();
        loop {
            let heads = ahead.iter().enumerate();
            let first = heads
                .filter_map(|(at, (rest, _))| Some((rest.as_slice().first()?, at)))
                .min();
            let (member, right) = match (first, begun.peek()) {
                (Some((member, _)), Some((shrunk, _))) if shrunk < member => begun.next()?,
                (None, Some(_)) => begun.next()?,
                (Some((_, at)), _) => {
                    let (rest, right) = &mut ahead[at];
                    let member = rest.next()?;
                    if known.refuses(member, *right)
                        || !member.untouched(ledger)
                        || !self.is_candidate(ledger, member.work, *right)
                    {
                        continue;
                    }
                    (member.clone(), *right)
                }
                (None, None) => return None,
            };
            let right = (right, alike.first()?.first);
            if let Some(unit) = self.take(ledger, member, right, taken, spare, known) {
                return Some(unit);
            }
        }
    }

    /// Of some teams those that the newcomer might take something from: for whose work it is in its guarantee,
    /// or of whom it is not above now, since a share only falls with a victim. What is found of two branches
    /// of the tree is kept.
    fn open_with(
        &self,
        ledger: &mut Ledger<'_, '_>,
        flocks: &[Flock],
        known: &mut FxHashMap<(usize, usize), bool>,
    ) -> Vec<Flock> {
        let mut open = flocks.to_vec();
        open.retain(|flock| {
            match flock.right {
                // In a mixed set the newcomer may come into its guarantee by the end.
                Right::Reclaim if self.newcomer.rights.len() == 1 => {
                    return self.inside_against(ledger, flock.team, self.newcomer.amount);
                }
                Right::Reclaim | Right::Priority => return true,
                Right::Share => {}
            }
            let Some(branches) = self.parting(ledger.index, flock.team) else {
                return false;
            };
            let none = Held::default();
            let tell = || self.evens_out(ledger, flock.team, self.newcomer.amount, &none);
            *known.entry(branches).or_insert_with(tell)
        });
        open
    }
}
