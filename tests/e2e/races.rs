//! Two things at once: a cancel and an end, fifty times the same request.

use std::time::Duration;

use reqwest::Method;
use rig::Options;
use serde_json::json;

use crate::support::{ENDED, START_BOUND, finish, one_machine, start, submit};

/// F13.
#[tokio::test]
async fn a_cancel_that_races_with_the_end_leaves_one_end_that_both_agree_on() {
    let cluster = start(Options::for_test("race", one_machine()).unwrap()).await;
    let member = cluster.sign_in("platform-member").await.unwrap();
    let spec = json!({
        "name": "short", "kind": "batch", "class": "normal", "command": ["sleep", "0.1"],
        "per_worker": {"gpus": 1}
    });
    let (mut succeeded, mut cancelled) = (0, 0);
    let mut moment = Duration::ZERO;
    for _ in 0..24 {
        let id = submit(&member, "platform", &spec).await;
        tokio::time::sleep(moment).await;
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
        let job = cluster.job_in(&member, &id, &ENDED, START_BOUND).await;
        let job = job.unwrap();
        // From before the start it goes later and later until the job has ended by itself, and from
        // there to and fro about its end, however fast this machine is.
        match job["state"].as_str() {
            Some("cancelled") => {
                cancelled += 1;
                moment = moment * 5 / 4 + Duration::from_millis(20);
            }
            Some("succeeded") => {
                succeeded += 1;
                moment = moment * 9 / 10;
            }
            _ => panic!("it ended otherwise: {job}"),
        }
    }
    assert!(
        cancelled > 0 && succeeded > 0,
        "no race: {cancelled} cancelled, {succeeded} succeeded"
    );
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
    let id = answers[0].body["id"].as_str().expect("an id");
    e2e::acknowledged::note(member.base(), id);
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
