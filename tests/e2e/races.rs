//! Two things at once: a cancel and an end, fifty times the same request.

use std::time::Duration;

use reqwest::Method;
use rig::Options;
use serde_json::json;

use crate::support::{ENDED, START_BOUND, all_in, finish, one_machine, start, submit};

/// F13.
#[tokio::test]
async fn a_cancel_that_races_with_the_end_leaves_one_end_that_both_agree_on() {
    let cluster = start(Options::for_test("race", one_machine()).unwrap()).await;
    let member = cluster.sign_in("platform-member").await.unwrap();
    let spec = json!({
        "name": "short", "kind": "batch", "class": "normal", "command": ["sleep", "0.1"],
        "per_worker": {"gpus": 1}
    });
    let mut ids = Vec::new();
    for number in 0..24_u64 {
        let id = submit(&member, "platform", &spec).await;
        // From before the start to after the end.
        tokio::time::sleep(Duration::from_millis(number * 15)).await;
        let answer = member
            .call(
                Method::POST,
                &format!("/jobs/{id}/cancel"),
                Some(&json!({})),
                None,
            )
            .await
            .unwrap();
        let told = answer.success().unwrap();
        if ENDED.iter().any(|state| told["state"] == **state) {
            let job = member.get(&format!("/jobs/{id}")).await.unwrap();
            assert_eq!(job["state"], told["state"], "it has ended once: {job}");
        }
        ids.push(id);
    }
    for job in all_in(&cluster, &ids, &ENDED, START_BOUND).await {
        assert!(
            job["state"] == "succeeded" || job["state"] == "cancelled",
            "{job}"
        );
    }
    e2e::laws::check_ledger(&cluster).await.unwrap();
    finish(cluster, None).await;
}

/// F19.
#[tokio::test]
async fn fifty_times_the_same_submission_is_one_job_with_fifty_equal_answers() {
    let cluster = start(Options::for_test("same", one_machine()).unwrap()).await;
    let member = cluster.sign_in("vision-member").await.unwrap();
    let spec = json!({
        "name": "once", "kind": "batch", "class": "normal", "command": ["true"], "per_worker": {"gpus": 1}
    });
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (member, spec) = (member.clone(), spec.clone());
        calls.spawn(async move {
            member
                .call(
                    Method::POST,
                    "/teams/vision/jobs",
                    Some(&spec),
                    Some("the-key"),
                )
                .await
        });
    }
    let mut answers = Vec::new();
    while let Some(answer) = calls.join_next().await {
        answers.push(answer.unwrap().unwrap());
    }
    assert!(
        answers.iter().all(|answer| answer.status == 201),
        "{answers:?}"
    );
    assert!(answers.iter().all(|answer| answer.body == answers[0].body));
    assert_eq!(
        answers.iter().filter(|answer| !answer.replayed).count(),
        1,
        "one did the work"
    );
    assert_eq!(member.list("/jobs?limit=100").await.unwrap().len(), 1);
    let mut other = spec.clone();
    other["name"] = json!("another");
    let answer = member
        .call(
            Method::POST,
            "/teams/vision/jobs",
            Some(&other),
            Some("the-key"),
        )
        .await
        .unwrap();
    assert_eq!(answer.status, 422, "the key belongs to another body");
    finish(cluster, None).await;
}
