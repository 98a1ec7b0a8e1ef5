//! Health of devices: what is seen of them on a simulated machine, what follows, and how it ends.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use protocol::wire;
use serde_json::{Value, json};

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
    assert!(suspect.finding > 0, "{suspect:?}");
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
    assert_eq!(ward.is(1, "failed").await.finding, failed.finding);
    ward.agent.server.inner().cleared = vec![wire::Cleared {
        uuid: failed.uuid,
        up_to: failed.finding,
    }];
    ward.agent.server.desire(&[]).await;
    let well = ward.is(1, "healthy").await;
    assert_eq!(well.finding, 0);
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
        uuid: failed.uuid,
        up_to: failed.finding,
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
        "process {} (sleep), which is no job's, holds 700 MiB",
        foreign.0.id()
    );
    assert!(held.health_reason.contains(&named), "{held:?}");
    assert_eq!(held.finding, 0, "it goes by itself");
    ward.refuses(2, "which is no job's").await;
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
        "#!/bin/sh\ncase $CUDA_VISIBLE_DEVICES in $1) exit 0;; esac\nexit 1\n",
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
    let log = "the probe of a device has not passed";
    crate::rig::until("the other was probed", || ward.agent.log().contains(log)).await;
    ward.is(2, "failed").await;
}
