//! Health of devices: what is seen of them on a simulated machine, what follows, and how it ends.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use protocol::wire;
use serde_json::{Value, json};

use crate::mig::{Cut, THREE};
use crate::rig::{Agent, script, stopped};

/// A node whose devices err by its machine's file.
struct Ward {
    agent: Agent,
    machine: PathBuf,
}

impl Ward {
    async fn start(settings: &str) -> Self {
        let mut agent = Agent::enrolled().await;
        let machine = agent.simulate("l40s-4", settings);
        agent.start().await;
        let ward = Self { agent, machine };
        ward.is(0, "healthy").await;
        ward
    }

    fn read(&self) -> Value {
        let text = std::fs::read(&self.machine).expect("a machine");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Changes the machine, by rename.
    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut machine = self.read();
        change(&mut machine);
        let aside = self.machine.with_extension("new");
        std::fs::write(&aside, machine.to_string()).expect("written");
        std::fs::rename(aside, &self.machine).expect("renamed");
    }

    /// Lets a device err.
    fn err(&self, at: usize, code: u64) {
        self.change(|machine| {
            let device = &mut machine["devices"][at];
            let mut xids = device["xids"].as_array().cloned().unwrap_or_default();
            xids.push(json!(code));
            device["xids"] = json!(xids);
        });
    }

    fn uuid(&self, at: usize) -> String {
        let machine = self.read();
        let uuid = machine["devices"][at]["uuid"].as_str();
        uuid.expect("a device").to_owned()
    }

    /// Waits until the node tells a device's health; how it tells the device.
    async fn is(&self, at: usize, health: &str) -> wire::Device {
        self.told(at, health, |device| device.health == health)
            .await
    }

    /// Waits until the reason of a device's health begins with these words.
    async fn says(&self, at: usize, words: &str) -> wire::Device {
        self.told(at, words, |device| device.health_reason.starts_with(words))
            .await
    }

    async fn told(
        &self,
        at: usize,
        what: &str,
        wanted: impl Fn(&wire::Device) -> bool,
    ) -> wire::Device {
        let uuid = self.uuid(at);
        let told = |inner: &crate::fake_server::Inner| {
            let told = inner.inventories.last()?;
            let device = told.devices.iter().find(|device| device.uuid == uuid)?;
            wanted(device).then(|| device.clone())
        };
        self.agent.server.wait(what, told).await
    }

    /// A job on the whole of a device.
    fn job(&self, at: usize, text: &str) -> wire::Assignment {
        let mut job = script(text);
        job.devices = vec![wire::DeviceShare {
            uuid: self.uuid(at),
            mode: "exclusive".to_owned(),
            gpus_milli: 1000,
            ..wire::DeviceShare::default()
        }];
        job
    }

    async fn refuses(&self, at: usize, words: &str) {
        let job = self.job(at, "true");
        self.agent.server.desire(std::slice::from_ref(&job)).await;
        let refused = self.agent.server.refused(&job.id).await;
        assert_eq!(refused.code, "start_refused");
        assert!(refused.message.contains(words), "{}", refused.message);
    }
}

/// A process that holds memory of a device and is no job's.
struct Foreign(Child);

impl Foreign {
    fn on(uuid: &str) -> Self {
        let child = Command::new("sleep")
            .arg("1000")
            .env("NVML_SIM_MEMORY_MIB", "700")
            .env("CUDA_VISIBLE_DEVICES", uuid)
            .stdin(Stdio::null())
            .spawn();
        Self(child.expect("a process"))
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The number of the newest thing that was found of a device.
fn newest(device: &wire::Device) -> u64 {
    let numbers = device.findings.iter().map(|finding| finding.number);
    numbers.max().unwrap_or(0)
}

#[tokio::test]
async fn errors_of_the_hardware_take_a_device_out_and_those_of_a_job_are_told_to_the_job() {
    let ward = Ward::start("").await;
    let job = ward.job(0, "while [ ! -e $HOME/over ]; do sleep 0.05; done; exit 3");
    ward.agent.server.desire(std::slice::from_ref(&job)).await;
    ward.agent.server.started(&job.id).await;
    for (at, codes) in [(1, [48, 64]), (2, [79, 95]), (3, [92, 109])] {
        for code in codes {
            ward.err(at, code);
        }
    }
    ward.err(0, 31);
    assert_eq!(
        ward.is(1, "failed").await.health_reason,
        "Xid 48: double-bit ECC error"
    );
    ward.is(2, "failed").await;
    let suspect = ward.is(3, "suspect").await;
    assert!(newest(&suspect) > 0, "{suspect:?}");
    ward.is(0, "healthy").await;
    ward.refuses(3, "Xid 92").await;
    ward.agent.server.desire(&[stopped(&job, 100)]).await;
    let exited = ward.agent.server.exited(&job.id).await;
    assert!(exited.message.contains("Xid 31 (MMU fault)"), "{exited:?}");
}

#[tokio::test]
async fn a_finding_outlives_the_agent_and_goes_when_a_person_clears_it() {
    let mut ward = Ward::start("").await;
    ward.err(1, 95);
    let failed = ward.is(1, "failed").await;
    ward.agent.kill();
    ward.agent.server.inner().inventories.clear();
    ward.agent.start().await;
    assert_eq!(newest(&ward.is(1, "failed").await), newest(&failed));
    ward.agent.server.inner().cleared = vec![wire::Cleared {
        up_to: newest(&failed),
        uuid: failed.uuid,
    }];
    ward.agent.server.desire(&[]).await;
    let well = ward.is(1, "healthy").await;
    assert!(well.findings.is_empty());
}

#[tokio::test]
async fn a_device_off_the_bus_is_failed_and_stays_so_until_it_is_cleared() {
    let ward = Ward::start("").await;
    ward.change(|machine| machine["devices"][1]["fault"] = json!("gpu_is_lost"));
    let failed = ward.is(1, "failed").await;
    assert!(failed.health_reason.contains("NVML says"), "{failed:?}");
    ward.is(0, "healthy").await;
    ward.change(|machine| machine["devices"][1]["fault"] = Value::Null);
    ward.says(1, "it was gone").await;
    ward.agent.server.inner().cleared = vec![wire::Cleared {
        up_to: newest(&failed),
        uuid: failed.uuid,
    }];
    ward.agent.server.desire(&[]).await;
    ward.is(1, "healthy").await;
}

#[tokio::test]
async fn a_call_that_hangs_costs_one_device_and_keeps_nobody_from_the_others() {
    let ward = Ward::start("").await;
    ward.change(|machine| machine["devices"][1]["fault"] = json!("hangs"));
    let silent = ward.is(1, "suspect").await;
    assert_eq!(silent.health_reason, "NVML does not answer");
    ward.is(0, "healthy").await;
    ward.err(2, 79);
    ward.is(2, "failed").await;
    let job = ward.job(0, "exit 0");
    ward.agent.server.desire(std::slice::from_ref(&job)).await;
    ward.agent.server.released(&job.id).await;
    ward.change(|machine| machine["devices"][1]["fault"] = Value::Null);
    ward.is(1, "healthy").await;
}

#[tokio::test]
async fn while_a_device_begins_to_hang_what_is_found_of_the_others_is_told_at_once() {
    let ward = Ward::start("").await;
    ward.change(|machine| {
        machine["devices"][1]["fault"] = json!("hangs");
        machine["devices"][0]["telemetry"]["remapped_rows"] = json!({"pending": true});
    });
    ward.is(0, "suspect").await;
    // Had its call been waited for, both would have been told by one inventory.
    let uuid = ward.uuid(1);
    let told = {
        let server = ward.agent.server.inner();
        server.inventories.iter().find_map(|told| {
            let of = |uuid: &str| told.devices.iter().find(|device| device.uuid == uuid);
            let ill = told
                .devices
                .iter()
                .any(|d| d.health_reason.contains("waits for a reset"));
            ill.then(|| of(&uuid).map(|device| device.health.clone()))
        })
    };
    assert_eq!(told, Some(Some("healthy".to_owned())), "it may yet answer");
    assert_eq!(
        ward.is(1, "suspect").await.health_reason,
        "NVML does not answer"
    );
    ward.change(|machine| machine["devices"][1]["fault"] = Value::Null);
    ward.is(1, "healthy").await;
}

#[tokio::test]
async fn memory_errors_rows_heat_and_lanes_are_seen() {
    let ward = Ward::start("[health]\nthrottle_seconds = 1").await;
    ward.change(|machine| {
        let devices = &mut machine["devices"];
        devices[0]["telemetry"]["ecc"] = json!({"uncorrected_aggregate": 3});
        devices[1]["telemetry"]["remapped_rows"] = json!({"pending": true});
        devices[2]["telemetry"]["clocks_event_reasons"] = json!(0x40);
        devices[3]["telemetry"]["pcie_width"] = json!(4);
    });
    for (at, words) in [
        (0, "3 more"),
        (1, "waits for a reset"),
        (2, "heat"),
        (3, "4 of 16 PCIe lanes"),
    ] {
        let suspect = ward.is(at, "suspect").await;
        assert!(suspect.health_reason.contains(words), "{suspect:?}");
    }
    ward.change(|machine| {
        machine["devices"][1]["telemetry"]["remapped_rows"] = json!({"failed": true})
    });
    ward.is(1, "failed").await;
}

#[tokio::test]
async fn a_foreign_process_keeps_a_device_from_being_offered_until_it_has_left() {
    let ward = Ward::start("").await;
    let foreign = Foreign::on(&ward.uuid(2));
    let held = ward.is(2, "suspect").await;
    let named = format!(
        "process {} (sleep), which is no job's, holds 700 MiB of it",
        foreign.0.id()
    );
    assert_eq!(held.health_detail, named);
    // Whoever's job it is that is refused, or that looks: no names.
    assert_eq!(held.health_reason, "a process that is no job's is on it");
    assert!(held.findings.is_empty(), "it goes by itself");
    ward.refuses(2, "a process that is no job's is on it").await;
    drop(foreign);
    ward.is(2, "healthy").await;
}

#[tokio::test]
async fn memory_that_a_job_leaves_behind_keeps_its_device_back_before_it_is_released() {
    let ward = Ward::start("").await;
    let job = ward.job(0, "while [ ! -e $HOME/over ]; do sleep 0.05; done");
    ward.agent.server.desire(std::slice::from_ref(&job)).await;
    ward.agent.server.started(&job.id).await;
    ward.change(|machine| machine["devices"][0]["telemetry"]["memory_used_mib"] = json!(9000));
    ward.agent.server.desire(&[stopped(&job, 100)]).await;
    let server = &ward.agent.server;
    server.released(&job.id).await;
    // As it was told when the release was: nobody is offered it in between.
    let told = server.inner().inventories.last().cloned().expect("told");
    assert_eq!(told.devices[0].health, "suspect");
    let words = "9000 MiB of its memory are in use, by no process that is known";
    assert_eq!(told.devices[0].health_reason, words);
    ward.change(|machine| machine["devices"][0]["telemetry"]["memory_used_mib"] = Value::Null);
    ward.is(0, "healthy").await;
}

#[tokio::test]
async fn a_probe_that_passes_returns_a_device_and_one_that_does_not_leaves_it() {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let program = folder.path().join("probe");
    // It passes on the device that it is told of by name, and fails on any other.
    std::fs::write(
        &program,
        "#!/bin/sh\ncase $CUDA_VISIBLE_DEVICES in $1) exit 0;; esac\necho not on\necho this one\nexit 1\n",
    )
    .expect("written");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, std::fs::Permissions::clone(&open)).expect("opened");
    std::fs::set_permissions(folder.path(), open).expect("opened");
    let mut agent = Agent::enrolled().await;
    let machine = agent.simulate("l40s-4", "");
    let text = std::fs::read(&machine).expect("a machine");
    let told: Value = serde_json::from_slice(&text).expect("JSON");
    let good = told["devices"][1]["uuid"].as_str().expect("a device");
    let settings = format!("[health]\nprobe = ['{}', '{good}']", program.display());
    agent.environment.clear();
    let machine = agent.simulate("l40s-4", &settings);
    agent.start().await;
    let ward = Ward { agent, machine };
    ward.is(2, "healthy").await;
    ward.err(1, 79);
    ward.is(1, "failed").await;
    ward.err(2, 79);
    ward.is(1, "healthy").await;
    let said = "its probe ended with 1: not on this one";
    let failed = ward
        .told(2, said, |device| device.health_reason.contains(said))
        .await;
    assert_eq!(failed.health, "failed");
    for folder in ["runs", "jobs", "logs"] {
        let left = std::fs::read_dir(ward.agent.state().join(folder)).expect("a folder");
        let left = left.map(|entry| entry.expect("listed").path());
        let left: Vec<_> = left.filter(|path| !path.ends_with("lease")).collect();
        assert!(left.is_empty(), "nothing of a probe is left: {left:?}");
    }
}

/// What a probe begins in a session of its own ends with it, and so does one that takes too long.
#[tokio::test]
async fn a_probe_that_does_not_end_is_ended_with_all_that_it_began() {
    let folder = tempfile::tempdir_in("/tmp").expect("a folder");
    let (program, pids) = (folder.path().join("probe"), folder.path().join("pids"));
    let text = format!(
        "#!/bin/sh\nsetsid sleep 1000 &\necho $! >> {0}\necho $$ >> {0}\necho stuck\nsleep 1000\n",
        pids.display()
    );
    std::fs::write(&program, text).expect("written");
    std::fs::write(&pids, "").expect("written");
    for (path, mode) in [(&program, 0o755), (&pids, 0o666)] {
        let open = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, open).expect("opened");
    }
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("opened");
    let settings = format!(
        "[health]\nprobe = ['{}']\nprobe_seconds = 1",
        program.display()
    );
    let ward = Ward::start(&settings).await;
    ward.err(1, 79);
    let said = "its probe had not ended after 1 s: stuck";
    ward.told(1, said, |device| device.health_reason.contains(said))
        .await;
    let began = std::fs::read_to_string(&pids).expect("written");
    assert_eq!(began.lines().count(), 2, "{began}");
    for pid in began.lines() {
        let alive = std::path::Path::new("/proc").join(pid).exists();
        assert!(!alive, "{pid} outlives its probe");
    }
}

#[tokio::test]
async fn a_job_that_leaves_an_error_behind_leaves_its_device_to_nobody() {
    let mut agent = Agent::enrolled().await;
    let machine = agent.simulate("l40s-4", "");
    // No reading comes by itself while this runs: what is told was seen by the gate.
    let config = std::fs::read_to_string(&agent.arguments[1]).expect("settings");
    agent.configure(&config.replace("inventory_seconds = 1\n", "inventory_seconds = 3600\n"));
    agent.start().await;
    let ward = Ward { agent, machine };
    ward.is(0, "healthy").await;
    let job = ward.job(0, "while [ ! -e $HOME/over ]; do sleep 0.05; done");
    ward.agent.server.desire(std::slice::from_ref(&job)).await;
    ward.agent.server.started(&job.id).await;
    ward.change(|machine| {
        machine["devices"][0]["telemetry"]["ecc"] = json!({"uncorrected_aggregate": 3})
    });
    ward.agent.server.desire(&[stopped(&job, 100)]).await;
    let server = &ward.agent.server;
    server.released(&job.id).await;
    // As it was told when the release was: nobody is offered it in between.
    let told = server.inner().inventories.last().cloned().expect("told");
    assert_eq!(told.devices[0].health, "suspect");
    let words = "uncorrectable memory errors: 3 more, 3 in all";
    assert_eq!(told.devices[0].health_reason, words);
}

#[tokio::test]
async fn a_node_that_lost_what_it_kept_takes_it_from_the_server() {
    let mut ward = Ward::start("").await;
    ward.err(1, 95);
    let failed = ward.is(1, "failed").await;
    ward.agent.kill();
    let kept = ward.agent.state().join("identity/health.json");
    std::fs::remove_file(&kept).expect("it was kept");
    ward.agent.server.inner().inventories.clear();
    ward.agent.server.inner().found = vec![wire::Found {
        uuid: failed.uuid.clone(),
        findings: failed.findings.clone(),
    }];
    // The machine's file tells no error that is past, as NVML does not.
    ward.agent.start().await;
    ward.agent.server.desire(&[]).await;
    let again = ward.is(1, "failed").await;
    assert_eq!(again.findings, failed.findings);
    assert_eq!(again.findings_known, newest(&failed));
}

/// A job on an instance of the first device of a node.
fn job_at(cut: &Cut, start: u32) -> wire::Assignment {
    let mut job = script("while [ ! -e $HOME/over ]; do sleep 0.05; done");
    job.devices = vec![cut.share(THREE, start)];
    job
}

#[tokio::test]
async fn what_is_on_an_instance_that_was_left_keeps_its_device_back_while_others_are_in_use() {
    let mut agent = Agent::enrolled().await;
    let machine = agent.simulate("dgx-a100", "");
    // Nobody looks by himself while this runs: what is told was seen when the job left.
    let config = std::fs::read_to_string(&agent.arguments[1]).expect("settings");
    agent.configure(&config.replace("inventory_seconds = 1\n", "inventory_seconds = 3600\n"));
    agent.start().await;
    let cut = Cut { agent, machine };
    let server = &cut.agent.server;
    let (stays, leaves) = (job_at(&cut, 0), job_at(&cut, 4));
    server.desire(&[stays.clone(), leaves.clone()]).await;
    server.started(&stays.id).await;
    server.started(&leaves.id).await;
    let cuts = cut.cuts();
    let instances = cuts["instances"].as_array().expect("a list");
    let left = instances.iter().find(|instance| instance["start"] == 4);
    let name = left.expect("it is there")["uuids"][0].as_str();
    let foreign = Foreign::on(name.expect("a name"));
    server.desire(&[stays.clone(), stopped(&leaves, 100)]).await;
    server.released(&leaves.id).await;
    let told = server.inner().inventories.last().cloned().expect("told");
    let uuid = cut.uuid(0);
    let device = told.devices.iter().find(|device| device.uuid == uuid);
    let device = device.expect("it is there");
    assert_eq!(device.health, "suspect");
    let pid = foreign.0.id();
    let named = format!("process {pid} (sleep), which is no job's, holds 700 MiB of it");
    assert_eq!(device.health_detail, named);
}

#[tokio::test]
async fn a_job_pays_nothing_while_its_instance_cannot_be_unmade() {
    let mut agent = Agent::enrolled().await;
    let machine = agent.simulate("dgx-a100", "");
    agent.start().await;
    let cut = Cut { agent, machine };
    let server = &cut.agent.server;
    let job = job_at(&cut, 4);
    server.desire(std::slice::from_ref(&job)).await;
    server.started(&job.id).await;
    cut.change(|machine| machine["devices"][0]["fault"] = json!("hangs"));
    server.desire(&[stopped(&job, 100)]).await;
    server.exited(&job.id).await;
    // A reading waits for ten seconds before it says so: all that time the instance is there.
    let uuid = cut.uuid(0);
    let silent = |inner: &crate::fake_server::Inner| {
        let told = inner.inventories.last()?;
        let device = told.devices.iter().find(|device| device.uuid == uuid)?;
        (device.health == "suspect").then_some(())
    };
    server.wait("it is silent", silent).await;
    cut.change(|machine| machine["devices"][0]["fault"] = Value::Null);
    let kept = server.kept_micros(&job.id).await;
    assert!(kept > 3_000_000, "{kept}");
    // One that leaves as it should pays to its end.
    let other = job_at(&cut, 4);
    server.desire(std::slice::from_ref(&other)).await;
    server.started(&other.id).await;
    server.desire(&[stopped(&other, 100)]).await;
    assert_eq!(server.kept_micros(&other.id).await, 0);
}
