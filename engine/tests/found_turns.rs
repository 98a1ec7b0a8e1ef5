//! Who started in one plan and left for another in the next: each failed before it was mended.

use domain::MilliGpu;
use engine::cycles;
use engine::plan::{Code, Plan, Reason};
use engine::rig::{Rig, before, eager, noon};
use engine::world::{
    Backfill, Node, NodeState, Pool, PreemptionPolicy, Quota, Service, Team, WithinTeam, Workload,
};

fn pool(backfill: Backfill, policy: PreemptionPolicy) -> Pool {
    Pool::new("p")
        .preemption(policy)
        .with(|pool| pool.backfill = backfill)
}

/// Waiting work of one device for each of so many workers, which may start with one.
fn elastic(name: &str, team: &str, workers: u32) -> Workload {
    let mut work = Workload::waiting(name, team, 1, before(60)).workers(workers);
    work.min_workers = Some(1);
    work
}

/// What starts, with how many workers.
fn started(plan: &Plan) -> Vec<(&str, u32)> {
    let starts = plan.starts.iter();
    starts.map(|s| (s.workload.as_str(), s.workers)).collect()
}

fn moved(plan: &Plan) -> Vec<(&str, &str)> {
    let moves = plan.migrations.iter();
    moves
        .map(|m| (m.workload.as_str(), m.placement[0].node.as_str()))
        .collect()
}

fn emptied(name: &str, gpus: u32) -> Node {
    Node {
        state: NodeState::Draining,
        ..Node::new(name, "p", gpus)
    }
}

#[test]
fn elastic_work_in_its_guarantee_starts_before_lower_work_of_its_team() {
    for backfill in [Backfill::Easy, Backfill::None, Backfill::Strict] {
        let rest = Rig::new()
            .pool(pool(backfill, eager()))
            .nodes(1, 1)
            .team("t", 1)
            .work(elastic("a", "t", 3))
            .work(Workload::waiting("b", "t", 1, before(90)).class("low"))
            .settles(10);
        assert_eq!(started(&rest.plans[0]), [("a", 1)]);
        assert_eq!(rest.evictions(), 0);
    }
}

#[test]
fn elastic_work_in_its_guarantee_starts_before_borrowers() {
    let rest = Rig::new()
        .nodes(1, 2)
        .team("o", 1)
        .team("b", 0)
        .team("c", 0)
        .work(Workload::waiting("x", "b", 1, before(90)).running_on("n1", &[0], before(60)))
        .work(elastic("e", "o", 2))
        .work(Workload::waiting("s", "c", 1, before(60)))
        .settles(10);
    assert_eq!(started(&rest.plans[0]), [("e", 1)]);
    assert_eq!(rest.evictions(), 0);
}

#[test]
fn elastic_work_borrows_only_once_all_that_is_in_a_guarantee_has_started() {
    let rig = |gpus| {
        Rig::new()
            .nodes(1, gpus)
            .team("a", 3)
            .team("b", 3)
            .work(elastic("e", "a", 6))
            .work(elastic("f", "b", 6))
    };
    assert_eq!(started(&rig(6).plan()), [("e", 3), ("f", 3)]);
    // At its turn among the borrowers each takes what it can.
    assert_eq!(started(&rig(8).plan()), [("e", 5), ("f", 3)]);
    assert_eq!(started(&rig(12).plan()), [("e", 6), ("f", 6)]);
}

#[test]
fn elastic_work_starts_with_more_at_its_turn_among_the_borrowers() {
    let rig = |limit: i64| {
        let row = Quota::guaranteed(MilliGpu::whole(1)).limited(MilliGpu::whole(limit));
        Rig::new()
            .nodes(2, 4)
            .tenant(Team::new("a").quota("p", row))
            .team("b", 0)
            .work(elastic("e", "a", 4))
            .work(Workload::waiting("held", "b", 2, before(90)).running_on(
                "n1",
                &[0, 1],
                before(60),
            ))
            .jobs("s", "b", 4, 1)
    };
    // Its team borrows less than the other.
    assert_eq!(started(&rig(8).plan())[0], ("e", 4));
    // Its limit binds it as it binds all.
    assert_eq!(started(&rig(3).plan())[0], ("e", 3));
}

#[test]
fn nothing_passes_elastic_work_that_waits_for_its_victims_where_nothing_passes_a_head() {
    let policy = PreemptionPolicy {
        grace_seconds: 30,
        ..eager()
    };
    let mut low = elastic("r", "t", 2)
        .class("low")
        .running_on("n1", &[0], before(60));
    low.placed.push(
        Workload::waiting("other", "t", 1, before(60))
            .running_on("n1", &[1], before(60))
            .placed
            .remove(0),
    );
    let rig = Rig::new()
        .pool(pool(Backfill::Strict, policy))
        .nodes(1, 4)
        .team("t", 2)
        .work(low)
        .work(elastic("w", "t", 3).class("fixed"))
        .work(Workload::waiting("x", "t", 1, before(30)));
    let plans = cycles::run(rig.world().clone(), 6);
    assert_eq!(plans[0].nominations[0].workload, "w");
    let first = |name: &str| plans.iter().position(|p| p.start_of(name).is_some());
    assert!(first("x") >= first("w") && first("w").is_some());
    let victims: usize = plans.iter().map(|p| p.preemptions.len()).sum();
    assert_eq!(victims, 1);
}

/// Work of team `o` on two devices of a node that is emptied, another node of two, and who waits.
fn beside_an_emptied_node(owner: i64, waits: Workload) -> Rig {
    let policy = PreemptionPolicy {
        within_team: WithinTeam::Never,
        ..eager()
    };
    Rig::new()
        .pool(pool(Backfill::Easy, policy))
        .node(emptied("n0", 2))
        .nodes(1, 2)
        .team("o", owner)
        .team("c", 2 - owner)
        .work(Workload::waiting("m", "o", 2, before(90)).running_on("n0", &[0, 1], before(60)))
        .work(waits)
}

#[test]
fn what_is_in_its_guarantee_moves_off_an_emptied_node_before_others_start_there() {
    let waits = Workload::waiting("s", "c", 2, before(90));
    let rest = beside_an_emptied_node(2, waits).settles(10);
    assert_eq!(moved(&rest.plans[0]), [("m", "n2")]);
    assert_eq!(rest.evictions(), 0);
    assert_eq!(rest.running("m"), 1);
}

#[test]
fn what_borrows_moves_off_an_emptied_node_before_borrowers_start_there_and_after_owners_do() {
    let owner = Workload::waiting("s", "c", 2, before(30));
    let plan = beside_an_emptied_node(0, owner.clone()).plan();
    assert_eq!(started(&plan), [("s", 1)]);
    assert_eq!(plan.preemptions[0].reason, Reason::Drain);
    let mut borrower = owner;
    borrower.team = "o".to_owned();
    let plan = beside_an_emptied_node(0, borrower).plan();
    assert_eq!(moved(&plan), [("m", "n2")]);
    assert!(plan.starts.is_empty());
}

#[test]
fn who_moves_keeps_its_place_though_its_team_may_not_hold_so_much_any_more() {
    let policy = PreemptionPolicy {
        grace_seconds: 30,
        ..eager()
    };
    let row = Quota::guaranteed(MilliGpu::ZERO).limited(MilliGpu::whole(2));
    let mut later = Workload::waiting("x", "t", 1, before(30));
    later.not_before = Some(noon() + chrono::TimeDelta::seconds(5));
    let rig = Rig::new()
        .pool(pool(Backfill::Easy, policy))
        .node(emptied("n1", 4))
        .node(Node::new("n2", "p", 4))
        .tenant(Team::new("t").quota("p", row))
        .work(Workload::waiting("m", "t", 3, before(90)).running_on("n1", &[0, 1, 2], before(60)))
        .work(later);
    let rest = rig.settles(60);
    assert_eq!(moved(&rest.plans[0]), [("m", "n2")]);
    assert_eq!((rest.running("m"), rest.running("x")), (1, 0));
    let last = rest.plans.last().expect("a plan");
    assert_eq!(last.waiting[0].code, Code::OverLimit);
}

#[test]
fn who_is_shrunk_and_leaves_an_emptied_node_in_one_plan_is_told_once() {
    // No room for three elsewhere: rank 0 has to leave `n1`, and the others with it.
    let mut gang = elastic("g", "b", 3).running_on("n1", &[0], before(60));
    for device in [0, 1] {
        let other = Workload::waiting("other", "b", 1, before(60));
        let mut other = other.running_on("n2", &[device], before(60));
        gang.placed.push(other.placed.remove(0));
    }
    let plan = Rig::new()
        .node(emptied("n1", 1))
        .node(Node::new("n2", "p", 2))
        .team("o", 1)
        .team("b", 0)
        .work(gang)
        .work(Workload::waiting("w", "o", 1, before(30)))
        .work(Workload::waiting("small", "o", 0, before(30)))
        .plan();
    assert_eq!(plan.preemptions.len(), 1, "{:#?}", plan.preemptions);
    let told = &plan.preemptions[0];
    assert_eq!((told.reason, told.to_workers), (Reason::Drain, 0));
    assert_eq!(told.released, [0, 1, 2]);
    assert_eq!(plan.nominations[0].workload, "w");
}

/// Low work on one of two devices, higher work that borrows with both, and lower work in the guarantee.
fn higher_that_borrows(devices: u32) -> Rig {
    Rig::new()
        .nodes(1, devices)
        .team("t", 2)
        .work(
            Workload::waiting("l", "t", 1, before(90))
                .class("low")
                .running_on("n1", &[0], before(60)),
        )
        .work(Workload::waiting("h", "t", 2, before(60)).class("high"))
        .work(Workload::waiting("s", "t", 1, before(90)))
}

#[test]
fn in_a_team_nobody_starts_who_leaves_for_higher_work_that_borrows() {
    let rest = higher_that_borrows(2).settles(10);
    assert_eq!(rest.plans[0].preemptions.len(), 1);
    assert_eq!(rest.plans[0].nominations[0].workload, "h");
    assert!(rest.plans[0].starts.is_empty());
    assert_eq!((rest.evictions(), rest.running("h")), (1, 1));
    // Where both have room, or the higher has it by who is lower still, the lower starts in its turn.
    assert_eq!(higher_that_borrows(4).starts(), ["s", "h"]);
    let three = higher_that_borrows(3).settles(10);
    assert_eq!(started(&three.plans[0]), [("s", 1)]);
    assert_eq!(three.plans[0].preemptions[0].workload, "l");
    assert_eq!((three.evictions(), three.running("h")), (1, 1));
}

#[test]
fn who_borrows_takes_no_room_before_those_of_another_team_in_their_guarantee() {
    let rest = higher_that_borrows(2)
        .team("o", 1)
        .with(|w| {
            w.teams[0]
                .quotas
                .insert("p".to_owned(), Quota::guaranteed(MilliGpu::whole(1)))
                .map_or((), drop)
        })
        .work(Workload::waiting("own", "o", 1, before(5)))
        .settles(10);
    assert_eq!(started(&rest.plans[0])[0], ("own", 1));
}

/// A team with a guarantee of one and work in it, work that must be in the guarantee, and more that may borrow.
fn firm(policy: PreemptionPolicy) -> Rig {
    Rig::new()
        .pool(pool(Backfill::Easy, policy))
        .nodes(1, 3)
        .team("t", 1)
        .work(Workload::waiting("r", "t", 1, before(90)).running_on("n1", &[0], before(60)))
        .work(Workload::waiting("w", "t", 1, before(60)).class("fixed"))
        .work(Workload::waiting("x", "t", 1, before(60)))
}

#[test]
fn nobody_of_a_team_borrows_before_who_waits_in_kept_room_for_its_guarantee() {
    let protected = PreemptionPolicy {
        min_runtime_seconds: 300,
        ..eager()
    };
    let once = PreemptionPolicy {
        max_per_day: Some(1),
        ..eager()
    };
    for policy in [eager(), protected, once] {
        let rest = firm(policy).settles(10);
        assert_eq!(rest.plans[0].nominations[0].workload, "w");
        assert!(rest.plans[0].starts.is_empty());
        assert_eq!(rest.plans[1].starts[0].workload, "w");
        assert_eq!((rest.evictions(), rest.running("")), (1, 3));
    }
}

#[test]
fn who_comes_while_another_waits_for_its_guarantee_does_not_borrow_before_it() {
    let policy = PreemptionPolicy {
        grace_seconds: 30,
        ..eager()
    };
    let rig = firm(policy).with(|w| {
        let soon = noon() + chrono::TimeDelta::seconds(5);
        w.workloads[2].not_before = Some(soon);
    });
    let rest = rig.settles(60);
    let first = |name: &str| rest.plans.iter().position(|p| p.start_of(name).is_some());
    assert!(first("w").is_some() && first("w") <= first("x"));
    assert_eq!((rest.evictions(), rest.running("")), (1, 3));
}

#[test]
fn elastic_replicas_that_start_with_more_than_their_guarantee_keep_apart() {
    // Who starts after the first of them takes the room that was found for the second.
    for node in ["n1", "n2"] {
        let mut replicas = elastic("r", "a", 2);
        replicas.service = Some("s".to_owned());
        replicas.anti_affinity = Some("rack".to_owned());
        let mut own = Workload::waiting("own", "o", 2, before(30));
        own.node = Some(node.to_owned());
        let rig = Rig::new()
            .node(Node::new("n1", "p", 2).label("rack", "one"))
            .node(Node::new("n2", "p", 2).label("rack", "two"))
            .team("a", 1)
            .team("o", 2)
            .work(replicas)
            .work(own)
            .with(|w| {
                w.services.push(Service {
                    name: "s".to_owned(),
                    team: "a".to_owned(),
                    min_replicas: 0,
                    max_replicas: 8,
                });
            });
        // The checker looks at what is planned.
        assert_eq!(started(&rig.plan())[0].0, "r");
    }
}

/// A team of which one that may not be preempted waits before lower work.
fn passed(policy: PreemptionPolicy) -> Rig {
    Rig::new()
        .pool(pool(Backfill::Easy, policy))
        .nodes(1, 5)
        .team("t", 3)
        .work(
            Workload::waiting("r1", "t", 1, before(120))
                .class("fixed")
                .running_on("n1", &[4], before(10)),
        )
        .work(Workload::waiting("r2", "t", 1, before(120)).running_on("n1", &[0], before(10)))
        .work(Workload::waiting("w", "t", 2, before(60)).class("fixed"))
        .work(Workload::waiting("x", "t", 1, before(60)))
}

#[test]
fn lower_work_of_its_team_does_not_start_before_what_is_in_the_guarantee_once_victims_have_left() {
    let limited = |rig: Rig| {
        rig.with(|w| {
            let quota = w.teams[0].quotas.get_mut("p").expect("its row");
            quota.limit = Some(MilliGpu::whole(3));
        })
    };
    let other = |rig: Rig| {
        rig.team("o", 1)
            .work(Workload::waiting("own", "o", 1, before(30)))
    };
    let protected = PreemptionPolicy {
        min_runtime_seconds: 300,
        ..eager()
    };
    let rigs = [
        passed(eager()),
        passed(protected),
        limited(passed(eager())),
        other(passed(eager())),
    ];
    for rig in rigs {
        let rest = rig.settles(10);
        assert_eq!(rest.plans[0].nominations[0].workload, "w");
        assert!(rest.plans[0].start_of("x").is_none());
        assert!(rest.plans[1].start_of("w").is_some());
        let evicted = rest.plans.iter().flat_map(|p| &p.preemptions);
        assert!(evicted.map(|p| p.workload.as_str()).eq(["r2"]));
    }
}

#[test]
fn what_victims_leave_in_the_guarantee_is_for_the_next_of_the_team_and_not_for_lower_work() {
    for backfill in [Backfill::Easy, Backfill::None, Backfill::Conservative] {
        let fixed =
            |name: &str, minutes| Workload::waiting(name, "t", 1, before(minutes)).class("fixed");
        let both =
            Workload::waiting("r", "t", 2, before(120)).running_on("n1", &[0, 1], before(10));
        let rest = Rig::new()
            .pool(pool(backfill, eager()))
            .nodes(1, 4)
            .team("t", 2)
            .work(both)
            .work(fixed("w0", 150))
            .work(fixed("w1", 60))
            .work(elastic("l", "t", 3).class("low"))
            .settles(10);
        assert!(rest.plans[0].start_of("l").is_none());
        let evicted = rest.plans.iter().flat_map(|p| &p.preemptions);
        assert!(evicted.map(|p| p.workload.as_str()).eq(["r"]));
    }
}
