//! MIG: which instance work gets, what is changed for it, and what of that a pool allows.

use domain::MilliGpu;
use domain::sharing::SharingMode;
use domain::spec::WorkloadKind;
use engine::plan::{Plan, SliceChange};
use engine::rig::{Rig, before, cut, eager, running_on_slices, shared, slices};
use engine::world::{
    Laid, MigInstance, MigMode, Node, NodeState, Pool, Quota, Team, Workload, WorkloadState,
};

const ONE: &str = "1g.10gb";
const TWO: &str = "2g.20gb";
const THREE: &str = "3g.40gb";
const FOUR: &str = "4g.40gb";

/// Nodes of H100 with a team that may have all of them.
fn rig() -> Rig {
    Rig::new().pool(shared().preemption(eager())).team("t", 64)
}

fn node(gpus: u32) -> Node {
    Node::new("n1", "p", gpus)
}

fn job(profile: &str) -> Workload {
    slices("new", "t", profile, 1)
}

/// Work that holds instances of the node already.
fn holder(name: &str, held: &[(u32, &str)]) -> Workload {
    running_on_slices(slices(name, "t", ONE, 1), "n1", held)
}

/// What is changed, such as `n1/0 +3g.40gb@4 -1g.10gb@0 to mig`.
fn changes(plan: &Plan) -> Vec<String> {
    in_words(&plan.slice_changes)
}

fn in_words(changes: &[SliceChange]) -> Vec<String> {
    let told = |change: &SliceChange| {
        let mut text = format!("{}/{}", change.node, change.index);
        for made in &change.create {
            text.push_str(&format!(" +{}@{}", made.profile, made.start));
        }
        for gone in &change.destroy {
            text.push_str(&format!(" -{}@{}", gone.profile, gone.start));
        }
        if let Some(mode) = change.mode {
            text.push_str(&format!(" to {mode}"));
        }
        text
    };
    changes.iter().map(told).collect()
}

fn verdict(rig: &Rig) -> (String, String) {
    let plan = rig.plan();
    let waiting = plan.waiting_for("new").expect("it waits");
    (waiting.code.as_str().to_owned(), waiting.scope.to_string())
}

fn mode(rig: Rig, mode: MigMode) -> Rig {
    rig.with(|w| w.pools[0].mig_mode = mode)
}

#[test]
fn an_idle_instance_is_taken_before_a_new_one_is_made() {
    let rig = rig()
        .node(cut(cut(node(3), 1, &["1g.10gb@0", "3g.40gb@4"]), 2, &[]))
        .work(job(THREE));
    assert_eq!(rig.place("new"), "n1:1/3g.40gb@4");
    assert_eq!(changes(&rig.plan()), Vec::<String>::new());
}

#[test]
fn a_new_instance_disturbs_nothing_before_idle_ones_are_unmade() {
    let base = || rig().work(holder("old", &[(0, "4g.40gb@0")]));
    // Idle ones fill the first device; on the second there is room beside its idle one.
    let first = cut(node(3), 0, &["4g.40gb@0", "2g.20gb@4", "1g.10gb@6"]);
    let room = base()
        .node(cut(first.clone(), 1, &["4g.40gb@0"]))
        .work(job(THREE));
    assert_eq!(room.place("new"), "n1:1/3g.40gb@4");
    assert_eq!(changes(&room.plan()), ["n1/1 +3g.40gb@4"]);
    // Without it, idle ones go before a device that is whole is cut.
    let full = base().node(first).work(job(THREE));
    assert_eq!(
        changes(&full.plan()),
        ["n1/0 +3g.40gb@4 -2g.20gb@4 -1g.10gb@6"]
    );
}

#[test]
fn an_idle_device_is_cut_last_and_only_then() {
    let rig = rig()
        .node(cut(node(2), 0, &["4g.40gb@0"]))
        .work(holder("old", &[(0, "4g.40gb@0")]))
        .work(job(FOUR));
    assert_eq!(rig.place("new"), "n1:1/4g.40gb@0");
    assert_eq!(changes(&rig.plan()), ["n1/1 +4g.40gb@0 to mig"]);
    let busy =
        rig.work(Workload::waiting("whole", "t", 1, before(90)).running_on("n1", &[1], before(60)));
    assert_eq!(busy.place("new"), "");
}

#[test]
fn a_dry_run_says_what_would_be_cut_now_and_once_others_have_left() {
    let rig = rig()
        .node(cut(node(2), 0, &["4g.40gb@0"]))
        .work(holder("old", &[(0, "4g.40gb@0")]));
    let engine::DryRun::Starts { slices, .. } = engine::dry_run(rig.world(), job(FOUR)) else {
        panic!("there is room");
    };
    assert_eq!(in_words(&slices), ["n1/1 +4g.40gb@0 to mig"]);
    let low = Workload::waiting("low", "t", 1, before(90)).class("low");
    let busy = rig.work(low.running_on("n1", &[1], before(60)));
    let outcome = engine::dry_run(busy.world(), job(FOUR).class("high"));
    let engine::DryRun::Displaces {
        slices, victims, ..
    } = outcome
    else {
        panic!("it may make room: {outcome:?}");
    };
    assert_eq!(victims.len(), 1);
    assert_eq!(in_words(&slices), ["n1/1 +4g.40gb@0 to mig"]);
}

#[test]
fn an_instance_lies_where_most_else_stays_within_reach() {
    for (profile, start) in [(ONE, 4), ("1g.20gb", 6), (TWO, 4), (THREE, 4), (FOUR, 0)] {
        let rig = rig().node(cut(node(1), 0, &[])).work(job(profile));
        assert_eq!(rig.place("new"), format!("n1:0/{profile}@{start}"));
    }
}

#[test]
fn instances_of_one_worker_lie_on_one_device_or_several() {
    let mut seven = slices("new", "t", ONE, 7);
    let rig = |work: &Workload| rig().node(node(2)).work(work.clone());
    let one = rig(&seven).plan();
    assert_eq!(changes(&one).len(), 1);
    seven.per_worker.gpus = Some(MilliGpu::whole(14));
    assert_eq!(changes(&rig(&seven).plan()).len(), 2);
    seven.per_worker.gpus = Some(MilliGpu::whole(15));
    let plan = rig(&seven).plan();
    let waiting = plan.waiting_for("new").expect("it waits");
    assert_eq!(waiting.code.as_str(), "never_fits");
    assert_eq!(waiting.need, MilliGpu::from_milli(15 * 125));
}

#[test]
fn static_pools_give_out_the_instances_that_are_there_and_nothing_else() {
    let pool = |work| {
        mode(
            rig().node(cut(node(2), 0, &["3g.40gb@0"])).work(work),
            MigMode::Static,
        )
    };
    assert_eq!(pool(job(THREE)).place("new"), "n1:0/3g.40gb@0");
    assert_eq!(
        verdict(&pool(job(FOUR))),
        (
            "no_such_hardware".to_owned(),
            "mig_profile 4g.40gb".to_owned()
        )
    );
    // Nor is a device taken out of MIG mode.
    let whole = |gpus| Workload::waiting("new", "t", gpus, before(10));
    assert_eq!(pool(whole(1)).place("new"), "n1:1");
    assert_eq!(verdict(&pool(whole(2))).0, "never_fits");
    let held = pool(job(THREE)).work(holder("old", &[(0, "3g.40gb@0")]));
    assert_eq!(held.place("new"), "");
}

#[test]
fn where_nothing_is_to_be_cut_a_profile_is_hardware_that_is_not_there() {
    let never = mode(rig().node(node(1)).work(job(ONE)), MigMode::Never);
    assert_eq!(verdict(&never).0, "no_such_hardware");
    let closed = rig()
        .pool(Pool::new("p").sharing(&[SharingMode::Exclusive]))
        .node(node(1))
        .work(job(ONE));
    assert_eq!(
        verdict(&closed),
        ("no_such_hardware".to_owned(), "sharing mig".to_owned())
    );
    let undriven = Node {
        drives: Some(vec![SharingMode::Exclusive]),
        ..node(1)
    };
    assert_eq!(
        verdict(&rig().node(undriven).work(job(ONE))).0,
        "no_such_hardware"
    );
    let foreign = rig().node(node(1)).work(job("1g.6gb"));
    let plan = foreign.plan();
    let waiting = plan.waiting_for("new").expect("it waits");
    assert_eq!(&*waiting.scope, "mig_profile 1g.6gb");
    assert_eq!(waiting.remedies[0].change["per_worker.mig_profile"], ONE);
}

#[test]
fn a_device_is_switched_back_when_it_is_idle_and_wanted_whole() {
    let whole = |gpus| Workload::waiting("new", "t", gpus, before(10));
    let base = || rig().node(cut(node(3), 0, &["3g.40gb@0", "1g.10gb@4"]));
    assert_eq!(base().work(whole(2)).place("new"), "n1:1,2");
    let all = base().work(whole(3));
    assert_eq!(
        changes(&all.plan()),
        ["n1/0 -3g.40gb@0 -1g.10gb@4 to exclusive"]
    );
    let held = base()
        .work(holder("old", &[(0, "1g.10gb@4")]))
        .work(whole(3));
    assert_eq!(held.place("new"), "");
    // And cut again when it is wanted so.
    let rest = all.settles(9);
    assert!(rest.world.nodes[0].mig.is_empty());
    let part = whole(0).fraction(SharingMode::TimeSlice, MilliGpu::from_milli(500), None);
    let only = rig().node(cut(node(1), 0, &["3g.40gb@0"])).work(part);
    assert_eq!(changes(&only.plan()), ["n1/0 -3g.40gb@0 to exclusive"]);
}

#[test]
fn neither_failed_devices_nor_those_of_leaving_work_are_cut() {
    let failed = Node {
        failed: vec![0],
        ..cut(node(1), 0, &["3g.40gb@0"])
    };
    assert_eq!(rig().node(failed).work(job(THREE)).place("new"), "");
    let mut leaving = holder("old", &[(0, "3g.40gb@4")]);
    leaving.state = WorkloadState::Leaving;
    leaving.leaves_at = Some(before(-1));
    let rig = rig()
        .node(cut(node(1), 0, &["3g.40gb@4"]))
        .work(leaving)
        .work(job("7g.80gb"));
    assert_eq!(
        (rig.place("new"), changes(&rig.plan()).len()),
        (String::new(), 0)
    );
    assert_eq!(rig.settles(200).running("new"), 1);
}

#[test]
fn victims_are_those_whose_instances_make_the_room() {
    let borrower = |name: &str, held| {
        let mut work = holder(name, held);
        work.team = "b".to_owned();
        work
    };
    let layout = ["1g.10gb@0", "1g.10gb@1", "2g.20gb@2", "3g.40gb@4"];
    let rig = Rig::new()
        .pool(shared().preemption(eager()))
        .node(cut(node(1), 0, &layout))
        .team("t", 1)
        .team("b", 0)
        .work(borrower("a", &[(0, "1g.10gb@0")]))
        .work(borrower("b", &[(0, "1g.10gb@1")]))
        .work(borrower("c", &[(0, "2g.20gb@2")]))
        .work(borrower("d", &[(0, "3g.40gb@4")]));
    let victims = |profile: &str| {
        let plan = rig.clone().work(job(profile)).plan();
        let names = plan.preemptions.iter().map(|p| p.workload.clone());
        assert_eq!(changes(&plan), Vec::<String>::new());
        names.collect::<Vec<_>>()
    };
    assert_eq!(victims(TWO), ["a", "b"]);
    assert_eq!(victims(FOUR), ["a", "b", "c"]);
    assert_eq!(victims("7g.80gb"), ["a", "b", "c", "d"]);
    let rest = rig.work(job(FOUR)).settles(9);
    let there = |profile: &str, start| MigInstance {
        profile: profile.to_owned(),
        start: Some(start),
    };
    assert_eq!(rest.running("new"), 1);
    assert_eq!(
        rest.world.nodes[0].mig[&0],
        [there(FOUR, 0), there(THREE, 4)]
    );
}

#[test]
fn elastic_work_gives_instances_back_and_grows_into_free_ones() {
    let mut wide = holder(
        "wide",
        &[(0, "2g.20gb@0"), (0, "2g.20gb@2"), (0, "2g.20gb@4")],
    );
    (wide.min_workers, wide.team) = (Some(1), "b".to_owned());
    let rig = Rig::new()
        .pool(shared().preemption(eager()))
        .node(cut(node(1), 0, &["2g.20gb@0", "2g.20gb@2", "2g.20gb@4"]))
        .team("t", 1)
        .team("b", 0)
        .work(wide);
    let plan = rig.clone().work(job(THREE)).plan();
    let kept: Vec<u32> = plan.preemptions.iter().map(|p| p.to_workers).collect();
    assert_eq!(kept, [2]);
    let shrunk = rig.clone().with(|w| {
        w.workloads[0].placed.truncate(1);
    });
    let grown = shrunk.plan();
    assert_eq!((grown.resizes[0].to, changes(&grown).len()), (3, 0));
}

#[test]
fn serving_work_is_drawn_to_a_node_with_an_idle_instance() {
    // 8 of 64 devices are 12 points, an idle instance is worth 15.
    let nodes = |busy: u32| {
        let full: Vec<u32> = (0..busy).collect();
        Rig::new()
            .pool(shared())
            .team("t", 200)
            .node(Node::new("a", "p", 64))
            .node(cut(Node::new("b", "p", 64), 0, &["3g.40gb@0"]))
            .work(
                Workload::waiting("old", "t", i64::from(busy), before(90)).running_on(
                    "a",
                    &full,
                    before(60),
                ),
            )
    };
    let mut serving = job(THREE);
    serving.kind = WorkloadKind::Inference;
    assert_eq!(nodes(9).work(serving.clone()).place("new"), "b:0/3g.40gb@0");
    assert_eq!(nodes(10).work(serving).place("new"), "a:10/3g.40gb@4");
    assert_eq!(nodes(9).work(job(THREE)).place("new"), "a:9/3g.40gb@4");
    // Where all else is equal anybody takes what is there.
    assert_eq!(
        nodes(0)
            .with(|w| w.workloads.clear())
            .work(job(THREE))
            .place("new"),
        "b:0/3g.40gb@0"
    );
}

#[test]
fn instances_count_as_their_slices_in_quota_and_are_told_so() {
    let row = Quota::guaranteed(MilliGpu::ZERO).limited(MilliGpu::from_milli(700));
    let rig = Rig::new()
        .pool(shared())
        .tenant(Team::new("t").quota("p", row))
        .node(node(2))
        .work(slices("a", "t", THREE, 1))
        .work(slices("b", "t", ONE, 1))
        .work(slices("c", "t", ONE, 1));
    let plan = rig.plan();
    let used: Vec<i64> = plan.shares.iter().map(|s| s.used.milli()).collect();
    assert_eq!(
        (rig.starts(), used),
        (vec!["a".to_owned(), "b".to_owned()], vec![625])
    );
    assert_eq!(
        plan.waiting_for("c").map(|w| w.code.as_str()),
        Some("over_limit")
    );
}

#[test]
fn what_adds_up_and_has_no_place_is_fragmented_and_another_profile_is_named() {
    let rig = rig()
        .node(cut(node(1), 0, &["1g.10gb@1", "1g.10gb@5"]))
        .work(holder("old", &[(0, "1g.10gb@1"), (0, "1g.10gb@5")]).class("fixed"))
        .work(job(THREE));
    let plan = rig.plan();
    let waiting = plan.waiting_for("new").expect("it waits");
    assert_eq!(waiting.code.as_str(), "fragmented");
    assert_eq!((waiting.need.milli(), waiting.have.milli()), (500, 750));
    assert_eq!(waiting.remedies[0].change["per_worker.mig_profile"], TWO);
    let more = |gpus| {
        let rig = rig.clone();
        rig.with(|w| w.workloads[1].per_worker.gpus = Some(MilliGpu::whole(gpus)))
    };
    assert_eq!(verdict(&more(2)).0, "insufficient_capacity");
    assert_eq!(verdict(&more(3)).0, "never_fits");
}

#[test]
fn work_on_instances_moves_off_a_node_that_is_emptied() {
    let rig = rig()
        .node(cut(node(1), 0, &["3g.40gb@0"]).state(NodeState::Draining))
        .node(cut(Node::new("n2", "p", 1), 0, &[]))
        .work(holder("old", &[(0, "3g.40gb@0")]));
    let rest = rig.settles(9);
    let placed = &rest.world.workload("old").expect("it is there").placed[0];
    assert_eq!(
        (placed.node.as_str(), placed.devices[0].start),
        ("n2", Some(4))
    );
    assert_eq!(rest.world.nodes[1].mig[&0].len(), 1);
}

#[test]
fn devices_of_a_node_that_stays_cut_as_it_is_are_given_out_as_they_are_cut() {
    let fixed = |node: Node| Node {
        mig_static: true,
        ..node
    };
    let base = || rig().node(fixed(cut(node(2), 0, &["3g.40gb@4", "1g.10gb@0"])));
    let there = base().work(job(THREE)).plan();
    assert_eq!(there.starts.len(), 1);
    assert_eq!(changes(&there), Vec::<String>::new());
    assert_eq!(
        verdict(&base().work(job(TWO))).0,
        "no_such_hardware",
        "what is not there is not made"
    );
    let whole = |gpus| Workload::waiting("new", "t", gpus, before(10));
    assert_eq!(base().work(whole(1)).place("new"), "n1:1", "it is not cut");
    assert_eq!(verdict(&base().work(whole(2))).0, "never_fits");
    // Beside one that is cut as work needs it, the other waits for its own turn.
    let other = Node::new("n2", "p", 2);
    assert_eq!(base().node(other).work(whole(2)).place("new"), "n2:0,1");
}

#[test]
fn a_node_whose_disk_is_full_takes_nothing_new_and_is_counted() {
    let full = node(2).state(NodeState::Unhealthy);
    let held = Workload::waiting("old", "t", 1, before(20));
    let rig = rig()
        .node(full)
        .work(held)
        .work(Workload::waiting("new", "t", 1, before(10)));
    let plan = rig.plan();
    assert!(plan.starts.is_empty() && plan.preemptions.is_empty());
    let waiting = plan.waiting_for("new").expect("it waits");
    assert_eq!(waiting.counts.get("unhealthy"), Some(&1));
    assert!(
        waiting.message.contains("1 unhealthy node"),
        "{}",
        waiting.message
    );
}

#[test]
fn a_device_that_a_layout_is_to_cut_is_given_out_as_it_will_be_and_not_before() {
    let laid = |will: &[(u32, Laid)]| {
        let mut node = cut(node(2), 1, &["3g.40gb@4"]);
        node.mig_static = true;
        node.mig_layout = will.iter().cloned().collect();
        rig().node(node)
    };
    let into = |profiles: &[&str]| Laid::Into(profiles.iter().map(ToString::to_string).collect());
    let whole = || Workload::waiting("new", "t", 1, before(10));
    // The first device is whole, and will be cut.
    let base = || laid(&[(0, into(&["2g.20gb", "1g.10gb", "4g.40gb"]))]);
    assert_eq!(base().work(job(TWO)).plan().starts.len(), 0);
    assert_eq!(
        verdict(&base().work(job(TWO))).0,
        "fragmented",
        "it waits for that"
    );
    assert_eq!(
        verdict(&base().work(whole())).0,
        "never_fits",
        "no device will be whole"
    );
    assert_eq!(
        base().work(job(THREE)).plan().starts.len(),
        1,
        "what is cut is given out"
    );
    // The second is cut, and will be whole.
    let base = || laid(&[(1, Laid::Whole)]);
    assert_eq!(base().work(job(THREE)).plan().starts.len(), 0);
    assert_eq!(verdict(&base().work(job(THREE))).0, "never_fits");
    assert_eq!(base().work(whole()).place("new"), "n1:0");
    let two = Workload::waiting("new", "t", 2, before(10));
    assert_eq!(
        verdict(&base().work(two)).0,
        "insufficient_capacity",
        "both will be whole"
    );
    // Three instances of four slices have no place on a device, as its agent finds too.
    let unfit = laid(&[(0, into(&["3g.40gb", "3g.40gb", "2g.20gb"]))]).work(job(TWO));
    assert_eq!(verdict(&unfit).0, "no_such_hardware");
}
