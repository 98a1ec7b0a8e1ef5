//! The rules of who gives way, each as it works on real machines: reclaim, priority, protection, caps.

use rig::api::Api;
use serde_json::{Value, json};

use crate::support::{END_BOUND, START_BOUND, Scene, submit, wait_for_code};

/// How long a rule keeps somebody from giving way: long enough to be told from a slow machine's cycle.
const HELD_BACK_SECONDS: i64 = 6;

/// One machine with 4 devices, in which `vision` runs four jobs: one in its guarantee, three borrowed.
async fn borrowers(name: &str, class: &str) -> (Scene, Vec<String>) {
    let scene = Scene::on_one_machine(name, "vision").await;
    let mut jobs = Vec::new();
    for number in 0..4 {
        let mut spec = scene.traces.job(&format!("borrower-{number}"), "l40s");
        spec["class"] = json!(class);
        jobs.push(submit(&scene.member, "vision", &spec).await);
    }
    for id in &jobs {
        scene.runs(id).await;
    }
    // Each has written its start before anybody takes its place.
    rig::wait::until_true("all processes have begun", START_BOUND, || {
        jobs.iter()
            .all(|id| !scene.traces.lines(id).unwrap().is_empty())
    })
    .await
    .unwrap();
    (scene, jobs)
}

/// A member of another team, and a traced job of it.
async fn newcomer(scene: &Scene, team: &str, number: usize) -> (Api, String) {
    let member = scene
        .cluster
        .sign_in(&format!("{team}-member"))
        .await
        .unwrap();
    let spec = scene.traces.job(&format!("newcomer-{number}"), "l40s");
    let id = submit(&member, team, &spec).await;
    (member, id)
}

/// The attempts of these jobs that were preempted: the job, the rule, and when it was asked to go.
async fn preempted(scene: &Scene, jobs: &[String]) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for id in jobs {
        for attempt in scene
            .member
            .list(&format!("/jobs/{id}/attempts"))
            .await
            .unwrap()
        {
            if attempt["reason"] == "preempted" {
                let text = |key: &str| attempt[key].as_str().expect("a text").to_owned();
                found.push((id.clone(), text("preemption_rule"), text("stop_asked_at")));
            }
        }
    }
    found
}

/// Seconds from one moment to another, both as REST tells them.
fn seconds_between(from: &Value, to: &str) -> f64 {
    let read = |text: &str| {
        chrono::DateTime::parse_from_rfc3339(text)
            .expect("a time")
            .timestamp_micros()
    };
    let micros = read(to) - read(from.as_str().expect("a time"));
    micros as f64 / 1e6
}

#[tokio::test]
async fn a_guarantee_is_taken_back_from_one_borrower_that_runs_again_later() {
    let (scene, jobs) = borrowers("reclaim", "normal").await;
    let (speech, mine) = newcomer(&scene, "speech", 0).await;
    scene
        .cluster
        .job_in(&speech, &mine, &["running"], START_BOUND)
        .await
        .unwrap();
    let taken = preempted(&scene, &jobs).await;
    assert_eq!(taken.len(), 1, "one device was asked for: {taken:?}");
    assert_eq!(taken[0].1, "reclaim");
    // What else waits and runs of the team goes on as it was.
    let victim = &taken[0].0;
    for id in jobs.iter().filter(|id| *id != victim) {
        let job = scene.job(id).await;
        assert_eq!(
            (&job["state"], &job["attempt"]),
            (&json!("running"), &json!(1))
        );
    }
    let before = scene.job(victim).await;
    assert_eq!(before["state"], "queued", "{before}");
    scene.traces.let_go().unwrap();
    for id in &jobs {
        let job = scene
            .cluster
            .job_in(&scene.member, id, &["succeeded"], END_BOUND)
            .await
            .unwrap();
        let attempts = if id == victim { 2 } else { 1 };
        assert_eq!(job["attempt"], attempts, "{job}");
    }
    let lines = scene.traces.lines(victim).unwrap();
    let what: Vec<&str> = lines.iter().map(|line| line.what.as_str()).collect();
    assert_eq!(
        what,
        ["start", "term", "start", "end"],
        "it was asked, and ran again"
    );
    scene.finish().await;
}

#[tokio::test]
async fn higher_priority_displaces_lower_of_its_own_team_only_where_the_pool_says_so() {
    let (scene, jobs) = borrowers("priority", "batch-elastic").await;
    let mut spec = scene.traces.job("urgent", "l40s");
    spec["class"] = json!("normal");
    let urgent = submit(&scene.member, "vision", &spec).await;
    wait_for_code(&scene.member, &urgent, "preemption_not_allowed").await;
    assert_eq!(preempted(&scene, &jobs).await, []);
    scene
        .change_pool(json!({"preemption": {"within_team": "lower_priority"}}))
        .await;
    scene.runs(&urgent).await;
    let taken = preempted(&scene, &jobs).await;
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert_eq!(taken[0].1, "priority");
    // Of another team nobody is displaced for a priority: that one's own guarantee is what counts.
    scene.traces.let_go().unwrap();
    scene.let_succeed(&urgent).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_newcomer_displaces_nobody_before_it_has_waited_as_long_as_the_pool_says() {
    let (scene, jobs) = borrowers("delay", "normal").await;
    scene
        .change_pool(json!({"preemption": {"delay_seconds": HELD_BACK_SECONDS}}))
        .await;
    let (speech, mine) = newcomer(&scene, "speech", 0).await;
    wait_for_code(&speech, &mine, "preemption_not_allowed").await;
    let job = scene
        .cluster
        .job_in(&speech, &mine, &["running"], START_BOUND)
        .await
        .unwrap();
    let taken = preempted(&scene, &jobs).await;
    assert_eq!(taken.len(), 1, "{taken:?}");
    let waited = seconds_between(&job["created_at"], &taken[0].2);
    assert!(waited >= HELD_BACK_SECONDS as f64, "after {waited} s");
    scene.traces.let_go().unwrap();
    scene.finish_when_all_ended().await;
}

#[tokio::test]
async fn what_has_just_begun_to_run_is_left_alone_for_its_minimum_run_time() {
    let (scene, jobs) = borrowers("min-runtime", "normal").await;
    // Counted from the start of the attempt: longer than these have run by now.
    let minimum = HELD_BACK_SECONDS + 10;
    scene
        .change_pool(json!({"preemption": {"min_runtime_seconds": minimum}}))
        .await;
    let (speech, mine) = newcomer(&scene, "speech", 0).await;
    wait_for_code(&speech, &mine, "preemption_not_allowed").await;
    scene
        .cluster
        .job_in(&speech, &mine, &["running"], START_BOUND)
        .await
        .unwrap();
    let taken = preempted(&scene, &jobs).await;
    assert_eq!(taken.len(), 1, "{taken:?}");
    let attempts = scene
        .member
        .list(&format!("/jobs/{}/attempts", taken[0].0))
        .await
        .unwrap();
    let first = attempts
        .iter()
        .find(|attempt| attempt["number"] == 1)
        .expect("the first attempt");
    let ran = seconds_between(&first["started_at"], &taken[0].2);
    assert!(ran >= minimum as f64, "after {ran} s");
    scene.traces.let_go().unwrap();
    scene.finish_when_all_ended().await;
}

#[tokio::test]
async fn a_team_suffers_no_more_evictions_an_hour_than_the_pool_says_also_over_a_restart() {
    let (mut scene, jobs) = borrowers("caps", "normal").await;
    scene
        .change_pool(json!({"preemption": {"max_per_team_hour": 1}}))
        .await;
    let (speech, first) = newcomer(&scene, "speech", 0).await;
    scene
        .cluster
        .job_in(&speech, &first, &["running"], START_BOUND)
        .await
        .unwrap();
    let (platform, second) = newcomer(&scene, "platform", 1).await;
    wait_for_code(&platform, &second, "preemption_not_allowed").await;
    scene.cluster.restart_server(0).await.unwrap();
    scene.agents_ready().await;
    let told = wait_for_code(&platform, &second, "preemption_not_allowed").await;
    let scope = told["scope"].as_str().unwrap_or_default();
    assert!(scope.contains("max_per_team_hour"), "{told}");
    assert_eq!(preempted(&scene, &jobs).await.len(), 1, "no second one");
    scene
        .change_pool(json!({"preemption": {"max_per_team_hour": 2}}))
        .await;
    scene
        .cluster
        .job_in(&platform, &second, &["running"], START_BOUND)
        .await
        .unwrap();
    assert_eq!(preempted(&scene, &jobs).await.len(), 2);
    scene.traces.let_go().unwrap();
    scene.finish_when_all_ended().await;
}

#[tokio::test]
async fn a_workload_suffers_no_more_preemptions_a_day_than_the_pool_says() {
    let (scene, jobs) = borrowers("per-day", "normal").await;
    scene
        .change_pool(json!({"preemption": {"max_per_day": 0}}))
        .await;
    let (speech, mine) = newcomer(&scene, "speech", 0).await;
    wait_for_code(&speech, &mine, "preemption_not_allowed").await;
    assert_eq!(preempted(&scene, &jobs).await, []);
    scene
        .change_pool(json!({"preemption": {"max_per_day": null}}))
        .await;
    scene
        .cluster
        .job_in(&speech, &mine, &["running"], START_BOUND)
        .await
        .unwrap();
    scene.traces.let_go().unwrap();
    scene.finish_when_all_ended().await;
}
