//! Jobs that leave their group, session or parent, and are ended with all that they began.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::wire;

use crate::rig::{Agent, alive, assignment, content, is_root, script, stopped};

/// A job in the language that each Debian has and that can choose a process group.
fn perl(text: &str) -> wire::Assignment {
    assignment(&["perl", "-e", text])
}

/// Perl that leaves for the group of a child: a signal to the group that the job began in reaches
/// nobody. The pids of both are told once it has.
fn leave_for_the_group_of_a_child(told: &Path) -> String {
    format!(
        r#"use POSIX; my $child = fork(); if (!$child) {{ $SIG{{TERM}} = "IGNORE"; sleep 1000 while 1; }}
           POSIX::setpgid($child, $child); POSIX::setpgid(0, $child) or die "no other group: $!";
           open(my $told, ">", "{0}.new"); print $told "$$ $child\n"; close($told); rename("{0}.new", "{0}");"#,
        told.display()
    )
}

async fn pids(told: &Path) -> Vec<i64> {
    let told = content(told).await;
    let pids = told.split_whitespace();
    pids.map(|pid| pid.parse().expect("a pid")).collect()
}

#[tokio::test]
async fn a_job_that_left_its_group_is_killed_when_its_grace_is_over() {
    for agent in [
        Agent::running().await,
        Agent::running_without_cgroups().await,
    ] {
        let told = agent.open_folder().join("pids");
        let job = perl(&format!(
            "$SIG{{TERM}} = 'IGNORE'; {} sleep 1000 while 1;",
            leave_for_the_group_of_a_child(&told)
        ));
        agent.server.desire(std::slice::from_ref(&job)).await;
        let pids = pids(&told).await;
        agent.server.desire(&[stopped(&job, 300)]).await;
        let exited = agent.server.exited(&job.id).await;
        assert_eq!((exited.signal, exited.asked), (Some(9), true));
        agent.server.released(&job.id).await;
        assert!(pids.iter().all(|pid| !alive(*pid)), "{pids:?}");
    }
}

#[tokio::test]
async fn a_job_that_left_its_group_is_asked_to_end_like_others() {
    let agent = Agent::running_without_cgroups().await;
    let told = agent.open_folder().join("pids");
    let job = perl(&format!(
        "$SIG{{TERM}} = sub {{ exit 7 }}; {} sleep 1000 while 1;",
        leave_for_the_group_of_a_child(&told)
    ));
    agent.server.desire(std::slice::from_ref(&job)).await;
    let pids = pids(&told).await;
    agent.server.desire(&[stopped(&job, 600_000)]).await;
    let exited = agent.server.exited(&job.id).await;
    assert_eq!((exited.code, exited.asked), (Some(7), true));
    agent.server.released(&job.id).await;
    assert!(pids.iter().all(|pid| !alive(*pid)), "{pids:?}");
}

/// Ways to hide a process; each writes its pid to the file that it is called with.
const HIDINGS: [&str; 3] = [
    // In a session of its own.
    "setsid sh -c 'echo $$ > $0.new; mv $0.new $0; exec sleep 1000' {} &",
    // Whose parent has left, twice.
    "( ( setsid sh -c 'echo $$ > $0.new; mv $0.new $0; exec sleep 1000' {} & ) & );",
    // Stopped, so that it acts on no signal but one.
    "sh -c 'echo $$ > $0.new; mv $0.new $0; kill -STOP $$; exec sleep 1000' {} &",
];

#[tokio::test]
async fn nothing_of_a_job_outlives_it() {
    for agent in [
        Agent::running().await,
        Agent::running_without_cgroups().await,
    ] {
        for (at, hiding) in HIDINGS.iter().enumerate() {
            let told = agent.open_folder().join(format!("pid{at}"));
            let hiding = hiding.replace("{}", &told.display().to_string());
            let job = script(&format!(
                "{hiding} while [ ! -e {} ]; do sleep 0.02; done",
                told.display()
            ));
            agent.server.desire(std::slice::from_ref(&job)).await;
            let pids = pids(&told).await;
            agent.server.released(&job.id).await;
            assert!(pids.iter().all(|pid| !alive(*pid)), "{hiding}");
            assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
        }
    }
}

#[tokio::test]
async fn processes_of_which_each_starts_the_next_and_leaves_have_an_end() {
    let agent = Agent::running_without_cgroups().await;
    let told = agent.open_folder().join("pid");
    // The first leaves at once; what it began goes on from process to process.
    let job = perl(&format!(
        r#"open(my $told, ">", "{0}.new"); print $told "$$\n"; close($told); rename("{0}.new", "{0}");
           while (1) {{ my $next = fork(); exit 0 if $next; }}"#,
        told.display()
    ));
    agent.server.desire(std::slice::from_ref(&job)).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
    agent.server.released(&job.id).await;
    assert_eq!(of_job(&job.job_id), Vec::<i32>::new());
}

/// The processes whose environment names a job.
fn of_job(job: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("listed").flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(job)
        })
        .collect()
}

#[tokio::test]
async fn nothing_of_a_job_outlives_its_supervisor_either() {
    let mut agents = vec![Agent::running().await];
    let grouped = agents[0].server.inner().inventories[0].cgroup != "none";
    if is_root() {
        agents.push(Agent::running_without_cgroups().await);
    } else if !grouped {
        eprintln!("NOT CHECKED: neither root nor control groups");
        return;
    }
    for agent in agents {
        let folder = agent.open_folder();
        let (told, hidden) = (folder.join("pids"), folder.join("hidden"));
        // It asks the kernel not to be ended with its parent, by the call's number in prctl(2) on
        // x86-64, and leaves a child in another session.
        let job = perl(&format!(
            r#"syscall(157, 1, 0, 0, 0, 0); system("setsid sh -c 'echo \$\$ > {1}.new; mv {1}.new {1}; exec sleep 1000' &");
               {0} sleep 1000 while 1;"#,
            leave_for_the_group_of_a_child(&told),
            hidden.display()
        ));
        agent.server.desire(std::slice::from_ref(&job)).await;
        let mut pids = pids(&told).await;
        pids.push(content(&hidden).await.trim().parse().expect("a pid"));
        let claim = agent.state().join("runs").join(&job.id).join("claim.json");
        let claim: serde_json::Value =
            serde_json::from_slice(&fs::read(claim).expect("read")).expect("JSON");
        let supervisor = i32::try_from(claim["pid"].as_i64().expect("a pid")).expect("a pid");
        kill(Pid::from_raw(supervisor), Signal::SIGKILL).expect("killed");
        assert_eq!(agent.server.exited(&job.id).await.reason, "node_lost");
        agent.server.released(&job.id).await;
        assert!(pids.iter().all(|pid| !alive(*pid)), "{pids:?}");
    }
}
