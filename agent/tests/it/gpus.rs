//! GPUs, through the simulator that stands in place of NVML.

use std::fs;
use std::path::{Path, PathBuf};

use protocol::wire;

use crate::rig::{Agent, assignment, script};

/// The simulator's library, which a build of the workspace leaves beside the programs.
pub fn library() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_allotment-agent"))
        .parent()
        .expect("a folder");
    let built = [
        folder.join("libnvml_sim.so"),
        folder.join("deps/libnvml_sim.so"),
    ];
    // A build of the tests renews one of the two, a build of the programs both.
    built
        .into_iter()
        .filter(|path| path.exists())
        .max_by_key(|path| path.metadata().and_then(|found| found.modified()).ok())
        .expect("libnvml_sim.so is built with the workspace: cargo build --workspace")
}

fn device(at: usize, nvlinks: &str) -> String {
    format!(
        r#"{{"uuid": "GPU-00000000-0000-0000-0000-00000000000{at}", "name": "NVIDIA A100-PCIE-40GB",
            "memory_mib": 40960, "minor": {at}, "pci": "0000:0{at}:00.0", "numa": {}, "architecture": "ampere",
            "compute_capability": "8.0", "power_limit_mw": 250000, "nvlink_version": 3,
            "clocks_max_mhz": {{"graphics": 1410, "memory": 1215}}, "nvlinks": [{nvlinks}]}}"#,
        at / 2
    )
}

/// Writes a machine whose first two devices are bridged, as the simulator wants it: by rename.
fn write_machine(path: &Path, devices: &[usize]) {
    let peer = |at: usize| match at {
        0 => r#"{"to": "gpu", "pci": "0000:01:00.0", "count": 12}"#.to_owned(),
        1 => r#"{"to": "gpu", "pci": "0000:00:00.0", "count": 12}"#.to_owned(),
        _ => String::new(),
    };
    let devices: Vec<String> = devices.iter().map(|at| device(*at, &peer(*at))).collect();
    let aside = path.with_extension("new");
    fs::write(&aside, format!(r#"{{"devices": [{}]}}"#, devices.join(","))).expect("written");
    fs::rename(aside, path).expect("renamed");
}

async fn with_three_devices() -> (Agent, PathBuf) {
    let mut agent = Agent::enrolled().await;
    let machine = agent.folder.path().join("machine.json");
    write_machine(&machine, &[0, 1, 2]);
    agent.environment.push((
        "ALLOTMENT_NVML_SIM_MACHINE".to_owned(),
        machine.display().to_string(),
    ));
    agent.arguments = ["--inventory-seconds", "1", "--nvml-library"]
        .map(str::to_owned)
        .to_vec();
    agent.arguments.push(library().display().to_string());
    agent.start().await;
    (agent, machine)
}

fn share(at: usize, mode: &str, gpus_milli: i64) -> wire::DeviceShare {
    wire::DeviceShare {
        uuid: format!("GPU-00000000-0000-0000-0000-00000000000{at}"),
        index: u32::try_from(at).expect("few"),
        mode: mode.to_owned(),
        gpus_milli,
        memory_mib: 0,
        mig: None,
    }
}

#[tokio::test]
async fn a_node_tells_its_devices_and_how_they_are_linked() {
    let (agent, _) = with_three_devices().await;
    let inventory = agent.server.inner().hellos[0]
        .inventory
        .clone()
        .expect("an inventory");
    let devices: Vec<(u32, &str, i64, &str)> = inventory
        .devices
        .iter()
        .map(|d| {
            (
                d.index,
                d.product_name.as_str(),
                d.memory_mib,
                d.health.as_str(),
            )
        })
        .collect();
    assert_eq!(devices[0], (0, "NVIDIA A100-PCIE-40GB", 40960, "healthy"));
    assert_eq!(devices.len(), 3);
    let cliques = |cliques: &[wire::Clique]| {
        cliques
            .iter()
            .map(|c| c.indices.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(cliques(&inventory.nvlink), [vec![0, 1]]);
    assert_eq!(cliques(&inventory.numa), [vec![0, 1], vec![2]]);
    assert_eq!(inventory.sharing, ["exclusive", "time_slice"]);
    assert_eq!(inventory.runners, ["process"]);
    assert_eq!(inventory.isolated, crate::rig::is_root());
    assert!(
        !inventory.driver_version.is_empty()
            && inventory.cpus_milli > 0
            && inventory.memory_mib > 0
    );
}

#[tokio::test]
async fn a_device_that_vanished_is_failed_with_a_reason_also_after_a_restart() {
    let (mut agent, machine) = with_three_devices().await;
    write_machine(&machine, &[0, 2]);
    let health = |inner: &crate::fake_server::Inner| {
        let latest = inner.inventories.last()?;
        let failed: Vec<_> = latest
            .devices
            .iter()
            .filter(|d| d.health == "failed")
            .cloned()
            .collect();
        (failed.len() == 1).then(|| failed[0].clone())
    };
    let failed = agent.server.wait("a failed device", health).await;
    assert_eq!(failed.index, 1);
    assert!(!failed.health_reason.is_empty());
    agent.kill();
    agent.server.inner().inventories.clear();
    agent.start().await;
    assert_eq!(
        agent.server.wait("a failed device", health).await.uuid,
        failed.uuid
    );

    let job = wire::Assignment {
        devices: vec![share(1, "exclusive", 1000)],
        ..assignment(&["true"])
    };
    agent.server.desire(std::slice::from_ref(&job)).await;
    let refused = agent.server.refused(&job.id).await;
    assert!(
        refused.code == "start_refused" && refused.message.contains("has failed"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_job_sees_its_devices_and_a_device_has_one_holder() {
    let (agent, _) = with_three_devices().await;
    let holder = wire::Assignment {
        devices: vec![share(2, "exclusive", 1000), share(0, "exclusive", 1000)],
        ..script("echo $CUDA_VISIBLE_DEVICES; sleep 1000")
    };
    let second = wire::Assignment {
        devices: vec![share(0, "exclusive", 1000)],
        ..script("exit 0")
    };
    let slices: Vec<wire::Assignment> = [600, 300, 200]
        .into_iter()
        .map(|milli| wire::Assignment {
            devices: vec![share(1, "time_slice", milli)],
            ..script("sleep 1000")
        })
        .collect();
    agent.server.desire(std::slice::from_ref(&holder)).await;
    agent.server.started(&holder.id).await;
    let mut all = vec![holder.clone(), second.clone()];
    all.extend(slices.iter().cloned());
    agent.server.desire(&all).await;
    let refused = agent.server.refused(&second.id).await;
    assert!(refused.message.contains(&holder.id), "{}", refused.message);
    let refusals = agent
        .server
        .wait("slices dealt with", |inner| {
            let of_slices =
                |fact: &&wire::Fact| slices.iter().any(|slice| slice.id == fact.assignment_id);
            let dealt = inner.facts.iter().filter(of_slices).filter(|fact| {
                matches!(
                    fact.kind,
                    Some(wire::fact::Kind::Started(_) | wire::fact::Kind::Refused(_))
                )
            });
            let dealt: Vec<_> = dealt.cloned().collect();
            (dealt.len() == 3).then(|| {
                dealt
                    .iter()
                    .filter(|f| matches!(f.kind, Some(wire::fact::Kind::Refused(_))))
                    .count()
            })
        })
        .await;
    assert_eq!(refusals, 1, "1.1 of a device do not fit");
    let seen = agent
        .server
        .read_log(&holder.id, false)
        .await
        .expect("a log");
    assert_eq!(
        seen.trim(),
        format!("{},{}", holder.devices[0].uuid, holder.devices[1].uuid)
    );
}

#[tokio::test]
async fn a_driver_that_does_not_answer_at_the_start_takes_no_device_away() {
    let (mut agent, machine) = with_three_devices().await;
    let job = wire::Assignment {
        devices: vec![share(1, "exclusive", 1000)],
        ..script("sleep 1000")
    };
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    agent.kill();
    // Whoever opens it waits until somebody writes, as in a driver that hangs.
    fs::remove_file(&machine).expect("removed");
    nix::unistd::mkfifo(&machine, nix::sys::stat::Mode::S_IRWXU).expect("made");
    agent.server.inner().inventories.clear();
    agent.start().await;
    let told = agent.server.inner().inventories[0].clone();
    assert!(told.devices_unread);
    let health = |told: &wire::Inventory| {
        let devices = told.devices.iter();
        devices.map(|d| d.health.clone()).collect::<Vec<_>>()
    };
    assert_eq!(health(&told), ["suspect"; 3]);

    write_machine(&machine, &[0, 1, 2]);
    // Lets go of who waits; the next reading finds the file.
    agent.kill();
    agent.start().await;
    agent
        .server
        .wait("healthy devices", |inner| {
            let told = inner.inventories.last()?;
            (!told.devices_unread && health(told) == ["healthy"; 3]).then_some(())
        })
        .await;
    assert!(crate::rig::alive(pid));
    assert_eq!(agent.server.story(&job.id), ["accepted", "started"]);
}

#[tokio::test]
async fn types_of_virtual_gpus_are_shown_to_who_looks() {
    let mut agent = Agent::new().await;
    let file = agent.simulate("l40s-4", "");
    let text = fs::read(&file).expect("a machine");
    let mut machine: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let uuid = machine["devices"][1]["uuid"].as_str().expect("a device");
    let uuid = uuid.to_owned();
    machine["devices"][1]["vgpu"] = serde_json::json!({
        "active": [{ "type": "NVIDIA L40S-12Q", "uuid": "ab5d3f2c-0000-4000-8000-000000000001" }]
    });
    fs::write(&file, machine.to_string()).expect("written");
    let told: serde_json::Value =
        serde_json::from_str(&crate::mig::gpus(&file, &["--json"])).expect("JSON");
    let types = told["vgpu"][&uuid].as_array().expect("a list");
    let twelve = types.iter().find(|kind| kind["name"] == "NVIDIA L40S-12Q");
    let twelve = twelve.expect("a type");
    assert_eq!(
        (&twelve["memory_mib"], &twelve["instances_max"]),
        (&12_288.into(), &4.into())
    );
    assert_eq!(
        (&twelve["active"], &twelve["creatable"]),
        (&1.into(), &true.into())
    );
    assert_eq!(told["vgpu"].as_object().expect("a map").len(), 1);
    let shown = crate::mig::gpus(&file, &[]);
    assert!(
        shown.contains(&format!("vgpu of {uuid}: 17 types")),
        "{shown}"
    );
    let line = shown.lines().find(|line| line.contains("L40S-12Q"));
    let line = line.expect("a line");
    assert!(
        line.contains("12288 MiB  1 of 4, more can be made"),
        "{line}"
    );
}
