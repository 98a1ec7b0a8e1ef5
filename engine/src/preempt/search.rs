//! The search for victims: on each node, over the pool, and worker by worker; the least harm wins.

mod take;

use std::cell::Cell;
use std::cmp::{Ordering, Reverse};
use std::rc::Rc;

use rustc_hash::FxHashSet;

use super::single::Single;
use super::{Herd, Right, Room, Rules, Victim};
use crate::index::{Amount, Index, Need};
use crate::ledger::{Ledger, Slot};
use crate::place::{self, Query, Stock};
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
pub(super) struct Newcomer {
    pub(super) work: usize,
    pub(super) pool: usize,
    pub(super) workers: u32,
    pub(super) amount: Amount,
    pub(super) rights: &'static [Right],
}

/// One step of harm: a victim keeps so many workers from here on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit {
    pub(super) victim: usize,
    pub(super) right: Right,
    pub(super) keep: usize,
    pub(super) amount: Amount,
    pub(super) cost: i128,
    pub(super) turn: Turn,
}

/// What decides which step is taken first: its team's place among those that lose something, its
/// priority, its cost, the latest start, the name.
pub(super) type Turn = ((bool, Reverse<i128>), i64, i128, Reverse<i64>, usize);

/// How harmful a set is; the least is taken. Of sets that cost the same it is the one whose
/// victims come first in their order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Harm {
    undercut: Amount,
    cost: i128,
    units: usize,
    turns: Vec<Turn>,
    site: usize,
}

/// What is told of a site by the least that it costs, beside what has been found.
enum Against {
    /// Nothing there harms less, nor does anything at a site that costs more.
    Beaten,
    /// It may cost as little: the order of the victims decides.
    Even,
    /// It may harm less.
    Open,
}

struct Outcome {
    harm: Harm,
    units: Vec<Unit>,
    slots: Vec<Rc<Slot>>,
}

pub(super) struct Search<'a> {
    pub(super) newcomer: Newcomer,
    pub(super) rules: &'a Rules,
    pub(super) herd: Rc<Herd>,
    /// Whether a step was passed over that would have been taken but for a guarantee.
    pub(super) spared: Cell<bool>,
}

impl Newcomer {
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
    fn of(ledger: &mut Ledger<'_, '_>, newcomer: Newcomer, rules: &'a Rules) -> Self {
        Self {
            herd: Herd::of(ledger, newcomer.pool),
            newcomer,
            rules,
            spared: Cell::new(false),
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
        let members = self.herd.teams().flat_map(|team| self.herd.team(team));
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
        let pool_rank = ledger.index.pools[self.newcomer.pool].nodes.len();
        let single = self.single(ledger);
        let mut nodes = match &single {
            Some(_) => self.single_sites(ledger),
            None => self.sites(ledger),
        };
        let mut domains = self.domain_sites(ledger);
        let mut whole = true;
        let mut best: Option<Outcome> = None;
        for spare in [true, false] {
            // Where no step was passed over for a guarantee the same is found without a look at those, and
            // what was not worth a try is not now.
            nodes = self.try_nodes(ledger, nodes, &single, spare, &mut best);
            domains.retain(|(least, at, domain)| {
                if matches!(against(&best, *least), Against::Beaten) {
                    return false;
                }
                let rank = pool_rank + 1 + at;
                self.spared.set(false);
                let found = self.worker_by_worker(ledger, domain, rank, spare);
                keep(&mut best, found);
                self.spared.get()
            });
            if whole {
                self.spared.set(false);
                let found = self.over_pool(ledger, &single, pool_rank, spare, &best);
                keep(&mut best, found);
                whole = self.spared.get();
            }
        }
        best.map(|outcome| Room {
            victims: victims(&outcome.units),
            slots: outcome.slots,
        })
    }

    /// Tries nodes, the cheapest first; gives those on which a guarantee was in the way.
    fn try_nodes(
        &self,
        ledger: &mut Ledger<'_, '_>,
        sites: Vec<(i128, usize)>,
        single: &Option<Single>,
        spare: bool,
        best: &mut Option<Outcome>,
    ) -> Vec<(i128, usize)> {
        let nodes = &ledger.index.pools[self.newcomer.pool].nodes;
        let mut again = Vec::new();
        for (least, node) in sites {
            if matches!(against(best, least), Against::Beaten) {
                break;
            }
            let mut sure = least;
            if let Some(single) = single {
                let Some((devices, all)) = self.single_least(ledger, single, node) else {
                    continue;
                };
                single.least.set(devices.min(single.least.get()));
                let Some(all) = all else { continue };
                sure = all;
            }
            let rank = nodes.partition_point(|n| *n < node);
            match against(best, sure) {
                Against::Beaten => continue,
                Against::Even if !self.comes_first(ledger, node, rank, best) => continue,
                _ => {}
            }
            if self.could_hold_all(ledger, node) {
                self.spared.set(false);
                let found = self.greedy(ledger, Some(&[node]), rank, spare);
                keep(best, found);
                if self.spared.get() {
                    again.push((least, node));
                }
            }
        }
        again
    }

    /// Room found over the whole pool, where it may harm less than what has been found: that of a single
    /// worker is on a node that some of those who leave stand on.
    fn over_pool(
        &self,
        ledger: &mut Ledger<'_, '_>,
        single: &Option<Single>,
        rank: usize,
        spare: bool,
        best: &Option<Outcome>,
    ) -> Option<Outcome> {
        if let Some(single) = single
            && !matches!(against(best, single.least.get()), Against::Open)
        {
            return None;
        }
        let mark = ledger.mark();
        let (units, slots) = self.take_until(ledger, None, spare);
        ledger.rollback(mark);
        let slots = slots?;
        // What this plan has shrunk before may be none of the herd.
        if single.is_some() && self.rules.shrunk().next().is_none() {
            let taken: FxHashSet<usize> = units.iter().map(|unit| unit.victim).collect();
            let there = taken.iter().flat_map(|&work| ledger.slots(work));
            let there: FxHashSet<usize> = there.map(|slot| slot.node).collect();
            let leaves = |work: usize| taken.contains(&work);
            let least = |&node: &usize| self.least_where(ledger, node, &leaves)?.1;
            let least = there.iter().filter_map(least).min();
            if least.is_none_or(|least| matches!(against(best, least), Against::Beaten)) {
                return None;
            }
        }
        Some(self.spare(ledger, units, slots, None, rank))
    }

    /// Whether the first who might be taken on a node comes before the first of what has been found, or is
    /// the same and the node comes first.
    fn comes_first(
        &self,
        ledger: &mut Ledger<'_, '_>,
        node: usize,
        rank: usize,
        best: &Option<Outcome>,
    ) -> bool {
        let Some((first, site)) = best
            .as_ref()
            .and_then(|best| Some((best.harm.turns.first()?, best.harm.site)))
        else {
            return true;
        };
        let inside = self.inside(ledger);
        let options = self.options(ledger, &[node], &[], inside);
        let mut turns = options
            .iter()
            .map(|(flock, member)| member.turn(flock.first));
        turns.any(|turn| (&turn, rank) < (first, site))
    }

    /// Single nodes that have victims on them, each with what room there costs at least, the
    /// cheapest first.
    fn sites(&self, ledger: &Ledger<'_, '_>) -> Vec<(i128, usize)> {
        let devices = i64::from(self.devices(ledger).unwrap_or(0));
        let devices = devices * i64::from(self.newcomer.workers);
        if devices <= 1 {
            return self.herd.cheapest().to_vec();
        }
        let with_victims = self.herd.cheapest().iter();
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
        if self.is_roomless(ledger) {
            return None;
        }
        let mark = ledger.mark();
        let (units, slots) = self.take_until(ledger, None, false);
        ledger.rollback(mark);
        let Some(slots) = slots else {
            self.finds_no_room(ledger);
            return None;
        };
        Some(Room {
            victims: victims(&units),
            slots,
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
            && !self.herd.on(node).is_empty()
    }
}

/// Keeps what harms less.
fn keep(best: &mut Option<Outcome>, found: Option<Outcome>) {
    if let Some(found) = found
        && best.as_ref().is_none_or(|b| found.harm < b.harm)
    {
        *best = Some(found);
    }
}

/// What has been found beside what a site can be that costs at least so much.
fn against(best: &Option<Outcome>, least: i128) -> Against {
    let Some(Outcome { harm, .. }) = best else {
        return Against::Open;
    };
    match (harm.undercut, harm.cost).cmp(&(0, least)) {
        Ordering::Less => Against::Beaten,
        Ordering::Equal if harm.units <= 1 => Against::Even,
        _ => Against::Open,
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
