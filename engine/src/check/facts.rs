//! The world as the checker sees it: who is where now and once victims have left, and what counts for how much.

use std::collections::{BTreeMap, BTreeSet};

use domain::sharing::SharingMode;

use super::profiles::shape;
use crate::plan::Plan;
use crate::world::{Charge, Node, NodeState, Placed, Pool, Team, Workload, WorkloadState, World};

/// A workload's workers somewhere.
pub(super) type PlacedWork<'w> = Vec<(&'w Workload, Vec<Placed>)>;
/// An exact amount: thousandths of a GPU times what makes every dominant part whole.
pub(super) type Exact = i128;

pub(super) struct Facts<'w> {
    pub world: &'w World,
    pub pools: BTreeMap<&'w str, &'w Pool>,
    pub nodes: BTreeMap<&'w str, &'w Node>,
    pub teams: BTreeMap<&'w str, &'w Team>,
    pub works: BTreeMap<&'w str, &'w Workload>,
    /// By pool: thousandths of capacity, cores, memory, and the scale of amounts.
    pub totals: BTreeMap<&'w str, Totals>,
    /// The guarantee of each team in each pool, shrunk, in scaled amounts.
    pub guarantees: BTreeMap<(&'w str, &'w str), Exact>,
    pub running: PlacedWork<'w>,
    pub leaving: PlacedWork<'w>,
    /// Running work once victims have left and movers have moved.
    pub remaining: PlacedWork<'w>,
    pub starts: PlacedWork<'w>,
    pub growth: PlacedWork<'w>,
    /// Room that is kept: by this plan, and by earlier ones.
    pub kept: PlacedWork<'w>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Totals {
    pub capacity: i128,
    pub cpus: i128,
    pub memory: i128,
    pub scale: i128,
}

impl<'w> Facts<'w> {
    pub fn of(world: &'w World, plan: &Plan) -> Self {
        let mut facts = Self {
            world,
            pools: world.pools.iter().map(|p| (p.name.as_str(), p)).collect(),
            nodes: world.nodes.iter().map(|n| (n.name.as_str(), n)).collect(),
            teams: world.teams.iter().map(|t| (t.name.as_str(), t)).collect(),
            works: world
                .workloads
                .iter()
                .map(|w| (w.name.as_str(), w))
                .collect(),
            totals: BTreeMap::new(),
            guarantees: BTreeMap::new(),
            running: Vec::new(),
            leaving: Vec::new(),
            remaining: Vec::new(),
            starts: Vec::new(),
            growth: Vec::new(),
            kept: Vec::new(),
        };
        facts.totals = world
            .pools
            .iter()
            .map(|p| (p.name.as_str(), facts.total(p)))
            .collect();
        facts.guarantees = facts.shrunk();
        facts.stand(plan);
        facts
    }

    fn total(&self, pool: &Pool) -> Totals {
        let nodes = || {
            self.world
                .nodes
                .iter()
                .filter(|n| n.pool == pool.name && n.state != NodeState::Unreachable)
        };
        let capacity = nodes()
            .map(|n| i128::from(n.gpus) - n.failed.len() as i128)
            .sum::<i128>()
            * 1000;
        let cpus: i128 = nodes().map(|n| i128::from(n.cpus.milli())).sum();
        let memory: i128 = nodes().map(|n| i128::from(n.memory_mib)).sum();
        let scale = match pool.charge {
            Charge::Gpus => 1,
            Charge::Dominant => cpus.max(1) * memory.max(1),
        };
        Totals {
            capacity,
            cpus,
            memory,
            scale,
        }
    }

    /// Guarantees in proportion where the roots' sum is above the capacity.
    fn shrunk(&self) -> BTreeMap<(&'w str, &'w str), Exact> {
        let mut children: BTreeMap<Option<&str>, Vec<&'w Team>> = BTreeMap::new();
        for team in self.teams.values() {
            children
                .entry(team.parent.as_deref())
                .or_default()
                .push(team);
        }
        fn nominal(
            world: &World,
            team: &Team,
            pool: &str,
            children: &BTreeMap<Option<&str>, Vec<&Team>>,
        ) -> i128 {
            let below = |of: &dyn Fn(&Team) -> i128| -> i128 {
                let of_team = children.get(&Some(team.name.as_str()));
                of_team.into_iter().flatten().map(|child| of(child)).sum()
            };
            match team.quotas.get(pool) {
                Some(row) => {
                    i128::from(row.guaranteed.milli()) + booked(world, team, pool, children)
                }
                None => {
                    below(&|child| nominal(world, child, pool, children))
                        + own_booked(world, team, pool)
                }
            }
        }
        /// What is booked now for a team and all below it.
        fn booked(
            world: &World,
            team: &Team,
            pool: &str,
            children: &BTreeMap<Option<&str>, Vec<&Team>>,
        ) -> i128 {
            let below = children.get(&Some(team.name.as_str()));
            let below = below.into_iter().flatten();
            own_booked(world, team, pool)
                + below
                    .map(|child| booked(world, child, pool, children))
                    .sum::<i128>()
        }
        fn own_booked(world: &World, team: &Team, pool: &str) -> i128 {
            let own = world.bookings.iter().filter(|b| {
                b.team == team.name && b.pool == pool && b.from <= world.now && world.now < b.to
            });
            own.map(|b| i128::from(b.gpus.milli())).sum()
        }
        let mut all = BTreeMap::new();
        for (&pool, totals) in &self.totals {
            let roots: i128 = children
                .get(&None)
                .into_iter()
                .flatten()
                .map(|t| nominal(self.world, t, pool, &children))
                .sum();
            let (by, of) = if roots > totals.capacity {
                (totals.capacity, roots)
            } else {
                (1, 1)
            };
            for siblings in children.values() {
                let exact: Vec<(i128, &Team)> = siblings
                    .iter()
                    .map(|t| (nominal(self.world, t, pool, &children) * by, *t))
                    .collect();
                let mut rest = exact.iter().map(|(e, _)| e).sum::<i128>() / of
                    - exact.iter().map(|(e, _)| e / of).sum::<i128>();
                let mut order: Vec<usize> = (0..exact.len()).collect();
                order.sort_by_key(|&i| (-(exact[i].0 % of), exact[i].1.name.as_str()));
                for i in order {
                    let (amount, team) = exact[i];
                    let one = i128::from(rest > 0);
                    rest -= one;
                    let name = self.teams[team.name.as_str()].name.as_str();
                    all.insert((name, pool), (amount / of + one) * totals.scale);
                }
            }
        }
        all
    }

    fn stand(&mut self, plan: &Plan) {
        let placed = |workers: &[crate::plan::WorkerPlace]| {
            workers.iter().map(Placed::from).collect::<Vec<_>>()
        };
        let keeps: BTreeMap<&str, usize> = plan
            .preemptions
            .iter()
            .map(|p| (p.workload.as_str(), p.to_workers as usize))
            .collect();
        let moved: BTreeMap<&str, Vec<Placed>> = plan
            .migrations
            .iter()
            .map(|m| (m.workload.as_str(), placed(&m.placement)))
            .collect();
        for work in self.works.values().copied() {
            match work.state {
                WorkloadState::Running => {
                    self.running.push((work, work.placed.clone()));
                    let keep = keeps
                        .get(work.name.as_str())
                        .copied()
                        .unwrap_or(work.placed.len());
                    let stays = moved.get(work.name.as_str()).cloned();
                    let stays = stays
                        .unwrap_or_else(|| work.placed[..keep.min(work.placed.len())].to_vec());
                    if !stays.is_empty() {
                        self.remaining.push((work, stays));
                    }
                }
                WorkloadState::Leaving => self.leaving.push((work, work.placed.clone())),
                WorkloadState::Waiting | WorkloadState::Suspended => {}
            }
        }
        let find = |name: &str| self.works.get(name).copied();
        for start in &plan.starts {
            self.starts
                .extend(find(&start.workload).map(|w| (w, placed(&start.placement))));
        }
        for growth in &plan.resizes {
            self.growth
                .extend(find(&growth.workload).map(|w| (w, placed(&growth.placement))));
        }
        for kept in &plan.nominations {
            self.kept
                .extend(find(&kept.workload).map(|w| (w, placed(&kept.placement))));
        }
    }

    /// All that stands on devices this moment, with what starts now.
    pub fn now(&self) -> PlacedWork<'w> {
        [&self.running, &self.leaving, &self.starts, &self.growth]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// All that will stand once victims have left.
    pub fn later(&self) -> PlacedWork<'w> {
        [&self.remaining, &self.starts, &self.growth, &self.kept]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// A team and all above it.
    pub fn path(&self, team: &'w str) -> Vec<&'w str> {
        let mut path = vec![team];
        let mut seen = BTreeSet::from([team]);
        let mut at = self.teams.get(team);
        while let Some(parent) = at
            .and_then(|t| t.parent.as_deref())
            .filter(|p| seen.insert(p))
        {
            path.push(parent);
            at = self.teams.get(parent);
        }
        path
    }

    pub fn preemptible(&self, work: &Workload) -> bool {
        let of_class = self
            .world
            .classes
            .iter()
            .find(|c| c.name == work.class)
            .is_none_or(|c| c.preemptible);
        work.preemptible.unwrap_or(of_class)
    }

    pub fn priority(&self, work: &Workload) -> i64 {
        self.world
            .classes
            .iter()
            .find(|c| c.name == work.class)
            .map_or(0, |c| c.priority)
    }

    /// The memory that a part of a device has.
    pub fn memory(&self, work: &Workload, node: &Node, device: &crate::world::PlacedDevice) -> i64 {
        let share = device.gpus.milli() * node.gpu_memory_mib / 1000;
        device
            .memory_mib
            .or(work.per_worker.gpu_memory_mib)
            .unwrap_or(share)
    }

    /// What a worker counts for in quota, in its pool's scale.
    pub fn amount(&self, work: &Workload, worker: &Placed) -> Exact {
        let node = self.nodes[worker.node.as_str()];
        let totals = &self.totals[node.pool.as_str()];
        let mut milli: i128 = 0;
        for device in &worker.devices {
            let gpus = i128::from(device.gpus.milli());
            milli += match device.mode {
                SharingMode::Exclusive => 1000,
                SharingMode::Mig => instance_milli(node, device).unwrap_or(gpus),
                _ => {
                    let memory = i128::from(self.memory(work, node, device)) * 1000;
                    let whole = i128::from(node.gpu_memory_mib.max(1));
                    gpus.max((memory + whole - 1) / whole)
                }
            };
        }
        if milli == 0 || self.pools[node.pool.as_str()].charge == Charge::Gpus {
            return milli * totals.scale;
        }
        let cores =
            i128::from(work.per_worker.cpus.milli()) * totals.capacity * totals.memory.max(1);
        let memory = i128::from(work.per_worker.memory_mib) * totals.capacity * totals.cpus.max(1);
        (milli * totals.scale).max(cores).max(memory)
    }

    /// What each team holds, with all below it, by (team, pool).
    pub fn held(&self, standing: &PlacedWork<'w>) -> BTreeMap<(&'w str, &'w str), Exact> {
        let mut held = BTreeMap::new();
        for (work, workers) in standing {
            for worker in workers {
                let pool = self.nodes[worker.node.as_str()].pool.as_str();
                let amount = self.amount(work, worker);
                for team in self.path(&work.team) {
                    *held.entry((team, pool)).or_default() += amount;
                }
            }
        }
        held
    }
}

/// What a MIG instance counts for: its part of the memory slices.
pub(super) fn instance_milli(node: &Node, device: &crate::world::PlacedDevice) -> Option<i128> {
    Some(shape(node, device.mig.as_deref()?)?.milli())
}
