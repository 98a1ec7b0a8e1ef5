//! What a machine does to its agent: a disk that fills, a driver that goes and comes back, none at all.

use std::fs;
use std::path::Path;
use std::process::Command;

use protocol::wire;
use serde_json::json;

use crate::mig::Cut;
use crate::rig::{Agent, alive, eventually, is_root, script, until};

/// A disk of its own for an agent's state; away with it at the end.
struct Disk(std::path::PathBuf);

impl Disk {
    fn mount(agent: &Agent, mib: u32) -> Self {
        let at = agent.state();
        fs::create_dir_all(&at).expect("made");
        let mounted = Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={mib}m,mode=0711"),
                "none",
            ])
            .arg(&at)
            .status()
            .expect("mount runs");
        assert!(mounted.success());
        Self(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// F17.
#[tokio::test]
async fn a_disk_that_fills_keeps_new_jobs_away_and_running_ones_until_there_is_room_again() {
    if !is_root() {
        // Nobody else may give it a disk of its own.
        return;
    }
    let mut agent = Agent::new().await;
    let disk = Disk::mount(&agent, 64);
    agent.enrol_well().await;
    agent.configure("inventory_seconds = 1\ndisk_bytes_min = 16777216");
    agent.start().await;
    let [go, said, again] = ["go", "said", "again"].map(|name| agent.open_folder().join(name));
    let wait = |gate: &Path| format!("while [ ! -e {} ]; do sleep 0.02; done", gate.display());
    // More than the rest of a page that a file has already.
    let talks = script(&format!(
        "{}; head -c 20000 /dev/zero | tr '\\0' x; touch {}; {}; echo after; sleep 1000",
        wait(&go),
        said.display(),
        wait(&again)
    ));
    let ends = script(&format!("{}; exit 5", wait(&said)));
    agent.server.desire(&[talks.clone(), ends.clone()]).await;
    let pid = agent.server.started(&talks.id).await;
    agent.server.started(&ends.id).await;
    // What is left is less than a start needs; and then nothing at all is left.
    let filling = disk.0.join("filling");
    fs::write(&filling, vec![1_u8; 52 << 20]).expect("room");
    let told = |full: bool| {
        agent.server.wait("the disk is told", move |inner| {
            let told = inner.inventories.last()?.disk_full;
            (told.is_some() == full).then_some(told)
        })
    };
    let full = told(true).await.expect("full");
    assert!(full.needed_mib == 16 && full.free_mib < 16, "{full:?}");
    let refused_one = script("true");
    agent.want_also(&refused_one).await;
    let refused = agent.server.refused(&refused_one.id).await;
    assert!(
        refused.message.contains("disk is full"),
        "{}",
        refused.message
    );
    let rest = fs::File::options()
        .append(true)
        .open(&filling)
        .expect("open");
    while std::io::Write::write_all(&mut &rest, &[1_u8; 4096]).is_ok() {}
    drop(rest);
    fs::write(&go, "").expect("told");
    until("it has spoken", || said.exists()).await;
    assert!(alive(pid), "who runs stays");
    // Room was taken for how it ends: nothing waits for a person to clear the disk.
    assert_eq!(agent.server.exited(&ends.id).await.code, Some(5));
    agent.server.released(&ends.id).await;

    fs::remove_file(&filling).expect("removed");
    assert!(told(false).await.is_none());
    let later = script("true");
    agent.want_also(&later).await;
    assert_eq!(agent.server.exited(&later.id).await.code, Some(0));
    assert!(alive(pid));
    fs::write(&again, "").expect("told");
    eventually("what its log lost is said", || {
        let log = fs::read_to_string(disk.0.join(format!("logs/{}.log", talks.id))).ok();
        log.filter(|log| log.contains("bytes were lost: the disk was full"))
    })
    .await;
    assert_eq!(agent.server.story(&talks.id), ["accepted", "started"]);
}

#[tokio::test]
async fn a_driver_that_is_loaded_and_replaced_under_a_running_agent_is_told_and_costs_no_job() {
    let mut agent = Agent::enrolled().await;
    let machine = agent.simulate("dgx-a100", "");
    let aside = machine.with_extension("aside");
    fs::rename(&machine, &aside).expect("not loaded");
    agent.start().await;
    let told = agent.server.inner().inventories.last().cloned();
    let told = told.expect("an inventory");
    let warned = |words: &String| words.contains("no GPU can be read");
    assert!(
        told.devices.is_empty() && told.warnings.iter().any(warned),
        "{told:?}"
    );
    fs::rename(&aside, &machine).expect("loaded");
    let cut = Cut { agent, machine };
    let server = &cut.agent.server;
    let version = |wanted: &'static str| {
        server.wait("a driver", move |inner| {
            let told = inner.inventories.last()?;
            let well = told.devices.iter().all(|device| device.health == "healthy");
            (well && told.driver_version == wanted && told.devices.len() == 8).then_some(())
        })
    };
    version("570.133.20").await;
    let job = crate::mig::on(cut.whole(), "sleep 1000");
    server.desire(std::slice::from_ref(&job)).await;
    let pid = server.started(&job.id).await;
    cut.change(|machine| machine["driver_version"] = json!("580.95.05"));
    version("580.95.05").await;
    assert!(alive(pid));
    assert_eq!(server.story(&job.id), ["accepted", "started"]);
}

#[tokio::test]
async fn a_machine_without_a_driver_says_so_and_runs_what_needs_no_device() {
    let mut agent = Agent::enrolled().await;
    agent.configure("inventory_seconds = 1\nnvml_library = '/nonexistent/libnvidia-ml.so'");
    agent.start().await;
    let job = script("echo without");
    agent.server.desire(std::slice::from_ref(&job)).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
    let told = agent.server.inner().inventories.last().cloned();
    let told = told.expect("an inventory");
    assert!(told.devices.is_empty());
    let warned = told
        .warnings
        .iter()
        .any(|words| words.contains("/nonexistent"));
    assert!(warned, "{:?}", told.warnings);
    let on_device = wire::Assignment {
        devices: vec![wire::DeviceShare {
            uuid: "GPU-of-before".to_owned(),
            mode: "exclusive".to_owned(),
            gpus_milli: 1000,
            ..wire::DeviceShare::default()
        }],
        ..script("true")
    };
    agent.want_also(&on_device).await;
    let refused = agent.server.refused(&on_device.id).await;
    assert!(
        refused.message.contains("could not be read"),
        "{}",
        refused.message
    );
}

#[tokio::test]
async fn an_agent_whose_program_is_replaced_keeps_its_jobs_and_sees_them_end() {
    let mut agent = Agent::enrolled().await;
    let program = agent.folder.path().join("agent-program");
    fs::copy(crate::rig::AGENT, &program).expect("copied");
    agent.program.clone_from(&program);
    agent.start().await;
    let gate = agent.open_folder().join("gate");
    let job = script(&format!(
        "echo before; while [ ! -e {} ]; do sleep 0.02; done; echo after; exit 4",
        gate.display()
    ));
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    agent.leave().await;
    assert!(alive(pid));
    // As packages do: the new one takes the name, while what runs goes on in the one before.
    let new = program.with_extension("new");
    fs::copy(crate::rig::AGENT, &new).expect("copied");
    fs::rename(&new, &program).expect("renamed");
    agent.start().await;
    let held = agent.server.inner().hellos[1].held.clone();
    assert_eq!(held[0].assignment_id, job.id);
    let later = script("exit 3");
    agent.want_also(&later).await;
    assert_eq!(agent.server.exited(&later.id).await.code, Some(3));
    assert!(alive(pid));
    fs::write(&gate, "").expect("opened");
    assert_eq!(agent.server.exited(&job.id).await.code, Some(4));
    let log = agent.server.read_log(&job.id, false).await.expect("a log");
    assert_eq!(log, "before\nafter\n");
}
