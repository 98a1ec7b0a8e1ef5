//! Running work of a pool that may be preempted, by team in the order in which it is taken, and by node.
//!
//! It is made once in a cycle: work that is there leaves or is shrunk by the plan, and is then
//! left out by whoever looks; none comes.

use std::cell::{OnceCell, RefCell};
use std::cmp::Reverse;
use std::ops::Range;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::search::{Turn, Unit};
use super::single::device_least;
use super::{Right, Rules, cost};
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
        let keep = keep(slots.len(), facts.stint.least);
        let gone = &slots[keep..];
        let amount = gone.iter().map(|slot| slot.amount).sum();
        Self {
            priority: facts.priority,
            cost: cost(index, work, gone),
            started: Reverse(facts.stint.started.map_or(0, |t| t.timestamp_micros())),
            work,
            keep,
            amount,
            team: facts.team,
            workers: slots.len(),
            kindred: kindred((facts.team, facts.priority, amount)),
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

/// The work of one pool.
#[derive(Debug)]
pub(crate) struct Herd {
    /// By team: as it was gathered, and once somebody has asked in the order in which it is taken.
    gathered: Vec<RefCell<Vec<Member>>>,
    ordered: Vec<OnceCell<Vec<Member>>>,
    /// By team: how much it has.
    sizes: Vec<usize>,
    /// By node, in the order of the names: where in `standing` its work begins.
    begins: Vec<usize>,
    standing: Vec<usize>,
    /// By node: the least cost of a step there.
    least: Vec<Option<i128>>,
    cheapest: OnceCell<Vec<(i128, usize)>>,
    /// By work.
    costs: Vec<i128>,
    /// The most devices that one step frees.
    pub devices_most: i64,
    /// By node, the devices that it stands on, as bits.
    devices_on: Vec<u64>,
    /// The most devices that any node has free, were it all gone.
    pub emptied_most: u32,
    devices: OnceCell<Vec<(i128, usize)>>,
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
        let nodes = index.nodes.len();
        let mut teams = vec![Vec::new(); index.teams.len()];
        let mut least = vec![None; nodes];
        let mut devices_most = 1;
        let mut devices_on = vec![0; nodes];
        let mut costs = vec![0; index.works.len()];
        let mut counts = vec![0; nodes];
        let mut last_on = vec![usize::MAX; nodes];
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for (work, cost) in costs.iter_mut().enumerate() {
            let slots = ledger.slots(work);
            let here = slots
                .first()
                .is_some_and(|slot| index.nodes[slot.node].pool == pool);
            if !here {
                continue;
            }
            let facts = &index.works[work];
            if !facts.preemptible
                || ledger.standing(work) != Standing::Running
                || slots.len() != facts.stint.placed
            {
                continue;
            }
            let member = Member::of(index, work, slots, |_| true);
            let devices = slots[member.keep..]
                .iter()
                .map(|slot| slot.parts.len() as i64)
                .sum();
            devices_most = devices_most.max(devices);
            for slot in slots {
                devices_on[slot.node] |= slot.devices;
                if std::mem::replace(&mut last_on[slot.node], work) != work {
                    counts[slot.node] += 1;
                    pairs.push((slot.node, work));
                }
                let least = least[slot.node].get_or_insert(member.cost);
                *least = member.cost.min(*least);
            }
            *cost = member.cost;
            teams[facts.team].push(member);
        }
        let mut begins = Vec::with_capacity(nodes + 1);
        let mut sum = 0;
        for count in counts {
            begins.push(sum);
            sum += count;
        }
        begins.push(sum);
        let (mut next, mut standing) = (begins.clone(), vec![0; sum]);
        for (node, work) in pairs {
            standing[next[node]] = work;
            next[node] += 1;
        }
        let emptied = index.pools[pool].nodes.iter();
        let emptied = emptied.map(|&node| {
            let free = devices_free(ledger, node, Sight::Later);
            (free | devices_on[node]).count_ones()
        });
        Self {
            emptied_most: emptied.max().unwrap_or(0),
            devices_on,
            sizes: teams.iter().map(Vec::len).collect(),
            ordered: teams.iter().map(|_| OnceCell::new()).collect(),
            gathered: teams.into_iter().map(RefCell::new).collect(),
            begins,
            standing,
            least,
            cheapest: OnceCell::new(),
            costs,
            devices_most,
            devices: OnceCell::new(),
        }
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
            members.sort_unstable();
            members
        })
    }

    /// What stands on a node, in the order of the names.
    pub fn on(&self, node: usize) -> &[usize] {
        &self.standing[self.begins[node]..self.begins[node + 1]]
    }

    /// The devices of a node that it stands on, as bits.
    pub fn devices_on(&self, node: usize) -> u64 {
        self.devices_on[node]
    }

    /// Nodes with the least cost of a step there, the least first.
    pub fn cheapest(&self) -> &[(i128, usize)] {
        self.cheapest.get_or_init(|| {
            let costs = self.least.iter().enumerate();
            let mut costs: Vec<(i128, usize)> = costs
                .filter_map(|(node, cost)| Some(((*cost)?, node)))
                .collect();
            costs.sort_unstable();
            costs
        })
    }

    /// Nodes with what a whole device costs there at least, the least first. What has been
    /// disturbed since may be had for the least of its steps.
    pub fn devices(&self, ledger: &Ledger<'_, '_>) -> Vec<(i128, usize)> {
        let whole = self.devices.get_or_init(|| {
            let nodes = 0..self.least.len();
            let nodes = nodes.filter(|&node| !self.on(node).is_empty());
            let least =
                nodes.filter_map(|node| Some((device_least(ledger, self, node, &|_| true)?, node)));
            least.collect()
        });
        let disturbed = |node: usize| {
            let mut there = self.on(node).iter();
            there.any(|&work| !untouched(ledger, work))
        };
        let steps = self.least.iter().enumerate();
        let steps = steps.filter(|(node, _)| disturbed(*node));
        let mut steps: FxHashMap<usize, i128> = steps
            .filter_map(|(node, cost)| Some((node, (*cost)?)))
            .collect();
        let whole = whole.iter();
        let mut sites: Vec<(i128, usize)> = whole
            .map(|&(least, node)| (steps.remove(&node).unwrap_or(least), node))
            .collect();
        sites.extend(steps.into_iter().map(|(node, cost)| (cost, node)));
        sites.sort_unstable();
        sites
    }

    /// Whether it has steps of a kind.
    pub fn has_kind(&self, (team, priority, amount): Kind) -> bool {
        let mut members = self.team(team).iter();
        members.any(|member| (member.priority, member.amount) == (priority, amount))
    }

    /// What the first step of a workload costs.
    pub fn cost_of(&self, work: usize) -> i128 {
        self.costs[work]
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
}

impl Known {
    /// A step was taken.
    pub fn step(&mut self, index: &Index<'_>, rules: &Rules, unit: &Unit) {
        self.rightful.clear();
        let facts = &index.works[unit.victim];
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
        && ledger.slots(work).len() == ledger.index.works[work].stint.placed
}

/// The workers that stay when a workload of so many loses the next: at its least it loses all.
pub(crate) fn keep(workers: usize, least: usize) -> usize {
    if workers > least { workers - 1 } else { 0 }
}
