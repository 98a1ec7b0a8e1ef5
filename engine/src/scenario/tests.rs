use super::*;

/// A small file that uses every section.
const SMALL: &str = "
now: 2026-01-05T12:00:00Z
pools:
  - {name: p, sharing: [exclusive, time_slice], preemption: {within_team: lower_priority}}
nodes:
  - {name: n1, pool: p, gpus: 4, gpu_model: H100-80GB, gpu_memory_mib: 81559, cpus: 64, memory_mib: 524288, labels: {rack: r1}}
classes:
  - {name: normal, priority: 50, preemptible: true}
teams:
  - {name: dept}
  - {name: vision, parent: dept, quotas: {p: {guaranteed: 0.5, limit: 4, weight: 1.5}}, past_use: {p: 12.5}}
workloads:
  - {name: j1, team: vision, class: normal, submitted: 2026-01-05T11:00:00Z, per_worker: {gpus: 1, cpus: 0.25}}
  - name: j2
    team: vision
    class: normal
    submitted: 2026-01-05T11:00:00Z
    state: running
    started: 2026-01-05T11:30:00Z
    per_worker: {gpus: 0.25, gpu_memory_mib: 20000, sharing: [time_slice]}
    placed: [{node: n1, devices: [{index: 2, mode: time_slice, gpus: 0.25, memory_mib: 20000}]}]
services:
  - {name: chat, team: vision, min_replicas: 1, max_replicas: 2}
bookings:
  - {name: demo, team: vision, pool: p, gpus: 2, from: 2026-01-06T00:00:00Z, to: 2026-01-07T00:00:00Z}
";

fn refusal(text: &str) -> String {
    parse(text).expect_err("it is refused").to_string()
}

#[test]
fn what_is_written_is_read_back_equal() {
    let world = parse(SMALL).expect("a good file");
    let again = parse(&write(&world)).expect("its own writing");
    assert_eq!(world, again);
    assert_eq!(write(&world), write(&again));
}

#[test]
fn json_is_read_like_yaml() {
    let world = parse(SMALL).expect("a good file");
    assert!(write(&world).starts_with('{'));
}

#[test]
fn an_unknown_key_is_refused_by_name_and_line() {
    let error = refusal(&SMALL.replace("    state: running\n", "    stat: running\n"));
    assert!(
        error.contains("line 18") && error.contains("workloads[1].stat"),
        "{error}"
    );
}

#[test]
fn a_wrong_value_is_refused_by_key_and_line() {
    for (from, to, key) in [
        ("gpus: 4,", "gpus: 1000000000000,", "nodes[0].gpus"),
        ("gpus: 4,", "gpus: -1,", "nodes[0].gpus"),
        ("cpus: 0.25", "cpus: 0.2505", "workloads[0].per_worker.cpus"),
        ("cpus: 0.25", "cpus: .nan", "workloads[0].per_worker.cpus"),
        ("cpus: 0.25", "cpus: '0.25'", "workloads[0].per_worker.cpus"),
        ("{gpus: 1,", "{gpus: 1.5,", "workloads[0].per_worker.gpus"),
        ("weight: 1.5", "weight: 1e400", "weight"),
        ("name: chat", "name: \"a\\u0007\"", "services[0].name"),
    ] {
        let error = refusal(&SMALL.replace(from, to));
        assert!(
            error.contains(key) && error.starts_with("line "),
            "{to}: {error}"
        );
    }
}

#[test]
fn a_contradiction_is_refused() {
    for (from, to, words) in [
        ("{name: dept}", "{name: vision}", "twice"),
        ("{name: dept}", "{name: dept, parent: vision}", "cycle"),
        (
            "{name: dept}",
            "{name: dept, quotas: {p: {guaranteed: 0.4}}}",
            "add up to 0.5",
        ),
        ("limit: 4", "limit: 0.1", "above the limit"),
        ("index: 2", "index: 4", "device 4 is not there"),
        ("pool: p, gpus: 4", "pool: q, gpus: 4", "no pool q"),
        (
            "class: normal, submitted",
            "class: urgent, submitted",
            "no class urgent",
        ),
        (
            "gpus: 0.25, memory_mib: 20000",
            "gpus: 0.25, memory_mib: 90000",
            "memory_mib",
        ),
        (
            "labels:",
            "mig: {0: [3g.40gb, 3g.40gb, 1g.10gb]}, labels:",
            "mig",
        ),
        ("min_replicas: 1", "min_replicas: 3", "max_replicas"),
        ("to: 2026-01-07", "to: 2026-01-05", "after from"),
        (
            "pool: p, gpus: 2, from",
            "pool: p, gpus: 0, from",
            "0.001 or more",
        ),
    ] {
        let error = refusal(&SMALL.replace(from, to));
        assert!(error.contains(words), "{to}: {error}");
    }
}

#[test]
fn a_replica_of_another_teams_service_is_refused() {
    let own = SMALL.replace("cpus: 0.25}", "cpus: 0.25}, service: chat");
    parse(&own).expect("its own team's");
    let error = refusal(&own.replace("{name: chat, team: vision", "{name: chat, team: dept"));
    assert!(error.contains("service chat is of team dept"), "{error}");
}

#[test]
fn work_that_waits_for_itself_by_way_of_others_is_refused() {
    let job = |name: &str, after: &str| {
        format!(
            "  - {{name: {name}, team: vision, class: normal, submitted: 2026-01-05T11:00:00Z, after: [{after}]}}\n"
        )
    };
    let with = |jobs: &[(&str, &str)]| {
        let jobs: String = jobs.iter().map(|(name, after)| job(name, after)).collect();
        SMALL.replace("services:\n", &format!("{jobs}services:\n"))
    };
    let error = refusal(&with(&[
        ("x", "b"),
        ("y", ""),
        ("a", "c, y"),
        ("b", "a"),
        ("c", "b"),
        ("d", "c"),
    ]));
    assert!(
        error.contains("by way of others") && error.contains("workloads[4].after"),
        "{error}"
    );
    let chain = with(&[("a", "b, c"), ("b", "c"), ("c", "j1"), ("d", "gone, b")]);
    parse(&chain).expect("a chain");
}

#[test]
fn two_holders_of_one_exclusive_device_are_refused() {
    let text = SMALL.replace(
        "{index: 2, mode: time_slice, gpus: 0.25, memory_mib: 20000}]}]",
        "{index: 2}]}, {node: n1, devices: [{index: 2}]}]\n    workers: 2",
    );
    let error = refusal(&text);
    assert!(error.contains("exclusively"), "{error}");
}

/// The small file with work that runs in this way.
fn running(asks: &str, placed: &str) -> String {
    let work = format!(
        "  - {{name: r, team: vision, class: normal, submitted: 2026-01-05T11:00:00Z, state: running, \
         started: 2026-01-05T11:30:00Z, {asks}, placed: [{placed}]}}\n"
    );
    let cut = SMALL.replace("labels:", "mig: {3: [3g.40gb, 1g.10gb]}, labels:");
    cut.replace("services:\n", &format!("{work}services:\n"))
}

#[test]
fn running_work_with_other_devices_than_it_asks_for_is_refused() {
    let on = |devices: &str| format!("{{node: n1, devices: [{devices}]}}");
    let (one, two) = (on("{index: 0}"), on("{index: 0}, {index: 1}"));
    let part = on("{index: 0, mode: time_slice, gpus: 0.25}");
    let parts =
        on("{index: 0, mode: time_slice, gpus: 0.25}, {index: 1, mode: time_slice, gpus: 0.25}");
    let slice = on("{index: 3, mig: 1g.10gb}");
    let slices = on("{index: 3, mig: 1g.10gb}, {index: 3, mig: 3g.40gb}");
    let gang = format!("{one}, {}", on("{index: 1}"));
    let mixed = format!("{one}, {}", on("{index: 1}, {index: 2}"));
    let (whole, half) = (
        "per_worker: {gpus: 1}",
        "per_worker: {gpus: 0.25, sharing: [time_slice]}",
    );
    let mig = "per_worker: {mig_profile: 1g.10gb}";
    let of = |workers: &str| format!("{workers}, {whole}");
    let none = "cpus: 1";
    let idle = format!("per_worker: {{{none}}}");
    for (asks, placed) in [
        (whole, &one),
        ("per_worker: {gpus: 2}", &two),
        (half, &part),
        (mig, &slice),
        (&idle, &on("")),
        (&of("workers: 2"), &gang),
        (&of("workers: 3, min_workers: 1"), &gang),
    ] {
        parse(&running(asks, placed)).unwrap_or_else(|e| panic!("{asks} on {placed}: {e}"));
    }
    for (asks, placed, words) in [
        (
            whole,
            &two,
            "the worker has 2 devices, and per_worker asks for 1 (1 gpus)",
        ),
        (
            "per_worker: {gpus: 2}",
            &one,
            "the worker has 1 device, and per_worker asks for 2",
        ),
        (whole, &on(""), "the worker has 0 devices"),
        (half, &parts, "asks for 1 (0.25 gpus)"),
        (mig, &slices, "the worker has 2 instances"),
        (&idle, &one, "asks for 0 (0 gpus)"),
        (&of("workers: 2"), &mixed, "placed[1].devices"),
        (
            &of("workers: 2"),
            &one,
            "1 worker, fewer than workers, which is 2",
        ),
        (
            &of("workers: 4, min_workers: 3"),
            &gang,
            "2 workers, fewer than min_workers, which is 3",
        ),
        (&of("workers: 1"), &gang, "2 workers are placed of 1"),
    ] {
        let error = refusal(&running(asks, placed));
        assert!(
            error.contains(words) && error.contains("workloads[2].placed"),
            "{asks} on {placed}: {error}"
        );
    }
    // What leaves may be the ranks that shrunk work gave up.
    let leaving = running(&of("workers: 2"), &one).replace(
        "state: running, started",
        "state: leaving, leaves_at: 2026-01-05T12:01:00Z, started",
    );
    parse(&leaving).expect("ranks in their grace");
}

/// A device cut in three, of which `j1` and `j2` hold one each.
const CUT: &str = "
now: 2026-01-05T12:00:00Z
pools: [{name: p, sharing: [mig]}]
nodes:
  - {name: n1, pool: p, gpus: 2, gpu_model: H100-80GB, gpu_memory_mib: 81559, cpus: 64, memory_mib: 524288, mig: {0: [3g.40gb@4, 1g.10gb, 1g.10gb]}}
teams: [{name: t, quotas: {p: {guaranteed: 1}}}]
workloads:
  - {name: j1, team: t, class: normal, submitted: 2026-01-05T11:00:00Z, per_worker: {mig_profile: 1g.10gb}, state: running, started: 2026-01-05T11:30:00Z, placed: [{node: n1, devices: [{index: 0, mig: 1g.10gb}]}]}
  - {name: j2, team: t, class: normal, submitted: 2026-01-05T11:00:00Z, per_worker: {mig_profile: 1g.10gb}, state: running, started: 2026-01-05T11:30:00Z, placed: [{node: n1, devices: [{index: 0, mig: 1g.10gb, start: 0}]}]}
";

#[test]
fn instances_whose_start_is_left_out_lie_at_the_lowest_that_is_free() {
    let world = parse(CUT).expect("a good file");
    let starts = world.nodes[0].mig[&0].iter().map(|i| i.start);
    assert_eq!(starts.collect::<Vec<_>>(), [Some(0), Some(1), Some(4)]);
    let held = |name: &str| {
        let device = &world.workload(name).expect("it is there").placed[0].devices[0];
        (device.start, device.gpus.milli())
    };
    assert_eq!((held("j1"), held("j2")), ((Some(1), 125), (Some(0), 125)));
    assert_eq!(parse(&write(&world)).expect("its own writing"), world);
}

#[test]
fn instances_that_cannot_be_are_refused() {
    for (from, to, words) in [
        (
            "mig: 1g.10gb, start: 0",
            "mig: 1g.10gb, start: 2",
            "@2 that nobody else holds",
        ),
        (
            "mig: 1g.10gb}]",
            "mig: 1g.10gb, start: 0}]",
            "that nobody else holds",
        ),
        (
            "index: 0, mig: 1g.10gb}]",
            "index: 1, mig: 1g.10gb}]",
            "is not in MIG mode",
        ),
        ("{index: 0, mig: 1g.10gb}]", "{index: 0}]", "exclusive"),
        (
            "mig: 1g.10gb, start: 0",
            "mig: 1g.5gb, start: 0",
            "no mig profile",
        ),
        (
            "1g.10gb, 1g.10gb]}",
            "1g.10gb+me, 1g.10gb+me]}",
            "cannot exist",
        ),
        ("3g.40gb@4", "3g.40gb@2", "cannot exist"),
        ("{0: [", "{2: [", "device 2 is not there"),
        ("gpu_model: H100-80GB", "gpu_model: T4", "table of profiles"),
    ] {
        let error = refusal(&CUT.replacen(from, to, 1));
        assert!(
            error.contains(words) && error.starts_with("line "),
            "{to}: {error}"
        );
    }
}

#[test]
fn vgpu_parts_of_two_sizes_on_one_device_are_refused() {
    let text = SMALL.replace(
        "{index: 2, mode: time_slice, gpus: 0.25, memory_mib: 20000}]}]",
        "{index: 2, mode: vgpu, gpus: 0.25, memory_mib: 20000}]}, {node: n1, devices: [{index: 2, mode: vgpu, gpus: 0.25, memory_mib: 10000}]}]\n    workers: 2",
    );
    assert!(refusal(&text).contains("two sizes"));
}

#[test]
fn a_file_that_is_no_scenario_is_refused() {
    for text in [
        "",
        "# nothing\n",
        "[]",
        "just words",
        "now: [",
        "{\"now\": 1}",
        "a: 1\na: 2\n",
        "---\na: 1\n---\nb: 2\n",
    ] {
        assert!(parse(text).is_err(), "{text:?}");
    }
    assert!(refusal("a: 1\na: 2\n").contains("line 2"));
}

#[test]
fn nesting_and_aliases_are_bounded() {
    let deep = format!("now: {}1{}", "[".repeat(5_000), "]".repeat(5_000));
    assert!(parse(&deep).is_err());
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let before = level - 1;
        bomb.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            vec![format!("*a{before}"); 10].join(", ")
        ));
    }
    assert!(refusal(&bomb).contains("aliases"));
}
