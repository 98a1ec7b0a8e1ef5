//! A plan depends on what the world says, never on the order in which it says it nor on the names that break no ties.

mod worlds;

use engine::world::{Workload, World};
use proptest::prelude::*;
use worlds::rich::rich;
use worlds::tried;

/// Turns and reverses a list, as the dice say.
fn turn<T>(rows: &mut [T], by: usize) {
    let len = rows.len().max(1);
    rows.rotate_left(by % len);
    if by % 2 == 1 {
        rows.reverse();
    }
}

/// The world with all of its lists in another order, but for those whose order means
/// something: acceptable pools, and the workers of a placement.
fn shuffled(mut world: World, by: usize) -> World {
    turn(&mut world.pools, by);
    turn(&mut world.nodes, by + 1);
    turn(&mut world.teams, by + 2);
    turn(&mut world.workloads, by + 3);
    turn(&mut world.classes, by + 4);
    turn(&mut world.bookings, by + 5);
    turn(&mut world.services, by + 6);
    turn(&mut world.history, by + 7);
    for pool in &mut world.pools {
        turn(&mut pool.sharing, by);
    }
    for node in &mut world.nodes {
        turn(&mut node.failed, by);
        for sets in [&mut node.nvlink, &mut node.numa] {
            turn(sets, by);
            sets.iter_mut().for_each(|set| turn(set, by + 1));
        }
        // Every start is given: what is listed first lies nowhere else.
        node.mig.values_mut().for_each(|all| turn(all, by));
    }
    for work in &mut world.workloads {
        turn(&mut work.after, by);
        let kept = work
            .nominated
            .iter_mut()
            .flat_map(|kept| &mut kept.placement);
        for worker in work.placed.iter_mut().chain(kept) {
            turn(&mut worker.devices, by);
        }
    }
    world
}

fn written(world: &World) -> String {
    serde_json::to_string(&engine::plan(world)).expect("a plan is written")
}

/// The token that every name begins with in a renamed world; no word of a message has it.
const MARK: &str = "q\u{b7}";

/// All names of a world in the same order as before.
fn marked(mut world: World) -> World {
    let mark = |name: &mut String| *name = format!("{MARK}{name}");
    let keys = |map: &mut std::collections::BTreeMap<String, _>| {
        *map = std::mem::take(map)
            .into_iter()
            .map(|(k, v)| (format!("{MARK}{k}"), v))
            .collect();
    };
    fn placed(work: &mut Workload) -> impl Iterator<Item = &mut engine::world::Placed> {
        let kept = work
            .nominated
            .iter_mut()
            .flat_map(|kept| &mut kept.placement);
        work.placed.iter_mut().chain(kept)
    }
    world.pools.iter_mut().for_each(|p| mark(&mut p.name));
    for node in &mut world.nodes {
        mark(&mut node.name);
        mark(&mut node.pool);
    }
    for team in &mut world.teams {
        mark(&mut team.name);
        team.parent.iter_mut().for_each(mark);
        keys(&mut team.quotas);
        let marked = |name: &String| format!("{MARK}{name}");
        team.past_use = team.past_use.iter().map(|(k, v)| (marked(k), *v)).collect();
        team.max_per_user = team
            .max_per_user
            .iter()
            .map(|(k, v)| (marked(k), *v))
            .collect();
        let hour = team.preemptions_this_hour.iter();
        team.preemptions_this_hour = hour.map(|(k, v)| (marked(k), *v)).collect();
    }
    world.classes.iter_mut().for_each(|c| mark(&mut c.name));
    for service in &mut world.services {
        mark(&mut service.name);
        mark(&mut service.team);
    }
    for booking in &mut world.bookings {
        mark(&mut booking.name);
        mark(&mut booking.team);
        mark(&mut booking.pool);
    }
    world
        .history
        .iter_mut()
        .for_each(|past| mark(&mut past.pool));
    for work in &mut world.workloads {
        let names = [&mut work.name, &mut work.team, &mut work.class];
        names.into_iter().for_each(mark);
        work.user.iter_mut().for_each(mark);
        work.service.iter_mut().for_each(mark);
        work.node.iter_mut().for_each(mark);
        work.after.iter_mut().chain(&mut work.pools).for_each(mark);
        placed(work).for_each(|worker| mark(&mut worker.node));
    }
    world
}

/// Another name for work, by its number; none is part of another, nor of any word.
fn other(name: &str, by: usize) -> String {
    let number: usize = name[1..].parse().unwrap_or(0);
    format!("w{:02}", (number * 7 + by) % 29)
}

/// The world with work named otherwise, in another order of the names. No two began at one
/// moment, so that names break no ties.
fn renamed(mut world: World, by: usize) -> World {
    for work in &mut world.workloads {
        work.name = other(&work.name, by);
        work.after
            .iter_mut()
            .for_each(|name| *name = other(name, by));
    }
    world
}

/// The world with every workload's times its own, and no ranks in their grace.
fn apart(mut world: World) -> World {
    world
        .workloads
        .retain(|w| w.name.chars().all(|c| !c.is_control()));
    for (i, work) in world.workloads.iter_mut().enumerate() {
        let later = chrono::TimeDelta::milliseconds(i as i64);
        work.submitted -= later;
        work.started = work.started.map(|at| at - later);
    }
    world
}

/// A plan with its work named otherwise, each list in the order of the names.
fn sorted(plan: &engine::plan::Plan, name: impl Fn(&str) -> String) -> serde_json::Value {
    fn walk(value: &mut serde_json::Value, name: &dyn Fn(&str) -> String) {
        match value {
            serde_json::Value::String(text) => {
                let words = text.split(' ').map(|word| {
                    let number = word.strip_prefix('j').filter(|rest| rest.len() == 2);
                    let job = number.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
                    if job { name(word) } else { word.to_owned() }
                });
                *text = words.collect::<Vec<_>>().join(" ");
            }
            serde_json::Value::Array(all) => all.iter_mut().for_each(|v| walk(v, name)),
            serde_json::Value::Object(all) => all.values_mut().for_each(|v| walk(v, name)),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(plan).expect("a plan is written");
    walk(&mut value, &name);
    for list in [
        "starts",
        "resizes",
        "preemptions",
        "migrations",
        "nominations",
        "reservations",
        "waiting",
    ] {
        if let Some(rows) = value[list].as_array_mut() {
            for row in rows.iter_mut().filter_map(|row| row.get_mut("waits_for")) {
                row.as_array_mut()
                    .expect("a list")
                    .sort_by_key(ToString::to_string);
            }
            rows.sort_by_key(|row| row["workload"].to_string());
        }
    }
    value
}

proptest! {
    #![proptest_config(tried())]

    #[test]
    fn what_is_said_of_what_waits_changes_no_decision(recipe in rich()) {
        let world = recipe.world();
        let silent = serde_json::to_string(&engine::decide(&world)).expect("a plan is written");
        let mut told = engine::plan(&world);
        told.waiting.clear();
        prop_assert_eq!(silent, serde_json::to_string(&told).expect("a plan is written"));
    }

    #[test]
    fn names_of_work_that_break_no_ties_change_nothing(recipe in rich(), by in 0..29_usize) {
        let world = apart(recipe.world());
        let plan = engine::plan(&world);
        let other_plan = engine::plan(&renamed(world.clone(), by));
        let (one, two) = (sorted(&plan, |name| other(name, by)), sorted(&other_plan, str::to_owned));
        prop_assert_eq!(one.to_string(), two.to_string(), "{}", engine::scenario::write(&world));
    }

    /// T-1.4, and the second half of T-2.10.
    #[test]
    fn the_order_of_any_list_changes_nothing(recipe in rich(), by in 1..20_usize) {
        let world = recipe.world();
        prop_assert_eq!(written(&world), written(&shuffled(world.clone(), by)));
    }

    #[test]
    fn other_names_in_the_same_order_change_nothing_but_the_names(recipe in rich()) {
        let world = recipe.world();
        let renamed = written(&marked(world.clone()));
        prop_assert_eq!(written(&world), renamed.replace(MARK, ""));
    }
}
