//! Laws on worlds of all features at once: whatever is planned, the checker finds nothing, and no limit is passed.

mod worlds;

use std::collections::BTreeMap;

use engine::check::violations;
use engine::cycles;
use engine::plan::Plan;
use engine::world::{WorkloadState, World};
use proptest::prelude::*;
use worlds::rich::rich;
use worlds::tried;

/// Cycles that are looked at from the world that is given.
const CYCLES: usize = 6;

/// Plans cycle after cycle, and shows each plan with the world that it was made for.
fn watch(
    mut world: World,
    mut look: impl FnMut(&World, &Plan) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    for _ in 0..CYCLES {
        let made = engine::plan(&world);
        look(&world, &made)?;
        cycles::apply(&mut world, &made);
        cycles::advance(&mut world, None);
    }
    Ok(())
}

fn shown(world: &World) -> String {
    engine::scenario::write(world)
}

fn told(plan: &Plan) -> String {
    serde_json::to_string(plan).expect("a plan is written")
}

/// Thousandths of a pool's devices that a team and all below it hold, by plain sums.
fn held(world: &World, team: &str, pool: &str) -> i64 {
    let parents: BTreeMap<&str, Option<&str>> = (world.teams.iter())
        .map(|t| (t.name.as_str(), t.parent.as_deref()))
        .collect();
    let below = |of: &str| {
        let mut at = Some(of);
        while let Some(here) = at {
            if here == team {
                return true;
            }
            at = parents.get(here).copied().flatten();
        }
        false
    };
    let inside: Vec<&str> = (world.nodes.iter())
        .filter(|n| n.pool == pool)
        .map(|n| n.name.as_str())
        .collect();
    let running = world
        .workloads
        .iter()
        .filter(|w| w.state == WorkloadState::Running);
    let placed = running.filter(|w| below(&w.team)).flat_map(|w| &w.placed);
    let here = placed.filter(|p| inside.contains(&p.node.as_str()));
    here.flat_map(|p| &p.devices).map(|d| d.gpus.milli()).sum()
}

proptest! {
    #![proptest_config(tried())]

    #[test]
    fn the_checker_finds_nothing_in_any_plan(recipe in rich()) {
        watch(recipe.world(), |world, plan| {
            let found = violations(world, plan);
            prop_assert!(found.is_empty(), "{found:#?} in {} of {}", told(plan), shown(world));
            Ok(())
        })?;
    }

    #[test]
    fn no_team_comes_to_hold_more_than_its_limit(recipe in rich()) {
        let mut before: BTreeMap<(String, String), i64> = BTreeMap::new();
        watch(recipe.world(), |world, plan| {
            for team in &world.teams {
                for (pool, quota) in &team.quotas {
                    let now = held(world, &team.name, pool);
                    let key = (team.name.clone(), pool.clone());
                    let was = before.insert(key, now).unwrap_or(now);
                    let over = quota.limit.is_some_and(|limit| now > limit.milli());
                    prop_assert!(!over || now <= was, "{} holds {now}: {} of {}", team.name, told(plan), shown(world));
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn what_is_written_of_a_world_is_read_back_equal(recipe in rich()) {
        let mut world = World { history: Vec::new(), ..recipe.world() };
        // Ranks in their grace go on as rows that no file has.
        world.workloads.retain(|w| w.name.chars().all(|c| !c.is_control()));
        // Nor has a file what an agent can do.
        world.nodes.iter_mut().for_each(|node| node.mps_across_teams = true);
        prop_assert_eq!(engine::scenario::parse(&shown(&world)).expect("its own writing"), world);
    }
}
