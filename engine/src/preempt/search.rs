//! The search for victims: on each node, over the pool, and worker by worker; the least harm wins.

use std::cmp::Reverse;
use std::rc::Rc;

use super::{Right, Room, Rules, Victim, cost};
use crate::index::{Amount, Index, Need};
use crate::ledger::{Ledger, Sight, Slot, Standing};
use crate::place::{self, Query, place};
use crate::quota;
use crate::share::{Everybody, coarse, not_above, share};

/// Finds room for a workload, or nothing. The ledger is as before when it returns.
pub(crate) fn make_room(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
    rules: &Rules,
) -> Option<Room> {
    if rules.delayed(ledger.index, work) {
        return None;
    }
    let facts = &ledger.index.works[work];
    // From harmless to harmful: what is the team's own first, then its own work, then both,
    // then what evens out shares.
    let ways: [&[Right]; 5] = [
        &[Right::Reclaim],
        &[Right::Priority],
        &[Right::Reclaim, Right::Priority],
        &[Right::Share],
        &[Right::Share, Right::Priority],
    ];
    for rights in ways {
        for workers in (facts.row.workers_least()..=facts.row.workers).rev() {
            let amount = ledger.index.charge_least(work, pool) * Amount::from(workers);
            let newcomer = Newcomer {
                work,
                pool,
                workers,
                amount,
                rights,
            };
            let pool_of_victims = newcomer.candidates(ledger, rules);
            let complete = rights
                .iter()
                .all(|right| pool_of_victims.iter().any(|c| c.right == *right));
            if !complete || !newcomer.may_try(ledger) {
                continue;
            }
            let search = Search {
                newcomer,
                rules,
                candidates: pool_of_victims,
            };
            if let Some(room) = search.best(ledger) {
                return Some(room);
            }
        }
    }
    None
}

/// Who wants room, with how many workers, by which rights.
#[derive(Clone, Copy)]
struct Newcomer<'a> {
    work: usize,
    pool: usize,
    workers: u32,
    amount: Amount,
    rights: &'a [Right],
}

/// A running workload that may be taken.
#[derive(Debug, Clone)]
struct Candidate {
    work: usize,
    team: usize,
    right: Right,
    priority: i64,
    started: i64,
    nodes: Vec<usize>,
}

/// One step of harm: a victim keeps so many workers from here on.
#[derive(Debug, Clone, Copy)]
struct Unit {
    victim: usize,
    right: Right,
    keep: usize,
    cost: i128,
}

/// How harmful a set is; the least is taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Harm {
    undercut: Amount,
    cost: i128,
    units: usize,
    site: usize,
}

struct Outcome {
    harm: Harm,
    units: Vec<Unit>,
    slots: Vec<Rc<Slot>>,
}

struct Search<'a> {
    newcomer: Newcomer<'a>,
    rules: &'a Rules,
    candidates: Vec<Candidate>,
}

impl Newcomer<'_> {
    fn candidates(&self, ledger: &Ledger<'_, '_>, rules: &Rules) -> Vec<Candidate> {
        let index = ledger.index;
        let running = (0..index.works.len()).filter(|&w| {
            ledger.standing(w) == Standing::Running
                && ledger
                    .slots(w)
                    .first()
                    .is_some_and(|s| index.nodes[s.node].pool == self.pool)
        });
        let open = running.filter_map(|victim| {
            let right = self
                .rights
                .iter()
                .copied()
                .find(|&right| rules.open_to(ledger, self.work, victim, right))?;
            let facts = &index.works[victim];
            let mut nodes: Vec<usize> = ledger.slots(victim).iter().map(|s| s.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            Some(Candidate {
                work: victim,
                team: facts.team,
                right,
                priority: facts.priority,
                started: facts.row.started.map_or(0, |t| t.timestamp_micros()),
                nodes,
            })
        });
        open.collect()
    }

    /// Cheap tests before a search.
    fn may_try(&self, ledger: &Ledger<'_, '_>) -> bool {
        let team = ledger.index.works[self.work].team;
        match self.rights {
            // Reclaim alone never leaves the guarantee.
            [Right::Reclaim] => {
                self.amount > 0 && quota::in_guarantee(ledger, self.pool, team, self.amount)
            }
            [Right::Share, ..] => self.amount > 0,
            _ => true,
        }
    }
}

impl Search<'_> {
    /// The least harmful room over all sites.
    fn best(&self, ledger: &mut Ledger<'_, '_>) -> Option<Room> {
        let index = ledger.index;
        let nodes = &index.pools[self.newcomer.pool].nodes;
        let mut best: Option<Outcome> = None;
        let mut keep = |found: Option<Outcome>| {
            if let Some(found) = found
                && best.as_ref().is_none_or(|b| found.harm < b.harm)
            {
                best = Some(found);
            }
        };
        for spare_guarantees in [true, false] {
            for (site, &node) in nodes.iter().enumerate() {
                if self.could_hold_all(ledger, node) {
                    keep(self.greedy(ledger, Some(&[node]), site, spare_guarantees));
                }
            }
            keep(self.greedy(ledger, None, nodes.len(), spare_guarantees));
            if self.newcomer.workers > 1 {
                for (at, domain) in self.domains(index, nodes).into_iter().enumerate() {
                    keep(self.worker_by_worker(
                        ledger,
                        &domain,
                        nodes.len() + 1 + at,
                        spare_guarantees,
                    ));
                }
            }
        }
        best.map(|outcome| Room {
            victims: victims(&outcome.units),
            slots: outcome.slots,
        })
    }

    fn domains(&self, index: &Index<'_>, nodes: &[usize]) -> Vec<Vec<usize>> {
        match &index.works[self.newcomer.work].row.topology.require {
            Some(label) => place::domains_of(index, nodes, label),
            None => vec![nodes.to_vec()],
        }
    }

    /// Whether a node, were it empty, might hold all workers, and has victims on it.
    fn could_hold_all(&self, ledger: &Ledger<'_, '_>, node: usize) -> bool {
        let index = ledger.index;
        let (facts, machine) = (&index.works[self.newcomer.work], &index.nodes[node]);
        let workers = i64::from(self.newcomer.workers);
        let devices = match facts.need {
            Need::Whole(count) => i64::from(count) * workers,
            _ => 0,
        };
        place::fit(index, self.newcomer.work, node, false).is_ok()
            && devices <= i64::from(machine.row.gpus - machine.failed.count_ones())
            && facts.cpus * workers <= machine.row.cpus.milli()
            && facts.memory * workers <= machine.row.memory_mib
            && self.candidates.iter().any(|c| c.nodes.contains(&node))
    }

    /// Takes victims of a site in their order until there is room, then spares, in
    /// reverse, those that turn out not to be needed.
    fn greedy(
        &self,
        ledger: &mut Ledger<'_, '_>,
        site: Option<&[usize]>,
        rank: usize,
        spare: bool,
    ) -> Option<Outcome> {
        let mark = ledger.mark();
        let mut units = Vec::new();
        let mut slots = self.room(ledger, &units, site);
        while slots.is_none() {
            let Some(unit) = self.next_unit(ledger, site, &units, spare) else {
                break;
            };
            ledger.release(unit.victim, unit.keep);
            units.push(unit);
            slots = self.room(ledger, &units, site);
        }
        ledger.rollback(mark);
        let slots = slots?;
        Some(self.spare(ledger, units, slots, site, rank))
    }

    /// For a gang: room for one worker after another, each where it costs least.
    fn worker_by_worker(
        &self,
        ledger: &mut Ledger<'_, '_>,
        domain: &[usize],
        rank: usize,
        spare: bool,
    ) -> Option<Outcome> {
        let mark = ledger.mark();
        let mut units: Vec<Unit> = Vec::new();
        for _ in 0..self.newcomer.workers {
            let mut best: Option<(i128, usize, Vec<Unit>, Rc<Slot>)> = None;
            for &node in domain {
                if place::fit(ledger.index, self.newcomer.work, node, false).is_err() {
                    continue;
                }
                let here = ledger.mark();
                let mut more = Vec::new();
                let site = [node];
                let found = loop {
                    if let Some(slots) = self.fits(ledger, 1, Some(&site)) {
                        break Some(slots);
                    }
                    let so_far: Vec<Unit> = units.iter().chain(&more).copied().collect();
                    let Some(unit) = self.next_unit(ledger, Some(&site), &so_far, spare) else {
                        break None;
                    };
                    ledger.release(unit.victim, unit.keep);
                    more.push(unit);
                };
                ledger.rollback(here);
                let Some(slots) = found else { continue };
                let price = more.iter().map(|u| u.cost).sum();
                if best
                    .as_ref()
                    .is_none_or(|(least, count, ..)| (price, more.len()) < (*least, *count))
                {
                    best = Some((price, more.len(), more, Rc::clone(&slots[0])));
                }
                if price == 0 {
                    break;
                }
            }
            let Some((_, _, more, slot)) = best else {
                ledger.rollback(mark);
                return None;
            };
            for unit in more {
                ledger.release(unit.victim, unit.keep);
                units.push(unit);
            }
            ledger.occupy(crate::ledger::View::Later, self.newcomer.work, &slot);
        }
        ledger.rollback(mark);
        let slots = self.with(ledger, &units, Some(domain))?;
        Some(self.spare(ledger, units, slots, Some(domain), rank))
    }

    /// Gives back, in reverse, what turns out not to be needed, and weighs the rest.
    fn spare(
        &self,
        ledger: &mut Ledger<'_, '_>,
        mut units: Vec<Unit>,
        mut slots: Vec<Rc<Slot>>,
        site: Option<&[usize]>,
        rank: usize,
    ) -> Outcome {
        for at in (0..units.len()).rev() {
            // An elastic victim gives back its last worker first.
            if units[at + 1..]
                .iter()
                .any(|later| later.victim == units[at].victim)
            {
                continue;
            }
            let mut fewer = units.clone();
            fewer.remove(at);
            if let Some(found) = self.with(ledger, &fewer, site) {
                (units, slots) = (fewer, found);
            }
        }
        let mark = ledger.mark();
        let before = self.undercut(ledger, &units);
        for unit in &units {
            ledger.release(unit.victim, unit.keep);
        }
        let undercut = self.undercut(ledger, &units) - before;
        ledger.rollback(mark);
        let harm = Harm {
            undercut,
            cost: units.iter().map(|u| u.cost).sum(),
            units: units.len(),
            site: rank,
        };
        Outcome { harm, units, slots }
    }

    /// Room with exactly these units taken in their order, each rightfully.
    fn with(
        &self,
        ledger: &mut Ledger<'_, '_>,
        units: &[Unit],
        site: Option<&[usize]>,
    ) -> Option<Vec<Rc<Slot>>> {
        let mark = ledger.mark();
        let mut rightful = true;
        for unit in units {
            let team = ledger.index.works[unit.victim].team;
            rightful &= unit.right == Right::Priority || self.borrows(ledger, team);
            ledger.release(unit.victim, unit.keep);
        }
        let slots = if rightful {
            self.room(ledger, units, site)
        } else {
            None
        };
        ledger.rollback(mark);
        slots
    }

    /// Room as the ledger stands, if every unit is rightful in the end.
    fn room(
        &self,
        ledger: &mut Ledger<'_, '_>,
        units: &[Unit],
        site: Option<&[usize]>,
    ) -> Option<Vec<Rc<Slot>>> {
        let rightful = units.iter().all(|unit| {
            let team = ledger.index.works[unit.victim].team;
            match unit.right {
                Right::Priority => true,
                Right::Reclaim => self.inside_against(ledger, team),
                Right::Share => self.evens_out(ledger, team),
            }
        });
        if !rightful || units.is_empty() {
            return None;
        }
        let slots = self.fits(ledger, self.newcomer.workers, site)?;
        let amount = slots.iter().map(|s| s.amount).sum();
        quota::allowed(ledger, self.newcomer.work, self.newcomer.pool, amount)
            .is_ok()
            .then_some(slots)
    }

    fn fits(
        &self,
        ledger: &mut Ledger<'_, '_>,
        workers: u32,
        site: Option<&[usize]>,
    ) -> Option<Vec<Rc<Slot>>> {
        let query = Query::start(ledger.index, self.newcomer.work, self.newcomer.pool)
            .workers(workers)
            .sight(Sight::Later);
        place(
            ledger,
            match site {
                Some(nodes) => query.only(nodes),
                None => query,
            },
        )
    }

    fn borrows(&self, ledger: &Ledger<'_, '_>, team: usize) -> bool {
        ledger.held(self.newcomer.pool, team).gpu
            > ledger.index.pools[self.newcomer.pool].rows[team].guaranteed
    }

    /// Whether the newcomer is in the guarantee of its team, and of each team above it
    /// below the lowest one that it shares with the victim.
    fn inside_against(&self, ledger: &Ledger<'_, '_>, victim: usize) -> bool {
        let index = ledger.index;
        let shared = &index.teams[victim].path;
        let own = &index.teams[index.works[self.newcomer.work].team].path;
        own.iter()
            .take_while(|t| !shared.contains(t))
            .all(|&t| quota::in_guarantee(ledger, self.newcomer.pool, t, self.newcomer.amount))
    }

    /// Whether the newcomer's share with the workload is not above the loser's without
    /// the victim, at the level of the tree where the two part.
    fn evens_out(&self, ledger: &mut Ledger<'_, '_>, victim: usize) -> bool {
        let index = ledger.index;
        let pool = self.newcomer.pool;
        let team = index.works[self.newcomer.work].team;
        let below = |of: usize, other: usize| {
            index.teams[of]
                .path
                .iter()
                .take_while(|t| !index.teams[other].path.contains(t))
                .last()
                .copied()
        };
        let (Some(gains), Some(loses)) = (below(team, victim), below(victim, team)) else {
            return false;
        };
        let mark = ledger.mark();
        let node = index.pools[pool].nodes[0];
        let each = self.newcomer.amount / Amount::from(self.newcomer.workers.max(1));
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

    /// The next step of harm: of the borrower with the highest share, its lowest
    /// priority, the least cost, the latest start, the name.
    fn next_unit(
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
        let mut shares: Vec<(usize, i128)> = Vec::new();
        let mut best: Option<(Preference, Unit)> = None;
        for candidate in &self.candidates {
            let here = site.is_none_or(|nodes| candidate.nodes.iter().any(|n| nodes.contains(n)));
            let Some(unit) = (if here {
                self.unit(ledger, candidate)
            } else {
                None
            }) else {
                continue;
            };
            if !self.takeable(ledger, candidate, &unit, taken, spare) {
                continue;
            }
            let team_share = match candidate.right {
                Right::Priority => 0,
                _ => match shares.iter().find(|(team, _)| *team == candidate.team) {
                    Some((_, known)) => *known,
                    None => {
                        let fresh = coarse(share(
                            ledger,
                            self.newcomer.pool,
                            candidate.team,
                            &Everybody,
                        ));
                        shares.push((candidate.team, fresh));
                        fresh
                    }
                },
            };
            let preference = Preference {
                // While the newcomer is outside its guarantee only its own team's work brings it in.
                own: if inside {
                    candidate.right == Right::Priority
                } else {
                    candidate.right != Right::Priority
                },
                share: Reverse(team_share),
                priority: candidate.priority,
                cost: unit.cost,
                started: Reverse(candidate.started),
                work: candidate.work,
            };
            if best.as_ref().is_none_or(|(least, _)| preference < *least) {
                best = Some((preference, unit));
            }
        }
        best.map(|(_, unit)| unit)
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
        let cost = cost(ledger.index, candidate.work, &slots[keep..]);
        Some(Unit {
            victim: candidate.work,
            right: candidate.right,
            keep,
            cost,
        })
    }

    fn takeable(
        &self,
        ledger: &mut Ledger<'_, '_>,
        candidate: &Candidate,
        unit: &Unit,
        taken: &[Unit],
        spare: bool,
    ) -> bool {
        let index = ledger.index;
        let first = !taken.iter().any(|t| t.victim == unit.victim);
        if first {
            let in_plan = (0..index.works.len()).filter(|&w| {
                index.works[w].team == candidate.team
                    && index.works[w].row.state == crate::world::WorkloadState::Running
                    && ledger.slots(w).len() < index.works[w].row.placed.len()
            });
            let count = in_plan.count() as u32;
            if !self
                .rules
                .team_can_lose(index, self.newcomer.pool, candidate.team, count)
            {
                return false;
            }
        }
        if unit.keep == 0 && !service_can_lose(ledger, unit.victim) {
            return false;
        }
        if candidate.right == Right::Priority {
            return true;
        }
        if !self.borrows(ledger, candidate.team) {
            return false;
        }
        let mark = ledger.mark();
        let before = self.undercut_of(ledger, candidate.team);
        ledger.release(unit.victim, unit.keep);
        let undercuts = spare && self.undercut_of(ledger, candidate.team) > before;
        let rightful = match candidate.right {
            // In a mixed set the newcomer may come into its guarantee by the end.
            Right::Reclaim => {
                self.newcomer.rights.len() > 1 || self.inside_against(ledger, candidate.team)
            }
            _ => self.evens_out(ledger, candidate.team),
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

    fn undercut(&self, ledger: &Ledger<'_, '_>, units: &[Unit]) -> Amount {
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
    work: usize,
}

/// Whether a service keeps its least replicas without one more.
fn service_can_lose(ledger: &Ledger<'_, '_>, victim: usize) -> bool {
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

/// What is left of each victim in the end, in the order in which they were first taken.
fn victims(units: &[Unit]) -> Vec<Victim> {
    let mut all: Vec<Victim> = Vec::new();
    for unit in units {
        match all.iter_mut().find(|v| v.work == unit.victim) {
            Some(victim) => victim.keep = unit.keep,
            None => all.push(Victim {
                work: unit.victim,
                keep: unit.keep,
                right: unit.right,
            }),
        }
    }
    all
}
