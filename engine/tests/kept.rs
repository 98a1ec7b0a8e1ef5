//! Laws of a world that is kept: after any changes it is what a fresh one is, and decides the same.

mod worlds;

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::quantity::Points;
use domain::sharing::SharingMode;
use engine::plan::Plan;
use engine::world::{Node, NodeState, Strategy, Team, Workload, WorkloadState, World};
use engine::{Planner, Shelf, cycles};
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};
use proptest::test_runner::TestCaseError;
use worlds::dice::Dice;
use worlds::rich::{befall, job, rich};
use worlds::tried_one_in;

/// Changes of a world, at most, and what all of them cost beside a world that does not change.
const CHANGES: usize = 40;
const COST: u32 = 5;
/// The same of one that goes on for long.
const LONG: usize = 500;
const LONG_COST: u32 = 128;
/// After one change in so many verdicts are compared, too.
const EXPLAINED_EACH: usize = 3;

/// Rows that are lent to a planner.
#[derive(Default)]
struct Lent {
    works: Shelf<Workload>,
    nodes: Shelf<Node>,
    teams: Shelf<Team>,
    histories: Shelf<Vec<engine::world::Past>>,
}

/// Tells a planner all that is otherwise.
fn tell<'w>(planner: &mut Planner<'w>, lent: &'w Lent, before: &World, after: &World) {
    fn by_name<T>(rows: &[T], name: fn(&T) -> &str) -> BTreeMap<&str, &T> {
        rows.iter().map(|row| (name(row), row)).collect()
    }
    planner.turn(after.now);
    let (old, new) = (&before.nodes, &after.nodes);
    let there = by_name(old, |n| &n.name);
    new.iter()
        .filter(|node| there.get(node.name.as_str()) != Some(node))
        .for_each(|node| planner.take_node(lent.nodes.put(node.clone())));
    let here = by_name(new, |n| &n.name);
    let gone = there.keys().filter(|name| !here.contains_key(*name));
    gone.for_each(|name| planner.drop_node(name));
    let there = by_name(&before.teams, |t| &t.name);
    let otherwise = |team: &&Team| there.get(team.name.as_str()) != Some(team);
    for team in after.teams.iter().filter(otherwise) {
        planner.take_team(lent.teams.put(team.clone()));
    }
    let there = by_name(&before.workloads, |w| &w.name);
    let here = by_name(&after.workloads, |w| &w.name);
    let gone = there.keys().filter(|name| !here.contains_key(*name));
    gone.for_each(|name| planner.end(name));
    let otherwise = |work: &&Workload| there.get(work.name.as_str()) != Some(work);
    for work in after.workloads.iter().filter(otherwise) {
        planner.take(lent.works.put(work.clone()));
    }
    if before.history != after.history {
        planner.remember(lent.histories.put(after.history.clone()));
    }
}

fn pick<'a>(
    world: &'a mut World,
    dice: &mut Dice<'_>,
    some: impl Fn(&Workload) -> bool,
) -> Option<&'a mut Workload> {
    let mut all: Vec<&mut Workload> = world.workloads.iter_mut().filter(|w| some(w)).collect();
    let at = dice.below(all.len() as i64) as usize;
    (!all.is_empty()).then(|| all.swap_remove(at))
}

/// Something happens to a world.
fn happen(world: &mut World, last: &Plan, dice: &mut Dice<'_>) {
    let state = |state: WorkloadState| move |work: &Workload| work.state == state;
    match dice.below(18) {
        0..=3 => {
            cycles::apply(world, last);
            if dice.once_in(2) {
                cycles::advance(world, None);
            }
        }
        4 | 5 => cycles::advance(world, None),
        6 => world.now += chrono::TimeDelta::seconds(dice.below(200)),
        7..=9 => {
            let bytes: Vec<u8> = (0..32).map(|_| dice.below(256) as u8).collect();
            let number = dice.below(99) as usize;
            let fresh = job(number, &mut Dice::of(&bytes), world);
            world.workloads.retain(|work| work.name != fresh.name);
            world.workloads.push(fresh);
        }
        10 | 11 => {
            let gone = pick(world, dice, state(WorkloadState::Running)).map(|w| w.name.clone());
            world
                .workloads
                .retain(|work| Some(&work.name) != gone.as_ref());
        }
        12 => {
            let gone = pick(world, dice, state(WorkloadState::Waiting)).map(|w| w.name.clone());
            world
                .workloads
                .retain(|work| Some(&work.name) != gone.as_ref());
        }
        13 => {
            if let Some(work) = pick(world, dice, state(WorkloadState::Waiting)) {
                work.state = WorkloadState::Suspended;
                work.nominated = None;
            }
        }
        14 => {
            if let Some(work) = pick(world, dice, state(WorkloadState::Suspended)) {
                work.state = WorkloadState::Waiting;
            }
        }
        15 => {
            if let Some(work) = pick(world, dice, state(WorkloadState::Waiting)) {
                work.class = dice.one(&["low", "high", "fixed"]).to_owned();
            }
        }
        16 => strike(world, dice),
        _ => {
            let at = dice.below(world.teams.len() as i64) as usize;
            let quotas = world.teams[at].quotas.values_mut();
            let more = MilliGpu::from_milli(dice.one(&[0, 500, 2000]));
            quotas.for_each(|quota| quota.guaranteed = more);
            quotas_hold(&mut world.teams[at]);
        }
    }
}

/// No limit is below its guarantee.
fn quotas_hold(team: &mut Team) {
    for quota in team.quotas.values_mut() {
        quota.limit = quota.limit.map(|limit| limit.max(quota.guaranteed));
    }
}

/// Something happens to a node.
fn strike(world: &mut World, dice: &mut Dice<'_>) {
    let at = dice.below(world.nodes.len() as i64) as usize;
    let node = &mut world.nodes[at];
    match dice.below(4) {
        0 => (node.state, node.failed) = (NodeState::Ready, Vec::new()),
        1 => befall(node, dice),
        2 => {
            let states = [
                NodeState::Cordoned,
                NodeState::Draining,
                NodeState::Unreachable,
            ];
            node.state = dice.one(&states);
        }
        _ => {
            let mut other = node.clone();
            other.name = format!("n{}x", dice.below(9));
            other.mig.clear();
            if world.nodes.iter().all(|node| node.name != other.name) {
                world.nodes.push(other);
            }
        }
    }
}

/// Takes away what makes each decision slow: costs of placements that are reckoned anew.
fn quicken(world: &mut World) {
    for pool in &mut world.pools {
        if pool.strategy == Strategy::LeastFragmentation {
            pool.strategy = Strategy::Pack;
        }
    }
}

/// Takes away what futures are not kept with.
fn smooth(world: &mut World) {
    for pool in &mut world.pools {
        pool.whole_node_guarantees = false;
        pool.ageing_per_hour = Points::ZERO;
    }
    quicken(world);
    let told = |work: &Workload| {
        let modes = work.per_worker.sharing.iter();
        modes
            .into_iter()
            .all(|m| !matches!(m, SharingMode::Mps | SharingMode::Vgpu))
    };
    world.workloads.retain(told);
    for work in &mut world.workloads {
        work.service = None;
        if work.pools.len() != 1 {
            work.pools = vec!["p".to_owned()];
        }
    }
}

fn told(plan: &Plan) -> String {
    serde_json::to_string(plan).expect("a plan is written")
}

/// Changes a world step by step, and looks after each whether what was kept is as it should be.
fn follow(
    mut world: World,
    steps: &[[u8; 48]],
    smooth: fn(&mut World),
) -> Result<(), TestCaseError> {
    smooth(&mut world);
    let (first, lent) = (world.clone(), Lent::default());
    let mut planner = Planner::of(&first);
    let mut last = planner.decide();
    prop_assert_eq!(told(&last), told(&engine::decide(&world)));
    for (at, step) in steps.iter().enumerate() {
        let before = world.clone();
        let mut dice = Dice::of(step);
        let many = 1 + dice.below(3);
        for _ in 0..many {
            happen(&mut world, &last, &mut dice);
        }
        smooth(&mut world);
        tell(&mut planner, &lent, &before, &world);
        let shown = || engine::scenario::write(&world);
        let unlike = planner.unlike(&world);
        prop_assert!(
            unlike.is_empty(),
            "{unlike:?} after {:?} of {}",
            step,
            shown()
        );
        // With all that is said of what waits it costs several times as much.
        let fresh = if at % EXPLAINED_EACH == 0 {
            last = planner.plan();
            engine::plan(&world)
        } else {
            last = planner.decide();
            engine::decide(&world)
        };
        prop_assert_eq!(told(&last), told(&fresh), "{}", shown());
        let unlike = planner.unlike(&world);
        prop_assert!(
            unlike.is_empty(),
            "{unlike:?} after a decision in {}",
            shown()
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(tried_one_in(COST))]

    #[test]
    fn what_was_kept_through_changes_decides_as_a_fresh_world_does(
        recipe in rich(),
        steps in prop::collection::vec(any::<[u8; 48]>(), 1..CHANGES),
    ) {
        follow(recipe.world(), &steps, |_| {})?;
    }

    /// Futures and lines are kept where nothing is told by who came first.
    #[test]
    fn futures_that_were_kept_decide_as_fresh_ones_do(
        recipe in rich(),
        steps in prop::collection::vec(any::<[u8; 48]>(), 1..CHANGES),
    ) {
        follow(recipe.world(), &steps, smooth)?;
    }
}

proptest! {
    #![proptest_config(tried_one_in(LONG_COST))]

    #[test]
    fn after_five_hundred_changes_decisions_are_still_those_of_a_fresh_world(
        recipe in rich(),
        steps in prop::collection::vec(any::<[u8; 48]>(), LONG..=LONG),
    ) {
        follow(recipe.world(), &steps, quicken)?;
    }

    #[test]
    fn after_five_hundred_changes_futures_that_were_kept_are_those_of_a_fresh_world(
        recipe in rich(),
        steps in prop::collection::vec(any::<[u8; 48]>(), LONG..=LONG),
    ) {
        follow(recipe.world(), &steps, smooth)?;
    }
}
