//! Agents that are killed, and machines that restart.

use std::fs;

use agent::journal::{Entry, FactKind, Journal, Kept, Record, history};

use crate::rig::{Agent, alive, content, script, stopped, stubborn, until};

#[tokio::test]
async fn a_killed_agent_leaves_its_jobs_alone_and_finds_them_again() {
    let mut agent = Agent::running().await;
    let folder = agent.open_folder();
    let (count, gate) = (folder.join("count"), folder.join("gate"));
    let job = script(&format!(
        "echo x >> {}; echo before; while [ ! -e {} ]; do sleep 0.02; done; echo after; exit 4",
        count.display(),
        gate.display()
    ));
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    agent.kill();
    assert!(alive(pid));
    agent.start().await;
    let held = agent.server.inner().hellos[1].held.clone();
    assert_eq!(held.len(), 1);
    assert_eq!(
        (held[0].assignment_id.as_str(), held[0].phase.as_str()),
        (job.id.as_str(), "running")
    );
    let hellos = agent.server.inner().hellos.clone();
    assert_eq!(hellos[0].journal_id, hellos[1].journal_id);
    assert_ne!(hellos[0].incarnation, hellos[1].incarnation);
    assert!(alive(pid));
    fs::write(&gate, "").expect("opened");
    assert_eq!(agent.server.exited(&job.id).await.code, Some(4));
    agent.server.released(&job.id).await;
    assert_eq!(
        agent.server.story(&job.id),
        ["accepted", "started", "exited", "released"]
    );
    assert_eq!(fs::read_to_string(&count).expect("read"), "x\n");
    assert_eq!(
        agent.server.read_log(&job.id, false).await.as_deref(),
        Ok("before\nafter\n")
    );
    let holdings = history(&agent.state().join("journal/journal")).expect("a journal");
    assert_eq!((holdings[0].starts, holdings[0].ends), (1, 1));

    // An operator is told the same, while the agent runs.
    let told = agent.journal(&["--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told[0]["assignment_id"], job.id);
    assert_eq!(
        told[0]["until_micros"],
        holdings[0].until_micros.expect("over")
    );
    let line = agent.journal(&[]);
    assert!(
        line.contains(&format!("assignment {}", job.id)) && line.contains("starts 1  ends 1"),
        "{line}"
    );
}

#[tokio::test]
async fn a_claim_that_cannot_be_read_is_no_end_of_a_job() {
    let mut agent = Agent::running().await;
    let gate = agent.open_folder().join("gate");
    let job = script(&format!(
        "while [ ! -e {} ]; do sleep 0.02; done; exit 6",
        gate.display()
    ));
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    agent.kill();
    let run = agent.state().join("runs").join(&job.id);
    let claim = fs::read(run.join("claim.json")).expect("claimed");
    // Root may read all that there is, but a folder is no file.
    fs::remove_file(run.join("claim.json")).expect("removed");
    fs::create_dir(run.join("claim.json")).expect("made");
    agent.start().await;
    let log = agent.folder.path().join("agent.log");
    until("the agent has looked", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("it is left alone"))
    })
    .await;
    assert!(
        alive(pid),
        "nothing is known of it, so that it is left alone"
    );

    fs::remove_dir(run.join("claim.json")).expect("removed");
    fs::write(run.join("claim.json"), claim).expect("written");
    fs::write(&gate, "").expect("opened");
    assert_eq!(agent.server.exited(&job.id).await.code, Some(6));
    agent.server.released(&job.id).await;
}

#[tokio::test]
async fn an_end_that_no_agent_saw_is_told_later() {
    let mut agent = Agent::running().await;
    let job = script("sleep 0.5; exit 5");
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    agent.kill();
    until("the job has ended", || !alive(pid)).await;
    agent.start().await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(5));
    agent.server.released(&job.id).await;
}

#[tokio::test]
async fn what_ended_without_a_word_while_no_agent_ran_was_seen_by_nobody() {
    let mut agent = Agent::running().await;
    let job = script("sleep 600");
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    agent.kill();
    // As a stop of the whole product does: first who would write down how it ends.
    for process in [parent_of(pid), pid] {
        let process = nix::unistd::Pid::from_raw(i32::try_from(process).expect("a process"));
        nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL).expect("it was there");
    }
    until("the job is gone", || !alive(pid)).await;
    agent.start().await;
    let exited = agent.server.exited(&job.id).await;
    assert_eq!((exited.code, exited.reason.as_str()), (None, "unseen"));
    agent.server.released(&job.id).await;
}

fn parent_of(pid: i64) -> i64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent
        .expect("it has one")
        .trim()
        .parse()
        .expect("a number")
}

#[tokio::test]
async fn a_grace_runs_on_without_the_agent() {
    let mut agent = Agent::running().await;
    let mark = agent.open_folder().join("mark");
    let job = stubborn(&mark);
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    content(&mark).await;
    agent.server.desire(&[stopped(&job, 500)]).await;
    let run = agent.state().join("runs").join(&job.id).join("stop.json");
    until("the stop is written", || run.exists()).await;
    agent.kill();
    until("the job was killed", || !alive(pid)).await;
    agent.start().await;
    let exited = agent.server.exited(&job.id).await;
    assert_eq!((exited.signal, exited.asked), (Some(9), true));
}

#[tokio::test]
async fn facts_are_told_again_until_they_are_acknowledged() {
    let mut agent = Agent::running().await;
    agent.server.inner().acknowledge = false;
    let job = script("exit 0");
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.released(&job.id).await;
    agent.kill();
    // As if the server had lost what it had not acknowledged.
    agent.server.inner().facts.clear();
    agent.server.inner().acknowledge = true;
    agent.start().await;
    agent.server.released(&job.id).await;
    assert_eq!(
        agent.server.story(&job.id),
        ["accepted", "started", "exited", "released"]
    );
}

#[tokio::test]
async fn nothing_is_run_again_after_the_machine_restarted() {
    let mut agent = Agent::enrolled().await;
    let job = script("exit 0");
    let id = job.id.parse().expect("an id");
    let attempt = job.attempt_id.parse().expect("an id");
    // A journal as an earlier boot left it, with a job that ran.
    let path = agent.state().join("journal");
    fs::create_dir_all(&path).expect("made");
    {
        let (journal, _) = Journal::open(&path.join("journal"), "an earlier boot").expect("opened");
        let kept = Kept {
            assignment_id: id,
            attempt_id: attempt,
            job_id: job.job_id.parse().expect("an id"),
            job_name: job.job_name.clone(),
            team: job.team.clone(),
            devices: Vec::new(),
            at_micros: 1,
            started: false,
            ended: false,
        };
        journal
            .append(vec![
                Entry::Record(Record::Accepted(kept)),
                Entry::fact(id, attempt, FactKind::Accepted),
                Entry::fact(
                    id,
                    attempt,
                    FactKind::Started {
                        pid: 1,
                        image_digest: String::new(),
                    },
                ),
            ])
            .await
            .expect("written");
    }
    // The server does not know yet and still wants it to run.
    agent.server.inner().desired = vec![job.clone()];
    agent.start().await;
    let exited = agent.server.exited(&job.id).await;
    assert_eq!(exited.reason, "node_lost");
    assert!(exited.message.contains("restarted"), "{}", exited.message);
    agent.server.released(&job.id).await;
    assert!(agent.server.inner().hellos[0].held.is_empty());
    let story = agent.server.story(&job.id);
    assert_eq!(&story[..4], ["accepted", "started", "exited", "released"]);
}

#[tokio::test]
async fn a_job_whose_supervisor_was_killed_is_ended_and_told_as_the_nodes_fault() {
    let agent = Agent::running().await;
    let job = script("trap '' TERM; sleep 1000");
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pid = agent.server.started(&job.id).await;
    let claim = agent.state().join("runs").join(&job.id).join("claim.json");
    let claim: serde_json::Value =
        serde_json::from_slice(&fs::read(claim).expect("read")).expect("JSON");
    let supervisor = i32::try_from(claim["pid"].as_i64().expect("a pid")).expect("a pid");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(supervisor),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("killed");
    assert_eq!(agent.server.exited(&job.id).await.reason, "node_lost");
    agent.server.released(&job.id).await;
    assert!(!alive(pid));
}

#[tokio::test]
async fn a_second_agent_on_the_same_state_is_refused() {
    let agent = Agent::running().await;
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_allotment-agent"))
        .args(["run", "--allow-unisolated", "--state-dir"])
        .arg(agent.state())
        .output()
        .expect("runs");
    assert!(!output.status.success());
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("in use by another agent"), "{words}");
}
