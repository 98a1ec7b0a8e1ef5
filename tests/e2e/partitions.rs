//! Agents that are cut off from their server: for less than a lease, for longer, across a renewal of their certificate.

use std::time::Duration;

use e2e::traces::Traces;
use rig::agent::Reach;
use rig::agents_file::Machine;
use rig::netns::Namespace;
use rig::{Cluster, Options};
use serde_json::json;

use crate::support::{END_BOUND, START_BOUND, finish, one_machine, start, submit};

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
    let mut options = Options::for_test("short-cut", one_machine())
        .unwrap()
        .timer("node_lease_ms", 20_000);
    options.proxied = true;
    let mut cluster = start(options).await;
    let traces = Traces::of(&cluster).unwrap();
    let member = cluster.sign_in("vision-member").await.unwrap();
    let id = submit(&member, "vision", &traces.job("unmoved", "l40s")).await;
    cluster
        .job_in(&member, &id, &["running"], START_BOUND)
        .await
        .unwrap();
    for _ in 0..3 {
        cluster.proxy("l40s-1").unwrap().cut();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        cluster.proxy("l40s-1").unwrap().heal();
        cluster.agents_ready(START_BOUND).await.unwrap();
    }
    let job = member.get(&format!("/jobs/{id}")).await.unwrap();
    assert_eq!(
        (&job["state"], &job["attempt"]),
        (&json!("running"), &json!(1)),
        "{job}"
    );
    traces.let_go().unwrap();
    cluster
        .job_in(&member, &id, &["succeeded"], END_BOUND)
        .await
        .unwrap();
    let lines = traces.lines(&id).unwrap();
    assert_eq!(lines.len(), 2, "one start and one end: {lines:?}");
    e2e::laws::check_ledger(&cluster).await.unwrap();
    finish(cluster, Some(&traces)).await;
}

async fn node_of(cluster: &Cluster, id: &str) -> String {
    let job = cluster.admin().get(&format!("/jobs/{id}")).await.unwrap();
    job["placement"][0]["node"]
        .as_str()
        .expect("a node")
        .to_owned()
}

/// F10.
#[tokio::test]
async fn a_partition_longer_than_the_lease_moves_stop_work_and_never_doubles_it() {
    let mut options = Options::for_test("long-cut", two_machines())
        .unwrap()
        .timer("node_lease_ms", 4_000);
    options.proxied = true;
    let mut cluster = start(options).await;
    let traces = Traces::of(&cluster).unwrap();
    let member = cluster.sign_in("vision-member").await.unwrap();
    let id = submit(&member, "vision", &traces.job("moved", "l40s")).await;
    cluster
        .job_in(&member, &id, &["running"], START_BOUND)
        .await
        .unwrap();
    let first = node_of(&cluster, &id).await;
    cluster.proxy(&first).unwrap().cut();
    rig::wait::until("the job runs elsewhere", END_BOUND, || async {
        let job = member.get(&format!("/jobs/{id}")).await?;
        Ok((job["attempt"] == 2 && job["state"] == "running").then_some(()))
    })
    .await
    .unwrap();
    assert_ne!(node_of(&cluster, &id).await, first);
    let what: Vec<(String, u32)> = traces
        .lines(&id)
        .unwrap()
        .into_iter()
        .map(|line| (line.what, line.attempt))
        .collect();
    let seen = |what: &str, attempt| (what.to_owned(), attempt);
    rig::wait::until_true("the new process writes its start", START_BOUND, || {
        traces
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

    cluster.proxy(&first).unwrap().heal();
    cluster.agents_ready(START_BOUND).await.unwrap();
    let attempts = member.list(&format!("/jobs/{id}/attempts")).await.unwrap();
    let lost = attempts
        .iter()
        .find(|attempt| attempt["number"] == 1)
        .expect("the first attempt");
    assert_eq!(lost["reason"], "node_lost", "{lost}");
    traces.let_go().unwrap();
    let job = cluster
        .job_in(&member, &id, &["succeeded"], END_BOUND)
        .await
        .unwrap();
    assert_eq!(job["attempt"], 2, "{job}");
    e2e::laws::check_ledger(&cluster).await.unwrap();
    finish(cluster, Some(&traces)).await;
}

/// F11.
#[tokio::test]
async fn keep_work_outlives_a_long_partition_as_the_same_attempt() {
    let mut options = Options::for_test("keep-cut", two_machines())
        .unwrap()
        .timer("node_lease_ms", 3_000);
    options.proxied = true;
    let mut cluster = start(options).await;
    let traces = Traces::of(&cluster).unwrap();
    let member = cluster.sign_in("vision-member").await.unwrap();
    let mut spec = traces.job("kept", "l40s");
    spec["on_partition"] = json!("keep");
    let id = submit(&member, "vision", &spec).await;
    cluster
        .job_in(&member, &id, &["running"], START_BOUND)
        .await
        .unwrap();
    let node = node_of(&cluster, &id).await;
    cluster.proxy(&node).unwrap().cut();
    rig::wait::until("the node is lost", END_BOUND, || async {
        let found = cluster.admin().get(&format!("/nodes/{node}")).await?;
        Ok((found["reachability"] == "lost").then_some(()))
    })
    .await
    .unwrap();
    cluster.proxy(&node).unwrap().heal();
    cluster.agents_ready(START_BOUND).await.unwrap();
    traces.let_go().unwrap();
    let job = cluster
        .job_in(&member, &id, &["succeeded"], END_BOUND)
        .await
        .unwrap();
    assert_eq!(job["attempt"], 1, "{job}");
    let lines = traces.lines(&id).unwrap();
    assert_eq!(lines.len(), 2, "one start and one end: {lines:?}");
    finish(cluster, Some(&traces)).await;
}

/// F12: the end of a job is asked for while its node cannot hear it.
#[tokio::test]
async fn a_job_cancelled_while_its_start_is_on_the_way_never_runs_later() {
    let mut options = Options::for_test("late-start", one_machine())
        .unwrap()
        .timer("node_lease_ms", 20_000);
    options.proxied = true;
    let mut cluster = start(options).await;
    let traces = Traces::of(&cluster).unwrap();
    let member = cluster.sign_in("vision-member").await.unwrap();
    cluster.proxy("l40s-1").unwrap().cut();
    let id = submit(&member, "vision", &traces.job("too-late", "l40s")).await;
    cluster
        .job_in(&member, &id, &["starting", "queued"], START_BOUND)
        .await
        .unwrap();
    member
        .post(&format!("/jobs/{id}/cancel"), &json!({}))
        .await
        .unwrap();
    cluster.proxy("l40s-1").unwrap().heal();
    cluster.agents_ready(START_BOUND).await.unwrap();
    cluster
        .job_in(&member, &id, &["cancelled"], END_BOUND)
        .await
        .unwrap();
    // The node works on: what comes after it runs, and the cancelled one did not.
    let next = submit(&member, "vision", &traces.job("next", "l40s")).await;
    cluster
        .job_in(&member, &next, &["running"], START_BOUND)
        .await
        .unwrap();
    assert!(traces.lines(&id).unwrap().is_empty(), "it never ran");
    traces.let_go().unwrap();
    cluster
        .job_in(&member, &next, &["succeeded"], END_BOUND)
        .await
        .unwrap();
    finish(cluster, Some(&traces)).await;
}

/// A second machine: an agent in another network namespace, cut off until its certificate
/// has expired.
#[tokio::test]
async fn a_second_machine_joins_and_recovers_from_a_partition_across_its_renewal() {
    if let Some(reason) = Namespace::impossible() {
        println!("skipped: {reason}");
        return;
    }
    let space = Namespace::make(1).unwrap();
    let mut options = Options::for_test("netns", one_machine()).unwrap();
    options.bind = "0.0.0.0".to_owned();
    options.server_names = vec![space.outer.clone()];
    options.agents = vec![("certificate_seconds", 16)];
    let mut cluster = start(options).await;
    let reach = Reach {
        server_url: format!(
            "https://{}:{}",
            space.outer,
            cluster.servers[0].addresses().agents.port()
        ),
        address: space.inner.clone(),
        namespace: Some(space.name.clone()),
    };
    cluster
        .add_agent(
            Machine::simulated("a100-9", "dgx-a100", "a100"),
            Some(reach),
        )
        .await
        .unwrap();
    cluster.agents_ready(START_BOUND).await.unwrap();
    let traces = Traces::of(&cluster).unwrap();
    let member = cluster.sign_in("vision-member").await.unwrap();
    let id = submit(&member, "vision", &traces.job("far", "a100")).await;
    cluster
        .job_in(&member, &id, &["running"], START_BOUND)
        .await
        .unwrap();

    space.cut().unwrap();
    // Longer than a certificate's life, shorter than the lease of 60 s.
    tokio::time::sleep(Duration::from_secs(20)).await;
    space.heal().unwrap();
    cluster.agents_ready(END_BOUND).await.unwrap();
    let later = submit(&member, "vision", &traces.job("later", "a100")).await;
    cluster
        .job_in(&member, &later, &["running"], START_BOUND)
        .await
        .unwrap();
    traces.let_go().unwrap();
    for id in [&id, &later] {
        let job = cluster
            .job_in(&member, id, &["succeeded"], END_BOUND)
            .await
            .unwrap();
        assert_eq!(job["attempt"], 1, "{job}");
    }
    finish(cluster, Some(&traces)).await;
    drop(space);
}
