//! How often work may be made to give way, across a kill of the server.

use reqwest::Method;
use rig::Options;
use rig::api::Api;
use serde_json::{Value, json};

use crate::support::{START_BOUND, finish, one_machine, start, submit};

/// Four devices of pool `l40s`, of which vision is guaranteed one and speech one.
#[tokio::test]
async fn bounds_on_evictions_hold_over_a_kill_of_the_server() {
    let mut cluster = start(Options::for_test("caps", one_machine()).unwrap()).await;
    let vision = cluster.sign_in("vision-member").await.unwrap();
    let speech = cluster.sign_in("speech-member").await.unwrap();
    let admin = cluster.admin().clone();
    bound(&admin, json!({"max_per_day": 1, "max_per_team_hour": null})).await;

    let victim = submit(&vision, "vision", &sleeper(4)).await;
    runs(&cluster, &victim).await;
    let first = submit(&speech, "speech", &sleeper(1)).await;
    runs(&cluster, &first).await;
    cancel(&speech, &first).await;
    runs(&cluster, &victim).await;

    // It has given way once today, and no counter in a process says so.
    cluster.restart_server(0).await.unwrap();
    let second = submit(&speech, "speech", &sleeper(1)).await;
    waits(&cluster, &second, "preemption_not_allowed").await;

    // So has its team this hour.
    bound(&admin, json!({"max_per_day": null, "max_per_team_hour": 1})).await;
    cluster.restart_server(0).await.unwrap();
    let third = submit(&speech, "speech", &sleeper(1)).await;
    waits(&cluster, &third, "preemption_not_allowed").await;
    cancel(&speech, &third).await;

    let path = format!("/jobs/{victim}/evictions");
    let told = vision.get(&path).await.unwrap();
    let items = told["items"].as_array().expect("evictions");
    assert_eq!(items.len(), 1, "{told}");
    assert_eq!(items[0]["rule"], "reclaim", "{told}");
    assert_eq!(items[0]["for"]["team"], Value::Null, "another team: {told}");
    assert_eq!(items[0]["devices"], 4, "{told}");

    // Without a bound it gives way again.
    bound(
        &admin,
        json!({"max_per_day": null, "max_per_team_hour": null}),
    )
    .await;
    runs(&cluster, &second).await;
    let told = vision.get(&path).await.unwrap();
    assert_eq!(told["items"].as_array().map(Vec::len), Some(2), "{told}");
    cancel(&speech, &second).await;
    cancel(&vision, &victim).await;
    for id in [&second, &victim] {
        let ended = cluster.job_in(&admin, id, &["cancelled"], START_BOUND);
        ended.await.unwrap();
    }
    finish(cluster, None).await;
}

fn sleeper(gpus: u32) -> Value {
    json!({
        "name": "sleeper", "pools": ["l40s"], "command": ["sleep", "600"], "per_worker": {"gpus": gpus},
        "time_limit_seconds": 900
    })
}

async fn runs(cluster: &rig::Cluster, id: &str) {
    let runs = cluster.job_in(cluster.admin(), id, &["running"], START_BOUND);
    runs.await.unwrap();
}

/// Waits until the scheduler has said so of a waiting job.
async fn waits(cluster: &rig::Cluster, id: &str, reason: &str) {
    let path = format!("/jobs/{id}");
    rig::wait::until(reason, START_BOUND, || async {
        let job = cluster.admin().get(&path).await?;
        Ok((job["reason"] == reason).then_some(()))
    })
    .await
    .unwrap();
}

async fn cancel(api: &Api, id: &str) {
    let path = format!("/jobs/{id}/cancel");
    api.post(&path, &json!({})).await.unwrap();
}

/// Sets keys of the pool's rules of preemption.
async fn bound(admin: &Api, preemption: Value) {
    let pool = admin.get("/pools/l40s").await.unwrap();
    let version = pool["version"].as_i64().expect("a version");
    let answer = admin
        .request(Method::PATCH, "/pools/l40s")
        .header("If-Match", format!("\"{version}\""))
        .json(&json!({"preemption": preemption}))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
}
