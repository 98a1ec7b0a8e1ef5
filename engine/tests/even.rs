//! Elastic work of a borrower starts with no workers that a borrower of a lower share, who has room beside it, would take a cycle later.

use engine::plan::Plan;
use engine::rig::{Rig, before, eager};
use engine::world::{Pool, PreemptionPolicy, Workload};

fn rig(gpus: u32, across_borrowers: bool) -> Rig {
    let policy = PreemptionPolicy {
        across_borrowers,
        ..eager()
    };
    Rig::new()
        .pool(Pool::new("p").preemption(policy))
        .nodes(1, gpus)
        .team("c", 0)
}

fn elastic(team: &str, workers: u32) -> Workload {
    let mut work = Workload::waiting("e", team, 1, before(90)).workers(workers);
    work.min_workers = Some(1);
    work
}

/// Who starts with how many workers, by name.
fn started(plan: &Plan) -> Vec<(&str, u32)> {
    let starts = plan.starts.iter();
    let mut all: Vec<(&str, u32)> = starts.map(|s| (s.workload.as_str(), s.workers)).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_borrower_with_room_for_itself_has_it_before_it_would_take_it_back() {
    let rest = rig(4, true)
        .team("b", 0)
        .work(elastic("b", 4))
        .jobs("s", "c", 1, 1)
        .settles(10);
    assert_eq!(started(&rest.plans[0]), [("e", 3), ("s00", 1)]);
    assert_eq!(rest.evictions(), 0);
}

#[test]
fn borrowers_come_to_even_shares_in_one_cycle() {
    let rest = rig(6, true)
        .team("b", 0)
        .work(elastic("b", 6))
        .jobs("s", "c", 5, 1)
        .settles(10);
    assert_eq!(
        started(&rest.plans[0]),
        [("e", 3), ("s00", 1), ("s01", 1), ("s02", 1)]
    );
    assert_eq!(rest.evictions(), 0);
}

#[test]
fn what_elastic_work_borrows_beyond_its_guarantee_is_evened_out_too() {
    // One is its own; of the other six each borrower comes to have three.
    let rest = rig(7, true)
        .team("o", 1)
        .work(elastic("o", 7))
        .jobs("s", "c", 5, 1)
        .settles(10);
    let starts = started(&rest.plans[0]);
    assert_eq!(starts[0], ("e", 4));
    assert_eq!(starts.len(), 4);
    assert_eq!(rest.evictions(), 0);
}

#[test]
fn elastic_work_starts_with_all_where_nobody_could_take_any() {
    // Shares are not evened out.
    let plan = rig(4, false)
        .team("b", 0)
        .work(elastic("b", 4))
        .jobs("s", "c", 1, 1)
        .plan();
    assert_eq!(started(&plan), [("e", 4)]);
    // The other has no room for itself.
    let plan = rig(4, true)
        .team("b", 0)
        .work(elastic("b", 4))
        .jobs("s", "c", 1, 4)
        .plan();
    assert_eq!(started(&plan), [("e", 4)]);
}
