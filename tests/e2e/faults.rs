//! Kills of every part while jobs run: each job ends once, none is lost, none runs twice.

use e2e::traces::Traces;
use rig::{Cluster, Options};
use serde_json::json;

use crate::support::{
    END_BOUND, START_BOUND, Scene, all_in, finish, one_machine, submit, three_machines,
};

/// One job per device, within each team's guarantee: nobody has a reason to be displaced.
const GUARANTEED: [(&str, &str, usize); 9] = [
    ("vision", "h100", 4),
    ("speech", "h100", 2),
    ("platform", "h100", 2),
    ("vision", "a100", 2),
    ("speech", "a100", 4),
    ("platform", "a100", 2),
    ("vision", "l40s", 1),
    ("speech", "l40s", 1),
    ("platform", "l40s", 2),
];

/// Three machines whose every device has a job that runs.
async fn twenty_jobs(name: &str) -> (Cluster, Traces, Vec<String>) {
    let cluster = three_machines(name).await;
    let traces = Traces::of(&cluster).unwrap();
    let mut ids = Vec::new();
    for (team, pool, count) in GUARANTEED {
        let member = cluster.sign_in(&format!("{team}-member")).await.unwrap();
        for number in 0..count {
            let spec = traces.job(&format!("{team}-{pool}-{number}"), pool);
            ids.push(submit(&member, team, &spec).await);
        }
    }
    all_in(&cluster, &ids, &["running"], START_BOUND).await;
    (cluster, traces, ids)
}

#[tokio::test]
async fn kills_of_server_agent_and_database_while_20_jobs_run_lose_and_double_nothing() {
    let (mut cluster, traces, ids) = twenty_jobs("kills").await;

    cluster.restart_server(0).await.unwrap();
    all_in(&cluster, &ids, &["running"], START_BOUND).await;
    for name in ["h100-1", "a100-1", "l40s-1"] {
        cluster.restart_agent(name).await.unwrap();
    }
    cluster.agents_ready(START_BOUND).await.unwrap();
    all_in(&cluster, &ids, &["running"], START_BOUND).await;
    cluster.restart_postgres().await.unwrap();
    cluster.agents_ready(START_BOUND).await.unwrap();
    all_in(&cluster, &ids, &["running"], START_BOUND).await;

    traces.let_go().unwrap();
    for job in all_in(&cluster, &ids, &["succeeded"], END_BOUND).await {
        assert_eq!(
            job["attempt"], 1,
            "nothing gave a reason for another attempt: {job}"
        );
        let lines = traces.lines(job["id"].as_str().expect("an id")).unwrap();
        let what: Vec<&str> = lines.iter().map(|line| line.what.as_str()).collect();
        assert_eq!(what, ["start", "end"], "{job}");
    }
    e2e::laws::check_ledger(&cluster).await.unwrap();
    finish(cluster, Some(&traces)).await;
}

#[tokio::test]
async fn jobs_that_end_while_everything_is_down_have_ended_once_it_is_back() {
    let (mut cluster, traces, ids) = twenty_jobs("blackout").await;
    for agent in cluster.agents.values_mut() {
        agent.kill().await.unwrap();
    }
    cluster.servers[0].kill().await.unwrap();
    cluster.postgres.kill().await.unwrap();
    traces.let_go().unwrap();
    rig::wait::until_true("every process has written its end", END_BOUND, || {
        ids.iter().all(|id| {
            traces
                .lines(id)
                .unwrap()
                .iter()
                .any(|line| line.what == "end")
        })
    })
    .await
    .unwrap();
    cluster.postgres.begin().await.unwrap();
    cluster.servers[0].begin().await.unwrap();
    cluster.servers[0].ready().await.unwrap();
    for agent in cluster.agents.values_mut() {
        agent.begin().unwrap();
    }
    for job in all_in(&cluster, &ids, &["succeeded"], END_BOUND).await {
        assert_eq!(job["attempt"], 1, "{job}");
    }
    finish(cluster, Some(&traces)).await;
}

/// F5: PostgreSQL is away for a while.
#[tokio::test]
async fn without_the_database_requests_get_503_jobs_go_on_and_the_queue_resumes_by_itself() {
    let mut scene = Scene::on_one_machine("no-db", "vision").await;
    let running = scene.run("running", "l40s").await;
    rig::wait::until_true("its process has written its start", START_BOUND, || {
        !scene.traces.lines(&running).unwrap().is_empty()
    })
    .await
    .unwrap();

    let mut follower = scene.traces.job("follower", "l40s");
    follower["after"] = json!([running]);
    let follower = submit(&scene.member, "vision", &follower).await;

    scene.cluster.postgres.stop().await.unwrap();
    let response = scene
        .member
        .request(reqwest::Method::GET, "/jobs")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 503);
    assert!(
        response.headers().contains_key("retry-after"),
        "{:?}",
        response.headers()
    );
    let health = reqwest::Client::new();
    let ready = health
        .get(format!("{}/readyz", scene.cluster.url()))
        .send()
        .await
        .unwrap();
    assert_eq!(ready.status(), 503, "not ready without a database");
    let alive = health
        .get(format!("{}/healthz", scene.cluster.url()))
        .send()
        .await
        .unwrap();
    assert_eq!(alive.status(), 200, "but alive");
    let lines = scene.traces.lines(&running).unwrap();
    assert_eq!(lines.len(), 1, "it goes on: {lines:?}");
    scene.traces.let_go().unwrap();
    rig::wait::until_true("it has ended without anybody to hear it", END_BOUND, || {
        let lines = scene.traces.lines(&running).unwrap();
        lines.iter().any(|line| line.what == "end")
    })
    .await
    .unwrap();

    scene.cluster.postgres.begin().await.unwrap();
    scene.cluster.servers[0].ready().await.unwrap();
    let later = scene.submit("later", "l40s").await;
    for id in [&running, &follower, &later] {
        let job = scene.let_succeed(id).await;
        assert_eq!(job["attempt"], 1, "{job}");
    }
    scene.finish().await;
}

/// F7: the agent dies during a job.
#[tokio::test]
async fn a_killed_agent_finds_its_job_again_with_a_log_without_gap_or_repeat() {
    let mut scene = Scene::on_one_machine("adopt", "vision").await;
    let id = scene.run("adopted", "l40s").await;
    for _ in 0..3 {
        scene.cluster.restart_agent("l40s-1").await.unwrap();
        scene.agents_ready().await;
    }
    let job = scene.let_succeed(&id).await;
    assert_eq!(job["attempt"], 1, "{job}");
    let log = scene
        .member
        .text(&format!("/jobs/{id}/logs"))
        .await
        .unwrap();
    let mut lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.pop(), Some("end"), "{log}");
    let numbers: Vec<usize> = lines
        .iter()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(numbers, (0..numbers.len()).collect::<Vec<_>>());
    // What it used is one stretch for each place, from when its node took it to its end, whoever died meanwhile.
    let used = format!(
        "SELECT s.started_at = a.handed_over_at AND s.ended_at = a.ended_at AS whole, s.gpus_milli
         FROM usage_segments AS s JOIN assignments AS a ON a.id = s.assignment_id
         WHERE s.kind = 'charged' AND a.job_id = '{id}'"
    );
    let used = scene.cluster.postgres.query(&used).await.unwrap();
    assert_eq!(used, [json!({"whole": true, "gpus_milli": 1000})]);
    scene.finish().await;
}

/// F15: a device falls off the bus while its job runs.
#[tokio::test]
async fn a_device_that_vanishes_ends_its_job_with_that_reason_and_leaves_the_others() {
    lose_a_device("device", false).await;
}

/// F15 as its name has it: the device is gone when its agent comes back.
#[tokio::test]
async fn a_device_that_is_gone_when_its_agent_starts_again_ends_its_job_and_leaves_the_others() {
    lose_a_device("device-away", true).await;
}

async fn lose_a_device(name: &str, agent_away: bool) {
    let mut scene = Scene::on_one_machine(name, "platform").await;
    let mut ids = Vec::new();
    for number in 0..2 {
        ids.push(scene.run(&format!("on-device-{number}"), "l40s").await);
    }
    let job = scene.job(&ids[0]).await;
    let index = job["placement"][0]["devices"][0]["index"]
        .as_u64()
        .expect("an index");
    let index = usize::try_from(index).expect("small");
    let agent = scene.cluster.agent("l40s-1").unwrap();
    if agent_away {
        agent.kill().await.unwrap();
    }
    agent.lose_devices(&[index]).unwrap();
    if agent_away {
        agent.begin().unwrap();
        scene.agents_ready().await;
    }
    // It is requeued and finds another device.
    rig::wait::until("a second attempt runs", END_BOUND, || async {
        let job = scene.member.get(&format!("/jobs/{}", ids[0])).await?;
        Ok((job["attempt"] == 2 && job["state"] == "running").then_some(()))
    })
    .await
    .unwrap();
    let attempts = scene
        .member
        .list(&format!("/jobs/{}/attempts", ids[0]))
        .await
        .unwrap();
    let first = attempts
        .iter()
        .find(|attempt| attempt["number"] == 1)
        .expect("the first attempt");
    assert_eq!(first["reason"], "node_lost", "{first}");
    let node = scene.cluster.admin().get("/nodes/l40s-1").await.unwrap();
    let failed: Vec<&serde_json::Value> = node["devices"]
        .as_array()
        .expect("devices")
        .iter()
        .filter(|device| device["health"] == "failed")
        .collect();
    assert_eq!(failed.len(), 1, "{node}");
    scene.let_succeed(&ids[0]).await;
    let other = scene.let_succeed(&ids[1]).await;
    assert_eq!(other["attempt"], json!(1), "the other went on");
    scene.finish().await;
}

#[tokio::test]
async fn a_second_server_takes_over_from_a_killed_leader_and_passes_logs_on() {
    let mut options = Options::for_test("two-servers", one_machine()).unwrap();
    options.servers = 2;
    let mut scene = Scene::begin(options, "vision").await;
    let other = scene.member.at(&scene.cluster.servers[1].url());
    let spec = scene.traces.job("seen-by-both", "l40s");
    let id = submit(&other, "vision", &spec).await;
    scene.runs(&id).await;
    // The agent's stream is with one of the two; both can show the log.
    for api in [&scene.member, &other] {
        rig::wait::until("the log's first line", START_BOUND, || async {
            Ok(api
                .text(&format!("/jobs/{id}/logs"))
                .await?
                .starts_with("0\n")
                .then_some(()))
        })
        .await
        .unwrap();
    }
    // Whichever leads: kill the second, submit at the first; then the reverse.
    for (down, up) in [(1, 0), (0, 1)] {
        scene.cluster.servers[down].kill().await.unwrap();
        let api = scene.member.at(&scene.cluster.servers[up].url());
        let next = submit(&api, "vision", &scene.traces.job("next", "l40s")).await;
        if up == 0 {
            scene.runs(&next).await;
        }
        // The agent knows the first server's address alone: without it, what is submitted waits.
        scene.cluster.servers[down].begin().await.unwrap();
        scene.cluster.servers[down].ready().await.unwrap();
        scene.runs(&next).await;
    }
    scene.traces.let_go().unwrap();
    rig::wait::until("all have ended", END_BOUND, || async {
        let jobs = scene.cluster.admin().list("/jobs?limit=100").await?;
        Ok(jobs
            .iter()
            .all(|job| job["state"] == "succeeded")
            .then_some(()))
    })
    .await
    .unwrap();
    scene.finish().await;
}
