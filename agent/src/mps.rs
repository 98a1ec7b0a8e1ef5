//! MPS: a control daemon for each device that is shared so, begun for the first that shares it and
//! ended after the last, with a pipe and a log folder of its own.
//!
//! A daemon runs as the user of the one team that shares the device, and its folders are that
//! user's alone: nobody else's client reaches it, and it can reach nothing of anybody else. What keeps
//! it from its own clients is its wall. It outlives the agent, which finds it again by what it wrote
//! down of it.

mod wall;

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
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::OwnedMutexGuard;

use crate::files::{self, Durability};
use crate::gpus::compute_mode::{self, Change};
use crate::proc::{self, Process};
use crate::supervise::cgroup::{Cgroups, Limits};
use crate::supervise::devices::DeviceFile;
use crate::{checksum, removal};
use wall::Wall;

/// The control program where NVIDIA's driver puts it.
pub const PROGRAM: &str = "/usr/bin/nvidia-cuda-mps-control";
/// Longest wait for an answer of a daemon: it answers in milliseconds, and may hang with its device.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait until a daemon listens, or has left.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(15);
/// How often that is looked at.
const CHANGE_CHECK: Duration = Duration::from_millis(50);
/// Longest answer that is read: a daemon has some words for each server, and what answers in its place has
/// as many as it likes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// Servers that are asked how they are: a daemon has one for each user.
const SERVERS_MAX: usize = 4;
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

/// Who shares a device, and what its daemon may do.
#[derive(Debug, Clone)]
pub struct Sharer {
    /// Its user; none where the agent is not root.
    pub uid: Option<u32>,
    /// A group that nobody bears yet, for a daemon that begins.
    pub mark: Option<u32>,
    /// The device files that the daemon may open; none where it is barred from none.
    pub open: Option<Vec<DeviceFile>>,
}

/// A daemon as it was begun, or as it is about to be: then its number is 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Daemon {
    pid: i32,
    start_ticks: u64,
    /// The user that shares the device; none where the agent is not root.
    uid: Option<u32>,
    /// A group that all that it begins bears.
    #[serde(default)]
    mark: Option<u32>,
}

/// The daemons of a node.
pub struct Mps {
    program: Option<PathBuf>,
    root: PathBuf,
    pipes: PathBuf,
    /// The library that devices' modes are set through.
    library: Option<PathBuf>,
    cgroups: Cgroups,
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
    pub fn look(
        program: Option<&Path>,
        root: PathBuf,
        library: Option<PathBuf>,
        cgroups: Cgroups,
    ) -> Self {
        let program = program.unwrap_or(Path::new(PROGRAM));
        Self {
            program: program.is_file().then(|| program.to_owned()),
            pipes: root.with_extension("pipes"),
            root,
            library,
            cgroups,
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
    /// Sees to it that a daemon runs for who shares the device; `shared` tells whether somebody else has a part
    /// of the device, so that the daemon of another user cannot be ended.
    pub async fn have(&self, sharer: &Sharer, shared: bool) -> Result<(), MpsError> {
        let failed = |error: io::Error| MpsError::Start {
            uuid: self.uuid.clone(),
            words: error.to_string(),
        };
        if let Some(daemon) = self.daemon().map_err(failed)?
            && self.alive(&daemon).map_err(failed)?.is_some()
        {
            if daemon.uid == sharer.uid {
                return Ok(());
            }
            if shared {
                return Err(MpsError::OtherTeam(self.uuid.clone()));
            }
        }
        // Also one that was begun and not written down.
        self.end().await.map_err(failed)?;
        self.begin(sharer).await.map_err(failed)
    }

    /// Whether a client's fault has brought the device's server down for all.
    pub async fn faulted(&self) -> bool {
        let Ok(Some(daemon)) = self.daemon() else {
            return false;
        };
        let Ok(servers) = self.ask("get_server_list", &daemon).await else {
            return false;
        };
        let servers = servers.lines().filter(|line| !line.trim().is_empty());
        for server in servers.take(SERVERS_MAX) {
            let asked = format!("get_server_status {}", server.trim());
            let told = self.ask(&asked, &daemon).await;
            if told.is_ok_and(|told| told.contains("FAULT")) {
                return true;
            }
        }
        false
    }

    /// Ends the daemon, if there is one, with all that it began, and wipes its folders.
    pub async fn end(&self) -> io::Result<()> {
        let deadline = tokio::time::Instant::now() + CHANGE_TIMEOUT;
        let daemon = self.daemon()?;
        if let Some(daemon) = &daemon {
            let asked = self.ask("quit", daemon).await;
            while let Some(process) = self.alive(daemon)? {
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
        let wall = self.wall(daemon.as_ref());
        while wall.kill() {
            if tokio::time::Instant::now() > deadline + CHANGE_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            tokio::time::sleep(CHANGE_CHECK).await;
        }
        wall.group.remove();
        self.let_others_compute().await;
        // What its team filled may be large.
        let folders = [self.mps.pipe(&self.uuid), self.folder()];
        let removed = tokio::task::spawn_blocking(move || {
            folders
                .iter()
                .try_for_each(|folder| removal::remove(folder))
        });
        removed.await.map_err(io::Error::other)?
    }

    async fn begin(&self, sharer: &Sharer) -> io::Result<()> {
        let uid = sharer.uid;
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
        self.keep_others_off().await?;
        // Written down before: what began all the same is found by it.
        let mut daemon = Daemon {
            pid: 0,
            start_ticks: 0,
            uid,
            mark: sharer.mark,
        };
        files::write_json(&self.record(), &daemon, Durability::Buffered)?;
        let unlimited = Limits::default();
        let open = sharer.open.as_deref();
        self.mps.cgroups.create(&self.group(), &unlimited, open)?;
        let mut command = self.command(&daemon)?;
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
        let spawned = Command::from(command).kill_on_drop(false).spawn();
        let child = spawned.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => io::Error::other(format!(
                "{error}: the agent needs the capability CAP_BLOCK_SUSPEND, which keeps a daemon from its team's jobs"
            )),
            _ => error,
        })?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        daemon.pid = pid;
        daemon.start_ticks = proc::start_ticks(pid).ok_or(io::ErrorKind::NotFound)?;
        files::write_json(&self.record(), &daemon, Durability::Buffered)?;
        let deadline = tokio::time::Instant::now() + CHANGE_TIMEOUT;
        while let Err(error) = self.ask("get_server_list", &daemon).await {
            if self.alive(&daemon)?.is_none() || tokio::time::Instant::now() > deadline {
                return Err(error);
            }
            tokio::time::sleep(CHANGE_CHECK).await;
        }
        Ok(())
    }

    /// Lets nobody compute on the device but the server. That is advised and not needed: a driver that
    /// refuses it keeps no job from starting.
    async fn keep_others_off(&self) -> io::Result<()> {
        // Written down before: after a death in between it is set back all the same.
        std::fs::write(self.mark(), "")?;
        let set = compute_mode::set_exclusive(self.mps.library.clone(), &self.uuid, true).await;
        match set {
            Ok(Change::Made) => {}
            // Whoever set it before keeps it.
            Ok(Change::Had) => std::fs::remove_file(self.mark())?,
            Err(words) => tracing::warn!(
                device.uuid = self.uuid,
                words,
                "processes that go past MPS are not kept off the device"
            ),
        }
        Ok(())
    }

    /// Lets as many processes as like compute on the device again, where we kept them off.
    async fn let_others_compute(&self) {
        if !self.mark().exists() {
            return;
        }
        let set = compute_mode::set_exclusive(self.mps.library.clone(), &self.uuid, false).await;
        if let Err(words) = set {
            tracing::error!(
                device.uuid = self.uuid,
                words,
                "one process alone may compute on the device: `nvidia-smi -c DEFAULT` sets that back"
            );
        }
    }

    /// Says that the mode of the device is ours.
    fn mark(&self) -> PathBuf {
        self.folder().join("exclusive")
    }

    /// Gives the daemon a command; what it answers.
    async fn ask(&self, line: &str, daemon: &Daemon) -> io::Result<String> {
        let mut command = Command::from(self.command(daemon)?);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let errors = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let answer = async {
            // A program that has left already says why by its status.
            let _ = input.write_all(format!("{line}\n").as_bytes()).await;
            drop(input);
            let (mut told, mut words) = (Vec::new(), Vec::new());
            let mut output = output.take(ANSWER_BYTES_MAX);
            let mut errors = errors.take(ANSWER_BYTES_MAX);
            tokio::try_join!(
                output.read_to_end(&mut told),
                errors.read_to_end(&mut words)
            )?;
            Ok::<_, io::Error>((child.wait().await?, told, words))
        };
        let (status, told, words) = tokio::time::timeout(ANSWER_TIMEOUT, answer).await??;
        if status.success() {
            return Ok(String::from_utf8_lossy(&told).into_owned());
        }
        let words = String::from_utf8_lossy(&words);
        Err(io::Error::other(words.trim().to_owned()))
    }

    /// The control program behind a daemon's wall, with nothing of ours in its environment.
    fn command(&self, daemon: &Daemon) -> io::Result<std::process::Command> {
        let mut command = std::process::Command::new(self.program);
        command
            .env_clear()
            .env(PIPE_VARIABLE, self.mps.pipe(&self.uuid))
            .env(LOG_VARIABLE, self.log())
            .current_dir("/")
            .stderr(Stdio::piped());
        self.wall(Some(daemon)).put(&mut command)?;
        Ok(command)
    }

    fn wall(&self, daemon: Option<&Daemon>) -> Wall {
        Wall {
            group: self.mps.cgroups.group(&self.group()),
            uid: daemon.and_then(|daemon| daemon.uid),
            mark: daemon.and_then(|daemon| daemon.mark),
        }
    }

    /// The name of the daemon's control group: several agents of a machine may have their groups in
    /// one place, and devices of one name.
    fn group(&self) -> String {
        let pipe = self.mps.pipe(&self.uuid);
        let digits = pipe.file_name().unwrap_or_default().to_string_lossy();
        let agent = checksum::of(self.mps.pipes.as_os_str().as_encoded_bytes());
        format!("mps-{agent}-{digits}")
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
