//! Against brute force: work starts on MIG instances exactly when a search over all ways to place them finds one.

mod worlds;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use domain::MilliGpu;
use domain::sharing::SharingMode;
use engine::rig::{Rig, before, shared, slices};
use engine::world::{
    MigInstance, MigMode, Node, Placed, PlacedDevice, PreemptionPolicy, Reclaim, Workload,
    WorkloadState, World,
};
use proptest::prelude::*;
use worlds::tried;

/// The models that are tried: eight slices, four, and four with engines of all kinds.
const MODELS: [&str; 3] = ["H100-80GB", "A30-24GB", "RTX-PRO-6000-Blackwell-96GB"];

/// A profile as the file has it.
#[derive(Debug, Clone)]
struct Shape {
    name: String,
    size: u32,
    starts: Vec<u32>,
    slices: u32,
}

/// The profiles of a model, read once.
fn shapes(model: usize) -> Vec<Shape> {
    static ALL: OnceLock<Vec<Vec<Shape>>> = OnceLock::new();
    ALL.get_or_init(|| MODELS.map(read).to_vec())[model].clone()
}

fn read(model: &str) -> Vec<Shape> {
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../data/mig_profiles.json")).expect("the table");
    let models = file["models"].as_array().expect("a list");
    let model = models.iter().find(|m| m["key"] == model).expect("a model");
    let number = |value: &serde_json::Value| value.as_u64().expect("a number") as u32;
    let shape = |profile: &serde_json::Value| Shape {
        name: profile["name"].as_str().expect("a name").to_owned(),
        size: number(&profile["placement_size"]),
        starts: profile["placement_starts"]
            .as_array()
            .expect("a list")
            .iter()
            .map(number)
            .collect(),
        slices: number(&model["memory_slices"]),
    };
    let profiles = model["profiles"].as_array().expect("a list");
    profiles.iter().map(shape).collect()
}

/// Whether these can be on one device together.
fn together(shapes: &[Shape], layout: &[(usize, u32)]) -> bool {
    let mut slices = Vec::new();
    for &(shape, start) in layout {
        slices.extend(start..start + shapes[shape].size);
    }
    slices.sort_unstable();
    let apart = slices.windows(2).all(|pair| pair[0] != pair[1]);
    let ends = |end: &str| {
        layout
            .iter()
            .filter(|(s, _)| shapes[*s].name.ends_with(end))
            .count()
    };
    let (one, all, none) = (ends("+me"), ends("+me.all"), ends("-me"));
    apart && one + all <= 1 && (all == 0 || layout.len() - none == 1)
}

/// A device: a whole job, nothing, or MIG with instances that are used or idle.
#[derive(Debug, Clone)]
enum Device {
    Whole,
    Idle,
    Cut(Vec<(usize, u32, bool)>),
}

#[derive(Debug, Clone)]
struct Fleet {
    model: usize,
    nodes: Vec<Vec<Device>>,
    fixed: bool,
    profile: usize,
    count: u32,
    workers: u32,
}

fn device(model: usize) -> impl Strategy<Value = Device> {
    let shapes = shapes(model);
    let wish = (0..shapes.len(), any::<prop::sample::Index>(), any::<bool>());
    let cut = prop::collection::vec(wish, 0..6).prop_map(move |wishes| {
        let mut layout: Vec<(usize, u32, bool)> = Vec::new();
        for (shape, start, used) in wishes {
            let start = *start.get(&shapes[shape].starts);
            let trial: Vec<(usize, u32)> = layout
                .iter()
                .map(|&(s, at, _)| (s, at))
                .chain([(shape, start)])
                .collect();
            if together(&shapes, &trial) {
                layout.push((shape, start, used));
            }
        }
        Device::Cut(layout)
    });
    prop_oneof![1 => Just(Device::Whole), 1 => Just(Device::Idle), 6 => cut]
}

fn fleet() -> impl Strategy<Value = Fleet> {
    (0..MODELS.len()).prop_flat_map(|model| {
        let node = prop::collection::vec(device(model), 1..3);
        let asked = (0..shapes(model).len(), 1..4_u32, 1..4_u32);
        (
            prop::collection::vec(node, 1..3),
            prop::bool::weighted(0.25),
            asked,
        )
            .prop_map(move |(nodes, fixed, (profile, count, workers))| Fleet {
                model,
                nodes,
                fixed,
                profile,
                count,
                workers,
            })
    })
}

/// The most instances of the wanted profile that a device can have beside what is used.
fn most(fleet: &Fleet, shapes: &[Shape], device: &Device) -> u32 {
    let wanted = fleet.profile;
    let (used, there) = match device {
        Device::Whole => return 0,
        Device::Idle if fleet.fixed => return 0,
        Device::Idle => (Vec::new(), Vec::new()),
        Device::Cut(layout) => (
            layout.iter().filter(|i| i.2).map(|i| (i.0, i.1)).collect(),
            layout.iter().map(|i| (i.0, i.1)).collect::<Vec<_>>(),
        ),
    };
    fn go(
        shapes: &[Shape],
        wanted: usize,
        starts: &[u32],
        placed: &mut Vec<(usize, u32)>,
        allowed: &dyn Fn(u32) -> bool,
    ) -> u32 {
        let Some((&start, rest)) = starts.split_first() else {
            return 0;
        };
        let mut best = go(shapes, wanted, rest, placed, allowed);
        placed.push((wanted, start));
        if allowed(start) && together(shapes, placed) {
            best = best.max(1 + go(shapes, wanted, rest, placed, allowed));
        }
        placed.pop();
        best
    }
    let allowed = |start: u32| !fleet.fixed || there.contains(&(wanted, start));
    go(
        shapes,
        wanted,
        &shapes[wanted].starts,
        &mut used.clone(),
        &allowed,
    )
}

fn feasible(fleet: &Fleet) -> bool {
    let shapes = shapes(fleet.model);
    let room = |node: &Vec<Device>| -> u32 {
        let all = node.iter().map(|device| most(fleet, &shapes, device));
        all.sum::<u32>() / fleet.count
    };
    fleet.nodes.iter().map(room).sum::<u32>() >= fleet.workers
}

fn world(fleet: &Fleet) -> World {
    let shapes = shapes(fleet.model);
    let policy = PreemptionPolicy {
        reclaim: Reclaim::Never,
        ..PreemptionPolicy::default()
    };
    let mut pool = shared().preemption(policy);
    if fleet.fixed {
        pool.mig_mode = MigMode::Static;
    }
    let mut rig = Rig::new().pool(pool).team("t", 64);
    for (n, devices) in fleet.nodes.iter().enumerate() {
        let name = format!("n{n}");
        let mut node = Node::new(&name, "p", devices.len() as u32);
        node.gpu_model = Some(MODELS[fleet.model].to_owned());
        let mut mig = BTreeMap::new();
        for (d, device) in devices.iter().enumerate() {
            let d = d as u32;
            match device {
                Device::Idle => {}
                Device::Whole => {
                    let job = Workload::waiting(&format!("w{n}{d}"), "t", 1, before(90));
                    rig = rig.work(job.running_on(&name, &[d], before(60)));
                }
                Device::Cut(layout) => {
                    let instance = |(shape, start, _): &(usize, u32, bool)| MigInstance {
                        profile: shapes[*shape].name.clone(),
                        start: Some(*start),
                    };
                    mig.insert(d, layout.iter().map(instance).collect());
                    for (shape, start, _) in layout.iter().filter(|i| i.2) {
                        rig = rig.work(holder(&name, d, &shapes[*shape], *start));
                    }
                }
            }
        }
        node.mig = mig;
        rig = rig.node(node);
    }
    let asked = slices(
        "new",
        "t",
        &shapes[fleet.profile].name,
        i64::from(fleet.count),
    );
    rig.work(asked.workers(fleet.workers)).world().clone()
}

fn holder(node: &str, index: u32, shape: &Shape, start: u32) -> Workload {
    let mut work = slices(&format!("h{node}{index}{start}"), "t", &shape.name, 1);
    work.state = WorkloadState::Running;
    work.started = Some(before(60));
    work.placed = vec![Placed {
        node: node.to_owned(),
        devices: vec![PlacedDevice {
            mode: SharingMode::Mig,
            gpus: MilliGpu::from_milli(1000 * i64::from(shape.size) / i64::from(shape.slices)),
            mig: Some(shape.name.clone()),
            start: Some(start),
            ..PlacedDevice::whole(index)
        }],
    }];
    work
}

proptest! {
    #![proptest_config(tried())]

    #[test]
    fn work_starts_exactly_when_some_way_to_place_it_exists(fleet in fleet()) {
        let world = world(&fleet);
        let plan = engine::plan(&world);
        prop_assert_eq!(engine::check::violations(&world, &plan), Vec::<String>::new());
        prop_assert_eq!(plan.start_of("new").is_some(), feasible(&fleet));
        // Only what is in its way is touched, and only where it goes.
        let touched = plan.slice_changes.len();
        prop_assert!(touched <= (fleet.count * fleet.workers) as usize);
        // What is planned is a world that its own reader takes.
        let mut after = world.clone();
        engine::cycles::apply(&mut after, &plan);
        let text = engine::scenario::write(&after);
        prop_assert!(engine::scenario::parse(&text).is_ok(), "{}", text);
    }
}
