//! Stops in every phase, and what may never start again.

use std::fs;

use protocol::wire::{self, to_agent};

use crate::rig::{Agent, alive, content, script, stopped, stubborn, wanted};

#[tokio::test]
async fn a_job_that_is_held_is_given_up_without_ever_starting() {
    let agent = Agent::running().await;
    let job = script("exit 0");
    agent.server.desire(&[wanted(&job, wire::Want::Hold)]).await;
    agent.server.accepted(&job.id).await;
    agent.server.desire(&[stopped(&job, 1000)]).await;
    agent.server.released(&job.id).await;
    assert_eq!(agent.server.story(&job.id), ["accepted", "released"]);
}

#[tokio::test]
async fn a_job_is_asked_first_and_may_leave_in_its_own_way() {
    let agent = Agent::running().await;
    let job = script(
        "trap 'echo saving; exit 7' TERM; echo ready; while :; do sleep 0.02; done 2>/dev/null",
    );
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.started(&job.id).await;
    let chunk = to_agent::Message::LogRequest(wire::LogRequest {
        request: 1,
        assignment_id: job.id.clone(),
        offset: 0,
        follow: true,
        result: None,
    });
    agent.server.send(chunk).await;
    agent
        .server
        .wait("its first line", |inner| {
            (!inner.chunks.is_empty()).then_some(())
        })
        .await;
    agent.server.desire(&[stopped(&job, 30_000)]).await;
    let exited = agent.server.exited(&job.id).await;
    assert_eq!((exited.code, exited.asked), (Some(7), true));
    agent.server.released(&job.id).await;
    let log = agent.server.read_log(&job.id, false).await;
    assert_eq!(log.as_deref(), Ok("ready\nsaving\n"));
}

#[tokio::test]
async fn a_job_that_does_not_listen_is_killed_when_its_grace_is_over() {
    let agent = Agent::running().await;
    let mark = agent.open_folder().join("mark");
    let job = stubborn(&mark);
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    content(&mark).await;
    agent.server.desire(&[stopped(&job, 300)]).await;
    let exited = agent.server.exited(&job.id).await;
    assert_eq!((exited.signal, exited.asked), (Some(9), true));
    agent.server.released(&job.id).await;
    assert!(!alive(pid));
}

#[tokio::test]
async fn a_grace_can_be_cut_short() {
    let agent = Agent::running().await;
    let mark = agent.open_folder().join("mark");
    let job = stubborn(&mark);
    agent.server.desire(std::slice::from_ref(&job)).await;
    content(&mark).await;
    agent.server.desire(&[stopped(&job, 600_000)]).await;
    agent.server.desire(&[stopped(&job, 100)]).await;
    assert_eq!(agent.server.exited(&job.id).await.signal, Some(9));
}

#[tokio::test]
async fn a_start_that_comes_after_its_stop_starts_nothing() {
    let agent = Agent::running().await;
    let mark = agent.open_folder().join("mark");
    let job = script(&format!("echo x > {}", mark.display()));
    // The start was lost, the stop arrives, then the start arrives late.
    agent.server.desire(&[stopped(&job, 100)]).await;
    agent.server.released(&job.id).await;
    agent.server.desire(std::slice::from_ref(&job)).await;
    let refused = agent.server.refused(&job.id).await;
    assert_eq!(refused.code, "start_refused");
    assert!(!mark.exists());
    assert_eq!(agent.server.story(&job.id), ["released", "refused"]);
}

#[tokio::test]
async fn what_a_full_set_leaves_out_is_stopped() {
    let agent = Agent::running().await;
    let (keep, drop) = (script("sleep 1000"), script("sleep 1000"));
    agent.server.desire(&[keep.clone(), drop.clone()]).await;
    let pid = agent.server.started(&keep.id).await;
    agent.server.started(&drop.id).await;
    agent.server.desire(std::slice::from_ref(&keep)).await;
    let exited = agent.server.exited(&drop.id).await;
    assert!(exited.asked);
    agent.server.released(&drop.id).await;
    assert!(alive(pid));
}

#[tokio::test]
async fn sets_that_are_repeated_late_or_of_a_past_leader_change_nothing() {
    let agent = Agent::running().await;
    let count = agent.open_folder().join("count");
    let job = script(&format!("echo x >> {}; sleep 1000", count.display()));
    let old = {
        let mut inner = agent.server.inner();
        inner.desired = Vec::new();
        inner.desired_set(true, None)
    };
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    for _ in 0..3 {
        agent.server.desire(std::slice::from_ref(&job)).await;
    }
    // Empty sets: delayed, and of a leader that was overtaken.
    agent.server.send(old).await;
    let past = {
        let mut inner = agent.server.inner();
        inner.desired = Vec::new();
        inner.desired_set(true, Some((1, 0)))
    };
    agent.server.send(past).await;
    // What comes after them in the stream was dealt with after them.
    let probe = script("exit 0");
    agent.server.desire(&[job.clone(), probe.clone()]).await;
    agent.server.released(&probe.id).await;
    assert!(alive(pid));
    assert_eq!(fs::read_to_string(&count).expect("read").lines().count(), 1);
    assert_eq!(agent.server.story(&job.id), ["accepted", "started"]);
}

#[tokio::test]
async fn a_malformed_assignment_is_refused_and_the_others_run() {
    let agent = Agent::running().await;
    let mut poison = script("exit 0");
    poison.team = "../x".to_owned();
    let good = script("exit 0");
    agent.server.desire(&[poison.clone(), good.clone()]).await;
    assert_eq!(agent.server.refused(&poison.id).await.code, "invalid");
    assert_eq!(agent.server.exited(&good.id).await.code, Some(0));
}

#[tokio::test]
async fn a_stop_after_a_refusal_has_an_end_too() {
    let agent = Agent::running().await;
    let job = script("true");
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.released(&job.id).await;
    // The server has lost how it ended, and wants it again.
    agent.server.desire(&[]).await;
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.refused(&job.id).await;
    agent.server.desire(&[stopped(&job, 500)]).await;
    agent
        .server
        .wait("a second release", |inner| {
            let last = inner.facts.last()?.kind.as_ref()?;
            matches!(last, wire::fact::Kind::Released(_))
                .then_some(())
                .filter(|()| inner.facts.len() == 6)
        })
        .await;
    assert_eq!(
        agent.server.story(&job.id),
        [
            "accepted", "started", "exited", "released", "refused", "released"
        ]
    );
}

#[tokio::test]
async fn what_a_full_set_says_will_follow_stays_as_it_is() {
    let agent = Agent::running().await;
    let job = stubborn(&agent.open_folder().join("mark"));
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    let other = script("true");
    let message = {
        let mut inner = agent.server.inner();
        inner.desired = vec![other.clone()];
        let mut message = inner.desired_set(true, None);
        if let wire::to_agent::Message::Desired(set) = &mut message {
            set.following = vec![job.id.clone()];
        }
        message
    };
    agent.server.send(message).await;
    agent.server.released(&other.id).await;
    assert!(alive(pid));
    assert_eq!(agent.server.story(&job.id), ["accepted", "started"]);
}

#[tokio::test]
async fn a_grace_that_no_server_means_has_a_bound() {
    let mut agent = Agent::enrolled().await;
    agent.server.inner().grace_ms = i64::MAX;
    agent.start().await;
    let job = script("sleep 1000");
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.started(&job.id).await;
    let run = agent.state().join("runs").join(&job.id);
    let orders: serde_json::Value =
        serde_json::from_slice(&fs::read(run.join("orders.json")).expect("orders")).expect("JSON");
    assert_eq!(orders["grace_ms"], protocol::desired::GRACE_MS_MAX);
    // It is stopped by the node's own grace, as nobody wants it any more.
    agent.server.desire(&[]).await;
    let exited = agent.server.exited(&job.id).await;
    assert_eq!((exited.signal, exited.asked), (Some(15), true));
}
