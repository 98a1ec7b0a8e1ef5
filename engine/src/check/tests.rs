use super::violations;
use crate::plan::{
    DevicePlace, Instance, Plan, Preemption, Reason, Reservation, SliceChange, Start, WorkerPlace,
};
use crate::rig::{Rig, before, cut, noon, running_on_slices, shared, slices};
use crate::world::{Backfill, Booking, MigMode, Node, PlacedDevice, Pool, Service, Workload};
use chrono::TimeDelta;
use domain::MilliGpu;
use domain::sharing::SharingMode;

fn whole(index: u32) -> DevicePlace {
    let mode = SharingMode::Exclusive;
    DevicePlace {
        index,
        mode,
        mig: None,
        start: None,
        gpus: MilliGpu::whole(1),
        memory_mib: None,
    }
}

fn start(workload: &str, devices: &[u32]) -> Start {
    let devices = devices.iter().map(|&i| whole(i)).collect();
    let placement = vec![WorkerPlace {
        node: "n1".to_owned(),
        devices,
    }];
    Start {
        workload: workload.to_owned(),
        workers: 1,
        placement,
    }
}

/// A world of two devices in which `b` runs on the first, and a plan without decisions.
fn rigged() -> (Rig, Plan) {
    let rig = Rig::new()
        .nodes(1, 2)
        .team("a", 1)
        .team("b", 0)
        .work(Workload::waiting("new", "a", 1, before(10)))
        .work(Workload::waiting("old", "b", 1, before(90)).running_on("n1", &[0], before(60)));
    let mut plan = rig.plan();
    plan.starts.clear();
    plan.waiting.clear();
    (rig, plan)
}

fn found(rig: &Rig, plan: &Plan, words: &str) -> bool {
    violations(rig.world(), plan)
        .iter()
        .any(|v| v.contains(words))
}

#[test]
fn a_device_with_two_holders_is_found() {
    let (rig, mut plan) = rigged();
    plan.starts.push(start("new", &[0]));
    assert!(found(&rig, &plan, "exclusive and shared"));
}

#[test]
fn a_workload_that_nobody_speaks_of_is_found() {
    let (rig, plan) = rigged();
    assert!(found(&rig, &plan, "does not say why"));
}

#[test]
fn a_start_with_other_devices_than_asked_is_found() {
    let (rig, mut plan) = rigged();
    plan.starts.push(start("new", &[1, 0]));
    assert!(found(&rig, &plan, "asked 1000 milli, got 2000"));
    plan.starts = vec![start("new", &[7])];
    assert!(found(&rig, &plan, "is not there"));
    plan.starts = vec![start("nobody", &[1])];
    assert!(found(&rig, &plan, "not in the world"));
}

#[test]
fn a_victim_for_nobody_is_found() {
    let (rig, mut plan) = rigged();
    plan.preemptions.push(old_for_new());
    assert!(found(&rig, &plan, "neither nominated nor started"));
}

fn old_for_new() -> Preemption {
    Preemption {
        workload: "old".to_owned(),
        gainer: Some("new".to_owned()),
        reason: Reason::Reclaim,
        lost_gpu_seconds: 0,
        to_workers: 0,
        released: vec![0],
    }
}

#[test]
fn a_team_that_gives_way_too_often_in_an_hour_is_found() {
    let (rig, mut plan) = rigged();
    plan.preemptions.push(old_for_new());
    let most = |most| {
        let rig = rig.clone();
        rig.with(|w| w.pools[0].preemption.max_per_team_hour = Some(most))
    };
    assert!(found(&most(0), &plan, "too often this hour"));
    assert!(!found(&most(1), &plan, "too often this hour"));
}

#[test]
fn a_team_over_its_limit_is_found() {
    let (rig, mut plan) = rigged();
    let rig = rig.with(|w| {
        let row = w.teams[0].quotas.get_mut("p").expect("a row");
        (row.guaranteed, row.limit) = (MilliGpu::ZERO, Some(MilliGpu::ZERO));
    });
    plan.starts.push(start("new", &[1]));
    assert!(found(&rig, &plan, "over its limit"));
}

#[test]
fn a_replica_too_many_is_found() {
    let (rig, mut plan) = rigged();
    let mut rig = rig.with(|w| {
        w.workloads[1].team = "a".to_owned();
        w.services.push(Service {
            name: "chat".to_owned(),
            team: "a".to_owned(),
            min_replicas: 0,
            max_replicas: 1,
        });
        let replicas = w.workloads.iter_mut();
        replicas.for_each(|work| work.service = Some("chat".to_owned()));
    });
    let words = "service chat is given 2 replicas of at most 1";
    assert!(!found(&rig, &plan, words), "nothing is given");
    plan.starts.push(start("new", &[1]));
    assert!(found(&rig, &plan, words));
    rig = rig.with(|w| w.services[0].max_replicas = 2);
    assert!(!found(&rig, &plan, words));
}

/// A pool's policy may be narrowed under running work: that is nobody's plan.
#[test]
fn what_the_world_overbooks_itself_is_forgiven_and_what_a_plan_adds_there_is_not() {
    let part = |name: &str| {
        Workload::waiting(name, "t", 0, before(90)).fraction(
            SharingMode::TimeSlice,
            MilliGpu::from_milli(100),
            None,
        )
    };
    let mut rig = Rig::new()
        .pool(
            Pool::new("p")
                .sharing(&[SharingMode::TimeSlice])
                .with(|policy| policy.time_slices = 2),
        )
        .nodes(1, 1)
        .team("t", 1);
    for name in ["a", "b", "c"] {
        let mut work = part(name).running_on("n1", &[], before(80));
        let device =
            PlacedDevice::fraction(0, SharingMode::TimeSlice, MilliGpu::from_milli(100), 0);
        work.placed[0].devices = vec![device];
        rig = rig.work(work);
    }
    let world = rig.work(part("new")).world().clone();
    let mut plan = crate::plan(&world);
    assert_eq!(violations(&world, &plan), Vec::<String>::new());
    assert!(plan.starts.is_empty());
    let device = crate::plan::DevicePlace {
        index: 0,
        mode: SharingMode::TimeSlice,
        mig: None,
        start: None,
        gpus: MilliGpu::from_milli(100),
        memory_mib: Some(100),
    };
    plan.waiting.clear();
    plan.starts.push(crate::plan::Start {
        workload: "new".to_owned(),
        workers: 1,
        placement: vec![WorkerPlace {
            node: "n1".to_owned(),
            devices: vec![device],
        }],
    });
    assert!(
        violations(&world, &plan)
            .iter()
            .any(|what| what.contains("sharers"))
    );
}

#[test]
fn a_start_that_delays_one_that_is_kept_is_found() {
    let (rig, mut plan) = rigged();
    let rig = rig.with(|w| {
        let mut both = w.workloads[0].clone();
        both.name = "both".to_owned();
        both.per_worker.gpus = Some(MilliGpu::whole(2));
        w.workloads.push(both);
        w.workloads[1].time_limit_seconds = Some(7200);
        w.workloads[0].time_limit_seconds = Some(3600);
    });
    let keep = |hours| Reservation {
        workload: "both".to_owned(),
        start: noon() + TimeDelta::hours(hours),
        nodes: vec!["n1".to_owned()],
    };
    let delayed = "both reserves a start at which there is no room";
    // `old` has run for one hour of two.
    plan.reservations = vec![keep(1)];
    assert!(!found(&rig, &plan, delayed));
    plan.starts = vec![start("new", &[1])];
    assert!(!found(&rig, &plan, delayed));
    let rig = rig.with(|w| w.workloads[0].time_limit_seconds = Some(3601));
    assert!(found(&rig, &plan, delayed));
    plan.reservations = vec![keep(0)];
    assert!(found(&rig, &plan, "a start that is not ahead"));
    plan.reservations = vec![keep(1)];
    let rig = rig.with(|w| w.pools[0].backfill = Backfill::Strict);
    assert!(found(&rig, &plan, "in a pool where nobody does"));
}

#[test]
fn a_start_on_what_a_booking_will_need_is_found() {
    let (rig, mut plan) = rigged();
    let rig = rig.with(|w| {
        w.workloads[0].class = "fixed".to_owned();
        w.bookings.push(Booking {
            name: "show".to_owned(),
            team: "b".to_owned(),
            pool: "p".to_owned(),
            gpus: MilliGpu::whole(2),
            from: noon() + TimeDelta::hours(1),
            to: noon() + TimeDelta::hours(2),
        });
    });
    plan.starts = vec![start("new", &[1])];
    assert!(found(&rig, &plan, "what booking show will need"));
    let rig = rig.with(|w| w.workloads[0].time_limit_seconds = Some(3600));
    assert!(!found(&rig, &plan, "what booking show will need"));
    plan.starts.clear();
    plan.preemptions.push(Preemption {
        workload: "old".to_owned(),
        gainer: Some("show".to_owned()),
        reason: Reason::Reservation,
        lost_gpu_seconds: 0,
        to_workers: 0,
        released: vec![0],
    });
    assert!(found(&rig, &plan, "no booking that has begun"));
    let rig = rig.with(|w| w.bookings[0].from = noon());
    assert!(!found(&rig, &plan, "no booking that has begun"));
}

/// A world with a cut device beside a whole one, and a plan that starts `new` on an instance.
fn cut_up() -> (Rig, Plan) {
    let old = running_on_slices(slices("old", "t", "1g.10gb", 1), "n1", &[(0, "1g.10gb@0")]);
    let rig = Rig::new()
        .pool(shared())
        .node(cut(Node::new("n1", "p", 2), 0, &["1g.10gb@0", "2g.20gb@4"]))
        .team("t", 2)
        .work(old)
        .work(slices("new", "t", "3g.40gb", 1));
    let plan = rig.plan();
    assert!(violations(rig.world(), &plan).is_empty() && plan.slice_changes.len() == 1);
    (rig, plan)
}

#[test]
fn an_instance_that_nobody_makes_or_that_overlaps_is_found() {
    let (rig, mut plan) = cut_up();
    let change = plan.slice_changes[0].clone();
    plan.slice_changes.clear();
    assert!(found(&rig, &plan, "where no 3g.40gb"));
    plan.slice_changes = vec![SliceChange {
        destroy: Vec::new(),
        ..change.clone()
    }];
    assert!(found(&rig, &plan, "over another instance"));
    plan.slice_changes = vec![change.clone(), change];
    assert!(found(&rig, &plan, "told twice"));
}

#[test]
fn instances_unmade_in_use_or_for_nobody_are_found() {
    let (rig, mut plan) = cut_up();
    let used = Instance {
        profile: "1g.10gb".to_owned(),
        start: 0,
    };
    plan.slice_changes[0].destroy.push(used);
    assert!(found(&rig, &plan, "destroyed and used or not there"));
    let (rig, mut plan) = cut_up();
    plan.slice_changes[0].create.push(Instance {
        profile: "1g.10gb".to_owned(),
        start: 1,
    });
    assert!(found(&rig, &plan, "changed for nobody"));
    let (rig, mut plan) = cut_up();
    plan.slice_changes[0].mode = Some(SharingMode::Exclusive);
    assert!(found(&rig, &plan, "the mode changes under work"));
}

#[test]
fn changes_in_a_pool_that_makes_none_are_found() {
    let (rig, plan) = cut_up();
    let rig = rig.with(|w| w.pools[0].mig_mode = MigMode::Static);
    assert!(found(&rig, &plan, "does not change them"));
    assert!(found(&rig, &plan, "in a pool that does not"));
}

#[test]
fn a_whole_device_in_mig_mode_is_found() {
    let (rig, mut plan) = cut_up();
    let rig = rig.with(|w| w.workloads[1] = Workload::waiting("new", "t", 1, before(10)));
    plan.slice_changes.clear();
    plan.starts = vec![start("new", &[0])];
    assert!(found(&rig, &plan, "which is in MIG mode"));
}

#[test]
fn a_place_on_a_node_that_is_not_there_is_a_fault_and_no_panic() {
    let (rig, mut plan) = rigged();
    let mut lost = start("new", &[1]);
    lost.placement[0].node = "nowhere".to_owned();
    plan.starts.push(lost);
    plan.waiting.clear();
    let found = violations(rig.world(), &plan);
    assert!(
        found
            .iter()
            .any(|what| what.contains("unknown node nowhere")),
        "{found:?}"
    );
}

#[test]
fn the_checker_shares_no_code_with_what_decides() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/check");
    let files = std::fs::read_dir(&folder).expect("the checker's folder");
    let mut paths: Vec<_> = files.map(|f| f.expect("a file").path()).collect();
    paths.retain(|path| !path.ends_with("tests.rs"));
    paths.push(folder.with_extension("rs"));
    assert!(paths.len() > 5, "the files are found");
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("text");
        // What it is given and what it judges, and nothing else of the crate.
        for rest in text.split("crate::").skip(1) {
            let known = ["plan::", "world::"].iter().any(|m| rest.starts_with(m));
            let named: String = rest.chars().take(30).collect();
            assert!(known, "{} uses crate::{named}", path.display());
        }
    }
}

#[test]
fn the_checker_reads_the_table_of_profiles_as_the_deciders_do() {
    use crate::mig;
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../../data/mig_profiles.json")).expect("the table");
    let mut compared = 0;
    for model in file["models"].as_array().expect("models") {
        let key = model["key"].as_str().expect("a key");
        let mut node = Node::new("n1", "p", 1);
        node.gpu_model = Some(key.to_owned());
        for profile in model["profiles"].as_array().expect("profiles") {
            let name = profile["name"].as_str().expect("a name");
            let own = super::profiles::shape(&node, name);
            let theirs = mig::profile(key, name);
            assert_eq!(own.is_some(), theirs.is_some(), "{key} {name}");
            let Some((own, theirs)) = own.zip(theirs) else {
                continue;
            };
            assert_eq!(own.milli(), i128::from(theirs.milli()), "{key} {name}");
            assert_eq!(own.starts, theirs.starts, "{key} {name}");
            assert_eq!((own.size, own.of), (theirs.size, theirs.slices));
            let engines = match theirs.engines {
                mig::Engines::Plain => (false, false, true),
                mig::Engines::Extra => (true, false, true),
                mig::Engines::All => (true, true, true),
                mig::Engines::Without => (false, false, false),
            };
            assert_eq!((own.extra, own.alone, own.engines), engines, "{key} {name}");
            compared += 1;
        }
    }
    assert!(compared > 50, "only {compared} profiles are compared");
}
