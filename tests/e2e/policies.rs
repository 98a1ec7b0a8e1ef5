//! Policies as they work on real machines: moves, bookings, windows, devices that fail, quotas that change.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use rig::agents_file::Machine;
use rig::api::Api;
use rig::{Options, wait};
use serde_json::{Value, json};

use crate::support::{
    END_BOUND, START_BOUND, Scene, all_in, set_quota, signal, submit, wait_for_code,
};

/// Two machines with 4 devices each, in one pool.
fn two_machines() -> Vec<Machine> {
    vec![
        Machine::simulated("l40s-1", "l40s-4", "l40s"),
        Machine::simulated("l40s-2", "l40s-4", "l40s"),
    ]
}

/// A window opens and closes at whole minutes: one that opens soon does so within this.
const EDGE_BOUND: Duration = Duration::from_secs(150);

#[tokio::test]
async fn work_that_is_moved_for_a_larger_one_goes_on_from_its_checkpoint_on_another_machine() {
    let mut options = Options::for_test("move", two_machines()).unwrap();
    options.checkpoints_shared = true;
    let scene = Scene::begin(options, "platform").await;
    scene
        .change_pool(json!({"strategy": "spread", "preemption": {"consolidate": true}}))
        .await;
    let mut digits =
        rig::examples::read(&rig::paths::checkout_of_build().join("examples/digits/job.yaml"))
            .unwrap();
    digits["command"] = json!(["python3", "train.py", "--epochs", "100000"]);
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let id = submit(&scene.member, "platform", &digits).await;
        scene.runs(&id).await;
        // It has something to lose.
        scene.log_has(&id, "epoch 2/").await;
        jobs.push(id);
    }
    let mut nodes: Vec<Value> = Vec::new();
    for id in &jobs {
        nodes.push(scene.job(id).await["placement"][0]["node"].clone());
    }
    assert_ne!(nodes[0], nodes[1], "spread over both machines");

    let vision = scene.cluster.sign_in("vision-member").await.unwrap();
    let mut large = scene.traces.job("large", "l40s");
    large["per_worker"] = json!({"gpus": 4});
    let large = submit(&vision, "vision", &large).await;
    scene
        .cluster
        .job_in(&vision, &large, &["running"], START_BOUND)
        .await
        .unwrap();
    all_in(&scene.cluster, &jobs, &["running"], START_BOUND).await;
    let mut moved = Vec::new();
    for id in &jobs {
        let attempts = scene
            .member
            .list(&format!("/jobs/{id}/attempts"))
            .await
            .unwrap();
        if let Some(first) = attempts.iter().find(|a| a["reason"] == "preempted") {
            assert_eq!(first["preemption_rule"], "consolidation", "{first}");
            moved.push(id.clone());
        }
    }
    assert_eq!(moved.len(), 1, "one is moved, the other stays: {moved:?}");
    let after = scene.job(&moved[0]).await;
    assert_eq!(after["attempt"], 2, "{after}");
    scene.log_has(&moved[0], "resuming in epoch").await;
    for id in &jobs {
        scene
            .member
            .post(&format!("/jobs/{id}/cancel"), &json!({}))
            .await
            .unwrap();
    }
    scene.traces.let_go().unwrap();
    scene.finish_when_all_ended().await;
}

#[tokio::test]
async fn what_is_booked_is_lent_until_it_begins_and_is_its_teams_then() {
    let scene = Scene::on_one_machine("booking", "vision").await;
    for number in 0..4 {
        scene.run(&format!("lent-{number}"), "l40s").await;
    }
    // With all that is guaranteed to others, the machine has what is booked.
    let admin = scene.cluster.admin();
    set_quota(admin, "platform", "l40s", json!({"guaranteed": 0})).await;
    let now = scene.now().await;
    let at = |seconds: i64| (now + chrono::TimeDelta::seconds(seconds)).to_rfc3339();
    let begins = at(8);
    let booking =
        json!({"name": "demo", "team": "speech", "gpus": 2, "from": begins, "to": at(600)});
    let booking = admin.post("/pools/l40s/bookings", &booking).await.unwrap();
    assert_eq!(booking["conflicts"], json!([]), "{booking}");
    // One device is its guarantee; two more are booked.
    let speech = scene.cluster.sign_in("speech-member").await.unwrap();
    let mut booked = Vec::new();
    for number in 0..3 {
        let spec = scene.traces.job(&format!("booked-{number}"), "l40s");
        booked.push(submit(&speech, "speech", &spec).await);
    }
    for job in all_in(&scene.cluster, &booked, &["running"], START_BOUND).await {
        let attempts = speech
            .list(&format!(
                "/jobs/{}/attempts",
                job["id"].as_str().expect("an id")
            ))
            .await
            .unwrap();
        assert_eq!(attempts.len(), 1, "nobody takes it from the booking");
    }
    // Before it began only the guarantee was taken back, by the evictions of who left.
    let early = scene
        .cluster
        .postgres
        .query(&format!(
            "SELECT rule, at < '{begins}' AS early FROM evictions"
        ))
        .await
        .unwrap();
    let count = |early_too: bool| early.iter().filter(|row| row["early"] == early_too).count();
    assert_eq!((count(true), count(false)), (1, 2), "{early:?}");
    scene.traces.let_go().unwrap();
    scene.finish_when_all_ended().await;
}

#[tokio::test]
async fn a_window_changes_who_has_a_guarantee_at_its_edge_and_no_earlier() {
    let scene = Scene::on_one_machine("window", "vision").await;
    let admin = scene.cluster.admin();
    set_quota(
        admin,
        "platform",
        "l40s",
        json!({"guaranteed": 0, "limit": 0}),
    )
    .await;
    for number in 0..4 {
        scene.run(&format!("by-day-{number}"), "l40s").await;
    }
    let platform = scene.cluster.sign_in("platform-member").await.unwrap();
    let waiting = submit(&platform, "platform", &scene.traces.job("by-night", "l40s")).await;
    wait_for_code(&platform, &waiting, "over_limit").await;

    // The next whole minute that is not so near that the window would come too late for it.
    let opens = scene.now().await + chrono::TimeDelta::seconds(75);
    let opens = opens - chrono::TimeDelta::seconds(opens.timestamp().rem_euclid(60));
    let closes = opens + chrono::TimeDelta::hours(1);
    let window = json!({
        "name": "night", "days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
        "from": opens.format("%H:%M").to_string(), "to": closes.format("%H:%M").to_string(),
        "time_zone": "UTC", "quotas": [{"team": "platform", "quota": {"guaranteed": 2, "limit": 2}}]
    });
    admin.post("/pools/l40s/windows", &window).await.unwrap();
    scene
        .cluster
        .job_in(&platform, &waiting, &["running"], EDGE_BOUND)
        .await
        .unwrap();
    let edge = opens.timestamp() / 60 * 60;
    let granted = scene
        .cluster
        .postgres
        .query(&format!(
            "SELECT extract(epoch FROM created_at)::float8 >= {edge} AS in_time
             FROM attempts WHERE job_id = '{waiting}'"
        ))
        .await
        .unwrap();
    assert_eq!(granted, [json!({"in_time": true})]);
    // What holds outside of the window is as it was: gone again once the window is.
    let listed = admin.list("/pools/l40s/windows").await.unwrap();
    let version = listed[0]["version"].as_i64().expect("a version");
    let removed = admin
        .request(Method::DELETE, "/pools/l40s/windows/night")
        .header("If-Match", format!("\"{version}\""))
        .send()
        .await
        .unwrap();
    assert!(removed.status().is_success(), "{removed:?}");
    let late = submit(&platform, "platform", &scene.traces.job("too-late", "l40s")).await;
    wait_for_code(&platform, &late, "over_limit").await;
    platform
        .post(&format!("/jobs/{late}/cancel"), &json!({}))
        .await
        .unwrap();
    scene.traces.let_go().unwrap();
    scene.finish_when_all_ended().await;
}

#[tokio::test]
async fn guarantees_shrink_in_proportion_when_a_device_fails_and_everybody_is_told() {
    let mut scene = Scene::on_one_machine("shrink", "platform").await;
    let mut jobs = Vec::new();
    for (team, count) in [("vision", 1), ("speech", 1), ("platform", 2)] {
        let member = scene
            .cluster
            .sign_in(&format!("{team}-member"))
            .await
            .unwrap();
        for number in 0..count {
            let spec = scene.traces.job(&format!("{team}-{number}"), "l40s");
            jobs.push(submit(&member, team, &spec).await);
        }
    }
    let running = all_in(&scene.cluster, &jobs, &["running"], START_BOUND).await;
    let admin = scene.cluster.admin().clone();
    let pool = admin.get("/pools/l40s").await.unwrap();
    assert_eq!(pool["overpromised"], Value::Null, "{pool}");

    let lost = running[0]["placement"][0]["devices"][0]["index"]
        .as_u64()
        .expect("an index");
    let lost = usize::try_from(lost).expect("small");
    scene
        .cluster
        .agent("l40s-1")
        .unwrap()
        .lose_devices(&[lost])
        .unwrap();
    let told = wait::until("the pool says that it is short", END_BOUND, || async {
        let pool = admin.get("/pools/l40s").await?;
        Ok((!pool["overpromised"].is_null()).then_some(pool))
    })
    .await
    .unwrap();
    assert_eq!(
        told["overpromised"],
        json!({"guaranteed": 4, "capacity": 3}),
        "{told}"
    );
    // Whose guarantees are whole devices no more gives way to nobody: the three that run go on.
    let states = async |scene: &Scene| {
        let mut states: BTreeMap<String, usize> = BTreeMap::new();
        for id in &jobs {
            let job = scene.cluster.admin().get(&format!("/jobs/{id}")).await?;
            let state = job["state"].as_str().expect("a state").to_owned();
            *states.entry(state).or_default() += 1;
        }
        anyhow::Ok(states)
    };
    wait::until("three run and one waits", END_BOUND, || async {
        let now = states(&scene).await?;
        Ok((now.get("running") == Some(&3) && now.get("queued") == Some(&1)).then_some(()))
    })
    .await
    .unwrap();
    let first = &jobs[0];
    let attempts = admin
        .list(&format!("/jobs/{first}/attempts"))
        .await
        .unwrap();
    assert_eq!(attempts[0]["reason"], "node_lost", "{attempts:?}");
    scene.traces.let_go().unwrap();
    scene.finish_when_all_ended().await;
}

/// F20: a limit falls below what is held, while more is asked for.
#[tokio::test]
async fn a_limit_that_falls_below_use_lets_nothing_more_in_and_stops_nothing() {
    let scene = Scene::on_one_machine("lowered", "vision").await;
    let mut jobs = Vec::new();
    for number in 0..3 {
        jobs.push(scene.run(&format!("before-{number}"), "l40s").await);
    }
    let admin = scene.cluster.admin();
    for number in 0..4 {
        jobs.push(scene.submit(&format!("during-{number}"), "l40s").await);
        if number == 1 {
            let lowered = json!({"guaranteed": 1, "limit": 2});
            set_quota(admin, "vision", "l40s", lowered).await;
        }
    }
    let last = jobs.last().expect("submitted").clone();
    let told = wait_for_code(&scene.member, &last, "over_limit").await;
    assert_eq!(told["scope"], "team vision", "{told}");
    let running = scene
        .member
        .list("/jobs?state=running&limit=100")
        .await
        .unwrap();
    assert!(running.len() >= 3, "nothing was stopped: {running:?}");
    let report = scene.member.get("/teams/vision/quota-statement").await;
    let report = report.unwrap();
    let lines = report["items"].as_array().expect("lines").iter();
    let over: Vec<i64> = lines
        .filter(|line| line["team"] == "vision" && line["pool"] == "l40s")
        .map(|line| line["over_limit"].as_i64().expect("a whole number"))
        .collect();
    assert!(
        over.len() == 1 && over[0] >= 1,
        "the report says so: {report}"
    );
    scene.traces.let_go().unwrap();
    scene.finish_when_all_ended().await;
}

/// F14: one node of a gang does not answer when the gang is to start.
#[tokio::test]
async fn a_gang_of_which_one_node_does_not_take_its_worker_lets_all_go_and_starts_whole_later() {
    let machines: Vec<Machine> = (1..=4)
        .map(|number| Machine::simulated(&format!("l40s-{number}"), "l40s-4", "l40s"))
        .collect();
    let options = Options::for_test("gang", machines)
        .unwrap()
        .timer("start_window_ms", 3_000);
    let mut scene = Scene::begin(options, "vision").await;
    let agent = scene.cluster.agent("l40s-4").unwrap().pid();
    signal(agent, "STOP");
    let mut gang = scene.traces.job("gang", "l40s");
    gang["workers"] = json!(4);
    gang["per_worker"] = json!({"gpus": 4});
    let gang = submit(&scene.member, "vision", &gang).await;
    let first = wait::until("the first attempt has ended", END_BOUND, || async {
        let attempts = scene.member.list(&format!("/jobs/{gang}/attempts")).await?;
        let ended = attempts
            .into_iter()
            .find(|attempt| attempt["state"] == "ended");
        Ok(ended)
    })
    .await
    .unwrap();
    assert_eq!(first["reason"], "start_refused", "{first}");
    assert_eq!(
        scene.traces.lines(&gang).unwrap(),
        [],
        "no worker began without the others"
    );
    signal(agent, "CONT");
    scene.runs(&gang).await;
    let job = scene.let_succeed(&gang).await;
    assert!(job["attempt"].as_i64() >= Some(2), "{job}");
    let starts = scene.traces.lines(&gang).unwrap();
    let starts = starts.iter().filter(|line| line.what == "start").count();
    assert_eq!(starts, 4, "each worker once");
    scene.finish().await;
}

/// Sixty-four people submit at once while the limits of their teams change under them.
#[tokio::test]
async fn sixty_four_submitters_and_changing_limits_never_exceed_a_limit() {
    const SUBMITTERS: usize = 64;
    const JOBS_EACH: usize = 3;
    let scene = Scene::on_one_machine("submitters", "vision").await;
    let mut teams: Vec<(&'static str, Api)> = Vec::new();
    for team in ["vision", "speech", "platform"] {
        let member = scene
            .cluster
            .sign_in(&format!("{team}-member"))
            .await
            .unwrap();
        teams.push((team, member));
    }
    let mut submitters = tokio::task::JoinSet::new();
    for number in 0..SUBMITTERS {
        let (team, member) = teams[number % teams.len()].clone();
        submitters.spawn(async move {
            let mut ids = Vec::new();
            for job in 0..JOBS_EACH {
                let spec = json!({
                    "name": format!("burst-{number}-{job}"), "pools": ["l40s"], "command": ["sleep", "0.1"],
                    "per_worker": {"gpus": 1}
                });
                ids.push(submit(&member, team, &spec).await);
            }
            ids
        });
    }
    let admin = scene.cluster.admin();
    let mut ids = Vec::new();
    let mut limit = 0;
    while let Some(done) = submitters.join_next().await {
        ids.extend(done.unwrap());
        limit = limit % 4 + 1;
        for (team, _) in &teams {
            let quota = json!({"guaranteed": 1, "limit": limit});
            set_quota(admin, team, "l40s", quota).await;
        }
    }
    assert_eq!(ids.len(), SUBMITTERS * JOBS_EACH);
    all_in(&scene.cluster, &ids, &["succeeded"], 3 * END_BOUND).await;
    // Of each start the laws ask whether its team's limit allowed it.
    scene.finish().await;
}
