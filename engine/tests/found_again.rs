//! What starts in one cycle and was stopped in the next for work that had waited beside it: each failed before it was mended.

use domain::MilliGpu;
use domain::sharing::SharingMode;
use engine::check::violations;
use engine::cycles;
use engine::plan::Plan;
use engine::rig::{Rig, before, eager, shared};
use engine::world::{
    Backfill, Placed, PlacedDevice, Pool, PreemptionPolicy, Quota, Reclaim, Team, Workload,
    WorkloadState,
};

/// As eager, and shares are evened out between borrowers.
fn even() -> PreemptionPolicy {
    PreemptionPolicy {
        across_borrowers: true,
        ..eager()
    }
}

fn rig(policy: PreemptionPolicy, gpus: u32) -> Rig {
    Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .nodes(1, gpus)
}

/// Whoever starts in some cycle and is stopped in the next.
fn stopped_at_once(plans: &[Plan]) -> Vec<&str> {
    let pairs = plans.windows(2);
    let stopped = pairs.flat_map(|pair| {
        let told = pair[1].preemptions.iter().map(|p| p.workload.as_str());
        told.filter(|name| pair[0].start_of(name).is_some())
    });
    stopped.collect()
}

/// Runs until nothing happens any more, and demands that nobody starts in vain.
fn settles(rig: &Rig) -> Vec<String> {
    let settled = rig.settles(12);
    assert_eq!(stopped_at_once(&settled.plans), Vec::<&str>::new());
    let first = settled.plans[0].starts.iter();
    first.map(|start| start.workload.clone()).collect()
}

#[test]
fn higher_work_that_has_room_only_until_others_start_goes_before_lower_work_of_its_team() {
    let lower = Workload::waiting("lower", "t", 1, before(60)).class("low");
    let higher = Workload::waiting("higher", "t", 1, before(30)).workers(3);
    let other = Workload::waiting("other", "b", 1, before(50));
    let rig = rig(eager(), 4).team("t", 1).team("b", 0);
    let rig = rig.work(lower).work(higher).work(other);
    assert_eq!(settles(&rig), ["higher", "other"]);
}

#[test]
fn who_has_no_room_in_the_end_is_served_before_all_that_would_leave_for_it() {
    // `lower` makes way within the team, `small` so that shares are evened out.
    let rig = rig(even(), 4)
        .team("b", 0)
        .team("t", 1)
        .work(Workload::waiting("lower", "t", 1, before(200)))
        .work(Workload::waiting("small", "b", 1, before(160)))
        .work(Workload::waiting("large", "b", 2, before(271)))
        .work(Workload::waiting("higher", "t", 2, before(296)).class("high"));
    assert_eq!(settles(&rig), ["higher", "large"]);
}

#[test]
fn lower_work_leaves_its_turn_to_what_is_in_other_guarantees_and_to_higher_work_then() {
    let rig = rig(eager(), 4)
        .team("t", 1)
        .team("u", 1)
        .work(Workload::waiting("lower", "t", 1, before(90)).class("low"))
        .work(Workload::waiting("owner", "u", 1, before(80)))
        .work(Workload::waiting("higher", "t", 3, before(30)));
    assert_eq!(settles(&rig), ["owner", "higher"]);
}

#[test]
fn of_several_that_would_take_the_room_of_lower_work_the_highest_is_served() {
    for backfill in [Backfill::Easy, Backfill::Strict] {
        let mut pool = Pool::new("p").preemption(eager());
        pool.backfill = backfill;
        let rig = Rig::new()
            .pool(pool)
            .nodes(1, 3)
            .team("t", 1)
            .work(Workload::waiting("middle", "t", 3, before(188)))
            .work(Workload::waiting("lower", "t", 1, before(138)).class("low"))
            .work(
                Workload::waiting("top", "t", 1, before(96))
                    .class("high")
                    .workers(2),
            );
        assert_eq!(settles(&rig)[0], "top", "{backfill:?}");
    }
}

#[test]
fn below_a_team_in_its_guarantee_work_starts_before_what_would_leave_to_even_out_shares() {
    let row = |guaranteed| Quota::guaranteed(MilliGpu::whole(guaranteed));
    let below = |name: &str, parent: &str, guaranteed| {
        Team::new(name).under(parent).quota("p", row(guaranteed))
    };
    let policy = PreemptionPolicy {
        reclaim: Reclaim::Never,
        ..even()
    };
    let rig = rig(policy, 1)
        .tenant(Team::new("d0"))
        .tenant(Team::new("d1"))
        .tenant(below("t0", "d0", 0))
        .tenant(below("t1", "d1", 0))
        .tenant(below("t2", "d1", 1))
        .work(Workload::waiting("borrows", "t0", 1, before(63)))
        .work(Workload::waiting("inside", "t1", 1, before(334)));
    assert_eq!(settles(&rig), ["inside"]);
}

#[test]
fn what_would_be_taken_back_once_lower_work_made_way_is_not_started() {
    let fixed = Workload::waiting("fixed", "t", 3, before(171)).class("fixed");
    let old = Workload::waiting("old", "t", 2, before(132)).running_on("n1", &[0, 1], before(60));
    let rig = rig(eager(), 3)
        .team("t", 3)
        .team("b", 0)
        .work(old)
        .work(fixed)
        .work(Workload::waiting("borrows", "b", 1, before(245)));
    assert!(settles(&rig).is_empty());
    assert_eq!(rig.plan().nominations[0].workload, "fixed");
}

#[test]
fn elastic_work_leaves_room_for_other_borrowers_where_nothing_passes_a_head() {
    let mut pool = Pool::new("p").preemption(even());
    pool.backfill = Backfill::Strict;
    let mut gang = Workload::waiting("gang", "t0", 2, before(315)).workers(2);
    gang.min_workers = Some(1);
    let rig = Rig::new()
        .pool(pool)
        .nodes(2, 2)
        .team("t0", 0)
        .team("t1", 0)
        .work(gang)
        .work(Workload::waiting("one", "t1", 1, before(294)));
    assert_eq!(settles(&rig), ["gang", "one"]);
}

#[test]
fn workers_that_look_alike_are_told_apart_when_one_of_them_leaves() {
    // Two workers of `gang` share a device; one of them is released, and a start is kept in its place.
    let part = |name: &str, team: &str, minutes| {
        let work = Workload::waiting(name, team, 0, before(minutes));
        work.fraction(SharingMode::TimeSlice, MilliGpu::from_milli(500), None)
    };
    let half = |node: &str, index| Placed {
        node: node.to_owned(),
        devices: vec![PlacedDevice {
            mode: SharingMode::TimeSlice,
            gpus: MilliGpu::from_milli(500),
            memory_mib: Some(40_779),
            ..PlacedDevice::whole(index)
        }],
    };
    let runs = |mut work: Workload, placed: Vec<Placed>| {
        (work.state, work.started) = (WorkloadState::Running, Some(work.submitted));
        work.workers = u32::try_from(placed.len()).expect("a few");
        work.placed = placed;
        work
    };
    let mut gang = runs(
        part("gang", "b", 50),
        vec![half("n2", 1), half("n2", 1), half("n1", 2)],
    );
    gang.min_workers = Some(1);
    let mut short = part("short", "t", 219);
    short.time_limit_seconds = Some(1200);
    let rig = Rig::new()
        .pool(shared().preemption(eager()))
        .nodes(1, 4)
        .nodes(1, 2)
        .team("b", 0)
        .team("t", 3)
        .work(gang)
        .work(runs(part("old", "t", 158), vec![half("n2", 0)]))
        .work(runs(part("beside", "b", 81), vec![half("n2", 0)]))
        .work(Workload::waiting("big", "b", 2, before(308)).running_on("n1", &[0, 1], before(50)))
        .work(Workload::waiting("one", "t", 1, before(354)))
        .work(Workload::waiting("two", "t", 1, before(255)))
        .work(part("later", "b", 288))
        .work(short);
    let plan = engine::plan(rig.world());
    assert_eq!(plan.preemptions[0].released, [1, 2]);
    assert_eq!(plan.reservations[0].nodes, ["n2"]);
    assert_eq!(violations(rig.world(), &plan), Vec::<String>::new());
}

#[test]
fn who_is_below_its_limit_once_victims_leave_does_not_wait_for_their_devices() {
    let limited = Quota {
        limit: Some(MilliGpu::whole(1)),
        ..Quota::guaranteed(MilliGpu::whole(1))
    };
    let policy = PreemptionPolicy {
        grace_seconds: 300,
        ..eager()
    };
    let low = Workload::waiting("low", "t", 1, before(120)).class("low");
    let rig = rig(policy, 2)
        .tenant(Team::new("t").quota("p", limited))
        .work(low.running_on("n1", &[0], before(60)))
        .work(Workload::waiting("high", "t", 1, before(30)));
    let first = rig.plan();
    assert_eq!(first.preemptions[0].workload, "low");
    assert_eq!(first.nominations[0].waits_for, ["low"]);
    assert_eq!(rig.place("high"), "n1:1");
    // It is idle, and who leaves counts for nothing by now.
    let mut world = rig.world().clone();
    cycles::apply(&mut world, &first);
    cycles::advance(&mut world, None);
    let second = engine::plan(&world);
    assert!(second.start_of("high").is_some());
    assert_eq!(violations(&world, &second), Vec::<String>::new());
}
