//! The worlds of the benchmarks of the engine, from a seed: a large cluster, teams in a tree, and work of openb sizes.

use chrono::TimeDelta;
use domain::sharing::SharingMode;
use domain::spec::NvlinkRule;
use domain::{MilliCpu, MilliGpu, Timestamp};
use engine::rig::noon;
use engine::world::{
    Class, Node, Placed, Pool, PreemptionPolicy, Quota, Team, Workload, WorkloadState, World,
};

use crate::sizes::{SIZES, Size};

/// Devices of a node.
const GPUS: u32 = 8;
/// Nodes of a rack, and racks of a leaf of the network.
const RACK: usize = 32;
const LEAF: usize = 4 * RACK;
/// One in so many waiting workloads is a gang on whole nodes.
const GANG_EACH: u64 = 500;
/// Teams that hold nothing in a full cluster, and how much of their work waits.
const LATE_TEAMS: usize = 4;
const LATE_WORK: usize = 4;

/// How large a world is.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub nodes: usize,
    /// Organisations, departments of each, teams of each.
    pub tree: [usize; 3],
    pub waiting: usize,
}

/// A generator of numbers that needs no state but one word (SplitMix64).
pub struct Draw(u64);

impl Draw {
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn size(&mut self) -> &'static Size {
        let all: u64 = SIZES.iter().map(|size| size.count).sum();
        let mut left = self.below(all);
        SIZES
            .iter()
            .find(|size| {
                let here = left < size.count;
                left = left.saturating_sub(size.count);
                here
            })
            .unwrap_or(&SIZES[0])
    }
}

/// A cluster without work: nodes in racks and leaves, and teams with quotas.
pub fn cluster(scale: Scale) -> World {
    let mut world = World::empty(noon());
    world.pools.push(
        Pool::new("p")
            .sharing(&[SharingMode::Exclusive, SharingMode::TimeSlice])
            .preemption(PreemptionPolicy::default()),
    );
    world.classes = vec![
        Class::new("low", 0, true),
        Class::new("normal", 50, true),
        Class::new("fixed", 100, false),
    ];
    world.nodes = (0..scale.nodes).map(node).collect();
    let teams = scale.tree.iter().product::<usize>();
    // Four fifths are guaranteed, and a team may hold twice as much as it would have by equal parts.
    let each = (scale.nodes * GPUS as usize / teams.max(1)) as i64;
    for team in 0..teams {
        let department = team / scale.tree[2];
        let organisation = department / scale.tree[1];
        if team.is_multiple_of(scale.tree[2]) {
            if department.is_multiple_of(scale.tree[1]) {
                world.teams.push(Team::new(&format!("o{organisation}")));
            }
            let department = Team::new(&format!("d{department:02}"));
            world
                .teams
                .push(department.under(&format!("o{organisation}")));
        }
        let quota = Quota::guaranteed(MilliGpu::whole(each * 4 / 5))
            .limited(MilliGpu::whole(each * 2))
            .weighing(1000 + 500 * (team % 3) as i64);
        world.teams.push(
            Team::new(&team_name(team))
                .under(&format!("d{department:02}"))
                .quota("p", quota),
        );
    }
    world
}

fn node(at: usize) -> Node {
    let mut node = Node::new(&format!("n{at:05}"), "p", GPUS)
        .host(128, 786_432)
        .label("rack", &format!("r{:03}", at / RACK))
        .label("leaf", &format!("l{:02}", at / LEAF));
    node.nvlink = vec![(0..GPUS).collect()];
    node.numa = vec![(0..GPUS / 2).collect(), (GPUS / 2..GPUS).collect()];
    node
}

fn team_name(team: usize) -> String {
    format!("t{team:03}")
}

/// One waiting workload of a team: of an openb size, or a gang on whole nodes.
pub fn work(name: &str, team: usize, draw: &mut Draw) -> Workload {
    let submitted = noon() - TimeDelta::seconds(1 + draw.below(86_400) as i64);
    let mut work = Workload::waiting(name, &team_name(team), 0, submitted);
    work.user = Some(format!("u{}", draw.below(5)));
    work.class = ["low", "normal", "normal", "fixed"][draw.below(4) as usize].to_owned();
    let hours = [1, 4, 12, 24, 72][draw.below(5) as usize];
    work.time_limit_seconds = Some(hours * 3600);
    if draw.below(GANG_EACH) == 0 {
        gang(&mut work, 1 << draw.below(7), draw.below(3));
        return work;
    }
    let size = draw.size();
    work.per_worker.cpus = MilliCpu::from_milli(size.cpus);
    work.per_worker.memory_mib = size.memory;
    work.per_worker.gpus = Some(MilliGpu::from_milli(size.milli));
    if (1..1000).contains(&size.milli) {
        work.per_worker.sharing = vec![SharingMode::TimeSlice];
    }
    work
}

/// Makes it a gang of so many whole nodes, in one rack or leaf where it has to be.
pub fn gang(work: &mut Workload, workers: u32, topology: u64) {
    work.workers = workers;
    work.per_worker.gpus = Some(MilliGpu::whole(GPUS.into()));
    work.per_worker.cpus = MilliCpu::whole(64);
    work.per_worker.memory_mib = 393_216;
    work.nvlink = NvlinkRule::Require;
    match topology {
        0 if workers > 1 => work.topology.prefer = Some("rack".to_owned()),
        1 if workers > 1 => work.topology.require = Some("leaf".to_owned()),
        _ => {}
    }
}

/// A cluster without running work, in which work of all teams waits.
pub fn waiting(scale: Scale, seed: u64) -> World {
    let mut world = cluster(scale);
    let teams = scale.tree.iter().product::<usize>();
    add_waiting(
        &mut world,
        "w",
        scale.waiting,
        0..teams,
        &mut Draw::seeded(seed),
    );
    world
}

fn add_waiting(
    world: &mut World,
    prefix: &str,
    count: usize,
    teams: std::ops::Range<usize>,
    draw: &mut Draw,
) {
    world.workloads.reserve(count);
    for at in 0..count {
        let team = teams.start + draw.below(teams.len() as u64) as usize;
        let name = format!("{prefix}{at:07}");
        world.workloads.push(work(&name, team, draw));
    }
}

/// The same cluster full, as the engine fills it, with so much waiting beside: all but a few
/// teams borrow, and those have a little work that takes back what is theirs.
pub fn full(scale: Scale, seed: u64) -> World {
    let mut draw = Draw::seeded(seed);
    let teams = scale.tree.iter().product::<usize>();
    let busy = 0..teams.saturating_sub(LATE_TEAMS);
    let mut world = cluster(scale);
    let demand = scale.nodes * GPUS as usize * 3 / 2;
    add_waiting(&mut world, "r", demand, busy.clone(), &mut draw);
    run(&mut world, &mut draw);
    world.workloads.retain(|work| !work.placed.is_empty());
    let tried = scale.waiting.min(demand);
    add_waiting(&mut world, "v", tried, busy.clone(), &mut draw);
    run(&mut world, &mut draw);
    let there = world.workloads.iter().filter(|w| w.placed.is_empty());
    let missing = scale.waiting.saturating_sub(there.count());
    add_waiting(&mut world, "w", missing, busy.clone(), &mut draw);
    for at in 0..LATE_TEAMS * LATE_WORK {
        let name = format!("x{at:03}");
        let mut late = work(&name, busy.end + at % LATE_TEAMS, &mut draw);
        late.per_worker.gpus = Some(MilliGpu::whole(1));
        late.per_worker.sharing = vec![SharingMode::Exclusive];
        late.per_worker.cpus = MilliCpu::whole(8);
        late.per_worker.memory_mib = 32_768;
        late.workers = 1;
        late.topology = Default::default();
        world.workloads.push(late);
    }
    world
}

/// What a plan starts runs, since some time within its limit.
fn run(world: &mut World, draw: &mut Draw) {
    let plan = engine::plan(world);
    let starts: std::collections::HashMap<&str, &engine::plan::Start> = plan
        .starts
        .iter()
        .map(|start| (start.workload.as_str(), start))
        .collect();
    for work in &mut world.workloads {
        if let Some(start) = starts.get(work.name.as_str()) {
            work.state = WorkloadState::Running;
            work.placed = start.placement.iter().map(Placed::from).collect();
            work.started = Some(some_time_ago(work, world.now, draw));
        }
    }
}

fn some_time_ago(work: &Workload, now: Timestamp, draw: &mut Draw) -> Timestamp {
    let length = work.time_limit_seconds.unwrap_or(1).max(2) as u64;
    now - TimeDelta::seconds(1 + draw.below(length - 1) as i64)
}

/// A cluster full of work of low priority on single devices, but for one device in thirty, in
/// which a team without any is guaranteed so many whole nodes.
pub fn singles(scale: Scale, seed: u64, workers: u32) -> World {
    let mut draw = Draw::seeded(seed);
    let mut world = cluster(scale);
    let whole = MilliGpu::whole(i64::from(GPUS * workers));
    if let Some(last) = world.teams.last_mut() {
        last.quotas.insert("p".to_owned(), Quota::guaranteed(whole));
    }
    let teams = scale.tree.iter().product::<usize>();
    for node in 0..scale.nodes {
        for device in 0..GPUS {
            if draw.below(30) == 0 {
                continue;
            }
            // The last department has nothing: the gang is its own.
            let team = draw.below((teams - scale.tree[2]) as u64) as usize;
            let name = format!("s{:07}", node * GPUS as usize + device as usize);
            let mut single = Workload::waiting(&name, &team_name(team), 1, noon()).class("low");
            single.time_limit_seconds = Some(86_400);
            single.per_worker.cpus = MilliCpu::whole(8);
            single.per_worker.memory_mib = 32_768;
            let started = some_time_ago(&single, world.now, &mut draw);
            world
                .workloads
                .push(single.running_on(&format!("n{node:05}"), &[device], started));
        }
    }
    world
}

/// The gang that comes into such a cluster: so many whole nodes of one leaf.
pub fn newcomer(scale: Scale, workers: u32) -> Workload {
    let team = scale.tree.iter().product::<usize>() - 1;
    let mut work = Workload::waiting("gang", &team_name(team), 0, noon()).class("fixed");
    gang(&mut work, workers, 1);
    work
}

/// The fewest workloads that have to leave before a gang of whole nodes has one leaf.
pub fn fewest_victims(world: &World, workers: u32) -> usize {
    let mut on_node: std::collections::BTreeMap<&str, usize> = world
        .nodes
        .iter()
        .map(|node| (node.name.as_str(), 0))
        .collect();
    for placed in world.workloads.iter().flat_map(|work| &work.placed) {
        *on_node.entry(placed.node.as_str()).or_default() += 1;
    }
    let mut leaves: std::collections::BTreeMap<&str, Vec<usize>> = Default::default();
    for node in &world.nodes {
        let leaf = node.labels["leaf"].as_str();
        leaves
            .entry(leaf)
            .or_default()
            .push(on_node[node.name.as_str()]);
    }
    let least = leaves.into_values().filter_map(|mut loads| {
        loads.sort_unstable();
        let taken = loads.get(..workers as usize)?;
        Some(taken.iter().sum())
    });
    least.min().unwrap_or(0)
}
