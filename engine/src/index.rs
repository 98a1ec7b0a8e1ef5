//! A world with its names turned into dense numbers, in the order of the names, so that no decision depends on the order of rows.

mod admit;
mod change;
mod need;
mod node;
mod rows;
mod shape;
mod stint;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

use domain::sharing::SharingMode;
use rustc_hash::FxHashMap;

use crate::bookings;
use crate::mig::{self, Profile};
use crate::quota::{self, Row};
use crate::world::{Charge, Placed, Pool, Stopped, Team, Workload, WorkloadState, World};

use admit::Numbers;
use need::part_milli;
pub(crate) use need::{Need, Profiles};
pub(crate) use node::{NodeFacts, bit};
pub(crate) use rows::{Moment, Rows};
pub(crate) use stint::{Stint, Wait};

/// A charged amount in a pool's units; one thousandth of a GPU is `PoolFacts::unit` of them.
pub(crate) type Amount = i128;

/// Thousandths of one device.
pub(crate) const DEVICE: i64 = 1000;

/// The problem of one cycle.
pub(crate) struct Index<'w> {
    pub world: Moment<'w>,
    pub pools: Vec<PoolFacts<'w>>,
    pub nodes: Vec<NodeFacts<'w>>,
    pub teams: Vec<TeamFacts<'w>>,
    /// The teams above which is none.
    pub roots: Vec<usize>,
    /// By number, in the order of the names; some may be vacant.
    pub works: Vec<WorkFacts<'w>>,
    /// The name of each; where it is vacant, one between those beside it.
    names: Vec<&'w str>,
    /// Nodes that are being emptied.
    draining: usize,
    /// Running work that is elastic, and work for which room is kept.
    pub elastic: BTreeSet<usize>,
    pub nominated: BTreeSet<usize>,
    pub services: Vec<ServiceFacts<'w>>,
    /// How many workloads there are.
    count: usize,
    /// For each label that a gang names: the domain of each node.
    pub domains: FxHashMap<&'w str, Vec<Option<usize>>>,
    numbers: Numbers<'w>,
}

/// A pool with its nodes, its totals and its teams' rows.
pub(crate) struct PoolFacts<'w> {
    pub row: &'w Pool,
    pub nodes: Vec<usize>,
    /// One node of each model and device memory: what a part counts for differs by these alone.
    kinds: Vec<usize>,
    /// Units in a thousandth of a GPU; above 1 only where the dominant part is charged.
    pub unit: Amount,
    /// Devices that count as capacity, in units.
    pub capacity: Amount,
    pub cpus: i128,
    pub memory: i128,
    /// Nodes with devices that do not count as capacity.
    pub lost: Vec<usize>,
    /// Each team's row, by team.
    pub rows: Vec<Row>,
    /// Whether any team bounds what others may use of its guarantee.
    pub lends: bool,
    /// Whether some of its devices are shared by MPS within one team alone.
    pub teams_apart: bool,
}

/// A team with its place in the tree.
pub(crate) struct TeamFacts<'w> {
    pub row: &'w Team,
    pub parent: Option<usize>,
    pub children: Vec<usize>,
    /// Itself and all above it, up to the root.
    pub path: Vec<usize>,
    /// What budgets stop, here or above.
    pub stopped: Stopped,
    /// Whether it, or a team above, bounds what one user holds.
    pub by_user: bool,
}

/// A service and its replicas.
pub(crate) struct ServiceFacts<'w> {
    pub name: &'w str,
    pub min_replicas: u32,
    pub max_replicas: u32,
    pub replicas: Vec<usize>,
}

/// A workload with what decisions ask of it.
pub(crate) struct WorkFacts<'w> {
    pub row: &'w Workload,
    pub stint: Stint,
    pub wait: Wait,
    pub team: usize,
    pub service: Option<usize>,
    pub priority: i64,
    pub preemptible: bool,
    /// Acceptable pools, best first.
    pub pools: Rc<[usize]>,
    pub need: Need,
    pub cpus: i64,
    pub memory: i64,
    /// Workloads of one shape fit or fail together.
    pub shape: usize,
    /// Workers of one form are given the same devices of a node.
    pub form: usize,
    /// Gangs of one frame, and of as many workers, have a place or have none together.
    pub frame: usize,
}

impl<'w> Index<'w> {
    /// Numbers a world that has been checked.
    pub fn of(world: &'w World) -> Self {
        Self::numbering(Rows::of(world), 0)
    }

    /// Numbers rows, and leaves one number in so many vacant for work that comes later; none with 0.
    pub fn numbering(mut rows: Rows<'w>, vacant_each: usize) -> Self {
        rows.sort();
        let world = rows.moment;
        let pool_ids = numbered(&rows.pools, |p| p.name.as_str());
        let nodes: Vec<NodeFacts<'_>> = rows
            .nodes
            .into_iter()
            .filter_map(|row| {
                let pool = *pool_ids.get(row.pool.as_str())?;
                Some(NodeFacts::of(row, pool, rows.pools[pool]))
            })
            .collect();
        let teams = teams(&rows.teams);
        let names = |at: usize| teams[at].row.name.as_str();
        let team_ids = (0..teams.len()).map(|at| (names(at), at)).collect();
        let pools: Vec<PoolFacts<'_>> = rows
            .pools
            .iter()
            .enumerate()
            .map(|(id, row)| PoolFacts::of(world, row, id, &nodes, &teams))
            .collect();
        let services: BTreeMap<&str, ServiceFacts<'_>> = world
            .services
            .iter()
            .map(|s| {
                (
                    s.name.as_str(),
                    ServiceFacts {
                        name: s.name.as_str(),
                        min_replicas: s.min_replicas,
                        max_replicas: s.max_replicas,
                        replicas: Vec::new(),
                    },
                )
            })
            .collect();
        let service_ids: FxHashMap<&str, usize> = services
            .keys()
            .enumerate()
            .map(|(i, name)| (*name, i))
            .collect();
        let numbers = Numbers {
            pools: pool_ids,
            nodes: (0..nodes.len())
                .map(|at| (nodes[at].row.name.as_str(), at))
                .collect(),
            teams: team_ids,
            services: service_ids,
            classes: world
                .classes
                .iter()
                .map(|c| (c.name.as_str(), (c.priority, c.preemptible)))
                .collect(),
            shapes: FxHashMap::default(),
            shaped: Vec::new(),
            forms: FxHashMap::default(),
            frames: FxHashMap::default(),
            profiles: Profiles::default(),
            anywhere: (0..pools.len()).collect(),
            lists: FxHashMap::default(),
        };
        let roots = (0..teams.len())
            .filter(|&t| teams[t].parent.is_none())
            .collect();
        let mut index = Self {
            world,
            pools,
            draining: nodes.iter().filter(|node| node.drains()).count(),
            nodes,
            teams,
            roots,
            works: Vec::with_capacity(rows.works.len()),
            names: Vec::with_capacity(rows.works.len()),
            elastic: BTreeSet::new(),
            nominated: BTreeSet::new(),
            services: services.into_values().collect(),
            count: 0,
            domains: FxHashMap::default(),
            numbers,
        };
        for (at, row) in rows.works.into_iter().enumerate() {
            let facts = index.facts(row);
            index.push(facts, row.name.as_str());
            if vacant_each > 0 && at % vacant_each == 0 {
                index.push(None, row.name.as_str());
            }
        }
        index
    }

    /// The name of a workload.
    pub fn name(&self, work: usize) -> &'w str {
        self.names[work]
    }

    /// Whether any node is being emptied.
    pub fn drains(&self) -> bool {
        self.draining > 0
    }

    /// The number of a node.
    pub fn node(&self, name: &str) -> Option<usize> {
        self.numbers.nodes.get(name).copied()
    }

    /// What one worker counts for on a node, were it placed there.
    pub fn charge_on(&self, work: usize, node: usize) -> Amount {
        let facts = &self.works[work];
        let milli = match facts.need {
            Need::Nothing => return 0,
            Need::Whole(count) => i64::from(count) * DEVICE,
            Need::Part { milli, memory } => {
                part_milli(milli, memory, self.nodes[node].row.gpu_memory_mib)
            }
            Need::Instances { count, profile } => {
                let each = self.profile(profile, node).map_or(DEVICE, Profile::milli);
                each * i64::from(count)
            }
        };
        self.charge(self.nodes[node].pool, milli, facts.cpus, facts.memory)
    }

    /// A profile that is asked for, as a node's devices have it.
    pub fn profile(&self, profile: usize, node: usize) -> Option<&'static Profile> {
        self.numbers.profiles.by_model[profile][self.nodes[node].model?.id]
    }

    /// What an instance of a profile that is asked for counts for, where it counts most.
    pub fn instance_milli(&self, profile: usize) -> i64 {
        let models = self.numbers.profiles.by_model[profile].iter().flatten();
        models.map(|p| p.milli()).max().unwrap_or(DEVICE)
    }

    /// The least that one worker counts for in a pool.
    pub fn charge_least(&self, work: usize, pool: usize) -> Amount {
        match self.works[work].need {
            Need::Nothing => 0,
            Need::Whole(_) | Need::Part { memory: None, .. } => {
                match self.pools[pool].nodes.first() {
                    Some(&node) => self.charge_on(work, node),
                    None => self.works[work].row.per_worker.gpus().milli().into(),
                }
            }
            Need::Part { .. } | Need::Instances { .. } => self.pools[pool]
                .kinds
                .iter()
                .map(|&node| self.charge_on(work, node))
                .min()
                .unwrap_or(0),
        }
    }

    /// What a worker counts for as it is placed.
    pub fn charge_placed(&self, work: usize, placed: &Placed, node: usize) -> Amount {
        let facts = &self.works[work];
        let machine = self.nodes[node].row;
        let each = placed
            .devices
            .iter()
            .map(|device| match (&device.mig, device.mode) {
                (Some(profile), _) => {
                    let model = machine.gpu_model.as_deref().unwrap_or("");
                    mig::profile(model, profile).map_or(device.gpus.milli(), Profile::milli)
                }
                (None, SharingMode::Exclusive) => DEVICE,
                (None, _) => {
                    let memory = device.memory_mib.or(facts.row.per_worker.gpu_memory_mib);
                    part_milli(device.gpus.milli(), memory, machine.gpu_memory_mib)
                }
            });
        let milli = each.sum();
        if milli == 0 {
            0
        } else {
            self.charge(self.nodes[node].pool, milli, facts.cpus, facts.memory)
        }
    }

    fn charge(&self, pool: usize, milli: i64, cpus: i64, memory: i64) -> Amount {
        let facts = &self.pools[pool];
        let gpus = Amount::from(milli) * facts.unit;
        match facts.row.charge {
            Charge::Gpus => gpus,
            Charge::Dominant => {
                let of = |amount: i64, total: i128| {
                    if total == 0 {
                        0
                    } else {
                        facts.capacity / total * Amount::from(amount)
                            + facts.capacity % total * Amount::from(amount) / total
                    }
                };
                gpus.max(of(cpus, facts.cpus)).max(of(memory, facts.memory))
            }
        }
    }

    /// Whether a workload asks for no GPU.
    pub fn plain(&self, work: usize) -> bool {
        self.works[work].need == Need::Nothing
    }

    /// What a workload waits for before its order matters: a person, an hour, another's end.
    pub fn ready(&self, work: usize) -> bool {
        let facts = &self.works[work];
        let come = || {
            let mut after = facts.row.after.iter();
            facts.row.not_before.is_none_or(|t| t <= self.world.now)
                && !after.any(|name| self.work(name).is_some())
        };
        facts.wait.state == WorkloadState::Waiting && (!facts.wait.bound || come())
    }
}

impl<'w> PoolFacts<'w> {
    fn of(
        world: Moment<'w>,
        row: &'w Pool,
        id: usize,
        all: &[NodeFacts<'w>],
        teams: &[TeamFacts<'w>],
    ) -> Self {
        let nodes: Vec<usize> = (0..all.len()).filter(|&n| all[n].pool == id).collect();
        let [mut devices, mut cpus, mut memory] = [0; 3];
        for &node in &nodes {
            let [more, more_cpus, more_memory] = all[node].capacity();
            devices += more;
            cpus += more_cpus;
            memory += more_memory;
        }
        let lost = nodes.iter().copied().filter(|&node| all[node].lost());
        let lost = lost.collect();
        let milli = devices * i128::from(DEVICE);
        // The smallest unit in which every dominant part is a whole number: so that
        // thirds of a GPU add up to exactly one.
        let unit = match row.charge {
            Charge::Gpus => 1,
            Charge::Dominant => {
                let need = |total: i128| {
                    if total == 0 {
                        1
                    } else {
                        total / gcd(total, milli)
                    }
                };
                let (a, b) = (need(cpus), need(memory));
                a / gcd(a, b) * b
            }
        };
        let booked = bookings::booked_now(world, row, teams);
        let rows = quota::rows(row, teams, &booked, milli * unit, unit);
        let mut seen = HashSet::new();
        let kind = |n: &usize| (&all[*n].row.gpu_model, all[*n].row.gpu_memory_mib);
        let kinds = nodes.iter().copied().filter(|n| seen.insert(kind(n)));
        let across = row.mps_across_teams && nodes.iter().all(|&n| all[n].row.mps_across_teams);
        Self {
            row,
            kinds: kinds.collect(),
            teams_apart: row.sharing.contains(&SharingMode::Mps) && !across,
            nodes,
            unit,
            capacity: milli * unit,
            cpus,
            memory,
            lost,
            lends: rows.iter().any(|row| row.lend_limit.is_some()),
            rows,
        }
    }

    /// Takes in that a node has so much in place of what it had; false where what work counts for
    /// may change with it, and all has to be counted.
    fn recount(
        &mut self,
        world: Moment<'w>,
        teams: &[TeamFacts<'w>],
        before: [i128; 3],
        after: [i128; 3],
    ) -> bool {
        if before == after {
            return true;
        }
        if self.row.charge != Charge::Gpus {
            return false;
        }
        let [devices, cpus, memory] = [0, 1, 2].map(|at| after[at] - before[at]);
        self.capacity += devices * i128::from(DEVICE) * self.unit;
        self.cpus += cpus;
        self.memory += memory;
        let booked = bookings::booked_now(world, self.row, teams);
        self.rows = quota::rows(self.row, teams, &booked, self.capacity, self.unit);
        true
    }

    /// Whether a worker counts for as much wherever it stands.
    pub fn is_uniform(&self) -> bool {
        self.kinds.len() == 1
    }

    /// A charged amount in thousandths of a GPU, rounded up where it is finer.
    pub fn milli(&self, amount: Amount) -> i64 {
        let unit = self.unit.max(1);
        i64::try_from((amount + unit - 1).div_euclid(unit)).unwrap_or(i64::MAX)
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// The tree, of rows in the order of their names.
fn teams<'w>(rows: &[&'w Team]) -> Vec<TeamFacts<'w>> {
    let ids = numbered(rows, |t| t.name.as_str());
    let parent = |row: &Team| row.parent.as_deref().and_then(|p| ids.get(p).copied());
    let mut teams: Vec<TeamFacts<'_>> = rows
        .iter()
        .map(|row| TeamFacts {
            row,
            parent: parent(row),
            children: Vec::new(),
            path: Vec::new(),
            stopped: Stopped::None,
            by_user: false,
        })
        .collect();
    for id in 0..teams.len() {
        if let Some(parent) = teams[id].parent {
            teams[parent].children.push(id);
        }
        let (mut path, mut at) = (vec![id], id);
        while let Some(parent) = teams[at].parent
            && path.len() <= teams.len()
        {
            path.push(parent);
            at = parent;
        }
        teams[id].stopped = path
            .iter()
            .map(|&t| teams[t].row.stopped)
            .max()
            .unwrap_or(Stopped::None);
        teams[id].by_user = path.iter().any(|&t| !teams[t].row.max_per_user.is_empty());
        teams[id].path = path;
    }
    teams
}

fn numbered<'w, T>(rows: &[&'w T], name: impl Fn(&'w T) -> &'w str) -> FxHashMap<&'w str, usize> {
    rows.iter()
        .enumerate()
        .map(|(id, row)| (name(row), id))
        .collect()
}
