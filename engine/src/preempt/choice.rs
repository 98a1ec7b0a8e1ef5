//! Which victim is next, and whether it may be taken as things stand.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::Right;
use super::front::Flock;
use super::herd::{Kind, Known, Member, untouched};
use super::search::{Search, Unit};
use crate::index::{Amount, Index};
use crate::ledger::{Held, Ledger, Standing};
use crate::quota;
use crate::share::not_above;

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
    pub(super) fn parting(&self, index: &Index<'_>, other: usize) -> Option<(usize, usize)> {
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

    /// Whether the newcomer's share with the workload is not above the loser's without what the
    /// victim's team loses yet, at the level of the tree where the two part.
    pub(super) fn evens_out(
        &self,
        ledger: &Ledger<'_, '_>,
        victim: usize,
        amount: Amount,
        less: &Held,
    ) -> bool {
        let (index, pool) = (ledger.index, self.newcomer.pool);
        let Some((gains, loses)) = self.parting(index, victim) else {
            return false;
        };
        let workers = self.newcomer.workers.max(1);
        let amount = amount / Amount::from(workers) * Amount::from(self.newcomer.workers);
        let more = Held::of(
            index,
            self.newcomer.work,
            amount,
            self.newcomer.workers.into(),
        );
        let with = ledger.held(pool, gains).plus(&more);
        let without = ledger.held(pool, loses).minus(less);
        not_above(index, pool, (gains, &with), (loses, &without))
    }

    /// Whether what a team lost was borrowed however it may return: displacing its own
    /// team's lower work would not bring it into the guarantee, from where it would reclaim.
    /// It holds so much once the step is taken, and so much of that is such lower work.
    pub(super) fn stays_out(
        &self,
        ledger: &Ledger<'_, '_>,
        unit: &Unit,
        held: Amount,
        lower: Amount,
    ) -> bool {
        let index = ledger.index;
        let team = index.works[unit.victim].team;
        held - lower + unit.amount > index.pools[self.newcomer.pool].rows[team].guaranteed
    }

    /// What a victim could displace of its own team's lower work.
    pub(super) fn lower(&self, ledger: &Ledger<'_, '_>, victim: usize) -> Amount {
        let index = ledger.index;
        let pool = self.newcomer.pool;
        let facts = &index.works[victim];
        self.herd
            .team(facts.team)
            .iter()
            .take_while(|m| m.priority < facts.priority)
            .filter(|m| self.rules.open_to(ledger, victim, m.work, Right::Priority))
            .flat_map(|m| ledger.slots(m.work))
            .filter(|slot| index.nodes[slot.node].pool == pool)
            .map(|slot| slot.amount)
            .sum()
    }

    /// Whether the newcomer is in its team's guarantee as things stand.
    pub(super) fn inside(&self, ledger: &Ledger<'_, '_>) -> bool {
        let own = ledger.index.works[self.newcomer.work].team;
        quota::in_guarantee(ledger, self.newcomer.pool, own, self.newcomer.amount)
    }

    /// The next step of harm on some nodes: of the borrower with the highest share, its lowest
    /// priority, the least cost, the latest start, the name.
    pub(super) fn next_on(
        &self,
        ledger: &mut Ledger<'_, '_>,
        nodes: &[usize],
        taken: &[Unit],
        spare: bool,
    ) -> Option<Unit> {
        let mut known = Known::default();
        let inside = self.inside(ledger);
        let mut options = self.options(ledger, nodes, taken, inside);
        options.sort_unstable_by(|a, b| (a.0.first, &a.1).cmp(&(b.0.first, &b.1)));
        options.into_iter().find_map(|(flock, member)| {
            let right = (flock.right, flock.first);
            self.take(ledger, member, right, taken, spare, &mut known)
        })
    }

    /// Whether work that nothing was taken from is a candidate.
    pub(super) fn is_candidate(&self, ledger: &Ledger<'_, '_>, work: usize, right: Right) -> bool {
        self.rules.open_to(ledger, self.newcomer.work, work, right)
    }

    /// The step if the victim is open and may be taken by right; with what its team comes by among those that lose.
    pub(super) fn take(
        &self,
        ledger: &mut Ledger<'_, '_>,
        member: Member,
        (right, first): (Right, (bool, Reverse<i128>)),
        taken: &[Unit],
        spare: bool,
        known: &mut Known,
    ) -> Option<Unit> {
        let (team, kind) = (member.team, member.kind());
        let unit = Unit {
            victim: member.work,
            right,
            keep: member.keep,
            amount: member.amount,
            cost: member.cost,
            turn: member.turn(first),
        };
        let rightful = self.open(ledger, team, &unit, taken)
            && (right == Right::Priority
                || known.tells(kind).unwrap_or_else(|| {
                    let found = self.rightful(ledger, team, &unit, spare, known);
                    known.keep(kind, found);
                    found
                }));
        rightful.then_some(unit)
    }

    /// The steps that are open on some nodes, each workload once.
    pub(super) fn options(
        &self,
        ledger: &mut Ledger<'_, '_>,
        nodes: &[usize],
        taken: &[Unit],
        inside: bool,
    ) -> Vec<(Flock, Member)> {
        let mut here: Vec<usize> = nodes
            .iter()
            .flat_map(|&node| self.herd.on(node))
            .map(|berth| berth.work)
            .collect();
        if nodes.len() > 1 {
            here.sort_unstable();
            here.dedup();
        }
        let mut flocks: FxHashMap<usize, Option<Flock>> = FxHashMap::default();
        let mut options = Vec::with_capacity(here.len());
        for work in here {
            let team = ledger.index.works[work].team;
            let flock = *flocks
                .entry(team)
                .or_insert_with(|| self.flock(ledger, team, inside));
            let Some(flock) = flock else { continue };
            let begun = taken.iter().any(|unit| unit.victim == work);
            if !begun && !self.is_candidate(ledger, work, flock.right) {
                continue;
            }
            options.extend(self.member_now(ledger, work).map(|member| (flock, member)));
        }
        options
    }

    /// A running workload with the next thing that it can lose, as things stand.
    pub(super) fn member_now(&self, ledger: &Ledger<'_, '_>, work: usize) -> Option<Member> {
        let slots = ledger.slots(work);
        if slots.is_empty() || ledger.standing(work) != Standing::Running {
            return None;
        }
        let kindred = |kind: Kind| untouched(ledger, work) || self.herd.has_kind(kind);
        Some(Member::of(ledger.index, work, slots, kindred))
    }

    /// Whether what the hour and the service allow leaves a victim open.
    fn open(&self, ledger: &Ledger<'_, '_>, team: usize, unit: &Unit, taken: &[Unit]) -> bool {
        let (pool, evicted) = (self.newcomer.pool, ledger.evicted(team));
        // Of what was begun the eviction is counted already.
        let begun = || taken.iter().any(|t| t.victim == unit.victim);
        (self.rules.team_can_lose(ledger.index, pool, team, evicted) || begun())
            && (unit.keep > 0 || service_can_lose(ledger, unit.victim))
    }

    /// Whether a victim of another team may be taken as things stand.
    fn rightful(
        &self,
        ledger: &Ledger<'_, '_>,
        team: usize,
        unit: &Unit,
        spare: bool,
        known: &mut Known,
    ) -> bool {
        let workers = ledger.slots(unit.victim).len() - unit.keep;
        let less = Held::of(ledger.index, unit.victim, unit.amount, workers as i64);
        // What is guaranteed is not borrowed, and evening out what is borrowed leaves it alone.
        let undercuts = (spare || unit.right == Right::Share)
            && self.undercut_of(ledger, team, unit.amount) > self.undercut_of(ledger, team, 0);
        if undercuts {
            self.spared
                .set(self.spared.get() || unit.right != Right::Share);
            return false;
        }
        match unit.right {
            // In a mixed set the newcomer may come into its guarantee by the end.
            Right::Reclaim => {
                self.newcomer.rights.len() > 1
                    || self.inside_against(ledger, team, self.newcomer.amount)
            }
            _ => {
                let held = ledger.held(self.newcomer.pool, team).gpu - unit.amount;
                let priority = ledger.index.works[unit.victim].priority;
                let lower = known.lower((team, priority), || self.lower(ledger, unit.victim));
                self.stays_out(ledger, unit, held, lower)
                    && self.evens_out(ledger, team, self.newcomer.amount, &less)
            }
        }
    }

    /// How far a victim's team, and those above it below what it shares with the
    /// newcomer, are under their guarantees once they hold so much less.
    fn undercut_of(&self, ledger: &Ledger<'_, '_>, team: usize, less: Amount) -> Amount {
        let index = ledger.index;
        let own = &index.teams[index.works[self.newcomer.work].team].path;
        let rows = &index.pools[self.newcomer.pool].rows;
        let above = index.teams[team]
            .path
            .iter()
            .take_while(|t| !own.contains(t));
        above
            .map(|&t| (rows[t].guaranteed - ledger.held(self.newcomer.pool, t).gpu + less).max(0))
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
        teams
            .into_iter()
            .map(|t| self.undercut_of(ledger, t, 0))
            .sum()
    }
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
