//! What a reader of the contract derived by hand and the engine had otherwise: who goes first, who gives
//! way, and what is told of it. Each failed before it was mended.

use domain::MilliGpu;
use domain::sharing::SharingMode;
use domain::spec::NvlinkRule;
use engine::cycles;
use engine::plan::{Code, Plan};
use engine::rig::{Rig, before, cut, eager, running_on_slices, shared};
use engine::world::{
    Backfill, Charge, Node, NodeState, Pool, PreemptionPolicy, Quota, Stopped, Team, WithinTeam,
    Workload,
};

/// A workload of one device that has run for so many minutes.
fn one(name: &str, team: &str, node: &str, device: u32, minutes: i64) -> Workload {
    Workload::waiting(name, team, 1, before(120)).running_on(node, &[device], before(minutes))
}

fn pool(backfill: Backfill, policy: PreemptionPolicy) -> Pool {
    Pool::new("p")
        .preemption(policy)
        .with(|pool| pool.backfill = backfill)
}

/// As eager, with time to leave.
fn graceful() -> PreemptionPolicy {
    PreemptionPolicy {
        grace_seconds: 30,
        ..eager()
    }
}

fn evicted(plan: &Plan) -> Vec<&str> {
    let told = plan.preemptions.iter();
    told.map(|p| p.workload.as_str()).collect()
}

fn started(plan: &Plan) -> Vec<&str> {
    plan.starts.iter().map(|s| s.workload.as_str()).collect()
}

#[test]
fn where_nothing_passes_a_blocked_head_it_takes_back_its_guarantee_all_the_same() {
    let rig = Rig::new()
        .pool(pool(Backfill::Strict, graceful()))
        .nodes(1, 3)
        .team("o", 2)
        .team("b", 0)
        .work(one("x", "b", "n1", 0, 50))
        .work(one("y", "b", "n1", 1, 50))
        .work(Workload::waiting("w", "o", 2, before(5)))
        .work(Workload::waiting("s", "b", 1, before(60)));
    let plan = rig.plan();
    assert_eq!(evicted(&plan), ["x"]);
    assert_eq!(plan.nominations[0].workload, "w");
    assert!(plan.starts.is_empty());
    // A moment later the head still waits for its room, and nobody passes it.
    let mut world = rig.world().clone();
    cycles::apply(&mut world, &plan);
    cycles::advance(&mut world, None);
    assert!(engine::plan(&world).starts.is_empty());
}

#[test]
fn where_nothing_passes_a_blocked_head_others_move_for_it() {
    let policy = PreemptionPolicy {
        consolidate: true,
        ..PreemptionPolicy::default()
    };
    let rig = Rig::new()
        .pool(pool(Backfill::Strict, policy))
        .nodes(2, 2)
        .team("a", 4)
        .work(one("x", "a", "n1", 0, 50))
        .work(one("y", "a", "n2", 0, 50))
        .work(Workload::waiting("w", "a", 2, before(5)));
    assert_eq!(rig.plan().migrations.len(), 1);
}

#[test]
fn of_placements_whose_victims_cost_the_same_the_order_of_the_victims_decides() {
    let of = |works: Vec<Workload>| {
        let rig = Rig::new()
            .pool(pool(Backfill::Easy, eager()))
            .nodes(1, 1)
            .nodes(1, 2)
            .team("o", 1)
            .team("b", 0)
            .team("c", 0);
        let rig = works.into_iter().fold(rig, Rig::work);
        let plan = rig.work(Workload::waiting("w", "o", 1, before(5))).plan();
        evicted(&plan).join(", ")
    };
    let fill = one("zz", "b", "n2", 1, 50);
    // The team that borrows most.
    let most = vec![one("c1", "c", "n1", 0, 50), one("d", "b", "n2", 0, 50)];
    assert_eq!(of([most, vec![fill.clone()]].concat()), "d");
    // The lowest priority.
    let low = one("d", "b", "n2", 0, 50).class("low");
    let lowest = vec![one("a", "b", "n1", 0, 50), low, fill.clone()];
    assert_eq!(of(lowest), "d");
    // The latest start: what was lost since a checkpoint is the same.
    let saves = |work: Workload| Workload {
        checkpoint_seconds: Some(600),
        ..work
    };
    let late = vec![
        saves(one("a", "b", "n1", 0, 50)),
        saves(one("d", "b", "n2", 0, 40)),
        saves(one("zz", "b", "n2", 1, 50)),
    ];
    assert_eq!(of(late), "d");
    // The name.
    let named = vec![one("y", "b", "n1", 0, 50), one("d", "b", "n2", 0, 50), fill];
    assert_eq!(of(named), "d");
}

#[test]
fn nobody_starts_on_what_the_first_in_order_has_room_with_once_others_leave() {
    let rig = Rig::new()
        .pool(pool(Backfill::Easy, eager()))
        .nodes(1, 2)
        .team("o", 2)
        .team("b", 0)
        .work(one("x", "b", "n1", 0, 50))
        .work(Workload::waiting("w", "o", 2, before(5)))
        .work(Workload {
            time_limit_seconds: Some(60),
            ..Workload::waiting("s", "b", 1, before(60))
        });
    let plan = rig.plan();
    // To start `s` would be to take it away a moment after, beside `x`.
    assert_eq!(evicted(&plan), ["x"]);
    assert_eq!(plan.nominations[0].workload, "w");
    assert!(plan.starts.is_empty());
}

#[test]
fn who_may_not_make_room_yet_is_passed() {
    let policy = PreemptionPolicy {
        delay_seconds: 3600,
        ..eager()
    };
    let rig = Rig::new()
        .pool(pool(Backfill::None, policy))
        .nodes(1, 2)
        .team("o", 2)
        .team("b", 0)
        .work(one("x", "b", "n1", 0, 50))
        .work(Workload::waiting("w", "o", 2, before(5)))
        .work(Workload::waiting("s", "b", 1, before(60)));
    let plan = rig.plan();
    assert_eq!(started(&plan), ["s"]);
    assert!(plan.preemptions.is_empty());
}

#[test]
fn of_elastic_work_on_a_node_that_is_emptied_the_highest_ranks_leave() {
    let mut work = one("x", "a", "n2", 0, 50).workers(3);
    for (node, device) in [("n2", 1), ("n1", 0)] {
        work.placed.extend(one("", "", node, device, 50).placed);
    }
    work.min_workers = Some(1);
    let rig = Rig::new()
        .node(Node::new("n1", "p", 2).state(NodeState::Draining))
        .node(Node::new("n2", "p", 2))
        .team("a", 4)
        .work(work);
    let plan = rig.plan();
    assert_eq!(plan.preemptions[0].to_workers, 2);
    assert_eq!(plan.preemptions[0].released, [2]);
}

#[test]
fn who_moves_goes_on_where_it_moves_to_and_is_told_by_no_start() {
    let policy = PreemptionPolicy {
        consolidate: true,
        grace_seconds: 0,
        ..PreemptionPolicy::default()
    };
    let rig = Rig::new()
        .pool(pool(Backfill::Easy, policy))
        .nodes(2, 2)
        .team("a", 4)
        .work(one("x", "a", "n1", 0, 50))
        .work(one("y", "a", "n2", 0, 40))
        .work(Workload::waiting("w", "a", 2, before(5)));
    let plans = cycles::run(rig.world().clone(), 4);
    assert_eq!(plans[0].migrations.len(), 1);
    assert_eq!(started(&plans[1]), ["w"]);
}

#[test]
fn who_waits_for_released_ranks_is_told_the_name_of_their_workload() {
    let mut elastic = one("e", "b", "n1", 0, 50).workers(4);
    for device in 1..4 {
        elastic.placed.extend(one("", "", "n1", device, 50).placed);
    }
    elastic.min_workers = Some(1);
    let rig = Rig::new()
        .pool(pool(Backfill::Easy, graceful()))
        .nodes(1, 4)
        .team("o", 2)
        .team("b", 0)
        .work(elastic)
        .work(Workload::waiting("w", "o", 2, before(5)));
    let plans = cycles::run(rig.world().clone(), 3);
    assert_eq!(plans[1].nominations[0].waits_for, ["e"]);
}

#[test]
fn no_more_of_a_guarantee_is_told_to_be_lent_than_its_team_lends() {
    let mut row = Quota::guaranteed(MilliGpu::whole(2));
    row.lend_limit = Some(MilliGpu::ZERO);
    let none = Quota::guaranteed(MilliGpu::ZERO);
    let whole = Quota::guaranteed(MilliGpu::whole(2));
    let rig = Rig::new()
        .nodes(1, 4)
        .tenant(Team::new("d").quota("p", whole))
        .tenant(Team::new("a").under("d").quota("p", none))
        .tenant(Team::new("b").under("d").quota("p", row))
        .jobs("a", "a", 4, 1);
    let plan = rig.plan();
    assert_eq!(plan.starts.len(), 2);
    assert!(plan.shares.iter().all(|share| share.lent == MilliGpu::ZERO));
}

#[test]
fn a_budget_is_told_to_be_of_the_team_whose_it_is() {
    let row = || Quota::guaranteed(MilliGpu::whole(2));
    let mut above = Team::new("d").quota("p", row());
    above.stopped = Stopped::All;
    let rig = Rig::new()
        .nodes(1, 4)
        .tenant(above)
        .tenant(Team::new("a").under("d").quota("p", row()))
        .jobs("j", "a", 1, 1);
    let waiting = &rig.plan().waiting[0];
    assert_eq!(waiting.code, Code::OverBudget);
    assert_eq!(&*waiting.scope, "team d");
}

#[test]
fn no_change_is_told_that_changes_nothing() {
    let mut team = Team::new("a").quota("p", Quota::guaranteed(MilliGpu::whole(4)));
    team.max_per_user.insert("p".to_owned(), MilliGpu::whole(1));
    let mut work = Workload::waiting("x", "a", 1, before(5));
    work.user = Some("u".to_owned());
    // Half of the cores of the node count as half of its devices.
    let node = Node::new("n1", "p", 4);
    work.per_worker.cpus = domain::MilliCpu::from_milli(node.cpus.milli() / 2);
    let rig = Rig::new()
        .pool(Pool::new("p").with(|pool| pool.charge = Charge::Dominant))
        .node(node)
        .tenant(team)
        .work(work);
    let waiting = &rig.plan().waiting[0];
    assert_eq!(waiting.code, Code::OverLimit);
    assert!(waiting.remedies.is_empty());
}

#[test]
fn growth_in_a_guarantee_comes_before_growth_that_borrows() {
    let elastic = |name: &str, team: &str, devices: &[u32]| {
        let mut work = Workload::waiting(name, team, 1, before(60)).workers(6);
        for &device in devices {
            work.placed.extend(one("", "", "n1", device, 50).placed);
        }
        let there = one("", "", "n1", 0, 50);
        (work.state, work.started) = (there.state, there.started);
        work.min_workers = Some(1);
        work
    };
    let rig = Rig::new()
        .nodes(1, 6)
        .team("a", 3)
        .team("b", 3)
        .work(elastic("e", "a", &[0, 1]))
        .work(elastic("f", "b", &[2]));
    let grown = rig.plan().resizes;
    let mut told: Vec<(String, u32)> = grown.into_iter().map(|r| (r.workload, r.to)).collect();
    told.sort();
    assert_eq!(told, [("e".to_owned(), 3), ("f".to_owned(), 3)]);
}

#[test]
fn in_a_team_lower_work_makes_way_where_nothing_passes_a_blocked_head() {
    let policy = PreemptionPolicy {
        within_team: WithinTeam::LowerPriority,
        ..PreemptionPolicy::default()
    };
    let rig = Rig::new()
        .pool(pool(Backfill::Strict, policy))
        .nodes(1, 1)
        .team("a", 1)
        .work(one("l", "a", "n1", 0, 50).class("low"))
        .work(Workload::waiting("h", "a", 1, before(5)).class("high"));
    assert_eq!(evicted(&rig.plan()), ["l"]);
}

#[test]
fn in_a_team_nobody_leaves_for_higher_work_that_can_start_beside_the_lower() {
    let policy = PreemptionPolicy {
        within_team: WithinTeam::LowerPriority,
        ..PreemptionPolicy::default()
    };
    // `c` would be in the guarantee in the place of `r`; it need not, for there is room.
    for (devices, gpus) in [(2, 0), (4, 2)] {
        let rig = Rig::new()
            .pool(pool(Backfill::Easy, policy.clone()))
            .nodes(1, devices)
            .team("a", 2)
            .work(one("r", "a", "n1", 0, 10).class("low"))
            .work(Workload::waiting("c", "a", gpus, before(60)).class("high"))
            .work(Workload::waiting("s", "a", 1, before(60)).class("low"));
        let plan = rig.plan();
        assert!(evicted(&plan).is_empty(), "{:?}", plan.preemptions);
        let mut started = started(&plan);
        started.sort_unstable();
        assert_eq!(started, ["c", "s"]);
    }
}

#[test]
fn what_may_pass_a_start_that_is_kept_is_found_beside_it_on_the_same_node() {
    let ends = |work: Workload, seconds: i64| Workload {
        time_limit_seconds: Some(seconds),
        ..work
    };
    let mut node = Node::new("n1", "p", 4);
    node.nvlink = vec![vec![0, 1], vec![2, 3]];
    let mut head = ends(
        Workload::waiting("h", "a", 2, before(60)).class("high"),
        1000,
    );
    head.nvlink = NvlinkRule::Require;
    let rig = Rig::new()
        .pool(pool(Backfill::Easy, PreemptionPolicy::default()))
        .node(node)
        .team("a", 0)
        .work(ends(one("r", "a", "n1", 0, 10), 1600))
        .work(ends(one("q", "a", "n1", 2, 10), 8600))
        .work(head)
        .work(Workload::waiting("s", "a", 1, before(1)));
    // The head starts on the first pair; the other of the last is in nobody's way.
    let plan = rig.plan();
    assert_eq!(started(&plan), ["s"]);
    assert_eq!(plan.starts[0].placement[0].devices[0].index, 3);
}

#[test]
fn an_instance_is_made_beside_the_one_that_a_start_is_kept_for() {
    let asks = |name: &str, profile: &str, minutes: i64| {
        let mut work = Workload::waiting(name, "a", 1, before(minutes));
        work.per_worker.mig_profile = Some(profile.to_owned());
        work.per_worker.sharing = vec![SharingMode::Mig];
        work
    };
    let mut running = running_on_slices(asks("r", "1g.10gb", 60), "n1", &[(0, "1g.10gb@0")]);
    running.time_limit_seconds = Some(7200);
    let mut head = asks("h", "4g.40gb", 50).class("high");
    head.time_limit_seconds = Some(1000);
    let rig = Rig::new()
        .pool(shared().preemption(PreemptionPolicy::default()))
        .node(cut(Node::new("n1", "p", 1), 0, &["1g.10gb@0", "1g.10gb@1"]))
        .team("a", 0)
        .work(running)
        .work(head)
        .work(asks("s", "1g.10gb", 1));
    let plan = rig.plan();
    assert_eq!(started(&plan), ["s"]);
    assert!(plan.starts[0].placement[0].devices[0].start >= Some(4));
}
