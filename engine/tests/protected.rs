//! When work that others are protected from is told to start.

use std::collections::BTreeSet;

use domain::{MilliGpu, Timestamp};
use engine::cycles;
use engine::plan::{Code, Once, Waiting};
use engine::rig::{Rig, before};
use engine::world::{Pool, PreemptionPolicy, Quota, QuotasAhead, Team, Workload, WorkloadState};

/// Two devices that a borrower has had for ten and for thirty minutes, each to its end in ten hours, and
/// a workload that wants so many of its own since five minutes.
fn rig(policy: PreemptionPolicy, wanted: i64) -> Rig {
    let lent = |name: &str, device: u32, minutes: i64| {
        let mut work = Workload::waiting(name, "b", 1, before(40));
        work.time_limit_seconds = Some(10 * 3600);
        work.running_on("n1", &[device], before(minutes))
    };
    Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .nodes(1, 2)
        .team("a", 2)
        .team("b", 0)
        .work(lent("young", 0, 10))
        .work(lent("old", 1, 30))
        .work(Workload::waiting("own", "a", wanted, before(5)))
}

fn policy() -> PreemptionPolicy {
    PreemptionPolicy {
        min_runtime_seconds: 3600,
        grace_seconds: 30,
        ..PreemptionPolicy::default()
    }
}

fn told(rig: &Rig) -> Waiting {
    let plan = rig.plan();
    let told = plan.waiting_for("own").expect("it waits");
    told.clone()
}

/// The rig's now, so many seconds on.
fn after(seconds: i64) -> Option<Timestamp> {
    Some(before(0) + chrono::TimeDelta::seconds(seconds))
}

#[test]
fn work_is_told_to_start_when_enough_of_those_in_its_way_have_run_for_long_enough() {
    let one = told(&rig(policy(), 1));
    assert_eq!(one.expected_start, after(30 * 60 + 30));
    assert_eq!(one.expected_once, Some(Once::ProtectionOver));
    assert_eq!(
        told(&rig(policy(), 2)).expected_start,
        after(50 * 60 + 30),
        "both must have"
    );
}

#[test]
fn it_starts_then_and_not_sooner() {
    for (seconds, displaced) in [(30 * 60 - 1, 0), (30 * 60, 1)] {
        let mut world = rig(policy(), 1).world().clone();
        world.now = after(seconds).expect("a time");
        let plan = engine::plan(&world);
        assert_eq!(plan.preemptions.len(), displaced, "after {seconds} s");
    }
}

#[test]
fn an_end_that_comes_first_is_told_first() {
    let mut policy = policy();
    policy.min_runtime_seconds = 100 * 3600;
    let told = told(&rig(policy, 1));
    assert_eq!(told.expected_start, after(10 * 3600 - 30 * 60));
    assert_eq!(told.expected_once, Some(Once::Ended));
}

#[test]
fn a_wait_that_is_asked_for_before_anybody_is_displaced_ends_too() {
    let policy = PreemptionPolicy {
        delay_seconds: 3600,
        grace_seconds: 0,
        ..PreemptionPolicy::default()
    };
    // Who is told to leave without grace has left by the next cycle.
    let told = told(&rig(policy, 1));
    assert_eq!(told.expected_start, after(55 * 60 + 1));
    assert_eq!(told.expected_once, Some(Once::DelayOver));
}

#[test]
fn who_waits_for_its_victims_is_told_to_start_when_the_last_of_them_has_left() {
    let policy = PreemptionPolicy {
        grace_seconds: 30,
        ..PreemptionPolicy::default()
    };
    let rig = rig(policy, 2);
    let now = told(&rig);
    assert_eq!(now.code, Code::WaitingForVictims);
    assert_eq!(now.expected_start, after(30));
    assert_eq!(now.expected_once, Some(Once::VictimsLeft));
    // A moment later the victims have less of their grace left, and it starts no later for that.
    let mut world = rig.world().clone();
    let made = engine::plan(&world);
    cycles::apply(&mut world, &made);
    world.now = after(10).expect("a time");
    let plan = engine::plan(&world);
    let later = plan.waiting_for("own").expect("it waits");
    assert_eq!(later.expected_start, after(30));
}

#[test]
fn who_has_left_waits_again_in_the_plan_that_follows() {
    let policy = PreemptionPolicy {
        grace_seconds: 30,
        ..PreemptionPolicy::default()
    };
    let stages = cycles::until_left(rig(policy, 2).world().clone(), &BTreeSet::new());
    let [now, then] = stages.as_slice() else {
        panic!("nobody leaves by the second: {stages:#?}");
    };
    assert_eq!(now.plan.preemptions.len(), 2);
    assert_eq!(Some(then.at), after(30));
    assert!(then.plan.start_of("own").is_some());
    let used = |team: &str| {
        let share = then.plan.shares.iter().find(|share| share.team == team);
        share.expect("a row").used
    };
    assert_eq!((used("a").milli(), used("b").milli()), (2000, 0));
    assert!(then.plan.waiting_for("old").is_some());
}

#[test]
fn of_those_that_leave_already_only_who_queues_again_is_planned_with() {
    let mut world = rig(policy(), 1).world().clone();
    for work in &mut world.workloads[..2] {
        work.state = WorkloadState::Leaving;
        work.leaves_at = after(5);
    }
    let again = BTreeSet::from(["old".to_owned()]);
    let stages = cycles::until_left(world, &again);
    let last = &stages.last().expect("a plan").plan;
    assert!(last.start_of("old").is_some() || last.waiting_for("old").is_some());
    assert!(last.start_of("young").is_none() && last.waiting_for("young").is_none());
}

#[test]
fn quotas_that_hold_later_let_work_start_then() {
    // The team has its guarantee from the evening on.
    let evening = after(8 * 3600).expect("a time");
    let rig = rig(policy(), 1).with(|world| {
        let teams = world.teams.clone();
        world.teams[0].quotas.clear();
        world.teams[0] = Team::new("a").quota("p", Quota::guaranteed(MilliGpu::ZERO));
        world.ahead = vec![QuotasAhead {
            from: evening,
            teams,
        }];
    });
    let told = told(&rig);
    assert_eq!(told.expected_start, after(8 * 3600 + 30));
    assert_eq!(told.expected_once, Some(Once::QuotasChange));
}

#[test]
fn what_no_time_lets_go_is_not_told_by_time() {
    let policy = PreemptionPolicy {
        max_per_day: Some(0),
        ..policy()
    };
    let told = told(&rig(policy, 1));
    assert_ne!(told.code, Code::WaitingForVictims);
    assert_eq!(told.expected_start, after(10 * 3600 - 30 * 60));
}
