//! More of the list of facts, by number: shares, who is evicted between equals, and what differs from peers.
//!
//! Not here, since they are no rules of the engine: T-1.23, T-1.24, T-1.25, T-1.26 and T-1.37 (past use
//! comes decayed into a world), T-1.34 and T-1.35 (teams have no priority), T-1.39, T-1.40, T-1.41, T-1.42,
//! T-1.43, T-1.44 and T-1.45 (other formulas for priority). T-1.4 is a law in `sameness.rs`, T-2.10 one in
//! `laws.rs` and `victims.rs`; T-2.2 to T-2.6 are in `backfill.rs`, T-1.46, T-1.47 and T-1.49 in
//! `placement.rs`, all others in `tenancy.rs`.

use domain::{MilliCpu, MilliGpu};
use engine::cycles;
use engine::plan::{Plan, Reason};
use engine::rig::{Rig, before, eager};
use engine::world::{
    Charge, Node, Pool, PreemptionPolicy, Quota, Team, WithinTeam, Workload, WorkloadState,
};

fn row(gpus: i64) -> Quota {
    Quota::guaranteed(MilliGpu::whole(gpus))
}

/// So many waiting tasks of a team, in order.
fn tasks(mut rig: Rig, team: &str, count: i64, gpus: i64, cpus: i64, memory: i64) -> Rig {
    for i in 0..count {
        let name = format!("{team}-{i:02}");
        let mut task = Workload::waiting(&name, team, gpus, before(600 - i));
        task.per_worker.cpus = MilliCpu::whole(cpus);
        task.per_worker.memory_mib = memory;
        rig = rig.work(task);
    }
    rig
}

fn fair(plan: &Plan, team: &str) -> i64 {
    let share = plan.shares.iter().find(|s| s.team == team);
    share.expect("a row").fair_share.milli()
}

/// T-1.2: weights 2 and 1. After three tasks of a and one of b both have a third of the pool by
/// weight; the published example breaks the tie by name (4 and 1), ours by the smaller part held.
#[test]
fn ties_of_weighted_dominant_shares_go_to_who_holds_less() {
    let rig = Rig::new()
        .node(Node::new("n1", "p", 0).host(9, 18))
        .tenant(Team::new("a").quota("p", row(0).weighing(2000)))
        .tenant(Team::new("b").quota("p", row(0)));
    let rig = tasks(tasks(rig, "a", 9, 0, 1, 4), "b", 9, 0, 3, 1);
    assert_eq!((rig.count("a-"), rig.count("b-")), (3, 2));
}

/// T-1.3: three resources; the order of starts, ties by name, and cores run out.
#[test]
fn the_order_of_dominant_shares_is_that_of_the_paper() {
    let rig = Rig::new()
        .node(Node::new("n1", "p", 64).host(1024, 8192))
        .team("t1", 0)
        .team("t2", 0);
    let rig = tasks(tasks(rig, "t1", 16, 8, 64, 512), "t2", 16, 1, 64, 128);
    let order: String = rig.starts().iter().map(|name| &name[1..2]).collect();
    assert_eq!(order, "1221221221221221");
}

/// T-1.7: ten cores and ten devices; the leaf on cores of a team whose other leaf has devices
/// is never starved, however often tasks end.
#[test]
fn a_leaf_is_not_starved_because_its_sibling_makes_their_team_look_rich() {
    let rig = Rig::new()
        .node(Node::new("n1", "p", 10).host(10, 1024))
        .team("n1", 0)
        .team("n2", 0)
        .tenant(Team::new("n2-c").under("n2").quota("p", row(0)))
        .tenant(Team::new("n2-g").under("n2").quota("p", row(0)));
    let rig = tasks(rig, "n1", 40, 0, 1, 0);
    let rig = tasks(tasks(rig, "n2-c", 40, 0, 1, 0), "n2-g", 40, 1, 0, 0);
    let mut world = rig.world().clone();
    let leaves = ["n1", "n2-c", "n2-g"];
    let running = |world: &engine::world::World| {
        leaves.map(|leaf| {
            let all = world.workloads.iter();
            all.filter(|w| w.team == leaf && w.state == WorkloadState::Running)
                .count()
        })
    };
    for ended in 0..60 {
        let made = engine::plan(&world);
        cycles::apply(&mut world, &made);
        cycles::advance(&mut world, None);
        assert_eq!(running(&world), [5, 5, 10], "after {ended} ends");
        let leaf = leaves[ended % 3];
        let first =
            |w: &engine::world::Workload| w.team == leaf && w.state == WorkloadState::Running;
        let at = world
            .workloads
            .iter()
            .position(first)
            .expect("something runs");
        world.workloads.remove(at);
    }
}

/// Queues a, b and c with a guarantee of 3 each in 9 devices (6 of 18 where halves are asked for).
fn queues(unit: u32) -> Rig {
    let policy = PreemptionPolicy {
        within_team: WithinTeam::Never,
        across_borrowers: true,
        ..eager()
    };
    let mut rig = Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .nodes(1, 9 * unit);
    for team in ["a", "b", "c"] {
        rig = rig.team(team, i64::from(3 * unit));
    }
    rig
}

/// The queues with running jobs, such as `("b", 2)`, named `b0`, `b1` and so on, of the class given.
fn running(unit: u32, jobs: &[(&str, u32, &str)]) -> Rig {
    let mut rig = queues(unit);
    let mut next = 0;
    for (i, &(team, gpus, class)) in jobs.iter().enumerate() {
        let devices: Vec<u32> = (next..next + gpus).collect();
        next += gpus;
        let job = Workload::waiting(&format!("{team}{i}"), team, i64::from(gpus), before(60));
        rig = rig.work(job.class(class).running_on("n1", &devices, before(50)));
    }
    rig
}

/// Who gives way for a job of so many devices.
fn victims(rig: Rig, team: &str, gpus: i64) -> Vec<String> {
    let plan = rig
        .work(Workload::waiting("new", team, gpus, before(5)))
        .plan();
    plan.preemptions.into_iter().map(|p| p.workload).collect()
}

fn alike(team: &'static str, gpus: u32, count: usize) -> Vec<(&'static str, u32, &'static str)> {
    vec![(team, gpus, "normal"); count]
}

/// T-1.9, T-1.10 and T-1.11: three of a, five of b, at times one of c.
#[test]
fn one_of_the_larger_borrower_gives_way_as_long_as_it_stays_the_larger() {
    let base = [alike("a", 1, 3), alike("b", 1, 5)].concat();
    let full = [base.clone(), alike("c", 1, 1)].concat();
    let one_of_b = |victims: Vec<String>| victims.len() == 1 && victims[0].starts_with('b');
    assert!(one_of_b(victims(running(1, &full), "c", 1)));
    assert!(one_of_b(victims(running(1, &full), "a", 1)));
    assert!(victims(running(1, &base), "a", 2).is_empty());
}

/// T-1.12, T-1.13, T-1.14, T-1.16 and T-1.19: large jobs.
#[test]
fn large_jobs_are_taken_for_a_guarantee_and_not_to_even_out_shares() {
    assert_eq!(victims(running(1, &alike("b", 9, 1)), "a", 2), ["b0"]);
    let two = [alike("a", 2, 1), alike("b", 7, 1)].concat();
    assert!(victims(running(1, &two), "a", 5).is_empty());
    let three = [alike("b", 2, 2), alike("b", 3, 1)].concat();
    assert!(victims(running(1, &three), "a", 6).is_empty());
    let nominal = [alike("a", 3, 1), alike("b", 3, 1), alike("c", 3, 1)].concat();
    for team in ["a", "b", "c"] {
        assert!(victims(running(1, &nominal), team, 1).is_empty());
    }
    let pair = [alike("b", 3, 2), alike("c", 3, 1)].concat();
    assert!(victims(running(1, &pair), "a", 4).is_empty());
}

/// T-1.15: two borrowers with halves; one half of each gives way (here devices for halves).
#[test]
fn equal_borrowers_give_way_in_turn() {
    let each = |team| [alike(team, 1, 2), alike(team, 6, 1)].concat();
    let gone = victims(running(2, &[each("a"), each("b")].concat()), "c", 4);
    let of = |team: char| gone.iter().filter(|name| name.starts_with(team)).count();
    assert_eq!((of('a'), of('b'), gone.len()), (1, 1, 2));
}

/// T-1.17: of jobs of 2, 1 and 2 only the one that is enough.
#[test]
fn only_the_job_that_is_enough_gives_way() {
    let jobs = [
        alike("b", 4, 1),
        alike("b", 2, 1),
        alike("b", 4, 1),
        alike("c", 2, 1),
    ]
    .concat();
    assert_eq!(victims(running(2, &jobs), "a", 7), ["b1"]);
}

/// T-1.18: the peers' second rule, by which the share before counts, would take one of each;
/// ours is the first rule alone, and takes nobody. Either way nothing flaps.
#[test]
fn nobody_gives_way_who_would_then_have_the_smaller_share() {
    let each = |team| [alike(team, 4, 1), alike(team, 5, 1)].concat();
    let jobs = [each("b"), each("c")].concat();
    assert!(victims(running(2, &jobs), "a", 7).is_empty());
    let rest = running(2, &jobs).work(Workload::waiting("new", "a", 7, before(5)));
    assert_eq!(rest.settles(20).evictions(), 0);
}

/// T-1.20: by the rule that looks at the share after, the small job gives way, though it is
/// the more urgent one. Where it could displace the low one of its team and come back in the
/// guarantee, nobody gives way.
#[test]
fn the_small_job_gives_way_where_the_large_one_would_undercut() {
    let jobs = [("a", 3, "normal"), ("b", 5, "low"), ("b", 1, "high")];
    assert_eq!(victims(running(1, &jobs), "a", 1), ["b2"]);
    let within = |w: &mut engine::world::World| {
        w.pools[0].preemption.within_team = WithinTeam::LowerPriority;
    };
    assert!(victims(running(1, &jobs).with(within), "a", 1).is_empty());
}

/// T-1.21: 3 of 9 borrowed with weight 2 is 166.67 of a thousand: more than 1 of 9 with
/// weight 1, less than 2 of 9. The capacity stays 9: the rest is held by c, in its guarantee.
#[test]
fn a_share_is_what_is_borrowed_of_the_pool_by_weight() {
    let first = |borrowed: u32| {
        let jobs = [
            alike("a", 4, 1),
            alike("b", borrowed, 1),
            alike("c", 4 - borrowed, 1),
        ];
        let rig = running(1, &jobs.concat()).with(|w| {
            w.pools[0].preemption = PreemptionPolicy::default();
            let rows = [row(1).weighing(2000), row(0), row(4)];
            for (team, row) in w.teams.iter_mut().zip(rows) {
                team.quotas.insert("p".to_owned(), row);
            }
        });
        let rig = rig.work(Workload::waiting("a-new", "a", 1, before(5)));
        rig.work(Workload::waiting("b-new", "b", 1, before(5)))
            .starts()
    };
    assert_eq!(first(1), ["b-new"]);
    assert_eq!(first(2), ["a-new"]);
}

/// T-1.22: two equal departments in 300, one of them with weights 1, 1 and 3.
#[test]
fn weights_count_among_siblings() {
    let mut rig = Rig::new().nodes(30, 10).team("d1", 0).team("d2", 0);
    for (team, parent, weight) in [
        ("x", "d1", 1),
        ("y", "d1", 1),
        ("z", "d1", 3),
        ("o", "d2", 1),
    ] {
        rig = rig
            .tenant(
                Team::new(team)
                    .under(parent)
                    .quota("p", row(0).weighing(weight * 1000)),
            )
            .work(Workload::waiting(team, team, 1, before(5)).workers(300));
    }
    let plan = rig.plan();
    let all = ["x", "y", "z", "o"].map(|team| fair(&plan, team));
    assert_eq!(all, [30_000, 30_000, 90_000, 150_000]);
}

/// T-1.27: no half-life is none; one of 0 is refused.
#[test]
fn a_half_life_of_nothing_is_refused() {
    let text = |half_life: &str| {
        format!(
            "now: 2026-01-05T00:00:00Z\npools: [{{name: p, usage_half_life_seconds: {half_life}}}]\n\
             nodes: []\nteams: []\nworkloads: []\n"
        )
    };
    assert!(engine::scenario::parse(&text("3600")).is_ok());
    let refused = engine::scenario::parse(&text("0")).expect_err("it is refused");
    assert!(
        refused.to_string().contains("usage_half_life_seconds"),
        "{refused}"
    );
}

/// T-1.36: guarantees of 3 and 3 on 4 devices are scaled down, and it is said.
#[test]
fn guarantees_above_the_capacity_shrink_in_proportion() {
    let plan = Rig::new().nodes(1, 4).team("a", 3).team("b", 3).plan();
    let guaranteed: Vec<i64> = plan.shares.iter().map(|s| s.guaranteed.milli()).collect();
    assert_eq!(guaranteed, [2000, 2000]);
}

/// T-1.38: past use lowers the claim on spare. Ours takes each team's part of the use of those
/// that want more, with k = 1: 6 and 1 of 7 give 1.5 − 6/7 to 1.5 − 1/7, of 16.
#[test]
fn past_use_lowers_the_claim_on_spare_capacity() {
    let team = |name: &str, used: i64| {
        let mut team = Team::new(name).quota("p", row(0));
        team.past_use.insert("p".to_owned(), used * 1000);
        team
    };
    let plan = Rig::new()
        .pool(Pool::new("p").with(|policy| policy.usage_half_life_seconds = Some(3600)))
        .nodes(2, 8)
        .tenant(team("a", 6000))
        .tenant(team("b", 1000))
        .jobs("a", "a", 16, 1)
        .jobs("b", "b", 16, 1)
        .plan();
    assert_eq!((fair(&plan, "a"), fair(&plan, "b")), (5143, 10_857));
}

/// T-1.45b: with the larger part charged, (1 core, 60 GiB), (16, 1) and (16, 60) on a node of
/// 16 cores and 64 GiB count 15, 16 and 16; each has one of its 16 devices, as ours must.
#[test]
fn the_larger_part_is_charged() {
    let used = |cpus: i64, gib: i64| {
        let mut job = Workload::waiting("j", "t", 1, before(60));
        job.per_worker.cpus = MilliCpu::whole(cpus);
        job.per_worker.memory_mib = gib * 1024;
        let plan = Rig::new()
            .pool(Pool::new("p").with(|policy| policy.charge = Charge::Dominant))
            .node(Node::new("n1", "p", 16).host(16, 64 * 1024))
            .team("t", 16)
            .work(job.running_on("n1", &[0], before(50)))
            .plan();
        plan.shares[0].used.milli()
    };
    assert_eq!(
        [used(1, 60), used(16, 1), used(16, 60)],
        [15_000, 16_000, 16_000]
    );
}

/// T-1.48: 1, 1, 2 and 4 devices of 8, freed in all 24 orders: whole again in the end, not before.
#[test]
fn a_node_is_whole_again_in_whatever_order_it_is_freed() {
    let jobs = [("a", 0..1), ("b", 1..2), ("c", 2..4), ("d", 4..8_u32)];
    let mut rig = Rig::new()
        .pool(Pool::new("p"))
        .nodes(1, 8)
        .team("t", 16)
        .work(Workload::waiting("whole", "t", 8, before(5)));
    for (name, devices) in jobs {
        let devices: Vec<u32> = devices.collect();
        let job = Workload::waiting(name, "t", devices.len() as i64, before(60));
        rig = rig.work(job.running_on("n1", &devices, before(50)));
    }
    for order in 0..24_usize {
        let mut left = vec!["a", "b", "c", "d"];
        let mut rig = rig.clone();
        for at in [order % 4, order / 4 % 3, order / 12, 0] {
            assert!(rig.starts().is_empty());
            let gone = left.remove(at);
            rig = rig.with(|w| w.workloads.retain(|w| w.name != gone));
        }
        assert_eq!(rig.starts(), ["whole"]);
    }
}

/// T-2.1: the peers' minimum run time is that of the lowest team shared. Ours is the pool's,
/// with a time of its own for reclaim: here 60 s for reclaim, and 180 s in a team.
#[test]
fn a_minimum_run_time_is_the_pools_and_reclaim_has_its_own() {
    let gone = |seconds: i64, team: &str| -> Vec<Reason> {
        let policy = PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            min_runtime_seconds: 180,
            min_runtime_reclaim_seconds: Some(60),
            ..PreemptionPolicy::default()
        };
        let started = before(0) - chrono::TimeDelta::seconds(seconds);
        let old = Workload::waiting("old", "b", 1, before(60)).class("low");
        let plan = Rig::new()
            .pool(Pool::new("p").preemption(policy))
            .nodes(1, 1)
            .team("a", 1)
            .team("b", 0)
            .work(old.running_on("n1", &[0], started))
            .work(Workload::waiting("new", team, 1, before(5)).class("high"))
            .plan();
        plan.preemptions.iter().map(|p| p.reason).collect()
    };
    assert!(gone(59, "a").is_empty());
    assert_eq!(gone(60, "a"), [Reason::Reclaim]);
    assert!(gone(179, "b").is_empty());
    assert_eq!(gone(180, "b"), [Reason::Priority]);
}
