//! An elastic job that gives ranks up and gets them back, with processes that read of it.

use rig::Options;
use rig::api::Api;
use serde_json::json;

use crate::support::{END_BOUND, START_BOUND, finish, one_machine, start, submit};

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
