//! The node's lease: what goes on, and what ends, when the server is not heard of.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::wire;

use crate::rig::{Agent, alive, script, until, wanted};

/// A lease long enough for a loaded machine to renew, short enough to wait for.
const LEASE_MS: i64 = 2500;

async fn with_both_policies() -> (Agent, wire::Assignment, wire::Assignment, i64, i64) {
    let mut agent = Agent::enrolled().await;
    {
        let mut inner = agent.server.inner();
        (inner.lease_ms, inner.grace_ms) = (LEASE_MS, 300);
    }
    agent.start().await;
    let stop = script("trap '' TERM; while :; do sleep 0.05; done");
    let keep = wire::Assignment {
        keep_on_partition: true,
        ..script("sleep 1000")
    };
    agent.server.desire(&[stop.clone(), keep.clone()]).await;
    let stop_pid = agent.server.started(&stop.id).await;
    let keep_pid = agent.server.started(&keep.id).await;
    (agent, stop, keep, stop_pid, keep_pid)
}

#[tokio::test]
async fn when_the_lease_ends_work_that_is_to_stop_is_stopped_and_the_rest_goes_on() {
    let (agent, stop, keep, stop_pid, keep_pid) = with_both_policies().await;
    agent.server.inner().reachable = false;
    agent.server.drop_connection();
    until("the work that is to stop has ended", || !alive(stop_pid)).await;
    assert!(alive(keep_pid));
    agent.server.inner().reachable = true;
    let exited = agent.server.exited(&stop.id).await;
    assert_eq!((exited.reason.as_str(), exited.asked), ("lease_over", true));
    agent.server.released(&stop.id).await;
    assert!(alive(keep_pid));
    assert_eq!(agent.server.story(&keep.id), ["accepted", "started"]);
}

#[tokio::test]
async fn a_long_grace_of_a_stop_does_not_outlive_the_lease() {
    let (agent, stop, keep, stop_pid, keep_pid) = with_both_policies().await;
    let patient = wire::Assignment {
        grace_ms: 600_000,
        ..wanted(&stop, wire::Want::Stop)
    };
    agent.server.desire(&[patient, keep]).await;
    let beats = agent.server.inner().heartbeats;
    agent
        .server
        .wait("heartbeats after the set", |inner| {
            (inner.heartbeats > beats + 2).then_some(())
        })
        .await;
    agent.server.inner().reachable = false;
    agent.server.drop_connection();
    until("the work that was being stopped has ended", || {
        !alive(stop_pid)
    })
    .await;
    assert!(alive(keep_pid));
    agent.server.inner().reachable = true;
    assert!(agent.server.exited(&stop.id).await.asked);
}

#[tokio::test]
async fn a_partition_shorter_than_the_lease_changes_nothing() {
    let (agent, stop, keep, stop_pid, keep_pid) = with_both_policies().await;
    agent.server.inner().reachable = false;
    agent.server.drop_connection();
    agent
        .server
        .wait("a try in vain", |inner| {
            (inner.turned_away > 0).then_some(())
        })
        .await;
    agent.server.inner().reachable = true;
    agent
        .server
        .wait("another connection", |inner| {
            (inner.hellos.len() > 1).then_some(())
        })
        .await;
    let beats = agent.server.inner().heartbeats;
    // Well past the lease as it was before.
    let past = u64::try_from(LEASE_MS / 200 + 3).expect("few");
    agent
        .server
        .wait("heartbeats", |inner| {
            (inner.heartbeats > beats + past).then_some(())
        })
        .await;
    assert!(alive(stop_pid) && alive(keep_pid));
    assert_eq!(agent.server.story(&stop.id), ["accepted", "started"]);
    assert_eq!(agent.server.story(&keep.id), ["accepted", "started"]);
}

#[tokio::test]
async fn the_lease_ends_work_also_when_the_agent_is_dead_or_stopped() {
    let (mut agent, stop, _, stop_pid, keep_pid) = with_both_policies().await;
    agent.kill();
    until("the work that is to stop has ended", || !alive(stop_pid)).await;
    assert!(alive(keep_pid));
    agent.start().await;
    assert_eq!(agent.server.exited(&stop.id).await.reason, "lease_over");

    let again = script("sleep 1000");
    agent.server.desire(std::slice::from_ref(&again)).await;
    let pid = agent.server.started(&again.id).await;
    kill(Pid::from_raw(agent.pid()), Signal::SIGSTOP).expect("stopped");
    until("the work has ended", || !alive(pid)).await;
    kill(Pid::from_raw(agent.pid()), Signal::SIGCONT).expect("continued");
    assert_eq!(agent.server.exited(&again.id).await.reason, "lease_over");
}

#[tokio::test]
async fn nothing_starts_without_a_lease_and_a_word_of_the_present_connection() {
    let mut agent = Agent::enrolled().await;
    agent.server.inner().renew_leases = false;
    agent.start().await;
    let job = script("exit 0");
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.accepted(&job.id).await;
    let beats = agent.server.inner().heartbeats;
    agent
        .server
        .wait("heartbeats", |inner| {
            (inner.heartbeats > beats + 3).then_some(())
        })
        .await;
    assert_eq!(agent.server.story(&job.id), ["accepted"]);
    // The connection is lost and found; the server has thought otherwise meanwhile.
    {
        let mut inner = agent.server.inner();
        inner.desired = vec![wanted(&job, wire::Want::Hold)];
        inner.renew_leases = true;
    }
    agent.server.drop_connection();
    agent
        .server
        .wait("another connection", |inner| {
            (inner.hellos.len() > 1).then_some(())
        })
        .await;
    let beats = agent.server.inner().heartbeats;
    agent
        .server
        .wait("heartbeats", |inner| {
            (inner.heartbeats > beats + 3).then_some(())
        })
        .await;
    assert_eq!(agent.server.story(&job.id), ["accepted"]);
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.released(&job.id).await;
}
