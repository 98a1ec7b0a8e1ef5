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
    ] {
        let (report, status) = told(&machine, text);
        assert_eq!(status, Some(1), "{text}");
        let seen = finding(&report, "settings")["seen"].as_str();
        assert!(seen.is_some_and(|seen| seen.contains(remedy)), "{report}");
    }
    let (report, _) = told(&machine, "mps_control = '/nonexistent/control'");
    assert_eq!(finding(&report, "mps")["state"], "missing");
    assert_eq!(
        finding(&report, "mig")["state"],
        "missing",
        "no L40S can be cut"
    );
    assert_eq!(report["jobs_can_run"], true, "jobs need neither");
}
