//! Agents that are cut off from their server: for less than a lease, for longer, across a renewal of their certificate.

use std::time::Duration;

use rig::Options;
use rig::agent::Reach;
use rig::agents_file::Machine;
use rig::netns::Namespace;
use serde_json::json;

use crate::support::{END_BOUND, START_BOUND, Scene, one_machine, skip, submit};

/// Two machines in one pool, each behind a proxy.
fn two_machines() -> Vec<Machine> {
    vec![
        Machine::simulated("l40s-1", "l40s-4", "l40s"),
        Machine::simulated("l40s-2", "l40s-4", "l40s"),
    ]
}

/// F9.
#[tokio::test]
async fn a_partition_shorter_than_the_lease_changes_nothing() {
    let mut scene = Scene::behind_proxies("short-cut", one_machine(), 20_000).await;
    let id = scene.run("unmoved", "l40s").await;
    for _ in 0..3 {
        scene.cut("l40s-1");
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        scene.heal("l40s-1").await;
    }
    let job = scene.job(&id).await;
    assert_eq!(
        (&job["state"], &job["attempt"]),
        (&json!("running"), &json!(1)),
        "{job}"
    );
    scene.let_succeed(&id).await;
    let lines = scene.traces.lines(&id).unwrap();
    assert_eq!(lines.len(), 2, "one start and one end: {lines:?}");
    e2e::laws::check_ledger(&scene.cluster).await.unwrap();
    scene.finish().await;
}

async fn node_of(scene: &Scene, id: &str) -> String {
    let job = scene.job(id).await;
    job["placement"][0]["node"]
        .as_str()
        .expect("a node")
        .to_owned()
}

/// F10.
#[tokio::test]
async fn a_partition_longer_than_the_lease_moves_stop_work_and_never_doubles_it() {
    let mut scene = Scene::behind_proxies("long-cut", two_machines(), 4_000).await;
    let id = scene.run("moved", "l40s").await;
    let first = node_of(&scene, &id).await;
    scene.cut(&first);
    rig::wait::until("the job runs elsewhere", END_BOUND, || async {
        let job = scene.member.get(&format!("/jobs/{id}")).await?;
        Ok((job["attempt"] == 2 && job["state"] == "running").then_some(()))
    })
    .await
    .unwrap();
    assert_ne!(node_of(&scene, &id).await, first);
    let what: Vec<(String, u32)> = scene
        .traces
        .lines(&id)
        .unwrap()
        .into_iter()
        .map(|line| (line.what, line.attempt))
        .collect();
    let seen = |what: &str, attempt| (what.to_owned(), attempt);
    rig::wait::until_true("the new process writes its start", START_BOUND, || {
        scene
            .traces
            .lines(&id)
            .unwrap()
            .iter()
            .any(|line| line.attempt == 2)
    })
    .await
    .unwrap();
    assert!(
        what.starts_with(&[seen("start", 1), seen("term", 1)]),
        "stopped before it was placed again: {what:?}"
    );

    scene.heal(&first).await;
    let attempts = scene
        .member
        .list(&format!("/jobs/{id}/attempts"))
        .await
        .unwrap();
    let lost = attempts
        .iter()
        .find(|attempt| attempt["number"] == 1)
        .expect("the first attempt");
    assert_eq!(lost["reason"], "node_lost", "{lost}");
    let job = scene.let_succeed(&id).await;
    assert_eq!(job["attempt"], 2, "{job}");
    e2e::laws::check_ledger(&scene.cluster).await.unwrap();
    scene.finish().await;
}

/// F11.
#[tokio::test]
async fn keep_work_outlives_a_long_partition_as_the_same_attempt() {
    let mut scene = Scene::behind_proxies("keep-cut", two_machines(), 3_000).await;
    let mut spec = scene.traces.job("kept", "l40s");
    spec["on_partition"] = json!("keep");
    let id = submit(&scene.member, "vision", &spec).await;
    scene.runs(&id).await;
    let node = node_of(&scene, &id).await;
    scene.cut(&node);
    rig::wait::until("the node is lost", END_BOUND, || async {
        let found = scene.cluster.admin().get(&format!("/nodes/{node}")).await?;
        Ok((found["reachability"] == "lost").then_some(()))
    })
    .await
    .unwrap();
    scene.heal(&node).await;
    let job = scene.let_succeed(&id).await;
    assert_eq!(job["attempt"], 1, "{job}");
    let lines = scene.traces.lines(&id).unwrap();
    assert_eq!(lines.len(), 2, "one start and one end: {lines:?}");
    scene.finish().await;
}

/// F12: the end of a job is asked for while its node cannot hear it.
#[tokio::test]
async fn a_job_cancelled_while_its_start_is_on_the_way_never_runs_later() {
    let mut scene = Scene::behind_proxies("late-start", one_machine(), 20_000).await;
    scene.cut("l40s-1");
    let id = scene.submit("too-late", "l40s").await;
    scene
        .cluster
        .job_in(&scene.member, &id, &["starting"], START_BOUND)
        .await
        .unwrap();
    scene
        .member
        .post(&format!("/jobs/{id}/cancel"), &json!({}))
        .await
        .unwrap();
    scene.heal("l40s-1").await;
    scene
        .cluster
        .job_in(&scene.member, &id, &["cancelled"], END_BOUND)
        .await
        .unwrap();
    // The node works on: what comes after it runs, and the cancelled one did not.
    let next = scene.run("next", "l40s").await;
    assert!(scene.traces.lines(&id).unwrap().is_empty(), "it never ran");
    scene.let_succeed(&next).await;
    scene.finish().await;
}

/// A second machine: an agent in another network namespace, cut off until its certificate
/// has expired.
#[tokio::test]
async fn a_second_machine_joins_and_recovers_from_a_partition_across_its_renewal() {
    if let Some(reason) = Namespace::impossible() {
        return skip(&reason);
    }
    let space = Namespace::make(1).unwrap();
    let mut options = Options::for_test("netns", one_machine()).unwrap();
    options.bind = "0.0.0.0".to_owned();
    options.server_names = vec![space.outer.clone()];
    options.agents = vec![("certificate_seconds", 16)];
    let mut scene = Scene::begin(options, "vision").await;
    let reach = Reach {
        server_url: format!(
            "https://{}:{}",
            space.outer,
            scene.cluster.servers[0].addresses().agents.port()
        ),
        address: space.inner.clone(),
        settings: String::new(),
        namespace: Some(space.name.clone()),
        shared_checkpoints: None,
    };
    scene
        .cluster
        .add_agent(
            Machine::simulated("a100-9", "dgx-a100", "a100"),
            Some(reach),
        )
        .await
        .unwrap();
    scene.agents_ready().await;
    let id = scene.run("far", "a100").await;

    space.cut().unwrap();
    // Longer than a certificate's life, shorter than the lease of 60 s.
    tokio::time::sleep(Duration::from_secs(20)).await;
    space.heal().unwrap();
    scene.cluster.agents_ready(END_BOUND).await.unwrap();
    let later = scene.run("later", "a100").await;
    for id in [&id, &later] {
        let job = scene.let_succeed(id).await;
        assert_eq!(job["attempt"], 1, "{job}");
    }
    scene.finish().await;
    drop(space);
}
