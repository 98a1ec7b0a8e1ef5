//! Parts of devices, end to end: instances that are made for jobs and gone after them.

use reqwest::Method;
use rig::agents_file::Machine;
use rig::api::Api;
use rig::{Cluster, Options};
use serde_json::{Value, json};

use crate::support::{END_BOUND, START_BOUND, finish, one_machine, start, submit};

const NODE: &str = "a100-1";

/// One machine with eight devices that can be cut, in the pool `a100`.
fn machine() -> Vec<Machine> {
    vec![Machine::simulated(NODE, "dgx-a100", "a100")]
}

fn sleeper(name: &str, per_worker: Value) -> Value {
    json!({
        "name": name, "pools": ["a100"], "per_worker": per_worker, "time_limit_seconds": 900,
        "command": ["sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES; sleep 600"]
    })
}

fn of_profile(profile: &str) -> Value {
    sleeper(profile, json!({"mig_profile": profile, "sharing": ["mig"]}))
}

async fn runs(cluster: &Cluster, id: &str) -> Value {
    let runs = cluster.job_in(cluster.admin(), id, &["running"], START_BOUND);
    runs.await.unwrap()
}

async fn cancel(cluster: &Cluster, api: &Api, id: &str) {
    let path = format!("/jobs/{id}/cancel");
    api.post(&path, &json!({})).await.unwrap();
    let gone = cluster.job_in(cluster.admin(), id, &["cancelled"], END_BOUND);
    gone.await.unwrap();
}

/// The devices of a job's one worker: index and mode.
fn devices(job: &Value) -> Vec<(u64, String)> {
    let devices = job["placement"][0]["devices"].as_array().expect("devices");
    let told = devices.iter().map(|device| {
        let index = device["index"].as_u64().expect("an index");
        (index, device["mode"].as_str().expect("a mode").to_owned())
    });
    told.collect()
}

/// The starts of the instances that the simulated driver has, by device, of devices in MIG mode.
fn cuts(cluster: &Cluster) -> Vec<Vec<u64>> {
    let mut file = cluster.agents[NODE].machine_file().into_os_string();
    file.push(".cuts");
    let text = std::fs::read(file).unwrap();
    let cuts: Value = serde_json::from_slice(&text).unwrap();
    let devices = cuts["devices"].as_object().expect("devices");
    let cut = devices.values().filter(|device| device["on"] == true);
    let starts = cut.map(|device| {
        let instances = device["instances"].as_array().expect("instances");
        let start = |instance: &Value| instance["start"].as_u64().expect("a start");
        instances.iter().map(start).collect()
    });
    starts.collect()
}

#[tokio::test]
async fn a_device_is_cut_as_jobs_ask_and_whole_again_after_them() {
    let cluster = start(Options::for_test("slices", machine()).unwrap()).await;
    let member = cluster.sign_in("vision-member").await.unwrap();
    let most = submit(&member, "vision", &sleeper("most", json!({"gpus": 7}))).await;
    runs(&cluster, &most).await;

    let mut small = Vec::new();
    for _ in 0..7 {
        small.push(submit(&member, "vision", &of_profile("1g.10gb")).await);
    }
    let mut names = std::collections::BTreeSet::new();
    for id in &small {
        let job = runs(&cluster, id).await;
        assert_eq!(devices(&job)[0].1, "mig", "{job}");
        let log = rig::wait::until("what it sees", START_BOUND, || async {
            let log = member.text(&format!("/jobs/{id}/logs")).await?;
            Ok(log.contains("sees").then_some(log))
        });
        let log = log.await.unwrap();
        assert!(log.starts_with("sees MIG-"), "{log}");
        names.insert(log);
    }
    assert_eq!(names.len(), 7, "each sees its own: {names:?}");
    assert_eq!(cuts(&cluster), [[0, 1, 2, 3, 4, 5, 6]]);

    let eighth = submit(&member, "vision", &of_profile("1g.10gb")).await;
    rig::wait::until("the eighth waits for room", START_BOUND, || async {
        let job = cluster.admin().get(&format!("/jobs/{eighth}")).await?;
        let told = job["reason"].as_str().unwrap_or_default();
        Ok(matches!(told, "insufficient_capacity" | "fragmented").then_some(()))
    })
    .await
    .unwrap();
    cancel(&cluster, &member, &small[3]).await;
    runs(&cluster, &eighth).await;
    assert_eq!(cuts(&cluster), [[0, 1, 2, 3, 4, 5, 6]]);
    for id in small.iter().filter(|id| **id != small[3]).chain([&eighth]) {
        cancel(&cluster, &member, id).await;
    }
    assert_eq!(cuts(&cluster), [Vec::<u64>::new()]);

    let four = submit(&member, "vision", &of_profile("4g.40gb")).await;
    let three = submit(&member, "vision", &of_profile("3g.40gb")).await;
    let (four_at, three_at) = (runs(&cluster, &four).await, runs(&cluster, &three).await);
    assert_eq!(devices(&four_at), devices(&three_at));
    assert_eq!(cuts(&cluster), [[0, 4]]);
    for id in [&four, &three, &most] {
        cancel(&cluster, &member, id).await;
    }

    let all = submit(&member, "vision", &sleeper("all", json!({"gpus": 8}))).await;
    runs(&cluster, &all).await;
    assert!(cuts(&cluster).is_empty(), "no device is in MIG mode");
    cancel(&cluster, &member, &all).await;
    finish(cluster, None).await;
}

/// A job in the pool `l40s`, which sees what bounds it.
fn sharer(per_worker: Value) -> Value {
    json!({
        "name": "part", "pools": ["l40s"], "per_worker": per_worker, "time_limit_seconds": 900,
        "command": ["sh", "-c", "echo part $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; sleep 600"]
    })
}

/// The devices that have a daemon of MPS.
fn daemons(cluster: &Cluster) -> usize {
    let folder = cluster.agents["l40s-1"].state_folder().join("mps");
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.count()
}

#[tokio::test]
async fn eight_jobs_take_turns_on_a_device_and_two_share_one_by_mps() {
    let cluster = start(Options::for_test("shares", one_machine()).unwrap()).await;
    let member = cluster.sign_in("vision-member").await.unwrap();
    let admin = cluster.admin().clone();
    let more = json!({"time_slices": 8});
    admin
        .change(Method::PATCH, "/pools/l40s", &more)
        .await
        .unwrap();
    let most = submit(&member, "vision", &sharer(json!({"gpus": 2}))).await;
    runs(&cluster, &most).await;

    let turn = sharer(json!({"gpus": 0.125, "gpu_memory_mib": 4096, "sharing": ["time_slice"]}));
    let mut at = std::collections::BTreeSet::new();
    let mut all = vec![most];
    for _ in 0..8 {
        let id = submit(&member, "vision", &turn).await;
        at.extend(devices(&runs(&cluster, &id).await));
        all.push(id);
    }
    assert_eq!(at.len(), 1, "all on one device: {at:?}");

    let half = sharer(json!({"gpus": 0.5, "gpu_memory_mib": 8192, "sharing": ["mps"]}));
    for _ in 0..2 {
        let id = submit(&member, "vision", &half).await;
        assert_eq!(devices(&runs(&cluster, &id).await)[0].1, "mps");
        rig::wait::until("its part", START_BOUND, || async {
            let log = member.text(&format!("/jobs/{id}/logs")).await?;
            Ok(log.contains("part 50").then_some(()))
        })
        .await
        .unwrap();
        all.push(id);
    }
    assert_eq!(daemons(&cluster), 1);
    for id in &all {
        cancel(&cluster, &member, id).await;
    }
    assert_eq!(daemons(&cluster), 0, "it went with the last");
    finish(cluster, None).await;
}
