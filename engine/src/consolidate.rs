//! Room by moves: running preemptible work goes elsewhere, all of it, so that a workload on whole devices fits.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::index::{Amount, DEVICE, Need};
use crate::ledger::{Ledger, Sight, Slot};
use crate::place::{self, Query, Sizes, Stock, place, sizes};
use crate::preempt::{self, Rules};
use crate::quota;
use crate::start;

/// Nodes on which room is looked for, those with the least to move first: where so much
/// must move, no later node asks for less, and each costs a search of its own.
const SITES_MAX: usize = 64;

/// Room for a workload, and who moves where for it.
pub(crate) struct Moves {
    pub slots: Vec<Rc<Slot>>,
    pub movers: Vec<Mover>,
}

/// A workload that moves, with its new place.
pub(crate) struct Mover {
    pub work: usize,
    pub there: Vec<Rc<Slot>>,
}

/// Finds the cheapest moves after which a workload on whole devices fits, or nothing. The
/// ledger is as before when it returns.
pub(crate) fn find(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
    rules: &Rules,
) -> Option<Moves> {
    let index = ledger.index;
    let Need::Whole(devices) = index.works[work].need else {
        return None;
    };
    if rules.delayed(index, work) {
        return None;
    }
    let nodes = index.pools[pool].nodes.iter();
    let idle: i64 = nodes.map(|&node| place::idle_milli(ledger, node)).sum();
    let sizes = sizes(ledger, work, pool, Stock::Emptied);
    let sizes = sizes.at_most(idle / (i64::from(devices) * DEVICE));
    let allowed = |ledger: &Ledger<'_, '_>, workers: u32| {
        let amount = index.charge_least(work, pool) * Amount::from(workers);
        quota::allowed(ledger, work, pool, amount).is_ok()
    };
    if !sizes.least().is_some_and(|least| allowed(ledger, least)) {
        return None;
    }
    let mut search = Search::of(ledger, work, pool, devices, rules);
    let sizes = search.worth_a_try(ledger, sizes)?;
    sizes.largest(|workers| {
        if !allowed(ledger, workers) {
            return None;
        }
        search.workers = workers;
        let worth = sizes.falls() || search.could_do(ledger);
        worth.then(|| search.best(ledger)).flatten()
    })
}

/// What is looked for, and who may move.
struct Search {
    work: usize,
    pool: usize,
    workers: u32,
    devices: u32,
    /// From cheap to dear.
    movable: Vec<Movable>,
    /// Of `movable`, by node.
    on_node: HashMap<usize, Vec<usize>>,
}

/// Running work that may move.
struct Movable {
    work: usize,
    cost: i128,
}

/// Moves that make room, and how harmful they are; the least harm wins.
struct Found {
    harm: (i128, usize, usize),
    moves: Moves,
}

impl Search {
    fn of(
        ledger: &mut Ledger<'_, '_>,
        work: usize,
        pool: usize,
        devices: u32,
        rules: &Rules,
    ) -> Self {
        let index = ledger.index;
        let stands_here = |w: usize| {
            ledger
                .slots(w)
                .first()
                .is_some_and(|slot| index.nodes[slot.node].pool == pool)
        };
        let mut movable: Vec<Movable> = (0..index.works.len())
            .filter(|&w| w != work && stands_here(w) && rules.movable(ledger, w))
            .map(|w| Movable {
                work: w,
                cost: preempt::cost(index, w, ledger.slots(w)),
            })
            .collect();
        movable.sort_by_key(|m| (m.cost, Reverse(index.works[m.work].row.started), m.work));
        let mut on_node: HashMap<usize, Vec<usize>> = HashMap::new();
        for (at, m) in movable.iter().enumerate() {
            for slot in ledger.slots(m.work) {
                let here = on_node.entry(slot.node).or_default();
                if here.last() != Some(&at) {
                    here.push(at);
                }
            }
        }
        Self {
            work,
            pool,
            workers: index.works[work].row.workers,
            devices,
            movable,
            on_node,
        }
    }

    /// Of these numbers of workers those for which moves may be found: more than have room by
    /// themselves, and no more than would have it were all that may move away.
    fn worth_a_try(&mut self, ledger: &mut Ledger<'_, '_>, sizes: Sizes) -> Option<Sizes> {
        if self.movable.is_empty() {
            return None;
        }
        if !sizes.falls() {
            return Some(sizes);
        }
        let free = self.most_with_room(ledger, sizes);
        let sizes = sizes.above(free.unwrap_or(0));
        let mark = ledger.mark();
        self.release_all(ledger);
        let most = self.most_with_room(ledger, sizes);
        ledger.rollback(mark);
        Some(sizes.at_most(most?.into()))
    }

    fn most_with_room(&mut self, ledger: &mut Ledger<'_, '_>, sizes: Sizes) -> Option<u32> {
        sizes.largest(|workers| {
            self.workers = workers;
            self.room(ledger, None).map(|_| workers)
        })
    }

    fn release_all(&self, ledger: &mut Ledger<'_, '_>) {
        for movable in &self.movable {
            ledger.release(movable.work, 0);
        }
    }

    /// Cheap tests before a search: it would fit were all that may move away, and not by itself.
    fn could_do(&self, ledger: &mut Ledger<'_, '_>) -> bool {
        if self.movable.is_empty() || self.room(ledger, None).is_some() {
            return false;
        }
        let mark = ledger.mark();
        self.release_all(ledger);
        let fits = self.room(ledger, None).is_some();
        ledger.rollback(mark);
        fits
    }

    fn best(&self, ledger: &mut Ledger<'_, '_>) -> Option<Moves> {
        let sites = self.sites(ledger);
        let mut best: Option<Found> = None;
        for (rank, site) in sites.iter().enumerate() {
            if let Some(found) = self.at(ledger, site, rank)
                && best.as_ref().is_none_or(|b| found.harm < b.harm)
            {
                best = Some(found);
            }
        }
        best.map(|found| found.moves)
    }

    /// Where room is looked for: single nodes that could hold all workers, and for gangs
    /// the domains, from the nodes with the least to move on.
    fn sites(&self, ledger: &Ledger<'_, '_>) -> Vec<Vec<usize>> {
        let index = ledger.index;
        let ranked = |nodes: &[usize], devices: u32| -> Vec<usize> {
            let mut ranked: Vec<(u32, usize)> = nodes
                .iter()
                .copied()
                .filter(|&n| place::fit(index, self.work, n, false).is_ok())
                .filter_map(|n| {
                    let usable = index.nodes[n].row.gpus - index.nodes[n].failed.count_ones();
                    let free = place::devices_free(ledger, n, Sight::Later).count_ones();
                    let moves = devices.saturating_sub(free);
                    (usable >= devices && (moves == 0 || self.on_node.contains_key(&n)))
                        .then_some((moves, n))
                })
                .collect();
            ranked.sort_unstable();
            ranked.into_iter().map(|(_, n)| n).collect()
        };
        let nodes = &index.pools[self.pool].nodes;
        let mut sites: Vec<Vec<usize>> = ranked(nodes, self.devices * self.workers)
            .into_iter()
            .take(SITES_MAX)
            .map(|n| vec![n])
            .collect();
        if self.workers > 1 {
            let domains = match &index.works[self.work].row.topology.require {
                Some(label) => place::domains_of(index, nodes, label),
                None => vec![nodes.clone()],
            };
            sites.extend(
                domains
                    .iter()
                    .take(SITES_MAX)
                    .map(|d| ranked(d, self.devices)),
            );
        }
        sites
    }

    /// Frees a site from cheap to dear until the workload fits, and finds a place for all
    /// that had to go; who finds none stays, and others are tried.
    fn at(&self, ledger: &mut Ledger<'_, '_>, site: &[usize], rank: usize) -> Option<Found> {
        let mut stays: HashSet<usize> = HashSet::new();
        let order = self.order(site);
        loop {
            let mark = ledger.mark();
            let mut taken = Vec::new();
            let mut room = None;
            for &at in order.iter().filter(|at| !stays.contains(at)) {
                if !preempt::service_can_lose(ledger, self.movable[at].work) {
                    continue;
                }
                ledger.release(self.movable[at].work, 0);
                taken.push(at);
                room = self.room(ledger, Some(site));
                if room.is_some() {
                    break;
                }
            }
            ledger.rollback(mark);
            room?;
            match self.with(ledger, site, &taken) {
                Ok(moves) => return Some(self.spared(ledger, site, taken, moves, rank)),
                Err(Some(stuck)) => {
                    stays.insert(stuck);
                }
                Err(None) => return None,
            }
        }
    }

    /// Who may move from a site, node by node as the site has them, cheap before dear.
    fn order(&self, site: &[usize]) -> Vec<usize> {
        let mut seen = HashSet::new();
        let here = site.iter().filter_map(|node| self.on_node.get(node));
        here.flatten()
            .copied()
            .filter(|&at| seen.insert(at))
            .collect()
    }

    /// Leaves in place, the last first, who turns out not to be in the way.
    fn spared(
        &self,
        ledger: &mut Ledger<'_, '_>,
        site: &[usize],
        mut taken: Vec<usize>,
        mut moves: Moves,
        rank: usize,
    ) -> Found {
        for at in (0..taken.len()).rev() {
            let mut fewer = taken.clone();
            fewer.remove(at);
            if let Ok(found) = self.with(ledger, site, &fewer) {
                (taken, moves) = (fewer, found);
            }
        }
        let cost = taken.iter().map(|&at| self.movable[at].cost).sum();
        Found {
            harm: (cost, taken.len(), rank),
            moves,
        }
    }

    /// The workload on the site and a place for all who were taken; else who found none.
    fn with(
        &self,
        ledger: &mut Ledger<'_, '_>,
        site: &[usize],
        taken: &[usize],
    ) -> Result<Moves, Option<usize>> {
        let mark = ledger.mark();
        let moves = self.moved(ledger, site, taken);
        ledger.rollback(mark);
        moves
    }

    fn moved(
        &self,
        ledger: &mut Ledger<'_, '_>,
        site: &[usize],
        taken: &[usize],
    ) -> Result<Moves, Option<usize>> {
        let mut from: Vec<(usize, Vec<Rc<Slot>>)> = Vec::with_capacity(taken.len());
        for &at in taken {
            from.push((at, ledger.slots(self.movable[at].work).to_vec()));
            ledger.release(self.movable[at].work, 0);
        }
        let slots = self.room(ledger, Some(site)).ok_or(None)?;
        ledger.nominate(self.work, slots.clone());
        // The bulkiest first: the small ones fit into what they leave.
        from.sort_by_key(|(at, slots)| Reverse(self.bulk(ledger, *at, slots.len() as u32)));
        let mut movers = Vec::with_capacity(from.len());
        for (at, slots) in from {
            let work = self.movable[at].work;
            let there = start::room_elsewhere(ledger, work, self.pool, &slots, Sight::Later)
                .ok_or(Some(at))?;
            ledger.nominate(work, there.clone());
            movers.push(Mover { work, there });
        }
        movers.sort_by_key(|m| taken.iter().position(|&at| self.movable[at].work == m.work));
        Ok(Moves { slots, movers })
    }

    fn bulk(&self, ledger: &Ledger<'_, '_>, at: usize, workers: u32) -> (i64, Reverse<usize>) {
        let each = match ledger.index.works[self.movable[at].work].need {
            Need::Whole(devices) => i64::from(devices) * crate::index::DEVICE,
            Need::Part { milli, .. } => milli,
            Need::Instances { .. } => {
                let least = ledger.index.charge_least(self.movable[at].work, self.pool);
                ledger.index.pools[self.pool].milli(least)
            }
            Need::Nothing => 0,
        };
        (each * i64::from(workers), Reverse(at))
    }

    fn room(&self, ledger: &mut Ledger<'_, '_>, site: Option<&[usize]>) -> Option<Vec<Rc<Slot>>> {
        let query = Query::start(ledger.index, self.work, self.pool)
            .workers(self.workers)
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
