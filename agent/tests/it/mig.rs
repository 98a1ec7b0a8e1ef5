//! MIG: instances made and unmade as assignments ask, on a simulated machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use protocol::wire;
use serde_json::{Value, json};

use crate::gpus::library;
use crate::rig::{AGENT, Agent, assignment, eventually, script, stopped, until};

/// The profiles of an A100 with 80 GB: name and memory slices.
pub const ONE: (&str, u32) = ("1g.10gb", 1);
pub const THREE: (&str, u32) = ("3g.40gb", 4);
const FOUR: (&str, u32) = ("4g.40gb", 4);

/// A node with devices that can be cut, and the file of its machine.
pub struct Cut {
    pub agent: Agent,
    pub machine: PathBuf,
}

impl Cut {
    pub async fn start(model: &str, settings: &str) -> Self {
        let mut agent = Agent::enrolled().await;
        let machine = agent.simulate(model, settings);
        agent.start().await;
        Self { agent, machine }
    }

    /// Changes the machine, by rename.
    pub fn change(&self, change: impl FnOnce(&mut Value)) {
        let text = fs::read(&self.machine).expect("a machine");
        let mut machine: Value = serde_json::from_slice(&text).expect("JSON");
        change(&mut machine);
        let aside = self.machine.with_extension("new");
        fs::write(&aside, machine.to_string()).expect("written");
        fs::rename(aside, &self.machine).expect("renamed");
    }

    pub fn uuid(&self, at: usize) -> String {
        let text = fs::read(&self.machine).expect("a machine");
        let machine: Value = serde_json::from_slice(&text).expect("JSON");
        let uuid = machine["devices"][at]["uuid"].as_str();
        uuid.expect("a device").to_owned()
    }

    /// A share of the first device.
    pub fn share(&self, (profile, size): (&str, u32), start: u32) -> wire::DeviceShare {
        wire::DeviceShare {
            uuid: self.uuid(0),
            mode: "mig".to_owned(),
            gpus_milli: i64::from(size) * 125,
            mig: Some(wire::MigSlice {
                profile: profile.to_owned(),
                start,
                size,
            }),
            ..wire::DeviceShare::default()
        }
    }

    pub fn whole(&self) -> wire::DeviceShare {
        wire::DeviceShare {
            uuid: self.uuid(0),
            mode: "exclusive".to_owned(),
            gpus_milli: 1000,
            ..wire::DeviceShare::default()
        }
    }

    /// What `allotment-agent gpus` tells of the first device's cuts.
    pub fn cuts(&self) -> Value {
        let told = gpus(&self.machine, &["--json"]);
        let told: Value = serde_json::from_str(&told).expect("JSON");
        told["mig"][self.uuid(0)].clone()
    }

    /// Its instances, as `profile@start`, those without compute instance with a mark.
    pub fn instances(&self) -> Vec<String> {
        let cuts = self.cuts();
        let all = cuts["instances"].as_array().expect("a list");
        let named = all.iter().map(|instance| {
            let half = instance["uuids"].as_array().is_some_and(Vec::is_empty);
            let name = instance["profile"].as_str().expect("a name");
            format!(
                "{name}@{}{}",
                instance["start"],
                if half { "?" } else { "" }
            )
        });
        named.collect()
    }

    /// Waits until the first device has these instances and no others.
    async fn has(&self, wanted: &[&str]) {
        until("the device is cut so", || self.instances() == wanted).await;
    }
}

/// What `allotment-agent gpus` prints.
pub fn gpus(machine: &Path, more: &[&str]) -> String {
    let output = Command::new(AGENT)
        .args(["gpus", "--nvml-library"])
        .arg(library())
        .args(more)
        .env("ALLOTMENT_NVML_SIM_MACHINE", machine)
        .output()
        .expect("the agent runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

pub fn on(share: wire::DeviceShare, text: &str) -> wire::Assignment {
    wire::Assignment {
        devices: vec![share],
        ..script(text)
    }
}

#[tokio::test]
async fn a_job_runs_on_an_instance_that_is_made_for_it_and_gone_after_it() {
    let cut = Cut::start("dgx-a100", "").await;
    let told = cut.agent.server.inner().hellos[0].inventory.clone();
    assert_eq!(
        told.expect("an inventory").sharing,
        ["exclusive", "time_slice", "mig"]
    );
    let three = on(
        cut.share(THREE, 4),
        "echo $CUDA_VISIBLE_DEVICES; sleep 1000",
    );
    let four = on(cut.share(FOUR, 0), "sleep 1000");
    let server = &cut.agent.server;
    server.desire(&[three.clone(), four.clone()]).await;
    server.started(&three.id).await;
    server.started(&four.id).await;
    assert_eq!(cut.instances(), ["4g.40gb@0", "3g.40gb@4"]);
    let log = server.read_log(&three.id, false).await.expect("a log");
    let uuid = cut.cuts()["instances"][1]["uuids"][0].clone();
    assert_eq!(log.trim(), uuid.as_str().expect("a UUID"));
    assert!(log.starts_with("MIG-"), "{log}");
    assert!(
        gpus(&cut.machine, &[]).contains(log.trim()),
        "the table has it too"
    );
    let reported = |inner: &crate::fake_server::Inner| {
        let mig = inner.inventories.last()?.devices[0].mig.clone()?;
        (mig.instances.len() == 2).then_some(mig.instances)
    };
    let reported = server.wait("instances in the inventory", reported).await;
    assert_eq!(
        (reported[1].profile.as_str(), reported[1].start),
        ("3g.40gb", 4)
    );

    server.desire(&[stopped(&three, 0), four.clone()]).await;
    server.released(&three.id).await;
    assert_eq!(cut.instances(), ["4g.40gb@0"], "the neighbour stays");
    server.desire(&[stopped(&four, 0)]).await;
    server.released(&four.id).await;
    assert!(cut.instances().is_empty());

    let whole = on(cut.whole(), "sleep 1000");
    server.desire(std::slice::from_ref(&whole)).await;
    server.started(&whole.id).await;
    assert_eq!(cut.cuts()["on"], false, "a whole device is not cut");
}

#[tokio::test]
async fn seven_small_ones_run_at_once_and_an_eighth_is_refused() {
    let cut = Cut::start("dgx-h100", "").await;
    let jobs: Vec<_> = (0..7)
        .map(|start| on(cut.share(ONE, start), "sleep 1000"))
        .collect();
    let server = &cut.agent.server;
    server.desire(&jobs).await;
    for job in &jobs {
        server.started(&job.id).await;
    }
    assert_eq!(cut.instances().len(), 7);
    let eighth = on(cut.share(ONE, 3), "true");
    let mut all = jobs.clone();
    all.push(eighth.clone());
    server.desire(&all).await;
    let refused = server.refused(&eighth.id).await;
    assert_eq!(refused.code, "start_refused");
    assert_eq!(cut.instances().len(), 7, "nobody lost anything");
}

#[tokio::test]
async fn a_device_with_a_foreign_process_is_not_switched() {
    let cut = Cut::start("dgx-a100", "").await;
    let uuid = cut.uuid(0);
    cut.change(|machine| {
        machine["processes"] = json!([{"pid": 4242, "uuid": uuid, "memory_used_mib": 100}]);
    });
    let job = on(cut.share(ONE, 0), "true");
    cut.agent.server.desire(std::slice::from_ref(&job)).await;
    let refused = cut.agent.server.refused(&job.id).await;
    assert!(refused.message.contains("4242"), "{}", refused.message);
    assert_eq!(cut.cuts()["on"], false);
    assert_eq!(
        cut.cuts()["pending"],
        false,
        "nor later, when nobody thinks of it"
    );
}

#[tokio::test]
async fn who_may_not_cut_refuses_and_says_why() {
    let cut = Cut::start("dgx-a100", "mig = 'static'").await;
    let job = on(cut.share(ONE, 0), "true");
    cut.agent.server.desire(std::slice::from_ref(&job)).await;
    let refused = cut.agent.server.refused(&job.id).await;
    assert!(refused.message.contains("static"), "{}", refused.message);
    drop(cut);

    let cut = Cut::start("dgx-a100", "").await;
    cut.change(|machine| machine["mig_permitted"] = json!(false));
    let job = on(cut.share(ONE, 0), "true");
    cut.agent.server.desire(std::slice::from_ref(&job)).await;
    let refused = cut.agent.server.refused(&job.id).await;
    assert!(
        refused.message.contains("permission"),
        "{}",
        refused.message
    );
    drop(cut);

    let cut = Cut::start("dgx-a100", "mig = 'never'").await;
    let job = on(cut.share(ONE, 0), "true");
    cut.agent.server.desire(std::slice::from_ref(&job)).await;
    let refused = cut.agent.server.refused(&job.id).await;
    assert!(
        refused.message.contains("cannot drive mig"),
        "{}",
        refused.message
    );
}

#[tokio::test]
async fn an_instance_that_is_to_stay_is_taken_again() {
    let cut = Cut::start("dgx-a100", "mig_keep = true").await;
    let server = &cut.agent.server;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let job = on(cut.share(THREE, 4), "true");
        server.desire(std::slice::from_ref(&job)).await;
        server.released(&job.id).await;
        seen.push(cut.cuts()["instances"][0]["uuids"][0].clone());
    }
    assert_eq!(seen[0], seen[1]);
    // What is idle makes room for what is asked for.
    let job = on(cut.share(ONE, 6), "sleep 1000");
    server.desire(std::slice::from_ref(&job)).await;
    server.started(&job.id).await;
    assert_eq!(cut.instances(), ["1g.10gb@6"]);
}

/// Each change that the agent makes of a device for one job.
pub const CHANGES: [&str; 5] = [
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
];

#[tokio::test]
async fn an_agent_that_dies_at_any_step_of_a_change_comes_back_and_goes_on() {
    for call in CHANGES {
        for when in ["before", "after"] {
            let what = format!("{when} {call}");
            let mut cut = Cut::start("dgx-a100", "").await;
            let job = on(cut.share(THREE, 4), "true");
            cut.change(|machine| machine["kills_caller"] = json!({"call": call, "when": when}));
            cut.agent.server.desire(std::slice::from_ref(&job)).await;
            eventually(&what, || cut.agent.ended()).await;
            cut.change(|machine| machine["kills_caller"] = Value::Null);
            cut.agent.start().await;
            cut.agent.server.released(&job.id).await;
            let exited = cut.agent.server.exited(&job.id).await;
            assert_eq!(exited.code, Some(0), "{what}");
            cut.has(&[]).await;
        }
    }
}

#[tokio::test]
async fn what_nobody_holds_any_more_is_unmade_by_the_next_agent() {
    let mut cut = Cut::start("dgx-a100", "").await;
    let stays = on(cut.share(FOUR, 0), "sleep 1000");
    let gone = on(cut.share(THREE, 4), "true");
    cut.agent.server.desire(std::slice::from_ref(&stays)).await;
    cut.agent.server.started(&stays.id).await;
    cut.change(|machine| {
        let call = "nvmlGpuInstanceCreateComputeInstance";
        machine["kills_caller"] = json!({"call": call, "when": "before"});
    });
    cut.agent
        .server
        .desire(&[stays.clone(), gone.clone()])
        .await;
    eventually("it dies", || cut.agent.ended()).await;
    assert_eq!(cut.instances(), ["4g.40gb@0", "3g.40gb@4?"]);
    cut.change(|machine| machine["kills_caller"] = Value::Null);
    // The server has given the second up meanwhile.
    cut.agent.server.inner().desired = vec![stays.clone()];
    cut.agent.start().await;
    cut.has(&["4g.40gb@0"]).await;
    assert_eq!(cut.agent.server.story(&stays.id), ["accepted", "started"]);
}

#[tokio::test]
async fn a_restart_of_the_machine_leaves_nothing_that_is_believed_in() {
    let mut cut = Cut::start("dgx-h100", "").await;
    let before = on(cut.share(THREE, 0), "true");
    let held = wire::Assignment {
        want: wire::Want::Hold.into(),
        ..before
    };
    cut.agent.server.desire(std::slice::from_ref(&held)).await;
    cut.agent.server.accepted(&held.id).await;
    assert_eq!(cut.instances(), ["3g.40gb@0"]);
    // The driver has lost it, and the mode with it, though the node's kernel runs on.
    cut.agent.kill();
    cut.change(|machine| machine["boot"] = json!(1));
    cut.agent.start().await;
    let runs = wire::Assignment {
        want: wire::Want::Run.into(),
        ..held.clone()
    };
    cut.agent.server.desire(std::slice::from_ref(&runs)).await;
    let exited = cut.agent.server.exited(&held.id).await;
    assert_eq!(exited.code, Some(0), "it was made anew before it was run");
    cut.agent.server.released(&held.id).await;
    cut.has(&[]).await;
}

#[tokio::test]
async fn a_call_that_hangs_keeps_no_other_device_waiting() {
    let cut = Cut::start("dgx-a100", "").await;
    let stuck = on(cut.share(ONE, 0), "true");
    let other = wire::Assignment {
        devices: vec![wire::DeviceShare {
            uuid: cut.uuid(1),
            ..cut.share(ONE, 0)
        }],
        ..assignment(&["true"])
    };
    cut.change(|machine| machine["devices"][0]["fault"] = json!("hangs"));
    cut.agent
        .server
        .desire(&[stuck.clone(), other.clone()])
        .await;
    cut.agent.server.released(&other.id).await;
    assert!(cut.agent.server.story(&stuck.id).is_empty());
    cut.change(|machine| machine["devices"][0]["fault"] = Value::Null);
    cut.agent.server.released(&stuck.id).await;
}

#[tokio::test]
async fn mig_is_offered_no_more_once_the_driver_has_refused_it() {
    let cut = Cut::start("dgx-a100", "").await;
    cut.change(|machine| machine["mig_permitted"] = json!(false));
    let server = &cut.agent.server;
    for words in ["permission", "cannot drive mig"] {
        let job = on(cut.share(ONE, 0), "true");
        server.desire(std::slice::from_ref(&job)).await;
        let refused = server.refused(&job.id).await;
        assert!(refused.message.contains(words), "{}", refused.message);
    }
    cut.change(|machine| {
        machine["devices"].as_array_mut().expect("a list").pop();
    });
    let told = |inner: &crate::fake_server::Inner| {
        let told = inner.inventories.last()?;
        (!told.sharing.contains(&"mig".to_owned())).then_some(())
    };
    server.wait("an inventory without MIG", told).await;
}
