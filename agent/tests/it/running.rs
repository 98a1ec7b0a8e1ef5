//! Jobs that run to their end.

use std::collections::BTreeMap;
use std::fs;

use agent::supervise::cgroup::Cgroups;
use protocol::wire;

use crate::remains::Remains;
use crate::rig::{Agent, UID, assignment, is_root, script, until, wanted};

#[tokio::test]
async fn a_job_runs_to_its_exit_code_and_its_log_stays() {
    let agent = Agent::running().await;
    let job = script("echo to stdout; echo to stderr >&2; exit 3");
    agent.server.desire(std::slice::from_ref(&job)).await;
    let exited = agent.server.exited(&job.id).await;
    assert_eq!(
        (exited.code, exited.signal, exited.asked),
        (Some(3), None, false)
    );
    agent.server.released(&job.id).await;
    assert_eq!(
        agent.server.story(&job.id),
        ["accepted", "started", "exited", "released"]
    );
    let log = agent.server.read_log(&job.id, true).await;
    assert_eq!(log.as_deref(), Ok("to stdout\nto stderr\n"));
    // From its last line on; from its end; and from where no file can reach.
    for (offset, rest) in [(10, "to stderr\n"), (20, ""), (21, ""), (i64::MAX, "")] {
        let log = agent.server.read_log_from(&job.id, offset, false).await;
        assert_eq!(log.as_deref(), Ok(rest), "from {offset}");
    }
    assert!(
        !agent.state().join("jobs").join(&job.id).exists(),
        "its folder is gone"
    );
    let unknown = domain::ids::AssignmentId::new().to_string();
    assert_eq!(
        agent.server.read_log(&unknown, true).await,
        Err("not_found".to_owned())
    );
}

#[tokio::test]
async fn a_job_that_runs_can_read_who_works_with_it_now() {
    let agent = Agent::running().await;
    let mut job = script(
        "cat $ALLOTMENT_WORKERS_FILE; echo; \
         while ! grep -q 10.0.0.2 $ALLOTMENT_WORKERS_FILE; do sleep 0.02; done; cat $ALLOTMENT_WORKERS_FILE",
    );
    job.addresses = vec!["10.0.0.1".to_owned()];
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.started(&job.id).await;
    job.addresses.push("10.0.0.2".to_owned());
    job.ranks = vec![0, 2];
    agent.server.desire(std::slice::from_ref(&job)).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
    let log = agent.server.read_log(&job.id, false).await.expect("a log");
    let last = r#"{"size":2,"addresses":["10.0.0.1","10.0.0.2"],"ranks":[0,2]}"#;
    assert_eq!(log.lines().last(), Some(last), "{log}");
    agent.server.released(&job.id).await;
}

#[tokio::test]
async fn a_job_sees_its_contract_and_nothing_of_ours() {
    let mut agent = Agent::enrolled().await;
    agent
        .environment
        .push(("SECRET_OF_THE_AGENT".to_owned(), "x".to_owned()));
    agent.start().await;
    let mut job = script(
        "env; echo CWD=$(pwd); echo FILE=$(cat a/b.txt); echo UID=$(id -u); echo GROUPS=$(id -G); \
         umask | sed s/^/UMASK=/; ls /proc/self/fd | wc -l | sed s/^/FDS=/; touch $ALLOTMENT_CHECKPOINT_DIR/x && echo CHECKPOINT=ok; \
         grep -E 'NoNewPrivs|SigBlk' /proc/self/status | tr -d '\\t' | sed s/:/=/",
    );
    job.files.insert("a/b.txt".to_owned(), "hello".to_owned());
    job.env.insert("SEED".to_owned(), "1".to_owned());
    job.env.insert("RANK".to_owned(), "99".to_owned());
    (job.worker, job.workers, job.node_rank, job.attempt) = (1, 2, 1, 4);
    agent.server.desire(std::slice::from_ref(&job)).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
    let log = agent.server.read_log(&job.id, false).await.expect("a log");
    let seen: BTreeMap<&str, &str> = log
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    for (key, value) in [
        ("CUDA_VISIBLE_DEVICES", ""),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("ALLOTMENT_JOB_ID", job.job_id.as_str()),
        ("ALLOTMENT_ATTEMPT", "4"),
        ("ALLOTMENT_TEAM", "vision"),
        ("ALLOTMENT_WORKER", "1"),
        ("ALLOTMENT_WORKERS", "2"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "20000"),
        ("WORLD_SIZE", "2"),
        ("RANK", "1"),
        ("LOCAL_RANK", "0"),
        ("NODE_RANK", "1"),
        ("SEED", "1"),
        ("FILE", "hello"),
        ("UMASK", "0077"),
        ("CHECKPOINT", "ok"),
        ("NoNewPrivs", "1"),
        ("SigBlk", "0000000000000000"),
        // Its three, and the one that lists them.
        ("FDS", "4"),
    ] {
        assert_eq!(seen.get(key), Some(&value), "{key} in {log}");
    }
    assert_eq!(seen["CWD"], seen["HOME"]);
    assert!(!seen.contains_key("SECRET_OF_THE_AGENT"));
    if is_root() {
        assert_eq!(seen["UID"], UID.to_string());
        // Its own, and the one by which its processes are known.
        let groups: Vec<u32> = seen["GROUPS"]
            .split(' ')
            .map(|group| group.parse().expect("a number"))
            .collect();
        assert!(
            groups.len() == 2 && groups[0] == UID && groups[1] >= 0x7000_0000,
            "{groups:?}"
        );
    }
    // Checkpoints stay for the next attempt; another team's user could not enter.
    agent.server.released(&job.id).await;
    let kept = agent
        .state()
        .join("checkpoints")
        .join(&job.team_id)
        .join(&job.job_id);
    assert!(kept.join("x").exists());
}

#[tokio::test]
async fn a_signal_that_nobody_of_ours_sent_is_told() {
    let agent = Agent::running().await;
    let job = script("kill -SEGV $$");
    agent.server.desire(std::slice::from_ref(&job)).await;
    let exited = agent.server.exited(&job.id).await;
    assert_eq!((exited.code, exited.signal), (None, Some(11)));
}

#[tokio::test]
async fn what_cannot_run_is_refused_in_words() {
    let mut agent = Agent::enrolled().await;
    let root = agent.open_folder();
    fs::create_dir(root.join("data")).expect("made");
    std::os::unix::fs::symlink("/etc", root.join("link")).expect("linked");
    agent.start().await;
    let directory = |path: &str| wire::Assignment {
        working_directory: path.to_owned(),
        ..assignment(&["true"])
    };
    let mut escaping = assignment(&["true"]);
    escaping.files.insert("../x".to_owned(), "x".to_owned());
    let missing_device = wire::Assignment {
        devices: vec![wire::DeviceShare {
            uuid: "GPU-0".to_owned(),
            mode: "exclusive".to_owned(),
            gpus_milli: 1000,
            ..wire::DeviceShare::default()
        }],
        ..assignment(&["true"])
    };
    let cases = [
        (
            assignment(&["no-such-program"]),
            "invalid",
            "command not found: no-such-program",
        ),
        (assignment(&["/etc/passwd"]), "invalid", "permission denied"),
        (directory("/etc"), "invalid", "it must lie below"),
        (
            directory(&root.join("nowhere").display().to_string()),
            "invalid",
            "no such folder",
        ),
        (
            directory(&root.join("link").display().to_string()),
            "invalid",
            "is a link",
        ),
        (
            directory(&root.join("data/../..").display().to_string()),
            "invalid",
            "leads out of",
        ),
        (escaping, "invalid", "not a path below"),
        (missing_device, "start_refused", "GPU-0 is not on this node"),
        (
            wire::Assignment {
                runner: "vm".to_owned(),
                ..assignment(&["true"])
            },
            "start_refused",
            "cannot run vm",
        ),
    ];
    let all: Vec<wire::Assignment> = cases.iter().map(|(job, ..)| job.clone()).collect();
    agent.server.desire(&all).await;
    for (job, code, words) in &cases {
        let refused = agent.server.refused(&job.id).await;
        assert_eq!(refused.code, *code, "{}", refused.message);
        assert!(refused.message.contains(words), "{}", refused.message);
    }
    for (case, code) in [(0, Some(127)), (1, Some(126)), (2, None)] {
        let refused = agent.server.refused(&cases[case].0.id).await;
        assert_eq!(
            refused.exit_code, code,
            "as a shell tells it: {}",
            refused.message
        );
    }
    // What was accepted ends in its release, what was not ends with the refusal.
    agent.server.released(&cases[0].0.id).await;
    assert_eq!(
        agent.server.story(&cases[0].0.id),
        ["accepted", "refused", "released"]
    );
    assert_eq!(agent.server.story(&cases[2].0.id), ["refused"]);
    for folder in ["jobs", "runs"] {
        let folder = agent.state().join(folder);
        let ids = || fs::read_dir(&folder).expect("listed").flatten();
        let left = || ids().any(|entry| entry.path().is_dir());
        until("nothing is left of them", || !left()).await;
    }

    let inside = directory(&root.join("data").display().to_string());
    let job = wire::Assignment {
        command: vec!["pwd".to_owned()],
        ..inside
    };
    agent.server.desire(std::slice::from_ref(&job)).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
    let log = agent.server.read_log(&job.id, false).await.expect("a log");
    assert_eq!(log.trim(), root.join("data").display().to_string());
}

#[tokio::test]
async fn a_log_has_a_bound_and_says_so() {
    let mut agent = Agent::enrolled().await;
    agent.configure("log_bytes_max = 1000");
    agent.start().await;
    let job = script("i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done");
    agent.server.desire(std::slice::from_ref(&job)).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
    let log = agent.server.read_log(&job.id, false).await.expect("a log");
    assert!(
        log.starts_with("\n[allotment: the bytes before ") && log.ends_with("line 4999\n"),
        "{log}"
    );
    let held: u64 = std::fs::read_dir(agent.state().join("logs").join(&job.id))
        .expect("listed")
        .map(|file| file.expect("a file").metadata().expect("its size").len())
        .sum();
    assert!(held < 1300, "{held} bytes");
}

#[tokio::test]
async fn a_log_is_followed_while_it_is_written() {
    let agent = Agent::running().await;
    let gate = agent.open_folder().join("gate");
    let job = script(&format!(
        "echo first; while [ ! -e {} ]; do sleep 0.02; done; echo last",
        gate.display()
    ));
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.started(&job.id).await;
    let server = agent.server.clone();
    let id = job.id.clone();
    let reader = tokio::spawn(async move { server.read_log(&id, true).await });
    agent
        .server
        .wait("the first line", |inner| {
            inner
                .chunks
                .iter()
                .any(|c| c.data.starts_with(b"first"))
                .then_some(())
        })
        .await;
    fs::write(&gate, "").expect("opened");
    assert_eq!(reader.await.expect("read").as_deref(), Ok("first\nlast\n"));
}

#[tokio::test]
async fn a_job_that_takes_too_much_memory_is_told_as_such() {
    let agent = Agent::running().await;
    let cgroup = agent.server.inner().inventories[0].cgroup.clone();
    if cgroup == "none" {
        eprintln!("NOT CHECKED: this host lets nobody enforce limits");
        return;
    }
    let gate = agent.open_folder().join("gate");
    let job = wire::Assignment {
        memory_mib: 32,
        cpus_milli: 1000,
        ..script(&format!(
            "while [ ! -e {} ]; do sleep 0.02; done; exec perl -e '$x = \"x\" x (512 * 1024 * 1024)'",
            gate.display()
        ))
    };
    agent.server.desire(std::slice::from_ref(&job)).await;
    agent.server.started(&job.id).await;
    let groups = groups_of(&agent, &job.id);
    assert!(
        !groups.is_empty() && groups.iter().all(|group| group.is_dir()),
        "{groups:?}"
    );
    fs::write(&gate, "").expect("opened");
    let exited = agent.server.exited(&job.id).await;
    assert!(exited.out_of_memory, "{exited:?}");
    assert_eq!(exited.signal, Some(9));
    assert!(exited.message.contains("32 MiB"), "{}", exited.message);
    agent.server.released(&job.id).await;
    assert!(groups.iter().all(|group| !group.exists()), "{groups:?}");
}

#[tokio::test]
async fn jobs_without_a_limit_have_no_more_memory_together_than_the_node_gives_them() {
    let mut agent = Agent::enrolled().await;
    let (_, parent) = Remains::before(&agent);
    agent.configure(&format!("{parent}\njobs_memory_mib_max = 96"));
    agent.start().await;
    let told = agent.server.inner().inventories[0].clone();
    if told.cgroup == "none" {
        eprintln!("NOT CHECKED: there are no control groups");
        return;
    }
    assert_eq!(told.memory_mib, 96, "more is not offered");
    let job = script(r#"exec perl -e '$x = "x" x (512 * 1024 * 1024)'"#);
    agent.server.desire(std::slice::from_ref(&job)).await;
    let exited = agent.server.exited(&job.id).await;
    assert!(exited.out_of_memory, "{exited:?}");
    assert!(
        exited.message.contains("the jobs of the node had together"),
        "{}",
        exited.message
    );
}

#[tokio::test]
async fn a_node_that_enforces_no_limits_says_so_and_runs_jobs_all_the_same() {
    let agent = Agent::running_without_cgroups().await;
    let warnings = agent.server.inner().inventories[0].warnings.clone();
    assert!(
        warnings
            .iter()
            .any(|words| words.contains("limits are not enforced")),
        "{warnings:?}"
    );
    let job = wire::Assignment {
        memory_mib: 32,
        cpus_milli: 1000,
        ..script("grep 'Max processes' /proc/self/limits")
    };
    agent.server.desire(std::slice::from_ref(&job)).await;
    assert_eq!(agent.server.exited(&job.id).await.code, Some(0));
    // What ends a fork bomb where no control group does.
    let log = agent.server.read_log(&job.id, false).await.expect("a log");
    let most: u32 = log
        .split_whitespace()
        .nth(2)
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no number in {log}"));
    let pid_max = fs::read_to_string("/proc/sys/kernel/pid_max").expect("read");
    let pid_max: u32 = pid_max.trim().parse().expect("a number");
    assert!(most <= pid_max / 4, "{most} of {pid_max}");
}

/// The control groups of a job that runs, wherever this host's version has them: what its
/// supervisor was told.
fn groups_of(agent: &Agent, id: &str) -> Vec<std::path::PathBuf> {
    let orders = agent.state().join("runs").join(id).join("orders.json");
    let orders: serde_json::Value =
        serde_json::from_slice(&fs::read(orders).expect("orders")).expect("JSON");
    let cgroups = serde_json::from_value(orders["cgroups"].clone()).expect("an interface");
    let parents = match cgroups {
        Cgroups::V2 { parent, .. } => vec![parent],
        Cgroups::V1 { parents } => parents.into_iter().map(|parent| parent.folder).collect(),
        Cgroups::None => Vec::new(),
    };
    parents.iter().map(|parent| parent.join(id)).collect()
}

#[tokio::test]
async fn nothing_starts_before_all_are_told_to() {
    let agent = Agent::running().await;
    let mark = agent.open_folder().join("mark");
    let job = script(&format!("echo ran > {}", mark.display()));
    agent.server.desire(&[wanted(&job, wire::Want::Hold)]).await;
    agent.server.accepted(&job.id).await;
    // Several heartbeats later it still waits.
    let beats = agent.server.inner().heartbeats;
    agent
        .server
        .wait("heartbeats", |inner| {
            (inner.heartbeats > beats + 3).then_some(())
        })
        .await;
    assert!(!mark.exists());
    agent.server.desire(std::slice::from_ref(&job)).await;
    until("it ran", || mark.exists()).await;
    agent.server.released(&job.id).await;
}
