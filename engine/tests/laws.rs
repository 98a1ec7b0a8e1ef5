//! Laws that hold for every world: they are tried on small random ones.

mod worlds;

use domain::sharing::SharingMode;
use domain::{MilliGpu, Timestamp};
use engine::check::violations;
use engine::plan::Plan;
use engine::rig::{Rig, before, cut, eager, shared};
use engine::world::Strategy as Placing;
use engine::world::{
    Backfill, Booking, MigMode, Node, Pool, PreemptionPolicy, Quota, Reclaim, Team, WithinTeam,
    Workload, World,
};
use proptest::prelude::*;
use worlds::tried;

/// Cycles within which a random world must come to rest.
const CYCLES: usize = 60;
/// Longer than any grace, so that a cycle finds the victims of the last one gone.
const CYCLE_SECONDS: i64 = 31;

/// What a job asks of devices.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Whole,
    Part(SharingMode),
    Slices(&'static str),
}

#[derive(Debug, Clone)]
struct Job {
    team: usize,
    gpus: i64,
    workers: u32,
    elastic: bool,
    kind: Kind,
    class: usize,
    minutes: i64,
    length: Option<i64>,
}

fn kind() -> impl Strategy<Value = Kind> {
    let part = prop::sample::select(vec![SharingMode::TimeSlice, SharingMode::Vgpu]);
    let profiles = [
        "1g.10gb",
        "1g.10gb+me",
        "1g.20gb",
        "2g.20gb",
        "3g.40gb",
        "4g.40gb",
        "7g.80gb",
    ];
    prop_oneof![
        5 => Just(Kind::Whole),
        1 => part.prop_map(Kind::Part),
        2 => prop::sample::select(profiles.to_vec()).prop_map(Kind::Slices),
    ]
}

fn job() -> impl Strategy<Value = Job> {
    (
        0..4_usize,
        1..4_i64,
        1..4_u32,
        any::<bool>(),
        kind(),
        0..4_usize,
        1..600_i64,
        prop::option::weighted(0.6, 1..300_i64),
    )
        .prop_map(
            |(team, gpus, workers, elastic, kind, class, minutes, length)| Job {
                team,
                gpus,
                workers,
                elastic,
                kind,
                class,
                minutes,
                length,
            },
        )
}

fn backfill() -> impl Strategy<Value = Backfill> {
    prop_oneof![
        3 => Just(Backfill::Easy),
        2 => Just(Backfill::Conservative),
        1 => Just(Backfill::None),
        1 => Just(Backfill::Strict),
    ]
}

/// Capacity booked for a team, from some minutes after noon for some minutes.
fn booking() -> impl Strategy<Value = Booking> {
    (0..4_usize, 1..5_i64, -30..120_i64, 1..120_i64).prop_map(|(team, gpus, from, length)| {
        Booking {
            name: "booked".to_owned(),
            team: format!("t{team}"),
            pool: "p".to_owned(),
            gpus: MilliGpu::whole(gpus),
            from: before(-from),
            to: before(-from - length),
        }
    })
}

fn policy() -> impl Strategy<Value = PreemptionPolicy> {
    (any::<bool>(), any::<bool>(), any::<bool>(), 0..2_i64).prop_map(
        |(within, across, consolidate, grace)| PreemptionPolicy {
            within_team: if within {
                WithinTeam::LowerPriority
            } else {
                WithinTeam::Never
            },
            across_borrowers: across,
            consolidate,
            grace_seconds: grace * 30,
            ..eager()
        },
    )
}

fn strategy() -> impl Strategy<Value = Placing> {
    prop_oneof![
        Just(Placing::Pack),
        Just(Placing::Spread),
        Just(Placing::LeastFragmentation)
    ]
}

/// Two departments of two teams each, some nodes, and waiting jobs of all kinds.
fn world() -> impl Strategy<Value = World> {
    let quota = (0..4_i64, prop::option::weighted(0.3, 4..9_i64), 0..4_i64);
    let teams = prop::collection::vec(quota, 4);
    let layouts: [&[&str]; 3] = [&[], &["3g.40gb@0", "1g.10gb+me@4"], &["7g.80gb@0"]];
    let layout = prop::option::weighted(0.4, prop::sample::select(layouts.to_vec()));
    let nodes = prop::collection::vec((1..5_u32, layout), 1..4);
    let mig_mode = prop_oneof![3 => Just(MigMode::Dynamic), 1 => Just(MigMode::Static)];
    let jobs = prop::collection::vec(job(), 1..14);
    let time = (backfill(), prop::option::weighted(0.4, booking()));
    let rules = (policy(), strategy(), any::<bool>(), mig_mode, time);
    (rules, teams, nodes, jobs).prop_map(|(rules, quotas, nodes, jobs)| {
        let (policy, strategy, whole, mig_mode, (backfill, booking)) = rules;
        let mut rig = Rig::new().pool(shared().preemption(policy).with(|policy| {
            policy.whole_node_guarantees = whole;
            policy.mig_mode = mig_mode;
            policy.strategy = strategy;
            policy.backfill = backfill;
        }));
        rig = rig.with(|w| w.cycle_seconds = CYCLE_SECONDS);
        rig = rig.with(|w| w.bookings.extend(booking));
        for (n, (gpus, layout)) in nodes.into_iter().enumerate() {
            let mut node = Node::new(&format!("n{}", n + 1), "p", gpus);
            if let Some(layout) = layout {
                node = cut(node, gpus - 1, layout);
            }
            rig = rig.node(node);
        }
        rig = rig.tenant(Team::new("d0")).tenant(Team::new("d1"));
        for (i, (guaranteed, limit, weight)) in quotas.into_iter().enumerate() {
            let mut row = Quota::guaranteed(MilliGpu::whole(guaranteed)).weighing(weight * 1000);
            row.limit = limit.map(MilliGpu::whole);
            rig = rig.tenant(
                Team::new(&format!("t{i}"))
                    .under(&format!("d{}", i / 2))
                    .quota("p", row),
            );
        }
        for (i, job) in jobs.into_iter().enumerate() {
            rig = rig.work(made(i, &job));
        }
        rig.world().clone()
    })
}

fn made(i: usize, job: &Job) -> Workload {
    let classes = ["low", "normal", "high", "fixed"];
    let mut work = Workload::waiting(
        &format!("j{i}"),
        &format!("t{}", job.team),
        job.gpus,
        before(job.minutes),
    )
    .class(classes[job.class])
    .workers(job.workers);
    match job.kind {
        Kind::Whole => {}
        Kind::Part(mode) => {
            work = work.fraction(mode, MilliGpu::from_milli(job.gpus * 250), None);
        }
        Kind::Slices(profile) => {
            work.per_worker.mig_profile = Some(profile.to_owned());
            work.per_worker.sharing = vec![SharingMode::Mig];
        }
    }
    if job.elastic {
        work.min_workers = Some(1);
    }
    work.time_limit_seconds = job.length.map(|minutes| minutes * 60);
    work
}

/// One team's queue, first come first served, whose jobs end when they say; nobody is displaced.
fn queue() -> impl Strategy<Value = World> {
    let nodes = prop::collection::vec(1..5_u32, 1..4);
    let jobs = prop::collection::vec((1..5_i64, 1..4_u32, 1..300_i64), 2..12);
    (nodes, jobs).prop_map(|(nodes, jobs)| {
        let still = PreemptionPolicy {
            reclaim: Reclaim::Never,
            ..PreemptionPolicy::default()
        };
        let mut rig = Rig::new()
            .pool(Pool::new("p").preemption(still))
            .team("t", 0);
        for gpus in nodes {
            rig = rig.nodes(1, gpus);
        }
        for (i, (gpus, workers, minutes)) in jobs.into_iter().enumerate() {
            let submitted = before(600 - i as i64);
            let mut job =
                Workload::waiting(&format!("j{i:02}"), "t", gpus, submitted).workers(workers);
            job.time_limit_seconds = Some(minutes * 60);
            rig = rig.work(job);
        }
        rig.world().clone()
    })
}

/// The plans of a queue until all that can has run.
fn run(world: &World, backfill: Backfill) -> Vec<Plan> {
    let mut world = world.clone();
    world.pools[0].backfill = backfill;
    engine::cycles::run(world, 4 * CYCLES)
}

fn start_of(plans: &[Plan], workload: &str) -> Option<Timestamp> {
    let started = plans.iter().find(|p| p.start_of(workload).is_some());
    started.map(|p| p.now)
}

/// The world with its rows in another order.
fn shuffled(mut world: World, by: usize) -> World {
    fn turn<T>(rows: &mut [T], by: usize) {
        let len = rows.len().max(1);
        rows.rotate_left(by % len);
        if by % 2 == 1 {
            rows.reverse();
        }
    }
    turn(&mut world.nodes, by);
    turn(&mut world.teams, by + 1);
    turn(&mut world.workloads, by + 2);
    turn(&mut world.classes, by + 3);
    turn(&mut world.bookings, by + 4);
    world
}

proptest! {
    #![proptest_config(tried())]

    #[test]
    fn the_order_of_rows_changes_nothing(world in world(), by in 1..20_usize) {
        let plan = |world: &World| serde_json::to_string(&engine::plan(world)).expect("a plan is written");
        prop_assert_eq!(plan(&world), plan(&shuffled(world.clone(), by)));
    }

    /// T-2.10: at most jobs × teams evictions.
    #[test]
    fn every_world_comes_to_rest_with_few_evictions_and_without_violations(world in world()) {
        // Each plan on the way is checked by the rig.
        let rig = Rig::new().with(|w| *w = world.clone());
        let rest = rig.settles(CYCLES);
        prop_assert!(rest.evictions() <= world.workloads.len() * world.teams.len());
    }

    #[test]
    fn nothing_that_passes_a_head_makes_it_start_later_than_it_was_told(world in queue(), conservative in any::<bool>()) {
        let plans = run(&world, if conservative { Backfill::Conservative } else { Backfill::Easy });
        for plan in &plans {
            prop_assert!(plan.reservations.is_empty() || plan.reservations[0].start > plan.now);
            if let Some(told) = plan.reservations.first() {
                let start = start_of(&plans, &told.workload).expect("what reserves starts");
                prop_assert!(start <= told.start, "{} at {start}, told {}", told.workload, told.start);
            }
        }
    }

    #[test]
    fn a_head_starts_no_later_than_it_would_if_everybody_passed_it(world in queue()) {
        let easy = run(&world, Backfill::Easy);
        if let Some(head) = easy[0].reservations.first() {
            let none = start_of(&run(&world, Backfill::None), &head.workload);
            prop_assert!(start_of(&easy, &head.workload) <= none);
        }
    }

    #[test]
    fn what_is_written_of_a_world_is_read_back_equal(world in world()) {
        let text = engine::scenario::write(&world);
        prop_assert_eq!(engine::scenario::parse(&text).expect("its own writing"), world);
    }

    #[test]
    fn a_dry_run_says_what_the_cycle_then_does(world in world()) {
        let Some(last) = world.workloads.last().cloned() else { return Ok(()) };
        let mut without = world.clone();
        without.workloads.pop();
        let plan = engine::plan(&world);
        prop_assert_eq!(violations(&world, &plan), Vec::<String>::new());
        match engine::dry_run(&without, last.clone()) {
            engine::DryRun::Starts { start, .. } => prop_assert_eq!(plan.start_of(&last.name), Some(&start)),
            engine::DryRun::Displaces { nomination, .. } => {
                prop_assert_eq!(plan.nomination_of(&last.name), Some(&nomination));
            }
            engine::DryRun::Waits { waiting, .. } => prop_assert_eq!(plan.waiting_for(&last.name), Some(&waiting)),
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[a-z0-9:{}\\[\\],\\-\n \"&*!|>#.@]{0,200}") {
        let _ = engine::scenario::parse(&text);
    }
}
