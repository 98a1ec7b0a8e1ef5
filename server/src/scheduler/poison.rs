//! Finds the one waiting workload with which planning fails, so that it alone is set aside.

use engine::world::{Workload, WorkloadState, World};

/// The waiting workload without which `fails` holds no more; `None` when no single one is at
/// fault. Halves the suspects, so that it takes about log2(n) attempts.
pub fn culprit(world: &World, fails: impl Fn(&World) -> bool) -> Option<String> {
    let waits = |w: &&Workload| w.state == WorkloadState::Waiting;
    let mut suspects: Vec<String> = world
        .workloads
        .iter()
        .filter(waits)
        .map(|w| w.name.clone())
        .collect();
    suspects.sort_unstable();
    if suspects.is_empty() || fails(&with_only(world, &[])) {
        return None;
    }
    while suspects.len() > 1 {
        let half = suspects.split_off(suspects.len() / 2);
        if fails(&with_only(world, &half)) {
            suspects = half;
        } else if !fails(&with_only(world, &suspects)) {
            // Only several together fail.
            return None;
        }
    }
    suspects
        .pop()
        .filter(|name| fails(&with_only(world, std::slice::from_ref(name))))
}

/// The same world with only these of its waiting workloads.
fn with_only(world: &World, names: &[String]) -> World {
    let mut part = world.clone();
    part.workloads
        .retain(|w| w.state != WorkloadState::Waiting || names.binary_search(&w.name).is_ok());
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(names: &[&str]) -> World {
        let now = domain::Timestamp::UNIX_EPOCH;
        let mut world = World::empty(now);
        world.workloads = names
            .iter()
            .map(|name| Workload::waiting(name, "t", 1, now))
            .collect();
        world
    }

    #[test]
    fn the_one_workload_at_fault_is_found() {
        let world = world(&["a", "b", "c", "d", "e"]);
        for name in ["a", "c", "e"] {
            let fails = |part: &World| part.workload(name).is_some();
            assert_eq!(culprit(&world, fails).as_deref(), Some(name));
        }
    }

    #[test]
    fn nobody_is_blamed_for_what_several_do_or_what_fails_anyhow() {
        let world = world(&["a", "b", "c", "d"]);
        let together = |part: &World| part.workload("a").is_some() && part.workload("d").is_some();
        assert_eq!(culprit(&world, together), None);
        assert_eq!(culprit(&world, |_| true), None);
    }
}
