//! Statements of quota add up, whatever the world.

mod worlds;

use std::collections::BTreeSet;

use domain::MilliGpu;
use engine::statement::{Party, Starved, Statement, starved, statements};
use engine::world::World;
use proptest::prelude::*;
use worlds::rich::rich;
use worlds::tried;

fn sum(parties: &[Party]) -> i64 {
    parties.iter().map(|p| p.amount.milli()).sum()
}

/// What two teams say of one loan is the same; teams above others speak of those outside.
fn agreed(world: &World, all: &[Statement]) -> Option<String> {
    let parents: BTreeSet<&str> = world
        .teams
        .iter()
        .filter_map(|t| t.parent.as_deref())
        .collect();
    let of = |team: &str, pool: &str| all.iter().find(|s| s.team == team && s.pool == pool);
    let mut leaves = all.iter().filter(|s| !parents.contains(s.team.as_str()));
    let odd = leaves.find(|s| {
        let back = |p: &Party| -> Option<MilliGpu> {
            let other = of(&p.team, &s.pool)?;
            if parents.contains(p.team.as_str()) {
                return Some(p.amount);
            }
            let there = other.borrows_from.iter().find(|b| b.team == s.team)?;
            Some(there.amount)
        };
        s.lends_to.iter().any(|p| back(p) != Some(p.amount))
    });
    odd.map(|s| format!("{s:?}"))
}

proptest! {
    #![proptest_config(tried())]

    #[test]
    fn statements_add_up(recipe in rich()) {
        let world = recipe.world();
        let all = statements(&world, &Starved::new());
        for s in &all {
            let (held, own) = (s.held.milli(), s.guaranteed.milli());
            prop_assert_eq!(s.borrowed.milli(), (held - own).max(0), "{:?}", s);
            prop_assert_eq!(s.borrowed.milli(), sum(&s.borrows_from) + s.spare.milli(), "{:?}", s);
            prop_assert_eq!(s.lent.milli(), sum(&s.lends_to), "{:?}", s);
            prop_assert!(s.lent.milli() <= (own - held).max(0), "{:?}", s);
            prop_assert!(s.reclaimable <= s.lent, "{:?}", s);
            let none = s.lends_to.iter().chain(&s.borrows_from).any(|p| p.amount == MilliGpu::ZERO);
            prop_assert!(!none, "{:?}", s);
        }
        prop_assert_eq!(agreed(&world, &all), None);
        // Of all that roots borrow, what is not spare is lent by roots.
        for pool in &world.pools {
            let roots = || all.iter().filter(|s| s.pool == pool.name && s.team.starts_with('d'));
            let (borrowed, spare): (i64, i64) = roots().fold((0, 0), |(b, s), row| {
                (b + row.borrowed.milli(), s + row.spare.milli())
            });
            prop_assert_eq!(borrowed - spare, roots().map(|s| s.lent.milli()).sum::<i64>());
        }
        // Who is short now is so since now, and later since then.
        let short = starved(&all);
        prop_assert!(short.values().all(|since| *since == world.now));
        let mut later = world.clone();
        later.now += chrono::TimeDelta::seconds(5);
        let after = starved(&statements(&later, &short));
        let since_then = short.keys().filter_map(|key| after.get(key));
        prop_assert!(since_then.copied().all(|since| since == world.now));
    }
}
