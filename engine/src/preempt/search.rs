//! The search for victims: on each node, over the pool, and worker by worker; the least harm wins.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::bound::Supply;
use super::choice::Front;
use super::hope::Hope;
use super::{Herd, Right, Room, Rules, Victim};
use crate::index::{Amount, Index, Need};
use crate::ledger::{Ledger, Sight, Slot, View};
use crate::place::{self, Query, Stock, place};
use crate::quota;

/// Most steps that are taken in the order of harm over a whole pool, or on one node: where so
/// many would have to leave, a gang's room is found worker by worker, and a verdict says that
/// there is too little rather than that policy is in the way.
pub(super) const UNITS_MAX: usize = 256;

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
    let sizes = place::sizes(ledger, work, pool, Stock::Emptied);
    let each = ledger.index.charge_least(work, pool);
    let allowed = |rights: &&[Right]| rights.iter().all(|&right| rules.allow(right));
    WAYS.into_iter().filter(allowed).find_map(|rights| {
        sizes.largest(|workers| {
            let newcomer = Newcomer {
                work,
                pool,
                workers,
                amount: each * Amount::from(workers),
                rights,
            };
            if !newcomer.may_try(ledger) {
                return None;
            }
            let way = Search::of(ledger, newcomer, rules);
            way.could_do(ledger).then(|| search(&way, ledger)).flatten()
        })
    })
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
    pub(super) herd: Rc<Herd>,
}

impl Newcomer<'_> {
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
    fn of(ledger: &mut Ledger<'_, '_>, newcomer: Newcomer<'a>, rules: &'a Rules) -> Self {
        Self {
            herd: Herd::of(ledger, newcomer.pool),
            newcomer,
            rules,
        }
    }

    /// Whether there would be room if all candidates left at once: when not, no search is
    /// made. Where more room never takes a place away, the search itself tells.
    fn could_do(&self, ledger: &mut Ledger<'_, '_>) -> bool {
        if !self.may_do(ledger) {
            return false;
        }
        let query = Query::start(ledger.index, self.newcomer.work, self.newcomer.pool);
        let told = self.newcomer.workers == 1 || self.devices(ledger).is_some();
        if told && place::gang(ledger.index, query).is_some() {
            return true;
        }
        let mark = ledger.mark();
        let members = self.herd.teams.iter().flatten();
        let candidates: Vec<usize> = members
            .map(|member| member.work)
            .filter(|&work| {
                let rights = self.newcomer.rights.iter();
                rights.copied().any(|r| self.is_candidate(ledger, work, r))
            })
            .collect();
        for work in candidates {
            ledger.release(work, 0);
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

    /// The least harmful room over all sites. Sites are tried from where it may cost least, until
    /// none can cost less than what has been found.
    fn best(&self, ledger: &mut Ledger<'_, '_>) -> Option<Room> {
        let nodes = &ledger.index.pools[self.newcomer.pool].nodes;
        let single = self.single(ledger);
        let sites = match &single {
            Some(_) => self.herd.devices(ledger),
            None => self.sites(ledger),
        };
        let domains = self.domain_sites(ledger);
        let mut best: Option<Outcome> = None;
        let keep = |best: &mut Option<Outcome>, found: Option<Outcome>| {
            if let Some(found) = found
                && best.as_ref().is_none_or(|b| found.harm < b.harm)
            {
                *best = Some(found);
            }
        };
        for spare_guarantees in [true, false] {
            // The least that any site costs that was tried, where that is told for single devices.
            let mut least_tried = i128::MAX;
            for (least, node) in &sites {
                let rank = nodes.partition_point(|n| n < node);
                if beaten(&best, *least, rank) {
                    break;
                }
                if let Some(single) = &single {
                    match self.device_least(ledger, single, *node) {
                        Some(sure) if !beaten(&best, sure, rank) => {
                            least_tried = least_tried.min(sure);
                        }
                        _ => continue,
                    }
                }
                if self.could_hold_all(ledger, *node) {
                    let found = self.greedy(ledger, Some(&[*node]), rank, spare_guarantees);
                    keep(&mut best, found);
                }
            }
            // Room found over the pool is on some node, and costs no less than there.
            if single.is_some() && beaten(&best, least_tried, nodes.len()) {
                continue;
            }
            for (least, at, domain) in &domains {
                let rank = nodes.len() + 1 + at;
                if beaten(&best, *least, rank) {
                    break;
                }
                let found = self.worker_by_worker(ledger, domain, rank, spare_guarantees);
                keep(&mut best, found);
            }
            let found = self.greedy(ledger, None, nodes.len(), spare_guarantees);
            keep(&mut best, found);
        }
        best.map(|outcome| Room {
            victims: victims(&outcome.units),
            slots: outcome.slots,
        })
    }

    /// Single nodes that have victims on them, each with what room there costs at least, the
    /// cheapest first.
    fn sites(&self, ledger: &Ledger<'_, '_>) -> Vec<(i128, usize)> {
        let devices = i64::from(self.devices(ledger).unwrap_or(0));
        let devices = devices * i64::from(self.newcomer.workers);
        if devices <= 1 {
            return self.herd.cheapest.clone();
        }
        let with_victims = self.herd.cheapest.iter();
        let mut sites: Vec<(i128, usize)> = with_victims
            .filter(|(_, node)| {
                i64::from(ledger.index.nodes[*node].row.gpus) >= devices
                    && self.could_hold_all(ledger, *node)
            })
            .map(|&(one, node)| (self.cost_least(ledger, node, devices).max(one), node))
            .collect();
        sites.sort_unstable();
        sites
    }

    /// For a gang: the domains, each with what room there costs at least, the cheapest first.
    fn domain_sites(&self, ledger: &Ledger<'_, '_>) -> Vec<(i128, usize, Vec<usize>)> {
        if self.newcomer.workers <= 1 {
            return Vec::new();
        }
        let index = ledger.index;
        let devices = self.devices(ledger).map_or(0, i64::from);
        let domains = self.domains(index, &index.pools[self.newcomer.pool].nodes);
        let least = |domain: &[usize]| -> Option<i128> {
            // Only where no node holds two workers is the sum that of the cheapest nodes.
            let alone = domain
                .iter()
                .all(|&n| i64::from(index.nodes[n].row.gpus) < 2 * devices);
            if !alone {
                return Some(0);
            }
            let mut costs: Vec<i128> = domain
                .iter()
                .map(|&node| self.cost_least(ledger, node, devices))
                .collect();
            costs.sort_unstable();
            Some(costs.get(..self.newcomer.workers as usize)?.iter().sum())
        };
        let mut sites: Vec<(i128, usize, Vec<usize>)> = domains
            .into_iter()
            .enumerate()
            .filter_map(|(at, domain)| Some((least(&domain)?, at, domain)))
            .collect();
        sites.sort_unstable_by_key(|(least, at, _)| (*least, *at));
        sites
    }

    /// Some room, found over the whole pool.
    fn any(&self, ledger: &mut Ledger<'_, '_>) -> Option<Room> {
        let mark = ledger.mark();
        let (units, slots) = self.take_until(ledger, None, false);
        ledger.rollback(mark);
        Some(Room {
            victims: victims(&units),
            slots: slots?,
        })
    }

    pub(super) fn domains(&self, index: &Index<'_>, nodes: &[usize]) -> Vec<Vec<usize>> {
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
            && self.herd.on_node.contains_key(&node)
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
        let (units, slots) = self.take_until(ledger, site, spare);
        ledger.rollback(mark);
        Some(self.spare(ledger, units, slots?, site, rank))
    }

    /// Takes victims of a site in their order until there is room, or none is left.
    fn take_until(
        &self,
        ledger: &mut Ledger<'_, '_>,
        site: Option<&[usize]>,
        spare: bool,
    ) -> (Vec<Unit>, Option<Vec<Rc<Slot>>>) {
        let mut units = Vec::new();
        let mut slots = None;
        if site.is_none() && self.too_many(ledger) {
            return (units, slots);
        }
        let mut front = Front::default();
        // A place is looked for only where there is something for it.
        let mut hope = Hope::of(self, ledger, site);
        while slots.is_none() && units.len() < UNITS_MAX {
            let next = match site {
                Some(nodes) => self.next_on(ledger, nodes, &units, spare),
                None => self.next_anywhere(ledger, &mut front, &units, spare),
            };
            let Some(unit) = next else {
                break;
            };
            let gone = ledger.slots(unit.victim)[unit.keep..].to_vec();
            ledger.release(unit.victim, unit.keep);
            units.push(unit);
            if hope.rises(self, ledger, &gone) {
                slots = self.room(ledger, &units, site);
            }
        }
        (units, slots)
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
        let devices = self.devices(ledger).map_or(0, i64::from);
        let index = ledger.index;
        let fit = |node: &usize| place::fit(index, self.newcomer.work, *node, false).is_ok();
        let able = domain.iter().copied().filter(fit);
        let mut costs: Vec<(i128, usize)> = able
            .map(|node| (self.cost_least(ledger, node, devices), node))
            .collect();
        for _ in 0..self.newcomer.workers {
            costs.sort_unstable();
            let Some((more, slot)) = self.cheapest(ledger, &costs, &mut units, spare) else {
                ledger.rollback(mark);
                return None;
            };
            let mut changed = vec![slot.node];
            for unit in more {
                changed.extend(ledger.slots(unit.victim).iter().map(|s| s.node));
                ledger.release(unit.victim, unit.keep);
                units.push(unit);
            }
            ledger.occupy(View::Later, self.newcomer.work, &slot);
            for (cost, node) in costs.iter_mut().filter(|(_, n)| changed.contains(n)) {
                *cost = self.cost_least(ledger, *node, devices);
            }
        }
        ledger.rollback(mark);
        let slots = self.with(ledger, &units, Some(domain))?;
        Some(self.spare(ledger, units, slots, Some(domain), rank))
    }

    /// The node where room for one worker costs least, who leaves for it, and the room there;
    /// of equals the first. The nodes come with what they cost at least, the cheapest first.
    fn cheapest(
        &self,
        ledger: &mut Ledger<'_, '_>,
        costs: &[(i128, usize)],
        units: &mut Vec<Unit>,
        spare: bool,
    ) -> Option<(Vec<Unit>, Rc<Slot>)> {
        type Price = (i128, usize, usize);
        let mut best: Option<(Price, Vec<Unit>, Rc<Slot>)> = None;
        for &(least, node) in costs {
            if best
                .as_ref()
                .is_some_and(|((price, ..), ..)| least > *price)
            {
                break;
            }
            let (here, before) = (ledger.mark(), units.len());
            let site = [node];
            let found = loop {
                if let Some(slots) = self.fits(ledger, 1, Some(&site)) {
                    break Some(slots);
                }
                let Some(unit) = self.next_on(ledger, &site, units, spare) else {
                    break None;
                };
                ledger.release(unit.victim, unit.keep);
                units.push(unit);
            };
            ledger.rollback(here);
            let more = units.split_off(before);
            let Some(slots) = found else { continue };
            let cost = more.iter().map(|u| u.cost).sum();
            // Where nothing is lost, the first node will do, whoever leaves: those before it cost.
            if cost == 0 {
                return Some((more, Rc::clone(&slots[0])));
            }
            let price = (cost, more.len(), node);
            if best.as_ref().is_none_or(|(least, ..)| price < *least) {
                best = Some((price, more, Rc::clone(&slots[0])));
            }
        }
        best.map(|(_, more, slot)| (more, slot))
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
        let mut supply = self.supply_without(ledger, &units, site);
        for at in (0..units.len()).rev() {
            let victim = units[at].victim;
            let same = |unit: &&Unit| unit.victim == victim;
            // An elastic victim gives back its last worker first; the higher ranks are gone anyhow.
            if units[at + 1..].iter().any(|later| same(&later)) {
                continue;
            }
            let before = units[..at].iter().rev().find(same);
            let before = before.map_or(ledger.slots(victim).len(), |unit| unit.keep);
            let needed = supply
                .as_ref()
                .is_some_and(|s| !s.spares(ledger, &units[at], before, self.newcomer.workers));
            if needed {
                continue;
            }
            let mut fewer = units.clone();
            let spared = fewer.remove(at);
            if let Some(found) = self.with(ledger, &fewer, site) {
                (units, slots) = (fewer, found);
                if let Some(supply) = &mut supply {
                    Self::stays(ledger, supply, &units, &spared);
                }
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

    /// The room in workers, were these victims gone; nothing where one more could change it in
    /// other ways than by devices.
    fn supply_without(
        &self,
        ledger: &mut Ledger<'_, '_>,
        units: &[Unit],
        site: Option<&[usize]>,
    ) -> Option<Supply> {
        self.devices(ledger)?;
        let mark = ledger.mark();
        for unit in units {
            ledger.release(unit.victim, unit.keep);
        }
        let supply = self.supply(ledger, site);
        ledger.rollback(mark);
        supply
    }

    /// The same room after one victim less.
    fn stays(ledger: &mut Ledger<'_, '_>, supply: &mut Supply, units: &[Unit], spared: &Unit) {
        let held = ledger.slots(spared.victim).to_vec();
        let mark = ledger.mark();
        for unit in units {
            ledger.release(unit.victim, unit.keep);
        }
        supply.look_again(ledger, &held);
        ledger.rollback(mark);
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
        if units.is_empty() {
            return None;
        }
        // Room is sooner told than right.
        let slots = self.fits(ledger, self.newcomer.workers, site)?;
        if !self.all_rightful(ledger, units, self.newcomer.amount) {
            return None;
        }
        let amount = slots.iter().map(|s| s.amount).sum();
        // A part asked for by memory counts for more on a smaller device than was reckoned with.
        let rightful = amount <= self.newcomer.amount || self.all_rightful(ledger, units, amount);
        (rightful && quota::allowed(ledger, self.newcomer.work, self.newcomer.pool, amount).is_ok())
            .then_some(slots)
    }

    /// Whether every unit is rightful in the end for a newcomer of that amount.
    fn all_rightful(&self, ledger: &mut Ledger<'_, '_>, units: &[Unit], amount: Amount) -> bool {
        let mut inside: FxHashMap<usize, bool> = FxHashMap::default();
        let mut even: FxHashMap<usize, bool> = FxHashMap::default();
        let mut out: FxHashMap<(usize, i64, Amount), bool> = FxHashMap::default();
        units.iter().all(|unit| {
            let facts = &ledger.index.works[unit.victim];
            let (team, priority) = (facts.team, facts.priority);
            match unit.right {
                Right::Priority => true,
                Right::Reclaim => *inside
                    .entry(team)
                    .or_insert_with(|| self.inside_against(ledger, team, amount)),
                Right::Share => {
                    *out.entry((team, priority, unit.amount))
                        .or_insert_with(|| self.stays_out(ledger, unit))
                        && *even
                            .entry(team)
                            .or_insert_with(|| self.evens_out(ledger, team, amount))
                }
            }
        })
    }

    pub(super) fn fits(
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

/// Whether what has been found harms less than a site can that costs at least so much.
fn beaten(best: &Option<Outcome>, least: i128, site: usize) -> bool {
    let harm = Harm {
        undercut: 0,
        cost: least,
        units: 1,
        site,
    };
    best.as_ref().is_some_and(|best| best.harm <= harm)
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
