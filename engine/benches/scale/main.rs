//! B2 to B5: how fast the engine decides in a large cluster. `./dev bench engine` runs one after another.

mod changes;
mod scan;
mod sizes;
mod worlds;

use std::hash::{Hash, Hasher};
use std::time::Duration;

use changes::{Cluster, Lent, settled};
use engine::plan::Plan;
use engine::world::World;
use engine::{Planner, decide, plan};
use worlds::{Scale, fewest_victims, full, newcomer, singles, waiting};

/// 10,000 nodes, 80,000 GPUs, 200 teams.
const LARGE: Scale = Scale {
    nodes: 10_000,
    tree: [5, 4, 10],
    waiting: 100_000,
};

/// Runs of which the median is told, unless `RUNS` says otherwise.
const RUNS: usize = 5;
/// Every world comes from it.
const SEED: u64 = 20_260_105;
/// Worlds of which sums are told.
const SUMS: u64 = 2;
/// The gang of B5: 512 GPUs.
const GANG: u32 = 64;

fn main() {
    let mut named = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"));
    let name = named.next();
    // A smaller world for a profile: one in so many nodes and workloads.
    let part = named.next().and_then(|part| part.parse().ok()).unwrap_or(1);
    match name.as_deref() {
        Some("fill") => fill(scaled(100_000, part)),
        Some("full") => cycle(scaled(100_000, part)),
        Some("million") => cycle(scaled(1_000_000, part)),
        Some("kept") => kept(scaled(100_000, part)),
        Some("preempt") => preempt(scaled(0, part)),
        Some("sums") => sums(part),
        _ => eprintln!("name one of: fill, full, million, kept, preempt, sums"),
    }
}

fn scaled(waiting: usize, part: usize) -> Scale {
    Scale {
        nodes: LARGE.nodes / part,
        waiting: waiting / part,
        ..LARGE
    }
}

/// B2: an empty cluster and what waits for it.
fn fill(scale: Scale) {
    let world = waiting(scale, SEED);
    let decided = world.workloads.len();
    let mut starts = 0;
    let took = median(|| starts = plan(&world).starts.len());
    let mut placed = 0;
    let scan = median(|| placed = scan::place_all(&world));
    println!(
        "B2 fill: {decided} decided ({starts} start) in {} ms, {:.0} /s; plain scan {} ms, {:.0} /s ({placed} placed); ratio {:.2}; {}",
        took.as_millis(),
        rate(decided, took),
        scan.as_millis(),
        rate(decided, scan),
        scan.as_secs_f64() / took.as_secs_f64(),
        peak(),
    );
}

/// B3: a full cluster, all verdicts.
fn cycle(scale: Scale) {
    let world = full(scale, SEED);
    tell_full(&world);
    let mut said = String::new();
    let took = median(|| {
        let plan = plan(&world);
        said = format!(
            "{} start, {} preempted, {} nominated, {} reserved, {} verdicts",
            plan.starts.len(),
            plan.preemptions.len(),
            plan.nominations.len(),
            plan.reservations.len(),
            plan.waiting.len()
        );
    });
    println!("B3 full: {} ms ({said}); {}", took.as_millis(), peak());
}

fn tell_full(world: &World) {
    let running = world
        .workloads
        .iter()
        .filter(|w| !w.placed.is_empty())
        .count();
    let waits = world.workloads.len() - running;
    eprintln!(
        "{} nodes, {running} running, {waits} waiting",
        world.nodes.len()
    );
}

/// B3 on a world that is kept, and B4: what comes of each change there.
fn kept(scale: Scale) {
    let world = settled(scale, SEED);
    tell_full(&world);
    let rows = median(|| drop(decide(&world)));
    let lent = Lent::default();
    let mut cluster = Cluster::of(&world, &lent, SEED);
    let kept = median(|| drop(cluster.planner().decide()));
    let told = median(|| drop(cluster.planner().plan()));
    println!(
        "B3 kept: decided in {:.1} ms, from rows {} ms, with all verdicts {} ms; {}",
        kept.as_secs_f64() * 1000.0,
        rows.as_millis(),
        told.as_millis(),
        peak(),
    );
    cluster.tell();
}

/// B5: a gang comes into a cluster full of work of low priority.
fn preempt(scale: Scale) {
    let mut world = singles(scale, SEED, GANG);
    tell_full(&world);
    let least = fewest_victims(&world, GANG);
    let gang = newcomer(scale, GANG);
    let mut planner = Planner::of(&world);
    drop(planner.decide());
    let kept = median(|| {
        planner.take(&gang);
        let plan = planner.decide();
        planner.end(&gang.name);
        assert_eq!(plan.nominations.len(), 1, "the gang has no room");
    });
    drop(planner);
    world.workloads.push(gang.clone());
    let mut victims = 0;
    let took = median(|| {
        let plan = plan(&world);
        assert_eq!(plan.nominations.len(), 1, "the gang has no room");
        victims = plan.preemptions.len();
    });
    println!(
        "B5 preempt: {} ms, on a kept world {:.1} ms, {victims} victims, {least} at least, ratio {:.3}; {}",
        took.as_millis(),
        kept.as_secs_f64() * 1000.0,
        victims as f64 / least.max(1) as f64,
        peak(),
    );
}

/// A number for each kind of plan: two commits that print the same decide and say the same.
fn sums(part: usize) {
    let scale = scaled(100_000, part);
    for seed in SEED..SEED + SUMS {
        let world = waiting(scale, seed);
        println!("fill {seed}: {:016x}", sum(&plan(&world)));
        let world = full(scale, seed);
        println!("full {seed}: {:016x}", sum(&plan(&world)));
        let world = settled(scale, seed);
        let lent = Lent::default();
        let mut cluster = Cluster::of(&world, &lent, seed);
        println!("kept {seed}: {:016x}", cluster.sum());
    }
}

/// A number of what a plan says, all of it.
fn sum(plan: &Plan) -> u64 {
    let text = serde_json::to_string(plan).expect("a plan is written");
    let mut hasher = rustc_hash::FxHasher::default();
    text.hash(&mut hasher);
    hasher.finish()
}

fn median(mut act: impl FnMut()) -> Duration {
    let runs = std::env::var("RUNS")
        .ok()
        .and_then(|runs| runs.parse().ok());
    let runs = runs.unwrap_or(RUNS);
    let mut times: Vec<Duration> = (0..runs)
        .map(|_| {
            let begun = on_core();
            act();
            on_core().saturating_sub(begun)
        })
        .collect();
    times.sort_unstable();
    times[runs / 2]
}

/// The time that this process has been on a core: others use the machine too.
fn on_core() -> Duration {
    let clock = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
    nix::time::clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

fn rate(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

/// The most memory that this process has had.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = line
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    format!("at most {} MiB", kib / 1024)
}
