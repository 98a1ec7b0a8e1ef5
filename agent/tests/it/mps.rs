//! MPS: daemons that are begun for the first who shares a device and ended after the last, through
//! the stand-in for NVIDIA's control program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use protocol::wire;

use crate::mig::{Cut, THREE, on};
use crate::rig::{AGENT, Agent, UID, eventually, is_root, job_log, script, stopped, until};

struct Shared {
    agent: Agent,
    uuid: String,
}

impl Shared {
    async fn start() -> Self {
        Self::start_with("").await
    }

    async fn start_with(settings: &str) -> Self {
        let mut agent = Agent::enrolled().await;
        let settings = format!(
            "{settings}\nmps_control = '{}'",
            Path::new(AGENT)
                .with_file_name("nvml-sim-mps-control")
                .display()
        );
        let machine = agent.simulate("l40s-4", &settings);
        agent.start().await;
        let text = fs::read(machine).expect("a machine");
        let machine: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let uuid = machine["devices"][0]["uuid"].as_str().expect("a device");
        Self {
            agent,
            uuid: uuid.to_owned(),
        }
    }

    fn job(&self, gpus_milli: i64, text: &str) -> wire::Assignment {
        wire::Assignment {
            devices: vec![wire::DeviceShare {
                uuid: self.uuid.clone(),
                mode: "mps".to_owned(),
                gpus_milli,
                memory_mib: 2048,
                ..wire::DeviceShare::default()
            }],
            ..script(text)
        }
    }

    fn folder(&self) -> PathBuf {
        self.agent.state().join("mps").join(&self.uuid)
    }

    fn pipe(&self) -> PathBuf {
        let digits = self.uuid.chars().filter(char::is_ascii_hexdigit).take(16);
        let pipes = self.agent.state().join("mps.pipes");
        pipes.join(digits.collect::<String>()).join("p")
    }

    /// Which programs may compute on the device, as the simulator keeps it: 0 all, 3 one alone.
    fn compute_mode(&self) -> Option<u64> {
        let file = self.agent.folder.path().join("machine.json.cuts");
        let cuts: serde_json::Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
        cuts["devices"][&self.uuid]["compute_mode"].as_u64()
    }

    fn daemon(&self) -> i64 {
        let text = fs::read(self.folder().join("daemon.json")).expect("a daemon");
        let daemon: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        daemon["pid"].as_i64().expect("a pid")
    }

    /// What a job has said once it has said that it reached its daemon.
    async fn reached(&self, job: &wire::Assignment) -> String {
        let state = self.agent.state();
        let said = || job_log(&state, &job.id).filter(|told| told.ends_with("reached\n"));
        eventually("a job reaches its daemon", said).await
    }

    /// Gives the daemon a command, as its user.
    fn tell(&self, command: &str) {
        let mut control = Command::new(Path::new(AGENT).with_file_name("nvml-sim-mps-control"));
        control
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe())
            .stdin(Stdio::piped());
        let mut control = control.spawn().expect("the stand-in runs");
        let mut input = control.stdin.take().expect("a pipe");
        std::io::Write::write_all(&mut input, command.as_bytes()).expect("written");
        drop(input);
        assert!(control.wait().expect("it ends").success());
    }
}

#[tokio::test]
async fn jobs_of_a_team_share_a_device_by_one_daemon_that_goes_with_the_last() {
    let mut shared = Shared::start().await;
    let told = shared.agent.server.inner().hellos[0].inventory.clone();
    let told = told.expect("an inventory");
    assert_eq!(told.sharing, ["exclusive", "time_slice", "mps"]);
    let words = "echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE \
                 $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; test -S $CUDA_MPS_PIPE_DIRECTORY/control && echo reached";
    let first = shared.job(250, &format!("{words}; sleep 1000"));
    let second = shared.job(500, "sleep 1000");
    let server = &shared.agent.server;
    server.desire(&[first.clone(), second.clone()]).await;
    server.started(&first.id).await;
    server.started(&second.id).await;
    let pid = shared.daemon();
    assert_eq!(shared.compute_mode(), Some(3), "nobody goes past it");
    let log = shared.reached(&first).await;
    assert_eq!(log, format!("{} 25 0=2048M\nreached\n", shared.uuid));
    if is_root() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        assert!(status.contains(&format!("Uid:\t{UID}\t")), "{status}");
    }
    server.desire(&[stopped(&first, 0), second.clone()]).await;
    server.released(&first.id).await;

    // It outlives the agent, too.
    shared.agent.kill();
    shared.agent.start().await;
    let server = &shared.agent.server;
    assert!(crate::rig::alive(pid) && shared.daemon() == pid);
    server.desire(&[stopped(&second, 0)]).await;
    server.released(&second.id).await;
    assert!(!crate::rig::alive(pid));
    assert_eq!(shared.compute_mode(), Some(0), "all may again");
    assert!(!shared.folder().exists(), "nothing of it is left");
    let gate = shared.pipe().parent().expect("a folder").to_owned();
    assert!(!gate.exists(), "nor of its pipe");
}

#[tokio::test]
async fn what_a_job_does_on_a_shared_device_is_ended_before_it_is_killed_and_others_go_on() {
    let shared = Shared::start().await;
    let server = &shared.agent.server;
    let first = shared.job(250, "trap '' TERM; while :; do sleep 1000; done");
    let second = shared.job(500, "sleep 1000");
    server.desire(&[first.clone(), second.clone()]).await;
    let pid = server.started(&first.id).await;
    let other = server.started(&second.id).await;
    let daemon = shared.daemon();
    server.desire(&[stopped(&first, 0), second.clone()]).await;
    server.released(&first.id).await;
    let log = shared.folder().join("log/control.log");
    let log = fs::read_to_string(log).expect("the daemon's log");
    let terminated = |pid: i64| format!("terminate_client {daemon} {pid}\n");
    assert!(log.contains(&terminated(pid)), "{log}");
    assert!(!log.contains(&terminated(other)), "{log}");
    assert!(crate::rig::alive(other) && shared.daemon() == daemon);
}

#[tokio::test]
async fn a_job_puts_nothing_in_the_place_of_its_daemon_and_is_told_where_that_was_ended() {
    if !is_root() {
        return;
    }
    let shared = Shared::start().await;
    let server = &shared.agent.server;
    let sharer = shared.job(250, "sleep 1000");
    server.desire(std::slice::from_ref(&sharer)).await;
    server.started(&sharer.id).await;
    let (pid, pipe) = (shared.daemon(), shared.pipe());
    let log = shared.folder().join("log");
    let job = shared.job(
        250,
        &format!(
            "cd {}; rm -f control; mv control other; echo x > new; echo x > {}/new; test -S control && echo reached",
            pipe.display(),
            log.display()
        ),
    );
    server.desire(&[sharer.clone(), job.clone()]).await;
    server.released(&job.id).await;
    let told = server.read_log(&job.id, false).await.expect("a log");
    assert_eq!(told.matches("ermission denied").count(), 4, "{told}");
    assert!(told.ends_with("reached\n"), "{told}");
    // Of its user it may end what runs as that: the other is told why it failed.
    let killer = script(&format!("kill -9 {pid}"));
    server.desire(&[sharer.clone(), killer.clone()]).await;
    server.released(&killer.id).await;
    server.desire(&[stopped(&sharer, 0)]).await;
    let exited = server.exited(&sharer.id).await;
    assert!(exited.message.contains("had ended"), "{}", exited.message);
    server.released(&sharer.id).await;
}

#[tokio::test]
async fn the_memory_of_a_daemon_is_bounded() {
    let shared = Shared::start_with("mps_memory_mib_max = 512").await;
    let server = &shared.agent.server;
    let job = shared.job(250, "sleep 1000");
    server.desire(std::slice::from_ref(&job)).await;
    server.started(&job.id).await;
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", shared.daemon()));
    let groups = groups.expect("it runs");
    let memory = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (folder, file) = match controllers {
            "" => ("", "memory.max"),
            "memory" => ("memory", "memory.limit_in_bytes"),
            _ => return None,
        };
        let group = Path::new("/sys/fs/cgroup").join(folder);
        path.contains("mps-")
            .then(|| group.join(path.trim_start_matches('/')).join(file))
    });
    let Some(memory) = memory else {
        eprintln!("NOT CHECKED: there are no control groups");
        return;
    };
    let bytes = fs::read_to_string(memory).expect("a bound");
    assert_eq!(bytes.trim(), "536870912");
}

#[tokio::test]
async fn teams_share_a_device_where_the_node_lets_them() {
    if !is_root() {
        return;
    }
    let shared = Shared::start_with("mps_across_teams = true").await;
    let server = &shared.agent.server;
    let words = "test -S $CUDA_MPS_PIPE_DIRECTORY/control && echo reached; sleep 1000";
    let ours = shared.job(250, words);
    let theirs = wire::Assignment {
        uid: UID + 16,
        ..shared.job(250, words)
    };
    let told = server.inner().inventories[0].clone();
    assert!(told.mps_across_teams, "its server is told");
    server.desire(&[ours.clone(), theirs.clone()]).await;
    for job in [&ours, &theirs] {
        assert_eq!(shared.reached(job).await, "reached\n");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", shared.daemon()));
    let status = status.expect("it runs");
    assert!(status.contains("Uid:\t0\t"), "{status}");
    let stops = [stopped(&ours, 0), stopped(&theirs, 0)];
    server.desire(&stops).await;
    for job in [&ours, &theirs] {
        server.released(&job.id).await;
    }
}

#[tokio::test]
async fn a_device_is_shared_by_one_team() {
    if !is_root() {
        return;
    }
    let shared = Shared::start().await;
    let server = &shared.agent.server;
    let ours = shared.job(250, "sleep 1000");
    let theirs = wire::Assignment {
        uid: UID + 16,
        ..shared.job(250, "true")
    };
    server.desire(std::slice::from_ref(&ours)).await;
    server.started(&ours.id).await;
    server.desire(&[ours.clone(), theirs.clone()]).await;
    let refused = server.refused(&theirs.id).await;
    assert!(
        refused.message.contains("another team"),
        "{}",
        refused.message
    );
    server.desire(&[stopped(&ours, 0)]).await;
    server.released(&ours.id).await;
    let again = wire::Assignment {
        id: domain::ids::AssignmentId::new().to_string(),
        ..theirs
    };
    server.desire(std::slice::from_ref(&again)).await;
    server.released(&again.id).await;
    assert_eq!(
        server.story(&again.id),
        ["accepted", "started", "exited", "released"]
    );
}

#[tokio::test]
async fn a_fault_that_takes_all_down_is_told_to_each_as_that() {
    let shared = Shared::start().await;
    let server = &shared.agent.server;
    let waits = "while ! test -e $HOME/go; do sleep 0.02; done; exit 3";
    let jobs = [shared.job(250, waits), shared.job(250, waits)];
    server.desire(&jobs).await;
    for job in &jobs {
        server.started(&job.id).await;
    }
    shared.tell("sim_fault\n");
    for job in &jobs {
        let home = shared.agent.state().join("jobs").join(&job.id);
        let work = eventually_folder(&home).await;
        fs::write(work.join("go"), "").expect("written");
    }
    for job in &jobs {
        let exited = server.exited(&job.id).await;
        assert_eq!(exited.code, Some(3));
        assert!(
            exited.message.contains("does not keep faults apart"),
            "{}",
            exited.message
        );
    }
}

/// The folder that a job has for itself.
async fn eventually_folder(home: &Path) -> PathBuf {
    until("its folder is there", || home.is_dir()).await;
    let work = home.join("work");
    if work.is_dir() { work } else { home.to_owned() }
}

#[tokio::test]
async fn a_daemon_that_nobody_needs_any_more_goes_with_the_next_agent() {
    let mut shared = Shared::start().await;
    let job = shared.job(250, "sleep 1000");
    shared.agent.server.desire(std::slice::from_ref(&job)).await;
    shared.agent.server.started(&job.id).await;
    let pid = shared.daemon();
    shared.agent.kill();
    // As after a restart of the machine that spared the daemon alone.
    let journal = shared.agent.state().join("journal");
    let kept = journal.with_extension("aside");
    fs::rename(&journal, &kept).expect("put aside");
    shared.agent.start().await;
    until("its end", || !crate::rig::alive(pid)).await;
}

/// A user of whom nothing but these jobs runs, so that what they leave is wiped.
const LONE_UID: u32 = 251_400;

#[tokio::test]
async fn a_daemon_is_no_way_out_for_the_jobs_of_its_own_team() {
    if !is_root() {
        return;
    }
    let shared = Shared::start().await;
    let server = &shared.agent.server;
    let sharer = shared.job(250, "sleep 1000");
    server.desire(std::slice::from_ref(&sharer)).await;
    server.started(&sharer.id).await;
    let pid = shared.daemon();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    // PTRACE_ATTACH by its numbers on x86-64: a child of its own can be traced, the daemon cannot.
    let job = script(&format!(
        r#"exec perl -e '$child = fork() // die; if (!$child) {{ sleep 60; exit; }}
           print syscall(101, 16, $child, 0, 0) == 0 ? "traced\n" : "not: $!\n";
           print syscall(101, 16, {pid}, 0, 0) == 0 ? "traced\n" : "not: $!\n";
           kill 9, $child;'"#
    ));
    server.desire(&[sharer.clone(), job.clone()]).await;
    server.released(&job.id).await;
    let log = server.read_log(&job.id, false).await.expect("a log");
    assert_eq!(log, "traced\nnot: Operation not permitted\n");
    // What it began all the same ends with it.
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
    if !groups.contains("mps-") {
        eprintln!("NOT CHECKED: there are no control groups");
        return;
    }
    let path = groups.lines().find_map(|line| {
        let (controller, path) = line.split_once(':')?.1.split_once(':')?;
        let path = path.trim_start_matches('/');
        path.contains("mps-")
            .then(|| Path::new("/sys/fs/cgroup").join(controller).join(path))
    });
    let path = path.expect("its group");
    let mut stray = Command::new("sleep").arg("1000").spawn().expect("it runs");
    fs::write(path.join("cgroup.procs"), stray.id().to_string()).expect("put there");
    server.desire(&[stopped(&sharer, 0)]).await;
    server.released(&sharer.id).await;
    assert!(stray.wait().expect("it ended").code().is_none(), "killed");
    assert!(!path.exists(), "its group is gone");
}

#[tokio::test]
async fn what_a_job_by_mps_left_in_shared_memory_goes_with_the_last_of_its_team_whichever_that_is()
{
    if !is_root() {
        return;
    }
    let shared = Shared::start().await;
    let server = &shared.agent.server;
    let name = shared.agent.folder.path().file_name().expect("a name");
    let litter = Path::new("/dev/shm").join(name);
    let of_team = |job| wire::Assignment {
        uid: LONE_UID,
        ..job
    };
    let plain = of_team(script("sleep 1000"));
    server.desire(std::slice::from_ref(&plain)).await;
    server.started(&plain.id).await;
    let sharer = of_team(shared.job(250, &format!("echo x > {}", litter.display())));
    server.desire(&[plain.clone(), sharer.clone()]).await;
    server.released(&sharer.id).await;
    assert!(litter.exists(), "its team still runs");
    server.desire(&[stopped(&plain, 0)]).await;
    server.released(&plain.id).await;
    assert!(!litter.exists(), "nothing of the team runs any more");
}

#[tokio::test]
async fn an_instance_is_shared_by_a_daemon_of_its_own_and_goes_with_the_last() {
    let control = Path::new(AGENT).with_file_name("nvml-sim-mps-control");
    let settings = format!("mps_control = '{}'", control.display());
    let cut = Cut::start("dgx-a100", &settings).await;
    let server = &cut.agent.server;
    let part = |start, gpus_milli, text: &str| {
        let share = wire::DeviceShare {
            mode: "mps".to_owned(),
            gpus_milli,
            memory_mib: 4096,
            ..cut.share(THREE, start)
        };
        on(share, text)
    };
    let words = "echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT \
                 > $HOME/told; test -S $CUDA_MPS_PIPE_DIRECTORY/control && mv $HOME/told $HOME/reached; sleep 1000";
    let jobs = [
        part(4, 600, words),
        part(4, 400, words),
        part(0, 500, words),
    ];
    server.desire(&jobs).await;
    let mut told = Vec::new();
    for job in &jobs {
        server.started(&job.id).await;
        let home = cut.agent.state().join("jobs").join(&job.id);
        let work = eventually_folder(&home).await;
        told.push(crate::rig::content(&work.join("reached")).await);
    }
    assert_eq!(cut.instances(), ["3g.40gb@0", "3g.40gb@4"]);
    let cuts = cut.cuts();
    let uuid = |at: usize| cuts["instances"][at]["uuids"][0].as_str().expect("a UUID");
    assert_eq!(told[0], format!("{} 60 0=4096M\n", uuid(1)));
    assert_eq!(told[1], format!("{} 40 0=4096M\n", uuid(1)));
    assert_eq!(told[2], format!("{} 50 0=4096M\n", uuid(0)));
    let root = cut.agent.state().join("mps");
    let daemon = |start| {
        let folder = root.join(format!("{}@{start}-4", cut.uuid(0)));
        let text = fs::read(folder.join("daemon.json")).expect("a daemon");
        let daemon: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        daemon["pid"].as_i64().expect("a pid")
    };
    let (right, left) = (daemon(4), daemon(0));
    let environment = fs::read_to_string(format!("/proc/{right}/environ")).expect("it runs");
    let visible = format!("CUDA_VISIBLE_DEVICES={}\0", uuid(1));
    assert!(environment.contains(&visible), "{environment}");

    let [first, second, beside] = &jobs;
    server
        .desire(&[stopped(first, 0), second.clone(), beside.clone()])
        .await;
    server.released(&first.id).await;
    assert!(crate::rig::alive(right), "another shares it");
    assert_eq!(cut.instances(), ["3g.40gb@0", "3g.40gb@4"]);
    server.desire(&[stopped(second, 0), beside.clone()]).await;
    server.released(&second.id).await;
    assert!(!crate::rig::alive(right) && crate::rig::alive(left));
    assert_eq!(cut.instances(), ["3g.40gb@0"]);
    server.desire(&[stopped(beside, 0)]).await;
    server.released(&beside.id).await;
    assert_eq!(cut.instances(), Vec::<String>::new());
    assert_eq!(root.read_dir().expect("listed").count(), 0);
}
