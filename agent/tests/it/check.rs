//! `allotment-agent check`, on simulated machines.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::gpus::library;
use crate::rig::AGENT;

/// A machine of a model below a folder, changed; its file.
fn machine(folder: &Path, model: &str, change: impl FnOnce(&mut Value)) -> std::path::PathBuf {
    let made = Command::new(Path::new(AGENT).with_file_name("nvml-sim-machine"))
        .args(["--model", model, "--seed", "check"])
        .output()
        .expect("the simulator's program is built with the workspace");
    let mut machine: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    change(&mut machine);
    let file = folder.join("machine.json");
    std::fs::write(&file, machine.to_string()).expect("written");
    file
}

fn check(machine: &Path, settings: &str, more: &[&str]) -> Output {
    let config = machine.with_file_name("agent.toml");
    std::fs::write(&config, settings).expect("written");
    Command::new(AGENT)
        .args(["check", "--allow-unisolated", "--state-dir"])
        .arg(machine.with_file_name("state"))
        .arg("--config")
        .arg(config)
        .args(more)
        .env("ALLOTMENT_NVML_SIM_MACHINE", machine)
        .output()
        .expect("the agent runs")
}

/// What is told of each thing: its state, what was seen and the remedy.
fn told(machine: &Path, settings: &str) -> (Value, Option<i32>) {
    let settings = format!("nvml_library = '{}'\n{settings}", library().display());
    let output = check(machine, &settings, &["--json"]);
    let told = serde_json::from_slice(&output.stdout);
    (told.expect("JSON"), output.status.code())
}

fn finding<'t>(told: &'t Value, what: &str) -> &'t Value {
    let all = told["findings"].as_array().expect("a list");
    let found = all.iter().find(|finding| finding["what"] == what);
    found.unwrap_or_else(|| panic!("{what} was not looked at: {told}"))
}

#[test]
fn a_machine_with_devices_that_can_be_cut_can_run_jobs_and_says_what_else_it_can() {
    let folder = tempfile::tempdir().expect("a folder");
    let machine = machine(folder.path(), "dgx-h100", |_| {});
    let capability = format!("mig_capability = '{}'", machine.display());
    let (report, status) = told(&machine, &capability);
    assert_eq!(
        (report["jobs_can_run"].as_bool(), status),
        (Some(true), Some(0))
    );
    for what in ["driver", "device 7", "mig 7", "disk"] {
        assert_eq!(finding(&report, what)["state"], "ok", "{what}: {report}");
    }
    let seen = |what| finding(&report, what)["seen"].as_str().expect("words");
    assert!(seen("driver").contains("570.133.20"), "{}", seen("driver"));
    assert!(seen("mig 0").contains("capable, mode off"));
    for what in [
        "rights",
        "kernel",
        "clock",
        "control groups",
        "container runtime",
        "vgpu",
    ] {
        let finding = finding(&report, what);
        let fine = finding["state"] == "ok";
        assert!(fine || finding["remedy"].is_string(), "{finding}");
    }
    assert!(
        !folder.path().join("state").exists(),
        "looking makes no state"
    );
}

#[test]
fn a_machine_without_a_driver_or_without_devices_can_run_none_and_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let machine = machine(folder.path(), "dgx-h100", |machine| {
        machine["devices"] = serde_json::json!([]);
    });
    let (report, status) = told(&machine, "");
    assert_eq!(
        (report["jobs_can_run"].as_bool(), status),
        (Some(false), Some(1))
    );
    assert_eq!(finding(&report, "devices")["state"], "missing");

    let output = check(
        &machine,
        "nvml_library = '/nonexistent/libnvidia-ml.so'",
        &[],
    );
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).expect("text");
    let line = table
        .lines()
        .find(|line| line.starts_with("missing  driver"));
    assert!(
        line.is_some_and(|line| line.contains("/nonexistent")),
        "{table}"
    );
    assert!(table.contains("-> install NVIDIA's driver"), "{table}");
}

#[test]
fn settings_that_cannot_be_are_named_with_field_and_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let machine = machine(folder.path(), "l40s-4", |_| {});
    let (report, status) = told(&machine, "inventory_seconds = 0");
    assert_eq!(status, Some(1));
    let seen = finding(&report, "settings")["seen"]
        .as_str()
        .expect("words");
    assert!(
        seen.contains("inventory_seconds") && seen.contains("at least 1"),
        "{seen}"
    );
    for (text, remedy) in [
        ("[health]\nwell_readings = 0", "health.well_readings"),
        (
            "[health]\nprobe = ['/nonexistent/probe']",
            "may be executed",
        ),
        // What an agent would not start with.
        ("checkpoint_root = '/tmp'", "chmod go-w"),
        ("server = 'http://control.example'", "https://"),
        ("metrics_listen = '203.0.113.9:9400'", "metrics_listen"),
    ] {
        let (report, status) = told(&machine, text);
        assert_eq!(status, Some(1), "{text}");
        let seen = finding(&report, "settings")["seen"].as_str();
        assert!(seen.is_some_and(|seen| seen.contains(remedy)), "{report}");
    }
    let (report, status) = told(&machine, "work_roots = ['/nonexistent']");
    assert_eq!(status, Some(0), "jobs that need none can run");
    let settings = finding(&report, "settings");
    assert_eq!(settings["state"], "warning", "{report}");
    assert_eq!(settings["seen"], "work_roots: /nonexistent is not there");
    let (report, _) = told(&machine, "mps_control = '/nonexistent/control'");
    assert_eq!(finding(&report, "mps")["state"], "missing");
    assert_eq!(
        finding(&report, "mig")["state"],
        "missing",
        "no L40S can be cut"
    );
    assert_eq!(report["jobs_can_run"], true, "jobs need neither");
}

#[test]
fn what_was_found_of_devices_and_what_they_show_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let machine = machine(folder.path(), "dgx-a100", |machine| {
        machine["devices"][1]["telemetry"]["remapped_rows"] = serde_json::json!({"failed": true});
        machine["devices"][2]["telemetry"]["remapped_rows"] = serde_json::json!({"pending": true});
    });
    let text = std::fs::read(&machine).expect("a machine");
    let text: Value = serde_json::from_slice(&text).expect("JSON");
    let uuid = text["devices"][0]["uuid"].as_str().expect("a UUID");
    let kept = serde_json::json!({"last": 7, "devices": {uuid: {"findings": [
        {"number": 7, "health": "failed", "reason": "Xid 79: it fell off the bus", "at_micros": 1}
    ]}}});
    let identity = folder.path().join("state/identity");
    std::fs::create_dir_all(&identity).expect("made");
    std::fs::write(identity.join("health.json"), kept.to_string()).expect("written");
    let (report, _) = told(&machine, "");
    for (what, state, words) in [
        ("device 0", "missing", "failed: Xid 79"),
        ("device 1", "missing", "failed: a row of its memory"),
        ("device 2", "warning", "suspect: a row of its memory waits"),
    ] {
        let found = finding(&report, what);
        assert_eq!(found["state"], state, "{found}");
        let seen = found["seen"].as_str().expect("words");
        assert!(seen.starts_with(words), "{seen}");
        assert!(found["remedy"].is_string(), "{found}");
    }
    let remedy = finding(&report, "device 0")["remedy"].as_str();
    assert!(
        remedy.is_some_and(|words| words.contains("allot clear NODE 0")),
        "{remedy:?}"
    );
    assert_eq!(finding(&report, "device 3")["state"], "ok");
}

#[test]
fn a_layout_and_a_probe_are_set_against_the_machine_before_an_agent_begins() {
    let folder = tempfile::tempdir().expect("a folder");
    let machine = machine(folder.path(), "dgx-a100", |_| {});
    let layout = folder.path().join("layout.yaml");
    let program = folder.path().join("probe");
    std::fs::write(&program, "#!/bin/sh\n").expect("written");
    let text = "version: v1
mig-configs:
  mixed:
    - {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 2}}
    - {devices: [1], mig-enabled: true, mig-devices: {3g.40gb: 3}}
    - {devices: [2], mig-enabled: true, mig-devices: {2g.24gb: 1}}
    - {devices: [3], mig-enabled: true, mig-devices: {4g.40gb: 1, 3g.40gb: 1, 1g.10gb: 1}}
";
    std::fs::write(&layout, text).expect("written");
    let settings = format!(
        "mig = 'static'\nmig_layout = '{}'\nmig_config = 'mixed'\n[health]\nprobe = ['{}']",
        layout.display(),
        program.display()
    );
    let (report, _) = told(&machine, &settings);
    let seen = |what| finding(&report, what)["seen"].as_str().expect("words");
    assert!(seen("layout 0").starts_with("1g.10gb, 1g.10gb, 3g.40gb"));
    assert!(
        seen("layout 2").contains("while its MIG mode is on"),
        "{}",
        seen("layout 2")
    );
    for (what, words) in [
        ("layout 1", "fewer, or smaller ones"),
        ("layout 3", "fewer, or smaller ones"),
        ("probe", "health.probe"),
    ] {
        let found = finding(&report, what);
        assert_eq!(found["state"], "missing", "{found}");
        let remedy = found["remedy"].as_str().expect("words");
        assert!(remedy.contains(words), "{remedy}");
    }
    let (report, _) = told(&machine, "[health]\nprobe = ['/bin/true']");
    assert_eq!(finding(&report, "probe")["state"], "ok", "{report}");
}

#[test]
fn looking_leaves_no_control_group_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let machine = machine(folder.path(), "l40s-4", |_| {});
    let name = format!("looked-{}", std::process::id());
    let (report, _) = told(&machine, &format!("cgroup_parent = '{name}/jobs'"));
    finding(&report, "control groups");
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    let roots = mounts.lines().filter(|line| line.contains(" cgroup"));
    for root in roots.filter_map(|line| line.split(' ').nth(1)) {
        let made = Path::new(root).join(&name);
        assert!(!made.exists(), "{}", made.display());
    }
}
