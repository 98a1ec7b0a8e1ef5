//! The search for victims: on each node, over the pool, and worker by worker; the least harm wins.

use std::collections::HashMap;
use std::rc::Rc;

use super::{Right, Room, Rules, Victim};
use crate::index::{Amount, Index, Need};
use crate::ledger::{Ledger, Sight, Slot, Standing};
use crate::place::{self, Query, place};
use crate::quota;

/// Finds room for a workload, or nothing. The ledger is as before when it returns.
pub(crate) fn make_room(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
    rules: &Rules,
) -> Option<Room> {
    each_way(ledger, work, pool, rules, |way, ledger| way.best(ledger))
}

/// Whether there is any room to make, however harmful; sooner told than the best.
pub(crate) fn could_make_room(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
    rules: &Rules,
) -> bool {
    each_way(ledger, work, pool, rules, |way, ledger| way.any(ledger)).is_some()
}

/// Tries all rights and sizes, from harmless to harmful: what is the team's own first, then
/// its own work, then both, then what evens out shares.
fn each_way(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
    rules: &Rules,
    search: fn(&Search<'_>, &mut Ledger<'_, '_>) -> Option<Room>,
) -> Option<Room> {
    const WAYS: [&[Right]; 5] = [
        &[Right::Reclaim],
        &[Right::Priority],
        &[Right::Reclaim, Right::Priority],
        &[Right::Share],
        &[Right::Share, Right::Priority],
    ];
    if rules.delayed(ledger.index, work) {
        return None;
    }
    let row = ledger.index.works[work].row;
    for rights in WAYS {
        for workers in (row.workers_least()..=row.workers).rev() {
            let amount = ledger.index.charge_least(work, pool) * Amount::from(workers);
            let newcomer = Newcomer {
                work,
                pool,
                workers,
                amount,
                rights,
            };
            if !newcomer.may_try(ledger) {
                continue;
            }
            let way = Search::of(ledger, newcomer, rules);
            if way.could_do(ledger)
                && let Some(room) = search(&way, ledger)
            {
                return Some(room);
            }
        }
    }
    None
}

/// Who wants room, with how many workers, by which rights.
#[derive(Clone, Copy)]
pub(super) struct Newcomer<'a> {
    pub(super) work: usize,
    pub(super) pool: usize,
    pub(super) workers: u32,
    pub(super) amount: Amount,
    pub(super) rights: &'a [Right],
}

/// A running workload that may be taken.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) work: usize,
    pub(super) team: usize,
    pub(super) right: Right,
    pub(super) priority: i64,
    pub(super) started: i64,
    pub(super) nodes: Vec<usize>,
}

/// One step of harm: a victim keeps so many workers from here on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit {
    pub(super) victim: usize,
    pub(super) right: Right,
    pub(super) keep: usize,
    pub(super) amount: Amount,
    pub(super) cost: i128,
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

pub(super) struct Search<'a> {
    pub(super) newcomer: Newcomer<'a>,
    pub(super) rules: &'a Rules,
    pub(super) candidates: Vec<Candidate>,
    /// The candidates on each node.
    pub(super) on_node: HashMap<usize, Vec<usize>>,
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
            // Work without devices has no guarantee to take back, and no share to even out.
            [Right::Reclaim | Right::Share, ..] => self.amount > 0,
            _ => true,
        }
    }
}

impl<'a> Search<'a> {
    fn of(ledger: &Ledger<'_, '_>, newcomer: Newcomer<'a>, rules: &'a Rules) -> Self {
        let candidates = newcomer.candidates(ledger, rules);
        let mut on_node: HashMap<usize, Vec<usize>> = HashMap::new();
        for (at, candidate) in candidates.iter().enumerate() {
            for &node in &candidate.nodes {
                on_node.entry(node).or_default().push(at);
            }
        }
        Self {
            newcomer,
            rules,
            candidates,
            on_node,
        }
    }

    /// Whether there would be room if all candidates left at once: when not, no search is
    /// made. Each right must have a candidate, else the set is that of another way.
    fn could_do(&self, ledger: &mut Ledger<'_, '_>) -> bool {
        let rights = self.newcomer.rights;
        if !rights
            .iter()
            .all(|right| self.candidates.iter().any(|c| c.right == *right))
        {
            return false;
        }
        let mark = ledger.mark();
        for candidate in &self.candidates {
            ledger.release(candidate.work, 0);
        }
        let fits = self.fits(ledger, self.newcomer.workers, None).is_some()
            && quota::allowed(
                ledger,
                self.newcomer.work,
                self.newcomer.pool,
                self.newcomer.amount,
            )
            .is_ok();
        ledger.rollback(mark);
        fits
    }

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

    /// Some room, found over the whole pool.
    fn any(&self, ledger: &mut Ledger<'_, '_>) -> Option<Room> {
        let outcome = self.greedy(ledger, None, 0, false)?;
        Some(Room {
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
            && self.on_node.contains_key(&node)
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
            rightful &= unit.right == Right::Priority || self.borrows(ledger, team, unit.right);
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
        if units.is_empty() || !self.all_rightful(ledger, units, self.newcomer.amount) {
            return None;
        }
        let slots = self.fits(ledger, self.newcomer.workers, site)?;
        let amount = slots.iter().map(|s| s.amount).sum();
        // A part asked for by memory counts for more on a smaller device than was reckoned with.
        let rightful = amount <= self.newcomer.amount || self.all_rightful(ledger, units, amount);
        (rightful && quota::allowed(ledger, self.newcomer.work, self.newcomer.pool, amount).is_ok())
            .then_some(slots)
    }

    /// Whether every unit is rightful in the end for a newcomer of that amount.
    fn all_rightful(&self, ledger: &mut Ledger<'_, '_>, units: &[Unit], amount: Amount) -> bool {
        units.iter().all(|unit| {
            let team = ledger.index.works[unit.victim].team;
            match unit.right {
                Right::Priority => true,
                Right::Reclaim => self.inside_against(ledger, team, amount),
                Right::Share => {
                    self.stays_out(ledger, unit) && self.evens_out(ledger, team, amount)
                }
            }
        })
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
