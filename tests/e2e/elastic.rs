//! An elastic job that gives ranks up and gets them back, with processes that read of it.

use rig::Options;
use rig::agents_file::Machine;
use rig::api::Api;
use serde_json::{Value, json};

use crate::support::{END_BOUND, START_BOUND, Scene, finish, one_machine, start, submit};

/// Long enough for heartbeats on a busy machine, short enough to be waited out.
const LEASE_MS: i64 = 4_000;

/// Prints each size of its gang that it reads of, and ends with the others once it was eight again.
const LOSES_HALF: &str = r#"
import json, os, pathlib, time

done = pathlib.Path(os.environ["ALLOTMENT_CHECKPOINT_DIR"], "done")
sizes = []
while not done.exists():
    with open(os.environ["ALLOTMENT_WORKERS_FILE"]) as file:
        size = json.load(file)["size"]
    if sizes[-1:] != [size]:
        sizes.append(size)
        print(size, flush=True)
    if os.environ["RANK"] == "0" and 4 in sizes and size == 8:
        done.touch()
    time.sleep(0.02)
"#;

/// Prints each size of its gang that it reads of, and ends with the others once it was four again.
const PROGRAM: &str = r#"
import json, os, pathlib, time

done = pathlib.Path(os.environ["ALLOTMENT_CHECKPOINT_DIR"], "done")
sizes = []
while not done.exists():
    with open(os.environ["ALLOTMENT_WORKERS_FILE"]) as file:
        size = json.load(file)["size"]
    if sizes[-1:] != [size]:
        sizes.append(size)
        print(size, flush=True)
    if os.environ["RANK"] == "0" and sizes == [4, 3, 4]:
        done.touch()
    time.sleep(0.02)
"#;

#[tokio::test]
async fn an_elastic_job_gives_a_rank_up_to_a_guarantee_and_gets_it_back() {
    let cluster = start(Options::for_test("elastic", one_machine()).unwrap()).await;
    let vision = cluster.sign_in("vision-member").await.unwrap();
    let spec = json!({
        "name": "elastic", "pools": ["l40s"], "command": ["python3", "gang.py"], "files": {"gang.py": PROGRAM},
        "workers": 4, "min_workers": 1, "per_worker": {"gpus": 1}, "time_limit_seconds": 600
    });
    let job = submit(&vision, "vision", &spec).await;
    said(&vision, &job, "4\n").await;

    let speech = cluster.sign_in("speech-member").await.unwrap();
    let spec = json!({
        "name": "mine", "pools": ["l40s"], "command": ["sleep", "600"], "per_worker": {"gpus": 1}
    });
    let other = submit(&speech, "speech", &spec).await;
    cluster
        .job_in(&speech, &other, &["running"], START_BOUND)
        .await
        .unwrap();
    said(&vision, &job, "4\n3\n").await;
    speech
        .post(&format!("/jobs/{other}/cancel"), &json!({}))
        .await
        .unwrap();

    let job = cluster
        .job_in(&vision, &job, &["succeeded"], END_BOUND)
        .await
        .unwrap();
    assert_eq!(job["attempt"], 1, "{job}");
    let id = job["id"].as_str().expect("an id");
    let events = vision.list(&format!("/jobs/{id}/events")).await.unwrap();
    let resized: Vec<_> = events
        .iter()
        .filter(|event| event["subject"] == "job" && event["from"] == event["to"])
        .map(|event| (event["reason"].as_str(), event["data"]["workers"].as_u64()))
        .collect();
    assert_eq!(
        resized,
        [(Some("shrunk"), Some(3)), (Some("grown"), Some(4))],
        "{events:?}"
    );
    // Rank 3 was given up and filled anew: what the first one wrote can still be read.
    let log = async |filling: &str| {
        vision
            .text(&format!("/jobs/{id}/logs?worker=3{filling}"))
            .await
    };
    assert!(log("&filling=1").await.unwrap().starts_with('4'));
    assert_eq!(log("&filling=2").await.unwrap(), log("").await.unwrap());
    assert!(log("&filling=3").await.is_err(), "it had the rank twice");
    e2e::laws::check_ledger(&cluster).await.unwrap();
    finish(cluster, None).await;
}

/// Waits until the first worker has printed this.
async fn said(api: &Api, job: &str, text: &str) {
    let path = format!("/jobs/{job}/logs?worker=0");
    rig::wait::until(text, START_BOUND, || async {
        Ok((api.text(&path).await? == text).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_elastic_job_goes_on_without_a_lost_node_and_grows_back_when_it_returns() {
    let machines = vec![
        Machine::simulated("l40s-1", "l40s-4", "l40s"),
        Machine::simulated("l40s-2", "l40s-4", "l40s"),
    ];
    let mut options = Options::for_test("elastic-loss", machines)
        .unwrap()
        .timer("node_lease_ms", LEASE_MS);
    options.proxied = true;
    options.checkpoints_shared = true;
    let mut scene = Scene::begin(options, "vision").await;
    let spec = json!({
        "name": "elastic", "pools": ["l40s"], "command": ["python3", "gang.py"], "files": {"gang.py": LOSES_HALF},
        "workers": 8, "min_workers": 1, "per_worker": {"gpus": 1}, "time_limit_seconds": 600
    });
    let id = submit(&scene.member, "vision", &spec).await;
    said(&scene.member, &id, "8\n").await;
    let job = scene.job(&id).await;
    let placed = job["placement"].as_array().expect("places").clone();
    let of = |worker: u64| placed.iter().find(|place| place["worker"] == worker);
    let first = of(0).expect("the first worker")["node"].clone();
    let other = placed.iter().find(|place| place["node"] != first);
    let lost = other.expect("the gang is on both")["node"].clone();
    let lost = lost.as_str().expect("a node");

    scene.cut(lost);
    said(&scene.member, &id, "8\n4\n").await;
    let job = scene.job(&id).await;
    assert_eq!(
        (&job["state"], &job["attempt"]),
        (&json!("running"), &json!(1)),
        "{job}"
    );
    scene.heal(lost).await;
    let job = scene
        .cluster
        .job_in(&scene.member, &id, &["succeeded"], END_BOUND)
        .await
        .unwrap();
    assert_eq!(job["attempt"], 1, "{job}");
    let events = scene.member.list(&format!("/jobs/{id}/events")).await;
    let events = events.unwrap();
    let resized: Vec<&Value> = events
        .iter()
        .filter(|event| event["subject"] == "job" && event["from"] == event["to"])
        .collect();
    let sizes: Vec<Option<u64>> = resized
        .iter()
        .map(|event| event["data"]["workers"].as_u64())
        .collect();
    assert!(sizes.contains(&Some(4)), "{events:?}");
    assert_eq!(sizes.last(), Some(&Some(8)), "{events:?}");
    e2e::laws::check_ledger(&scene.cluster).await.unwrap();
    scene.finish().await;
}
