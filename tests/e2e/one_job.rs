//! The main job, end to end by REST: submitted, placed, run, read, paid for.

use std::time::Duration;

use rig::Options;
use serde_json::json;

use crate::support::{END_BOUND, START_BOUND, finish, one_machine, start, submit};

#[tokio::test]
async fn a_job_runs_on_its_device_and_everybody_can_see_what_it_cost() {
    let cluster = start(Options::for_test("one-job", one_machine()).unwrap()).await;
    let member = cluster.sign_in("vision-member").await.unwrap();
    let spec =
        rig::examples::read(&rig::paths::checkout_of_build().join("examples/digits/job.yaml"))
            .unwrap();
    let id = submit(&member, "vision", &spec).await;

    let job = cluster
        .job_in(&member, &id, &["succeeded"], START_BOUND)
        .await
        .unwrap();
    assert_eq!(job["exit_code"], 0, "{job}");
    assert_eq!(job["attempt"], 1, "{job}");
    assert_eq!(job["placement"][0]["node"], "l40s-1", "{job}");
    let devices = job["placement"][0]["devices"]
        .as_array()
        .expect("devices")
        .len();
    assert_eq!(devices, 1, "{job}");
    assert!(
        job["gpu_seconds"].as_f64().expect("a number") > 0.0,
        "{job}"
    );
    assert_eq!(job["cost"]["currency"], "CNY", "{job}");

    let log = member.text(&format!("/jobs/{id}/logs")).await.unwrap();
    assert!(log.contains("accuracy"), "{log}");
    // Beyond its end, and beyond what any file can be as long as, there is nothing more.
    for offset in [log.len().to_string(), i64::MAX.to_string()] {
        let rest = member
            .text(&format!("/jobs/{id}/logs?offset={offset}"))
            .await;
        assert_eq!(rest.unwrap(), "", "from {offset}");
    }
    let events = member.list(&format!("/jobs/{id}/events")).await.unwrap();
    let steps: Vec<&str> = events
        .iter()
        .filter(|event| event["subject"] == "job")
        .filter_map(|event| event["to"].as_str())
        .collect();
    assert_eq!(
        steps,
        ["queued", "starting", "running", "succeeded"],
        "{events:?}"
    );
    let attempts = member.list(&format!("/jobs/{id}/attempts")).await.unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0]["reason"], "exit", "{attempts:?}");

    // Another team learns nothing of it, not even that it is there.
    let other = cluster.sign_in("speech-owner").await.unwrap();
    let answer = other
        .call(reqwest::Method::GET, &format!("/jobs/{id}"), None, None)
        .await
        .unwrap();
    assert_eq!(answer.status, 404);
    e2e::laws::check_ledger(&cluster).await.unwrap();
    finish(cluster, None).await;
}

#[tokio::test]
async fn a_failed_job_says_why_in_words() {
    let cluster = start(Options::for_test("why", one_machine()).unwrap()).await;
    let member = cluster.sign_in("vision-member").await.unwrap();
    let job = |command: serde_json::Value| {
        json!({
            "name": "fails", "kind": "batch", "class": "normal", "command": command,
            "per_worker": {"gpus": 1}, "time_limit_seconds": 60
        })
    };
    let with_limit = {
        let mut spec = job(json!(["sleep", "600"]));
        spec["time_limit_seconds"] = json!(1);
        spec
    };
    let cases = [
        (job(json!(["sh", "-c", "exit 7"])), "exit", "7"),
        (
            job(json!(["sh", "-c", "kill -SEGV $$"])),
            "signal",
            "SIGSEGV",
        ),
        (
            job(json!(["no-such-program"])),
            "invalid",
            "no-such-program",
        ),
        (with_limit, "time_limit", "time limit"),
    ];
    for (spec, reason, word) in cases {
        let id = submit(&member, "vision", &spec).await;
        let ended = cluster
            .job_in(&member, &id, &["failed"], END_BOUND)
            .await
            .unwrap();
        assert_eq!(ended["reason"], reason, "{ended}");
        let message = ended["message"].as_str().expect("a message");
        assert!(message.contains(word), "{message}");
    }
    finish(cluster, None).await;
}

#[tokio::test]
async fn a_job_sees_what_the_contract_promises() {
    let cluster = start(Options::for_test("env", one_machine()).unwrap()).await;
    let member = cluster.sign_in("vision-member").await.unwrap();
    let spec = json!({
        "name": "env", "kind": "batch", "class": "normal", "workers": 2,
        "command": ["sh", "-c", "env; echo from-spec=$SEED; cat note.txt; echo done; sleep 1"],
        "files": {"note.txt": "a small text\n"},
        "env": {"SEED": "17"},
        "per_worker": {"gpus": 2}, "time_limit_seconds": 60
    });
    let id = submit(&member, "vision", &spec).await;
    cluster
        .job_in(&member, &id, &["succeeded"], END_BOUND)
        .await
        .unwrap();
    for worker in 0..2 {
        let log = member
            .text(&format!("/jobs/{id}/logs?worker={worker}"))
            .await
            .unwrap();
        for line in [
            format!("ALLOTMENT_JOB_ID={id}"),
            "ALLOTMENT_ATTEMPT=1".to_owned(),
            "ALLOTMENT_TEAM=vision".to_owned(),
            format!("ALLOTMENT_WORKER={worker}"),
            "ALLOTMENT_WORKERS=2".to_owned(),
            "WORLD_SIZE=2".to_owned(),
            format!("RANK={worker}"),
            "LOCAL_RANK=0".to_owned(),
            "NODE_RANK=0".to_owned(),
            "CUDA_DEVICE_ORDER=PCI_BUS_ID".to_owned(),
            "MASTER_ADDR=127.0.0.1".to_owned(),
            "from-spec=17".to_owned(),
            "a small text".to_owned(),
        ] {
            assert!(
                log.lines().any(|found| found == line),
                "{line} is not in\n{log}"
            );
        }
        let value = |key: &str| {
            log.lines()
                .find_map(|line| line.strip_prefix(&format!("{key}=")))
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(
            value("CUDA_VISIBLE_DEVICES")
                .split(',')
                .filter(|uuid| uuid.starts_with("GPU-"))
                .count(),
            2
        );
        let port: u32 = value("MASTER_PORT").parse().expect("a port");
        assert!((20_000..30_000).contains(&port), "{port}");
        assert!(!value("ALLOTMENT_CHECKPOINT_DIR").is_empty());
        assert!(
            !log.contains("ALLOTMENT_NVML_SIM_MACHINE"),
            "the agent's own environment stays its own"
        );
    }
    finish(cluster, None).await;
}

#[tokio::test]
async fn a_second_start_finds_the_same_state() {
    let mut options = Options::for_test("resume", one_machine()).unwrap();
    options.scratch = false;
    let mut first = start(options.clone()).await;
    let member = first.sign_in("vision-member").await.unwrap();
    let spec = json!({
        "name": "before", "kind": "batch", "class": "normal", "command": ["true"], "per_worker": {"gpus": 1}
    });
    let id = submit(&member, "vision", &spec).await;
    first
        .job_in(&member, &id, &["succeeded"], END_BOUND)
        .await
        .unwrap();
    first.stop().await.unwrap();
    drop(first);

    options.scratch = true;
    let begun = std::time::Instant::now();
    let second = start(options).await;
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "it took {:?}",
        begun.elapsed()
    );
    let member = second.sign_in("vision-member").await.unwrap();
    second
        .job_in(&member, &id, &["succeeded"], START_BOUND)
        .await
        .unwrap();
    let again = submit(&member, "vision", &spec).await;
    second
        .job_in(&member, &again, &["succeeded"], END_BOUND)
        .await
        .unwrap();
    finish(second, None).await;
}
