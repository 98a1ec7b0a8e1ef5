//! What is told of who waits for victims, from plan to plan: each failed before it was mended.

use chrono::TimeDelta;
use engine::cycles;
use engine::plan::{Code, Plan, Waiting};
use engine::rig::{Rig, before, eager, noon};
use engine::world::{Pool, PoolState, PreemptionPolicy, Workload, World};

fn waits<'p>(plan: &'p Plan, name: &str) -> &'p Waiting {
    let mut all = plan.waiting.iter();
    all.find(|w| w.workload == name).expect("it waits")
}

/// An elastic borrower on all of four devices, and an owner of two who waits; they have 30 s to leave.
fn shrunk() -> Rig {
    let policy = PreemptionPolicy {
        grace_seconds: 30,
        ..eager()
    };
    let mut gang = Workload::waiting("gang", "b", 1, before(90)).running_on("n1", &[0], before(60));
    (gang.workers, gang.min_workers) = (4, Some(1));
    for device in 1..4 {
        let other = Workload::waiting("other", "b", 1, before(60));
        let mut other = other.running_on("n1", &[device], before(60));
        gang.placed.push(other.placed.remove(0));
    }
    Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .nodes(1, 4)
        .team("o", 2)
        .team("b", 0)
        .work(gang)
        .work(Workload::waiting("owner", "o", 2, before(30)))
        .work(Workload::waiting("other", "b", 1, before(30)))
}

/// The world a cycle after its first plan.
fn later(rig: &Rig) -> World {
    let mut world = rig.world().clone();
    cycles::apply(&mut world, &rig.plan());
    cycles::advance(&mut world, None);
    world
}

#[test]
fn who_waits_for_released_ranks_is_told_the_same_start_in_every_plan() {
    let rig = shrunk();
    let at = Some(noon() + TimeDelta::seconds(30));
    assert_eq!(waits(&rig.plan(), "owner").expected_start, at);
    assert_eq!(
        waits(&engine::plan(&later(&rig)), "owner").expected_start,
        at
    );
}

#[test]
fn who_waits_for_victims_is_told_its_rank_in_every_plan() {
    let rig = shrunk();
    let ranks = |plan: &Plan| ["owner", "other"].map(|name| waits(plan, name).rank);
    assert_eq!(ranks(&rig.plan()), [Some(1), Some(2)]);
    assert_eq!(ranks(&engine::plan(&later(&rig))), [Some(1), Some(2)]);
}

#[test]
fn who_waits_for_victims_is_told_so_though_its_pool_has_closed_since() {
    let mut world = later(&shrunk());
    world.pools[0].state = PoolState::Closed;
    let plan = engine::plan(&world);
    assert_eq!(waits(&plan, "owner").code, Code::WaitingForVictims);
    assert_eq!(waits(&plan, "other").code, Code::PoolClosed);
    // Its room is kept for so long and no longer.
    world.now += TimeDelta::hours(1);
    assert_eq!(waits(&engine::plan(&world), "owner").code, Code::PoolClosed);
}
