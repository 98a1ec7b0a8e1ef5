//! Running work of a pool that may be preempted, by team in the order in which it is taken, and by node.
//!
//! It is as work stood before anything was taken from it: what the plan takes from or shrinks is left
//! out by whoever looks. Who comes and goes between cycles joins and leaves it ([`Herds`](super::Herds)).

use std::cell::{OnceCell, RefCell};
use std::cmp::Reverse;
use std::ops::Range;
use std::rc::Rc;

use domain::Timestamp;
use rustc_hash::{FxHashMap, FxHashSet};

use super::floors::{Floor, Floors};
use super::search::{Turn, Unit};
use super::{Right, Rules, Stake};
use crate::index::{Amount, Index};
use crate::ledger::{Ledger, Sight, Slot, Standing};
use crate::place::devices_free;
use crate::world::WithinTeam;

/// One workload as it stood before anything was taken from it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub priority: i64,
    /// What its first step of harm costs.
    pub cost: i128,
    pub started: Reverse<i64>,
    pub work: usize,
    /// What stays after that step, and what goes.
    pub keep: usize,
    pub amount: Amount,
    pub team: usize,
    /// Workers that it had before.
    workers: usize,
    /// Whether others of the herd may be of its kind.
    kindred: bool,
    /// What the step loses.
    stake: Stake,
}

/// What makes steps rightful or not together: team, priority and amount.
pub(super) type Kind = (usize, i64, Amount);

impl Member {
    /// A running workload with the next thing that it can lose: its highest rank, or at its least
    /// everything.
    pub fn of(
        index: &Index<'_>,
        work: usize,
        slots: &[Rc<Slot>],
        kindred: impl FnOnce(Kind) -> bool,
    ) -> Self {
        let facts = &index.works[work];
        let keep = keep(slots.len(), facts.stint.least as usize);
        let gone = &slots[keep..];
        let amount = gone.iter().map(|slot| slot.amount).sum();
        let stake = Stake::of(index, work, gone);
        Self {
            priority: facts.priority,
            cost: stake.cost(index.world.now),
            started: Reverse(facts.stint.started.map_or(0, |t| t.timestamp_micros())),
            work,
            keep,
            amount,
            team: facts.team,
            workers: slots.len(),
            kindred: kindred((facts.team, facts.priority, amount)),
            stake,
        }
    }

    /// Whether nothing was taken from it since.
    pub(super) fn untouched(&self, ledger: &Ledger<'_, '_>) -> bool {
        ledger.slots(self.work).len() == self.workers
    }

    /// When it is taken, of a team that comes by this among those that lose something.
    pub(super) fn turn(&self, first: (bool, Reverse<i128>)) -> Turn {
        (first, self.priority, self.cost, self.started, self.work)
    }

    /// Its kind, where others of the herd may be of it.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.kindred
            .then_some((self.team, self.priority, self.amount))
    }
}

/// What a workload of the herd has of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Berth {
    pub work: usize,
    /// The devices that it stands on, as bits, and how many parts of devices these are.
    pub devices: u64,
    pub parts: u32,
    /// What it has of the host.
    pub cpus: i64,
    pub memory: i64,
    /// What its first step loses.
    stake: Stake,
}

impl Berth {
    /// What its first step costs from a moment on at least.
    pub fn cost_from(&self, at: Timestamp) -> i128 {
        self.stake.cost_from(at)
    }
}

/// The work of one pool.
#[derive(Debug)]
pub(crate) struct Herd {
    /// The moment at which steps cost what is told.
    now: Timestamp,
    /// By team: what nobody has asked for yet, and once somebody has in the order in which it is taken.
    gathered: Vec<RefCell<Vec<Member>>>,
    ordered: Vec<OnceCell<Vec<Member>>>,
    /// By team: how much it has.
    sizes: Vec<usize>,
    /// By node: what stands there, in the order of the names, and the devices that it stands on.
    berths: Vec<Vec<Berth>>,
    devices_on: Vec<u64>,
    /// No step frees more devices.
    pub devices_most: i64,
    cheapest: OnceCell<Vec<(i128, usize)>>,
    floors: Floors,
}

impl Herd {
    /// What may be preempted in a pool, found when it is first asked for in a cycle.
    pub fn of(ledger: &mut Ledger<'_, '_>, pool: usize) -> Rc<Self> {
        if let Some(herd) = ledger.herds.at_hand(pool) {
            return herd;
        }
        let now = ledger.index.world.now;
        // Who was taken from by now is none of it, and is the next time.
        let kept = match ledger.is_stirred() {
            true => None,
            false => ledger.herds.wake(pool, now),
        };
        kept.unwrap_or_else(|| {
            let herd = Rc::new(Self::gather(ledger, pool));
            let lasts = !ledger.is_stirred();
            ledger.herds.take_in(pool, &herd, lasts);
            herd
        })
    }

    fn gather(ledger: &Ledger<'_, '_>, pool: usize) -> Self {
        let index = ledger.index;
        let (nodes, teams) = (index.nodes.len(), index.teams.len());
        let mut herd = Self {
            now: index.world.now,
            gathered: vec![RefCell::default(); teams],
            ordered: vec![OnceCell::new(); teams],
            sizes: vec![0; teams],
            berths: vec![Vec::new(); nodes],
            devices_on: vec![0; nodes],
            devices_most: 1,
            cheapest: OnceCell::new(),
            floors: Floors::of(index.world.now, nodes),
        };
        for work in 0..index.works.len() {
            if Self::pool_of(ledger, work) == Some(pool) {
                herd.add(index, work, ledger.slots(work));
            }
        }
        herd
    }

    /// The pool of whose herd a workload is as it stands, if it is of any.
    pub(super) fn pool_of(ledger: &Ledger<'_, '_>, work: usize) -> Option<usize> {
        let slots = ledger.slots(work);
        let first = slots.first()?;
        let facts = &ledger.index.works[work];
        let there = facts.preemptible
            && ledger.standing(work) == Standing::Running
            && slots.len() == facts.stint.placed as usize;
        there.then(|| ledger.index.nodes[first.node].pool)
    }

    fn add(&mut self, index: &Index<'_>, work: usize, slots: &[Rc<Slot>]) {
        let member = Member::of(index, work, slots, |_| true);
        let gone = &slots[member.keep..];
        let devices = gone.iter().map(|slot| slot.parts.len() as i64).sum();
        self.devices_most = self.devices_most.max(devices);
        for slot in slots {
            let berths = &mut self.berths[slot.node];
            let at = match berths.last() {
                Some(last) if last.work >= work => berths.partition_point(|b| b.work < work),
                _ => berths.len(),
            };
            if berths.get(at).is_none_or(|berth| berth.work != work) {
                let stake = member.stake;
                let berth = Berth {
                    work,
                    devices: 0,
                    parts: 0,
                    cpus: 0,
                    memory: 0,
                    stake,
                };
                berths.insert(at, berth);
            }
            berths[at].cpus += slot.cpus;
            berths[at].memory += slot.memory;
            berths[at].devices |= slot.devices;
            berths[at].parts += slot.parts.len() as u32;
            self.devices_on[slot.node] |= slot.devices;
        }
        self.sizes[member.team] += 1;
        self.gathered[member.team].get_mut().push(member);
    }

    /// A workload has come to be of it.
    pub(super) fn join(&mut self, index: &Index<'_>, work: usize, slots: &[Rc<Slot>]) {
        self.unorder(index.works[work].team);
        self.add(index, work, slots);
        self.cheapest = OnceCell::new();
    }

    /// A workload that stood there is of it no more.
    pub(super) fn leave(&mut self, index: &Index<'_>, work: usize, slots: &[Rc<Slot>]) {
        let team = index.works[work].team;
        self.unorder(team);
        let members = self.gathered[team].get_mut();
        members.retain(|member| member.work != work);
        self.sizes[team] = members.len();
        for slot in slots {
            let berths = &mut self.berths[slot.node];
            berths.retain(|berth| berth.work != work);
            let all = berths.iter().fold(0, |all, berth| all | berth.devices);
            self.devices_on[slot.node] = all;
        }
        self.cheapest = OnceCell::new();
    }

    /// Time has moved on, or back: all steps cost otherwise.
    pub(super) fn turn(&mut self, now: Timestamp) {
        if std::mem::replace(&mut self.now, now) == now {
            return;
        }
        (0..self.sizes.len()).for_each(|team| self.unorder(team));
        self.cheapest = OnceCell::new();
        self.floors.turn(now);
    }

    /// Whether it is what would be gathered now, when nothing was taken from anybody.
    pub(super) fn is_like(&mut self, ledger: &Ledger<'_, '_>, pool: usize) -> bool {
        self.turn(ledger.index.world.now);
        let fresh = Self::gather(ledger, pool);
        self.floors.are_like(ledger, &fresh)
            && self.teams().all(|team| self.team(team) == fresh.team(team))
            && self.sizes == fresh.sizes
            && self.berths == fresh.berths
            && self.devices_on == fresh.devices_on
            && self.devices_most >= fresh.devices_most
    }

    /// A team's work is in no order any more.
    fn unorder(&mut self, team: usize) {
        if let Some(members) = self.ordered[team].take() {
            *self.gathered[team].get_mut() = members;
        }
    }

    /// Something was put on a node or taken from it.
    pub(super) fn spoil(&self, node: usize) {
        self.floors.spoil(node);
    }

    /// The numbers of the teams.
    pub fn teams(&self) -> Range<usize> {
        0..self.sizes.len()
    }

    /// Whether a team has anything of it.
    pub fn has(&self, team: usize) -> bool {
        self.sizes[team] > 0
    }

    /// What a team has of it, in the order in which it is taken.
    pub fn team(&self, team: usize) -> &[Member] {
        self.ordered[team].get_or_init(|| {
            let mut members = self.gathered[team].take();
            for member in &mut members {
                member.cost = member.stake.cost(self.now);
            }
            members.sort_unstable();
            members
        })
    }

    /// What stands on a node, in the order of the names.
    pub(super) fn on(&self, node: usize) -> &[Berth] {
        &self.berths[node]
    }

    /// The devices of a node that it stands on, as bits.
    pub fn devices_on(&self, node: usize) -> u64 {
        self.devices_on[node]
    }

    /// Whether some node of the pool had so many devices free, were it all gone.
    pub fn may_empty(&self, ledger: &Ledger<'_, '_>, pool: usize, count: u32) -> bool {
        let mut nodes = ledger.index.pools[pool].nodes.iter();
        nodes.any(|&node| {
            let free = devices_free(ledger, node, Sight::Later);
            (free | self.devices_on[node]).count_ones() >= count
        })
    }

    /// Nodes with the least cost of a step there, the least first.
    pub fn cheapest(&self) -> &[(i128, usize)] {
        self.cheapest.get_or_init(|| {
            let nodes = self.berths.iter().enumerate();
            let least = |berths: &Vec<Berth>| berths.iter().map(|berth| self.cost(berth)).min();
            let mut costs: Vec<(i128, usize)> = nodes
                .filter_map(|(node, berths)| Some((least(berths)?, node)))
                .collect();
            costs.sort_unstable();
            costs
        })
    }

    /// Nodes with what a whole device costs there at least, the least first.
    pub(super) fn devices(&self, ledger: &Ledger<'_, '_>) -> Vec<(i128, usize)> {
        self.floors.sites(ledger, self, |floor| floor.device)
    }

    /// The same for a part of a device.
    pub(super) fn parts(&self, ledger: &Ledger<'_, '_>, milli: i64) -> Vec<(i128, usize)> {
        let least = |floor: Floor| match floor.left >= milli {
            true => Some(0),
            false => floor.step,
        };
        self.floors.sites(ledger, self, least)
    }

    /// Whether it has steps of a kind.
    pub fn has_kind(&self, (team, priority, amount): Kind) -> bool {
        let mut members = self.team(team).iter();
        members.any(|member| (member.priority, member.amount) == (priority, amount))
    }

    /// What the first step of what stands there costs.
    pub(super) fn cost(&self, berth: &Berth) -> i128 {
        berth.stake.cost(self.now)
    }
}

/// What is known of steps of other teams while a set is gathered.
#[derive(Default)]
pub(super) struct Known {
    /// Whether they are rightful as things stand, by their kind.
    rightful: FxHashMap<Kind, bool>,
    /// What teams run of lower priority than some work of theirs that work could displace, by
    /// team and priority.
    lower: FxHashMap<(usize, i64), Amount>,
    /// Teams that were found to have nothing to lose. What others lose leaves a team less to lose, but for
    /// those above whom the newcomer stands, too.
    spent: FxHashSet<usize>,
}

impl Known {
    /// A step was taken for a newcomer.
    pub fn step(&mut self, index: &Index<'_>, rules: &Rules, unit: &Unit, newcomer: usize) {
        self.rightful.clear();
        let facts = &index.works[unit.victim];
        let own = &index.teams[index.works[newcomer].team].path;
        if index.teams[facts.team].path.iter().any(|t| own.contains(t)) {
            self.spent.clear();
        }
        self.spent.remove(&facts.team);
        let single = facts.stint.placed <= facts.stint.least;
        // What goes whole to even out shares was open to its own team's work, too.
        let whole = unit.right == Right::Share && unit.keep == 0 && single;
        let counted = rules.within_team == WithinTeam::LowerPriority;
        self.lower.retain(|(team, priority), lower| {
            if *team == facts.team && counted && *priority > facts.priority {
                *lower -= unit.amount;
            }
            *team != facts.team || whole
        });
    }

    /// Whether a team is known to have nothing to lose.
    pub fn is_spent(&self, team: usize) -> bool {
        self.spent.contains(&team)
    }

    /// Keeps in mind that some have not.
    pub fn spend(&mut self, teams: impl Iterator<Item = usize>) {
        self.spent.extend(teams);
    }

    /// Whether a step is known not to be rightful.
    pub fn refuses(&self, member: &Member, right: Right) -> bool {
        let known = member.kind().and_then(|kind| self.rightful.get(&kind));
        right != Right::Priority && known == Some(&false)
    }

    /// Whether steps of a kind are rightful, if that is known.
    pub fn tells(&self, kind: Option<Kind>) -> Option<bool> {
        self.rightful.get(&kind?).copied()
    }

    /// Keeps it in mind.
    pub fn keep(&mut self, kind: Option<Kind>, rightful: bool) {
        if let Some(kind) = kind {
            self.rightful.insert(kind, rightful);
        }
    }

    /// What a team runs of lower priority, found out when it is first asked.
    pub fn lower(&mut self, of: (usize, i64), find: impl FnOnce() -> Amount) -> Amount {
        *self.lower.entry(of).or_insert_with(find)
    }
}

/// Whether nothing was taken from a workload in this plan, nor was it moved.
pub(super) fn untouched(ledger: &Ledger<'_, '_>, work: usize) -> bool {
    ledger.standing(work) == Standing::Running
        && ledger.slots(work).len() == ledger.index.works[work].stint.placed as usize
}

/// The workers that stay when a workload of so many loses the next: at its least it loses all.
pub(crate) fn keep(workers: usize, least: usize) -> usize {
    if workers > least { workers - 1 } else { 0 }
}
