//! Nodes that are emptied by a deadline, end to end.

use serde_json::{Value, json};

use crate::support::{END_BOUND, Scene};

const NODE: &str = "l40s-1";
/// Long enough for a server to be killed and to be ready again before it.
const DEADLINE_SECONDS: i64 = 20;

async fn deadline(scene: &Scene) -> chrono::DateTime<chrono::Utc> {
    let path = format!("/nodes/{NODE}");
    let node = scene.cluster.admin().get(&path).await.unwrap();
    let by = node["drain_deadline_at"].as_str();
    by.and_then(|by| by.parse().ok()).expect("a deadline")
}

/// Waits until a job is as it is wanted.
async fn is(scene: &Scene, id: &str, what: &str, wanted: fn(&Value) -> bool) -> Value {
    rig::wait::until(what, END_BOUND, || async {
        let job = scene.member.get(&format!("/jobs/{id}")).await?;
        Ok(wanted(&job).then_some(job))
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_drain_by_a_deadline_outlives_the_server_that_took_it() {
    let mut scene = Scene::on_one_machine("drain-deadline", "vision").await;
    let id = scene.run("on-the-node", "l40s").await;
    let path = format!("/nodes/{NODE}");
    let drain = json!({ "deadline_seconds": DEADLINE_SECONDS, "reason": "a new fan" });
    let admin = scene.cluster.admin();
    admin.post(&format!("{path}/drain"), &drain).await.unwrap();
    let by = deadline(&scene).await;

    scene.cluster.restart_server(0).await.unwrap();
    scene.agents_ready().await;
    assert_eq!(deadline(&scene).await, by, "it stands");
    let job = scene.job(&id).await;
    assert!(scene.now().await < by, "the server was back in time");
    assert_eq!(
        job["state"], "running",
        "all of it may stay until then: {job}"
    );

    let queued = is(&scene, &id, "it has left", |job| job["state"] == "queued").await;
    assert!(scene.now().await >= by, "not before");
    let words = queued["message"].as_str().unwrap_or_default();
    let evictions = scene
        .member
        .get(&format!("/jobs/{id}/attempts"))
        .await
        .unwrap();
    assert!(
        words.contains("drain deadline") || evictions.to_string().contains("drain deadline"),
        "{queued} {evictions}"
    );
    let admin = scene.cluster.admin();
    admin
        .post(&format!("{path}/uncordon"), &json!({}))
        .await
        .unwrap();
    is(&scene, &id, "it runs again", |job| {
        job["state"] == "running" && job["attempt"] == 2
    })
    .await;
    scene.let_succeed(&id).await;
    e2e::laws::check_ledger(&scene.cluster).await.unwrap();
    scene.finish().await;
}
