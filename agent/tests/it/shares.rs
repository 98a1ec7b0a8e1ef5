//! Time slices: several jobs on one device, and what each may hold of its memory.

use protocol::wire;

use crate::rig::{Agent, script};

async fn start() -> (Agent, String) {
    let mut agent = Agent::enrolled().await;
    let machine = agent.simulate("l40s-4", "memory_grace_seconds = 1");
    agent.start().await;
    let text = std::fs::read(machine).expect("a machine");
    let machine: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let uuid = machine["devices"][0]["uuid"].as_str().expect("a device");
    (agent, uuid.to_owned())
}

/// A job with an eighth of a device and 1,000 MiB of it, of which it says that it holds so much.
fn job(uuid: &str, held_mib: u32, text: &str) -> wire::Assignment {
    let mut job = script(text);
    job.devices = vec![wire::DeviceShare {
        uuid: uuid.to_owned(),
        mode: "time_slice".to_owned(),
        gpus_milli: 125,
        memory_mib: 1000,
        ..wire::DeviceShare::default()
    }];
    let held = ("NVML_SIM_MEMORY_MIB".to_owned(), held_mib.to_string());
    job.env.extend([held]);
    job
}

#[tokio::test]
async fn who_holds_more_memory_than_his_share_is_warned_then_stopped_and_told_why() {
    let (agent, uuid) = start().await;
    let modest = job(&uuid, 900, "sleep 1000");
    let greedy = job(&uuid, 1500, "sleep 1000");
    let server = &agent.server;
    server.desire(&[modest.clone(), greedy.clone()]).await;
    let exited = server.exited(&greedy.id).await;
    assert!(exited.out_of_memory, "{exited:?}");
    assert!(
        exited.message.contains("1500 MiB") && exited.message.contains("its share of 1000 MiB"),
        "{exited:?}"
    );
    let log = server.read_log(&greedy.id, false).await.expect("a log");
    assert!(log.contains("it is stopped if it still does"), "{log}");
    server.released(&greedy.id).await;
    assert_eq!(server.story(&modest.id), ["accepted", "started"]);
}

#[tokio::test]
async fn eight_jobs_take_turns_on_one_device() {
    let (agent, uuid) = start().await;
    let jobs: Vec<_> = (0..8).map(|_| job(&uuid, 900, "sleep 1000")).collect();
    agent.server.desire(&jobs).await;
    for job in &jobs {
        agent.server.started(&job.id).await;
    }
    let ninth = job(&uuid, 900, "true");
    let mut all = jobs.clone();
    all.push(ninth.clone());
    agent.server.desire(&all).await;
    let refused = agent.server.refused(&ninth.id).await;
    assert!(
        refused.message.contains("no such share left"),
        "{refused:?}"
    );
}
