//! Running work of a pool that may be preempted, by team in the order in which it is taken, and by node.
//!
//! It is made once in a cycle: work that is there leaves or is shrunk by the plan, and is then
//! left out by whoever looks; none comes.

use std::cmp::Reverse;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::bound::devices_of;
use super::single::device_least;
use super::{Right, cost};
use crate::index::{Amount, Index};
use crate::ledger::{Ledger, Sight, Slot, Standing};
use crate::place::devices_free;

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
    /// Its kind, where others of the herd are of it.
    pub kind: Option<usize>,
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
        kind: impl FnOnce(Kind) -> Option<usize>,
    ) -> Self {
        let facts = &index.works[work];
        let keep = keep(slots.len(), facts.row.workers_least() as usize);
        let gone = &slots[keep..];
        let amount = gone.iter().map(|slot| slot.amount).sum();
        Self {
            priority: facts.priority,
            cost: cost(index, work, gone),
            started: Reverse(facts.row.started.map_or(0, |t| t.timestamp_micros())),
            work,
            keep,
            amount,
            kind: kind((facts.team, facts.priority, amount)),
        }
    }
}

/// The work of one pool.
#[derive(Debug)]
pub(crate) struct Herd {
    /// By team, in the order in which it is taken.
    pub teams: Vec<Vec<Member>>,
    /// By node, in the order of the names.
    pub on_node: FxHashMap<usize, Vec<usize>>,
    /// Nodes with the least cost of a step there, the least first.
    pub cheapest: Vec<(i128, usize)>,
    costs: FxHashMap<usize, i128>,
    /// The most devices that one step frees.
    pub devices_most: i64,
    /// By node, the devices that it stands on, as bits.
    pub devices_on: FxHashMap<usize, u64>,
    /// The most devices that any node has free, were it all gone.
    pub emptied_most: u32,
    /// Nodes with the least cost of a whole device there, the least first; those on which no
    /// device could be free are left out.
    devices: Vec<(i128, usize)>,
    kinds: FxHashMap<Kind, usize>,
}

impl Herd {
    /// What may be preempted in a pool, made when it is first asked for.
    pub fn of(ledger: &mut Ledger<'_, '_>, pool: usize) -> Rc<Self> {
        if let Some(herd) = &ledger.herds[pool] {
            return Rc::clone(herd);
        }
        let herd = Rc::new(Self::gather(ledger, pool));
        ledger.herds[pool] = Some(Rc::clone(&herd));
        herd
    }

    fn gather(ledger: &Ledger<'_, '_>, pool: usize) -> Self {
        let index = ledger.index;
        let mut teams = vec![Vec::new(); index.teams.len()];
        let mut on_node: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
        let mut least: FxHashMap<usize, i128> = FxHashMap::default();
        let mut devices_most = 1;
        let mut devices_on: FxHashMap<usize, u64> = FxHashMap::default();
        let mut costs: FxHashMap<usize, i128> = FxHashMap::default();
        let mut kinds: FxHashMap<Kind, usize> = FxHashMap::default();
        for (work, facts) in index.works.iter().enumerate() {
            let slots = ledger.slots(work);
            let here = slots
                .first()
                .is_some_and(|slot| index.nodes[slot.node].pool == pool);
            if !here
                || !facts.preemptible
                || ledger.standing(work) != Standing::Running
                || slots.len() != facts.row.placed.len()
            {
                continue;
            }
            let member = Member::of(index, work, slots, |kind| {
                let fresh = kinds.len();
                Some(*kinds.entry(kind).or_insert(fresh))
            });
            let devices = slots[member.keep..]
                .iter()
                .map(|slot| slot.parts.len() as i64)
                .sum();
            devices_most = devices_most.max(devices);
            for slot in slots {
                *devices_on.entry(slot.node).or_default() |= devices_of(slot);
                let there = on_node.entry(slot.node).or_default();
                if there.last() != Some(&work) {
                    there.push(work);
                }
                let least = least.entry(slot.node).or_insert(member.cost);
                *least = member.cost.min(*least);
            }
            costs.insert(work, member.cost);
            teams[facts.team].push(member);
        }
        for team in &mut teams {
            team.sort_unstable();
        }
        let mut cheapest: Vec<(i128, usize)> =
            least.into_iter().map(|(node, cost)| (cost, node)).collect();
        cheapest.sort_unstable();
        let emptied = index.pools[pool].nodes.iter().map(|node| {
            let there = devices_on.get(node).copied().unwrap_or(0);
            (devices_free(ledger, *node, Sight::Later) | there).count_ones()
        });
        let mut herd = Self {
            emptied_most: emptied.max().unwrap_or(0),
            devices_on,
            teams,
            on_node,
            cheapest,
            costs,
            devices_most,
            devices: Vec::new(),
            kinds,
        };
        let nodes = herd.on_node.keys();
        let least =
            nodes.filter_map(|&node| Some((device_least(ledger, &herd, node, &|_| true)?, node)));
        herd.devices = least.collect();
        herd.devices.sort_unstable();
        herd
    }

    /// Nodes with what a whole device costs there at least, the least first. What has been
    /// disturbed since may be had for the least of its steps.
    pub fn devices(&self, ledger: &Ledger<'_, '_>) -> Vec<(i128, usize)> {
        let disturbed = |node: usize| {
            let there = self.on_node.get(&node).into_iter().flatten();
            there.copied().any(|work| !untouched(ledger, work))
        };
        let steps = self.cheapest.iter().filter(|(_, node)| disturbed(*node));
        let mut steps: FxHashMap<usize, i128> = steps.map(|&(cost, node)| (node, cost)).collect();
        let whole = self.devices.iter();
        let mut sites: Vec<(i128, usize)> = whole
            .map(|&(least, node)| (steps.remove(&node).unwrap_or(least), node))
            .collect();
        sites.extend(steps.into_iter().map(|(node, cost)| (cost, node)));
        sites.sort_unstable();
        sites
    }

    /// The number of a kind of steps.
    pub fn kind(&self, kind: Kind) -> Option<usize> {
        self.kinds.get(&kind).copied()
    }

    /// What the first step of a workload costs.
    pub fn cost_of(&self, work: usize) -> i128 {
        self.costs.get(&work).copied().unwrap_or(0)
    }
}

/// Whether steps of other teams are rightful as things stand, by their kind.
#[derive(Default)]
pub(super) struct Known(FxHashMap<usize, bool>);

impl Known {
    /// Whether a step is known not to be rightful.
    pub fn refuses(&self, member: &Member, right: Right) -> bool {
        let known = member.kind.and_then(|kind| self.0.get(&kind));
        right != Right::Priority && known == Some(&false)
    }

    /// Whether steps of a kind are rightful, found out when it is first asked.
    pub fn tells(&mut self, kind: Option<usize>, find: impl FnOnce() -> bool) -> bool {
        match kind {
            Some(kind) => *self.0.entry(kind).or_insert_with(find),
            None => find(),
        }
    }
}

/// Whether nothing was taken from a workload in this plan.
pub(super) fn untouched(ledger: &Ledger<'_, '_>, work: usize) -> bool {
    ledger.slots(work).len() == ledger.index.works[work].row.placed.len()
}

/// The workers that stay when a workload of so many loses the next: at its least it loses all.
pub(crate) fn keep(workers: usize, least: usize) -> usize {
    if workers > least { workers - 1 } else { 0 }
}
