//! Against brute force: a gang starts exactly when a search over all ways to place its workers finds one.

mod worlds;

use domain::MilliCpu;
use domain::spec::NvlinkRule;
use engine::rig::{Rig, before};
use engine::world::{
    Node, NodeState, Pool, PreemptionPolicy, Reclaim, Strategy as Placing, Workload, World,
};
use proptest::prelude::*;
use worlds::dice::Dice;
use worlds::tried;

/// Nodes of a few devices, of which some are in use, and one gang that asks for a place.
fn world(nodes: &[[u8; 8]], job: &[u8; 10]) -> World {
    let mut dice = Dice::of(job);
    let mut pool = Pool::new("p").preemption(PreemptionPolicy {
        reclaim: Reclaim::Never,
        ..PreemptionPolicy::default()
    });
    pool.strategy = dice.one(&[Placing::Pack, Placing::Spread, Placing::LeastFragmentation]);
    let mut rig = Rig::new().pool(pool).team("t", 100);
    let mut gang = Workload::waiting("gang", "t", dice.one(&[1, 2, 3, 0]), before(5))
        .workers(dice.one(&[1, 2, 3, 4]));
    gang.per_worker.cpus = MilliCpu::whole(dice.one(&[0, 1, 2]));
    gang.per_worker.memory_mib = dice.one(&[0, 0, 1500]);
    gang.topology.require = dice.one(&[None, Some("rack".to_owned())]);
    gang.topology.prefer = dice.one(&[None, Some("zone".to_owned())]);
    gang.nvlink = dice.one(&[NvlinkRule::Prefer, NvlinkRule::Require, NvlinkRule::Any]);
    if dice.once_in(4) {
        gang.selector.insert("zone".to_owned(), "z0".to_owned());
    }
    for (i, bytes) in nodes.iter().enumerate() {
        let mut dice = Dice::of(bytes);
        let gpus = dice.one(&[4, 3, 2, 1, 0]);
        let mut node = Node::new(&format!("n{i}"), "p", gpus).host(dice.one(&[64, 4, 2]), 4096);
        let all: Vec<u32> = (0..gpus).collect();
        let (one, two) = all.split_at(all.len() / 2);
        node.nvlink = dice.one(&[vec![], vec![all.clone()], vec![one.to_vec(), two.to_vec()]]);
        for (label, values) in [("rack", ["r0", "r1", ""]), ("zone", ["z0", "z1", ""])] {
            let value = dice.one(&values);
            if !value.is_empty() {
                node = node.label(label, value);
            }
        }
        node.state = dice.rarely(6, NodeState::Cordoned, NodeState::Ready);
        let used = dice.below(16);
        for device in all.iter().filter(|&&device| used & (1 << device) != 0) {
            let mut busy = Workload::waiting(&format!("busy{i}-{device}"), "t", 1, before(60))
                .class("fixed")
                .running_on(&node.name, &[*device], before(50));
            busy.per_worker.cpus = MilliCpu::whole(i64::from(node.gpus % 2));
            rig = rig.work(busy);
        }
        rig = rig.node(node);
    }
    rig.work(gang).world().clone()
}

/// What is free of a node.
#[derive(Debug, Clone)]
struct Free {
    devices: u32,
    cpus: i64,
    memory: i64,
    cliques: Vec<u32>,
}

fn bits(devices: &[u32]) -> u32 {
    devices.iter().fold(0, |all, device| all | 1 << device)
}

/// What is free of the nodes on which a worker of the gang may be, for each domain in which
/// all may be.
fn domains(world: &World, gang: &Workload) -> Vec<Vec<Free>> {
    let free = |node: &Node| {
        let here = |w: &&Workload| w.placed.iter().any(|p| p.node == node.name);
        let busy: Vec<&Workload> = world.workloads.iter().filter(here).collect();
        let used: Vec<u32> = (busy.iter().flat_map(|w| &w.placed))
            .flat_map(|p| p.devices.iter().map(|d| d.index))
            .collect();
        let all: Vec<u32> = (0..node.gpus).collect();
        Free {
            devices: bits(&all) & !bits(&used),
            cpus: node.cpus.milli() - busy.iter().map(|w| w.per_worker.cpus.milli()).sum::<i64>(),
            memory: node.memory_mib,
            cliques: node.nvlink.iter().map(|clique| bits(clique)).collect(),
        }
    };
    let may = |node: &&Node| {
        node.state == NodeState::Ready
            && (gang.selector.iter()).all(|(key, value)| node.labels.get(key) == Some(value))
    };
    let open: Vec<&Node> = world.nodes.iter().filter(may).collect();
    let Some(label) = &gang.topology.require else {
        return vec![open.into_iter().map(free).collect()];
    };
    let mut values: Vec<&String> = open.iter().filter_map(|n| n.labels.get(label)).collect();
    values.sort();
    values.dedup();
    let inside = |value: &&String| {
        let nodes = open.iter().filter(|n| n.labels.get(label) == Some(*value));
        nodes.map(|n| free(n)).collect()
    };
    values.iter().map(inside).collect()
}

/// Whether so many workers have places, each with every set of devices tried.
fn fits(nodes: &[Free], gang: &Workload, workers: u32) -> bool {
    if workers == 0 {
        return true;
    }
    let count = (gang.per_worker.gpus().milli() / 1000) as u32;
    (0..nodes.len()).any(|at| {
        let node = &nodes[at];
        let (cpus, memory) = (gang.per_worker.cpus.milli(), gang.per_worker.memory_mib);
        node.cpus >= cpus
            && node.memory >= memory
            && (0..16_u32).any(|set| {
                let linked = node.cliques.iter().any(|clique| set & !clique == 0);
                let right = set & !node.devices == 0
                    && set.count_ones() == count
                    && (gang.nvlink != NvlinkRule::Require || count < 2 || linked);
                right && {
                    // Workers are alike: those before this node have been tried.
                    let mut left = nodes[at..].to_vec();
                    left[0].devices &= !set;
                    left[0].cpus -= cpus;
                    left[0].memory -= memory;
                    fits(&left, gang, workers - 1)
                }
            })
    })
}

proptest! {
    #![proptest_config(tried())]

    #[test]
    fn a_gang_starts_exactly_when_some_placement_of_it_exists(
        nodes in prop::collection::vec(any::<[u8; 8]>(), 1..4),
        job in any::<[u8; 10]>(),
    ) {
        let world = world(&nodes, &job);
        let gang = world.workload("gang").expect("it is there");
        let possible = domains(&world, gang).iter().any(|nodes| fits(nodes, gang, gang.workers));
        // The checker, too, is asked.
        let plan = Rig::new().with(|w| *w = world.clone()).plan();
        prop_assert_eq!(plan.start_of("gang").is_some(), possible, "{}", engine::scenario::write(&world));
    }
}
