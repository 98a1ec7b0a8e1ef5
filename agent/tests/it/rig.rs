//! An agent of the tests: enrolled with a fake server, killed and started at will.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use domain::ids::{AssignmentId, AttemptId, JobId, TeamId};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::wire;

use crate::fake_server::FakeServer;

pub const AGENT: &str = env!("CARGO_BIN_EXE_allotment-agent");
/// A user of a team; far from those of the machine.
pub const UID: u32 = 251_000;
/// The user of another one.
pub const OTHER_UID: u32 = 251_100;
/// Longest wait for a state of the machine.
const WAIT_MAX: Duration = Duration::from_secs(40);

pub struct Agent {
    pub folder: tempfile::TempDir,
    pub server: FakeServer,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// The program that it is.
    pub program: PathBuf,
    child: Option<Child>,
}

impl Agent {
    /// An enrolled agent that does not run yet.
    pub async fn enrolled() -> Self {
        let agent = Self::new().await;
        agent.enrol_well().await;
        agent
    }

    /// A machine that is not enrolled yet.
    pub async fn new() -> Self {
        // Others must be able to pass: the jobs' users do.
        let folder = tempfile::Builder::new()
            .prefix("agent-")
            .permissions(fs::Permissions::from_mode(0o711))
            .tempdir_in("/tmp")
            .expect("a folder");
        Self {
            folder,
            server: FakeServer::start().await,
            arguments: Vec::new(),
            environment: Vec::new(),
            program: AGENT.into(),
            child: None,
        }
    }

    /// An agent that runs and has a connection.
    pub async fn running() -> Self {
        let mut agent = Self::enrolled().await;
        agent.start().await;
        agent
    }

    /// An agent that runs and has a connection, on a machine whose control groups it cannot use.
    pub async fn running_without_cgroups() -> Self {
        let mut agent = Self::enrolled().await;
        // No folder can be made below a file.
        agent.configure("cgroup_parent = 'cgroup.procs/none'");
        agent.start().await;
        let told = agent.server.inner().inventories[0].cgroup.clone();
        assert_eq!(told, "none");
        agent
    }

    /// Gives it settings for its next start.
    pub fn configure(&mut self, text: &str) {
        let config = self.folder.path().join("agent.toml");
        fs::write(&config, format!("{text}\n")).expect("written");
        self.arguments = vec!["--config".to_owned(), config.display().to_string()];
    }

    /// Gives it a simulated machine and settings for its next start; the machine's file.
    pub fn simulate(&mut self, model: &str, settings: &str) -> PathBuf {
        let machine = self.folder.path().join("machine.json");
        // UUIDs that no other test's jobs are on.
        let seed = self.folder.path().display().to_string();
        let made = Command::new(Path::new(AGENT).with_file_name("nvml-sim-machine"))
            .args(["--model", model, "--seed", &seed])
            .output()
            .expect("the simulator's program is built with the workspace");
        fs::write(&machine, made.stdout).expect("written");
        self.environment.push((
            "ALLOTMENT_NVML_SIM_MACHINE".to_owned(),
            machine.display().to_string(),
        ));
        let library = crate::gpus::library();
        // Also who is not root may cut the devices of a simulated machine.
        self.configure(&format!(
            "inventory_seconds = 1\nnvml_library = '{}'\nmig_capability = '{}'\n{settings}",
            library.display(),
            machine.display()
        ));
        machine
    }

    pub async fn enrol(&self, more: &[&str]) -> Output {
        // Not a blocking call: the server lives on this thread.
        tokio::process::Command::new(AGENT)
            .args([
                "enrol",
                "--server",
                &self.server.url,
                "--name",
                "n1",
                "--state-dir",
            ])
            .arg(self.state())
            .args(more)
            .output()
            .await
            .expect("the agent runs")
    }

    pub async fn enrol_well(&self) {
        let ca = self.server.ca_file.to_str().expect("a path");
        let output = self.enrol(&["--token", "token", "--ca", ca]).await;
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// What `allotment-agent journal` says.
    pub fn journal(&self, more: &[&str]) -> String {
        let output = Command::new(AGENT)
            .args(["journal", "--state-dir"])
            .arg(self.state())
            .args(more)
            .output()
            .expect("the agent runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Starts the agent and waits for its connection.
    pub async fn start(&mut self) {
        let connections = self.server.inner().hellos.len();
        self.launch();
        self.server
            .wait("a connection", |inner| {
                (inner.hellos.len() > connections).then_some(())
            })
            .await;
    }

    /// Starts the agent.
    pub fn launch(&mut self) {
        let log = fs::File::options()
            .append(true)
            .create(true)
            .open(self.folder.path().join("agent.log"))
            .expect("a log");
        let child = Command::new(&self.program)
            .args(["run", "--allow-unisolated", "--state-dir"])
            .arg(self.state())
            // What lies below /tmp is seen by jobs only where it is a folder for work.
            .arg("--work-root")
            .arg(self.open_folder())
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .env("ALLOTMENT_LOG", "info,agent=debug")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the agent starts");
        self.child = Some(child);
    }

    /// Kills the agent as nobody should.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("reaped");
        }
    }

    /// Has the agent leave, as who replaces its program does.
    pub async fn leave(&mut self) {
        kill(Pid::from_raw(self.pid()), Signal::SIGTERM).expect("told");
        let ended = eventually("it leaves", || self.ended()).await;
        assert!(ended.success(), "{ended}");
        self.child = None;
    }

    /// Has the server want one more.
    pub async fn want_also(&self, assignment: &wire::Assignment) {
        let mut all = self.server.inner().desired.clone();
        all.push(assignment.clone());
        self.server.desire(&all).await;
    }

    /// How it ended by itself, if it has.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        let child = self.child.as_mut().expect("it was started");
        child.try_wait().expect("watched")
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("agent.log")).expect("a log")
    }

    pub fn pid(&self) -> i32 {
        let child = self.child.as_ref().expect("the agent runs");
        i32::try_from(child.id()).expect("a pid")
    }

    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A folder that jobs may write to.
    pub fn open_folder(&self) -> PathBuf {
        let path = self.folder.path().join("open");
        fs::create_dir_all(&path).expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).expect("opened");
        path
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("agent.log")).unwrap_or_default();
            eprintln!("the agent's log:\n{log}");
        }
        // Supervisors outlive the agent by design; the tests' do not outlive the test.
        for run in fs::read_dir(self.state().join("runs"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let claim = fs::read(run.path().join("claim.json")).unwrap_or_default();
            let claim: serde_json::Value = serde_json::from_slice(&claim).unwrap_or_default();
            let started = fs::read(run.path().join("started.json")).unwrap_or_default();
            let started: serde_json::Value = serde_json::from_slice(&started).unwrap_or_default();
            let number = |value: &serde_json::Value| {
                value["pid"]
                    .as_i64()
                    .and_then(|pid| i32::try_from(pid).ok())
                    .filter(|pid| *pid > 0)
            };
            for (pid, signal_to) in [(number(&claim), 1), (number(&started), -1)] {
                if let Some(pid) = pid {
                    let _ = kill(Pid::from_raw(pid * signal_to), Signal::SIGKILL);
                }
            }
        }
        // So do the daemons of MPS, which have our folder in their environment.
        let pipes = format!("CUDA_MPS_PIPE_DIRECTORY={}", self.state().display());
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = process.file_name().to_string_lossy().parse();
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            if let Ok(pid) = pid
                && variables.any(|variable| variable.starts_with(pipes.as_bytes()))
            {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// An assignment that is to run a command.
pub fn assignment(command: &[&str]) -> wire::Assignment {
    wire::Assignment {
        id: AssignmentId::new().to_string(),
        attempt_id: AttemptId::new().to_string(),
        job_id: JobId::new().to_string(),
        job_name: "digits".to_owned(),
        team: "vision".to_owned(),
        team_id: TeamId::new().to_string(),
        attempt: 1,
        want: wire::Want::Run.into(),
        workers: 1,
        command: command.iter().map(ToString::to_string).collect(),
        runner: "process".to_owned(),
        uid: UID,
        master_addr: "10.0.0.1".to_owned(),
        master_port: 20_000,
        grace_ms: 10_000,
        ..wire::Assignment::default()
    }
}

/// An assignment that is to run a script.
pub fn script(text: &str) -> wire::Assignment {
    assignment(&["sh", "-c", text])
}

/// An assignment that does not listen to SIGTERM. The file is written once it does not.
pub fn stubborn(mark: &Path) -> wire::Assignment {
    script(&format!(
        "trap '' TERM; echo deaf > {}; while :; do sleep 0.02; done",
        mark.display()
    ))
}

/// The same, wanted otherwise.
pub fn wanted(assignment: &wire::Assignment, want: wire::Want) -> wire::Assignment {
    wire::Assignment {
        want: want.into(),
        ..assignment.clone()
    }
}

/// The same, to be stopped with so much grace.
pub fn stopped(assignment: &wire::Assignment, grace_ms: i64) -> wire::Assignment {
    wire::Assignment {
        grace_ms,
        stop_reason: "cancelled".to_owned(),
        ..wanted(assignment, wire::Want::Stop)
    }
}

/// Whether a process is there and no zombie.
pub fn alive(pid: i64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Waits for a state of the machine.
pub async fn until(what: &str, look: impl Fn() -> bool) {
    eventually(what, || look().then_some(())).await;
}

/// The same, for a state that has a value.
pub async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until a file holds something, and returns it.
pub async fn content(path: &Path) -> String {
    until("a file is written", || {
        fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n'))
    })
    .await;
    fs::read_to_string(path).expect("read")
}

/// What a worker wrote, as it lies on disk, while it is too little to be packed.
pub fn job_log(state: &Path, id: &str) -> Option<String> {
    let folder = state.join("logs").join(id);
    let mut parts: Vec<PathBuf> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    parts.sort();
    parts
        .iter()
        .map(|part| fs::read_to_string(part).ok())
        .collect()
}
