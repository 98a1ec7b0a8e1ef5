//! MPS: a control daemon for each device that is shared so, begun for the first that shares it and
//! ended after the last, with a pipe and a log folder of its own.
//!
//! A daemon runs as the user of the one team that shares the device, and its folders are that
//! user's alone: nobody else's client reaches it, and it can reach nothing of anybody else. It
//! outlives the agent, which finds it again by what it wrote down of it.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::OwnedMutexGuard;

use crate::files::{self, Durability};
use crate::proc::{self, Process};

/// The control program where NVIDIA's driver puts it.
pub const PROGRAM: &str = "/usr/bin/nvidia-cuda-mps-control";
/// Longest wait for an answer of a daemon: it answers in milliseconds, and may hang with its device.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait until a daemon listens, or has left.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(15);
/// How often that is looked at.
const CHANGE_CHECK: Duration = Duration::from_millis(50);
/// Digits of a device's UUID that tell it from all others of a node.
const PIPE_DIGITS: usize = 16;
/// The kernel's bound on a socket's path, less its final zero byte.
const SOCKET_PATH_MAX: usize = 107;
/// The socket of a daemon in its pipe folder.
const SOCKET_NAME: &str = "control";
/// Names a client's daemon.
pub const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Where daemon and servers write.
const LOG_VARIABLE: &str = "CUDA_MPS_LOG_DIRECTORY";

/// Why a device is not shared.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// Another team has it.
    #[error(
        "device {0} is shared by MPS by another team: it isolates no faults, so that one team has a device"
    )]
    OtherTeam(String),
    /// The daemon does not begin.
    #[error("the MPS daemon of device {uuid} does not start: {words}")]
    Start {
        /// The device.
        uuid: String,
        /// Why.
        words: String,
    },
}

/// A daemon as it was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Daemon {
    pid: i32,
    start_ticks: u64,
    /// The user that shares the device; none where the agent is not root.
    uid: Option<u32>,
}

/// The daemons of a node.
pub struct Mps {
    program: Option<PathBuf>,
    root: PathBuf,
    pipes: PathBuf,
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// One device's turn: nobody begins or ends its daemon meanwhile.
pub struct Turn<'m> {
    mps: &'m Mps,
    program: &'m Path,
    uuid: String,
    _lock: OwnedMutexGuard<()>,
}

impl Mps {
    /// Looks for the control program, the driver's or the one that is named.
    pub fn look(program: Option<&Path>, root: PathBuf) -> Self {
        let program = program.unwrap_or(Path::new(PROGRAM));
        Self {
            program: program.is_file().then(|| program.to_owned()),
            pipes: root.with_extension("pipes"),
            root,
            locks: Mutex::default(),
        }
    }

    /// Whether devices can be shared so here.
    pub fn drives(&self) -> bool {
        self.program.is_some()
    }

    /// The pipe folder of a device, whose name is as short as it can be: the path of a socket is bounded.
    pub fn pipe(&self, uuid: &str) -> PathBuf {
        let digits = uuid.chars().filter(char::is_ascii_hexdigit);
        self.pipes
            .join(digits.take(PIPE_DIGITS).collect::<String>())
    }

    /// The devices that have, or had, a daemon.
    pub fn devices(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.root)
            .into_iter()
            .flatten()
            .flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// Takes a device's turn; none where nothing is shared here.
    pub async fn turn(&self, uuid: &str) -> Option<Turn<'_>> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(locks.entry(uuid.to_owned()).or_default())
        };
        Some(Turn {
            mps: self,
            program: self.program.as_deref()?,
            uuid: uuid.to_owned(),
            _lock: lock.lock_owned().await,
        })
    }
}

impl Turn<'_> {
    /// Sees to it that a daemon runs for this user; `shared` tells whether somebody else has a part
    /// of the device, so that the daemon of another user cannot be ended.
    pub async fn have(&self, uid: Option<u32>, shared: bool) -> Result<(), MpsError> {
        let failed = |error: io::Error| MpsError::Start {
            uuid: self.uuid.clone(),
            words: error.to_string(),
        };
        if let Some(daemon) = self.daemon().map_err(failed)?
            && self.alive(&daemon).map_err(failed)?.is_some()
        {
            if daemon.uid == uid {
                return Ok(());
            }
            if shared {
                return Err(MpsError::OtherTeam(self.uuid.clone()));
            }
        }
        // Also one that was begun and not written down.
        self.end().await.map_err(failed)?;
        self.begin(uid).await.map_err(failed)
    }

    /// Whether a client's fault has brought the device's server down for all.
    pub async fn faulted(&self) -> bool {
        let Ok(Some(daemon)) = self.daemon() else {
            return false;
        };
        let Ok(servers) = self.ask("get_server_list", daemon.uid).await else {
            return false;
        };
        for server in servers.lines().filter(|line| !line.trim().is_empty()) {
            let asked = format!("get_server_status {}", server.trim());
            let told = self.ask(&asked, daemon.uid).await;
            if told.is_ok_and(|told| told.contains("FAULT")) {
                return true;
            }
        }
        false
    }

    /// Ends the daemon, if there is one, and wipes its folders.
    pub async fn end(&self) -> io::Result<()> {
        let daemon = self.daemon()?;
        let uid = daemon.as_ref().and_then(|daemon| daemon.uid);
        let asked = self.ask("quit", uid).await;
        if let Some(daemon) = daemon {
            let deadline = tokio::time::Instant::now() + CHANGE_TIMEOUT;
            while let Some(process) = self.alive(&daemon)? {
                let late = tokio::time::Instant::now().saturating_duration_since(deadline);
                if late > CHANGE_TIMEOUT {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                if asked.is_err() || !late.is_zero() {
                    process.signal(Signal::SIGKILL);
                }
                tokio::time::sleep(CHANGE_CHECK).await;
            }
        }
        for folder in [self.mps.pipe(&self.uuid), self.folder()] {
            match std::fs::remove_dir_all(folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn begin(&self, uid: Option<u32>) -> io::Result<()> {
        let socket = self.mps.pipe(&self.uuid).join(SOCKET_NAME);
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            let remedy = format!("at most {SOCKET_PATH_MAX} bytes: set a shorter state_dir");
            let words = format!("its socket {} is refused: {remedy}", socket.display());
            return Err(io::Error::other(words));
        }
        files::ensure_folder(&self.mps.root, 0o711)?;
        files::ensure_folder(&self.mps.pipes, 0o711)?;
        files::ensure_folder(&self.folder(), 0o711)?;
        for folder in [self.mps.pipe(&self.uuid), self.log()] {
            files::ensure_folder(&folder, 0o700)?;
            if uid.is_some() {
                chown(&folder, uid, uid)?;
            }
        }
        let mut command = self.command(uid);
        command
            .arg("-f")
            .env("CUDA_VISIBLE_DEVICES", &self.uuid)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: setsid is a single system call and touches no memory.
        #[allow(unsafe_code)]
        unsafe {
            // A session of its own: what ends our terminal or our service does not end it.
            command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?));
        }
        // The runtime collects it should it end while we live.
        let child = Command::from(command).kill_on_drop(false).spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        let start_ticks = proc::start_ticks(pid).ok_or(io::ErrorKind::NotFound)?;
        let daemon = Daemon {
            pid,
            start_ticks,
            uid,
        };
        files::write_json(&self.record(), &daemon, Durability::Buffered)?;
        let deadline = tokio::time::Instant::now() + CHANGE_TIMEOUT;
        while let Err(error) = self.ask("get_server_list", uid).await {
            if self.alive(&daemon)?.is_none() || tokio::time::Instant::now() > deadline {
                return Err(error);
            }
            tokio::time::sleep(CHANGE_CHECK).await;
        }
        Ok(())
    }

    /// Gives the daemon a command; what it answers.
    async fn ask(&self, line: &str, uid: Option<u32>) -> io::Result<String> {
        let mut command = Command::from(self.command(uid));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let answer = async {
            // A program that has left already says why by its status.
            let _ = input.write_all(format!("{line}\n").as_bytes()).await;
            drop(input);
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(ANSWER_TIMEOUT, answer).await??;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(words.trim().to_owned()))
    }

    /// The control program as this user, with nothing of ours in its environment.
    fn command(&self, uid: Option<u32>) -> std::process::Command {
        let mut command = std::process::Command::new(self.program);
        command
            .env_clear()
            .env(PIPE_VARIABLE, self.mps.pipe(&self.uuid))
            .env(LOG_VARIABLE, self.log())
            .current_dir("/")
            .stderr(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        command
    }

    fn folder(&self) -> PathBuf {
        self.mps.root.join(&self.uuid)
    }

    fn log(&self) -> PathBuf {
        self.folder().join("log")
    }

    fn record(&self) -> PathBuf {
        self.folder().join("daemon.json")
    }

    fn daemon(&self) -> io::Result<Option<Daemon>> {
        files::read_json(&self.record())
    }

    fn alive(&self, daemon: &Daemon) -> io::Result<Option<Process>> {
        Process::find(daemon.pid, daemon.start_ticks)
    }
}
