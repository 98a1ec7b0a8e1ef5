//! MPS: a control daemon for each device, or instance of one, that is shared so, begun for the first that
//! shares it and ended after the last, with a pipe and a log folder of its own.
//!
//! A daemon runs as the user of the one team that shares the device, unless the settings let teams share
//! one: then it is ours and serves all. Its folders are ours, and only who bears its mark may change them:
//! the jobs that it serves reach its socket and can put nothing in its place. What keeps it from its own
//! clients is its wall. It outlives the agent, which finds it again by what it wrote down of it.

pub mod control;
mod exclusive;
mod place;
mod wall;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::sync::OwnedMutexGuard;

use crate::files::{self, Durability};
use crate::proc::{self, Process};
use crate::supervise::cgroup::{Cgroups, Limits};
use crate::supervise::devices::DeviceFile;
use crate::{checksum, removal};
use control::Control;
use wall::Wall;

pub use control::PIPE_VARIABLE;
pub use place::Place;

/// The control program where NVIDIA's driver puts it.
pub const PROGRAM: &str = "/usr/bin/nvidia-cuda-mps-control";
/// Longest wait for an answer of a daemon: it answers in milliseconds, and may hang with its device.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait until a daemon listens, or has left.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(15);
/// How often that is looked at.
const CHANGE_CHECK: Duration = Duration::from_millis(50);
/// The kernel's bound on a socket's path, less its final zero byte.
const SOCKET_PATH_MAX: usize = 107;
/// The folder that a daemon has within the one that its team alone may pass; short for that bound.
const PIPE_NAME: &str = "p";
/// The socket of a daemon in its pipe folder.
const SOCKET_NAME: &str = "control";
/// Lets a daemon of root serve several users at once.
const FOR_ALL_USERS: &str = "-multiuser-server";

/// Why a device is not shared.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// Another team has it.
    #[error(
        "device {0} is shared by MPS by another team: it isolates no faults, so that one team has a device"
    )]
    OtherTeam(String),
    /// The daemon does not begin.
    #[error("the MPS daemon of device {name} does not start: {words}")]
    Start {
        /// The device, or the instance by its place.
        name: String,
        /// Why.
        words: String,
    },
}

/// What has happened to a daemon that its clients feel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// A client's fault has brought its server down for all.
    Fault,
    /// It has ended though it was needed.
    Gone,
}

/// How devices are shared on a node.
pub struct Rules {
    /// The control program; by default the driver's.
    pub program: Option<PathBuf>,
    /// Whether teams may share one daemon.
    pub across_teams: bool,
    /// What a daemon and its servers may have of the machine's memory, in MiB.
    pub memory_mib: i64,
    /// Whether jobs run as their team's user.
    pub isolated: bool,
}

/// Who shares a device, and what its daemon may do.
#[derive(Debug, Clone)]
pub struct Sharer {
    /// The team's user.
    pub team: u32,
    /// What CUDA calls the device, or the instance.
    pub visible: String,
    /// A group that nobody bears yet, for a daemon that begins.
    pub mark: u32,
    /// The device files that the daemon may open; none where it is barred from none.
    pub open: Option<Vec<DeviceFile>>,
}

/// A daemon as it was begun, or as it is about to be: then its number is 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Daemon {
    pid: i32,
    start_ticks: u64,
    /// The user of the team that it serves; none where it serves all.
    team: Option<u32>,
    /// The user that it runs as; none where that is ours.
    uid: Option<u32>,
    /// A group that all that it begins bears.
    mark: Option<u32>,
    /// What CUDA calls its device.
    visible: String,
}

/// The daemons of a node.
pub struct Mps {
    program: Option<PathBuf>,
    rules: Rules,
    root: PathBuf,
    pipes: PathBuf,
    /// The library that devices' modes are set through.
    library: Option<PathBuf>,
    cgroups: Cgroups,
    locks: Mutex<BTreeMap<Place, Arc<tokio::sync::Mutex<()>>>>,
}

/// One device's turn: nobody begins or ends its daemon meanwhile.
pub struct Turn<'m> {
    mps: &'m Mps,
    program: &'m Path,
    place: Place,
    _lock: OwnedMutexGuard<()>,
}

impl Mps {
    /// Looks for the control program, the driver's or the one that is named.
    pub fn look(rules: Rules, root: PathBuf, library: Option<PathBuf>, cgroups: Cgroups) -> Self {
        let program = rules.program.as_deref().unwrap_or(Path::new(PROGRAM));
        Self {
            program: program.is_file().then(|| program.to_owned()),
            rules,
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

    /// The pipe folder of a place, whose name is as short as it can be: the path of a socket is bounded.
    pub fn pipe(&self, place: &Place) -> PathBuf {
        self.gate(place).join(PIPE_NAME)
    }

    /// The folder that who shares the device must pass to its pipe folder.
    fn gate(&self, place: &Place) -> PathBuf {
        self.pipes.join(place.short())
    }

    /// What has, or had, a daemon.
    pub fn places(&self) -> Vec<Place> {
        let entries = std::fs::read_dir(&self.root)
            .into_iter()
            .flatten()
            .flatten();
        entries
            .filter_map(|entry| Place::read(entry.file_name().to_str()?))
            .collect()
    }

    /// Takes a place's turn; none where nothing is shared here.
    pub async fn turn(&self, place: &Place) -> Option<Turn<'_>> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(locks.entry(place.clone()).or_default())
        };
        Some(Turn {
            mps: self,
            program: self.program.as_deref()?,
            place: place.clone(),
            _lock: lock.lock_owned().await,
        })
    }
}

impl Turn<'_> {
    /// Sees to it that a daemon runs for who shares the device; `shared` tells whether somebody else has a part
    /// of it, so that the daemon of another team cannot be ended. How it is spoken to.
    pub async fn have(&self, sharer: &Sharer, shared: bool) -> Result<Control, MpsError> {
        let failed = |error: io::Error| MpsError::Start {
            name: self.place.name(),
            words: error.to_string(),
        };
        if let Some(daemon) = self.daemon().map_err(failed)?
            && self.alive(&daemon).map_err(failed)?.is_some()
        {
            let serves = match daemon.team {
                Some(team) => team == sharer.team,
                None => self.mps.rules.across_teams,
            };
            // An instance that was made anew has another name.
            if serves && daemon.visible == sharer.visible {
                return Ok(self.control(&daemon));
            }
            if shared && !serves {
                return Err(MpsError::OtherTeam(self.place.uuid.clone()));
            }
        }
        // Also one that was begun and not written down.
        self.end().await.map_err(failed)?;
        self.begin(sharer).await.map_err(failed)
    }

    /// What has happened to the daemon, where something has.
    pub async fn trouble(&self) -> Option<Trouble> {
        let daemon = self.daemon().ok()??;
        if matches!(self.alive(&daemon), Ok(None)) {
            return Some(Trouble::Gone);
        }
        let control = self.control(&daemon);
        let asked = tokio::task::spawn_blocking(move || control.faulted(ANSWER_TIMEOUT)).await;
        matches!(asked, Ok(true)).then_some(Trouble::Fault)
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
        let wall = Wall {
            group: self.mps.cgroups.group(&self.group()),
            uid: None,
            mark: daemon.and_then(|daemon| daemon.mark),
        };
        while wall.kill() {
            if tokio::time::Instant::now() > deadline + CHANGE_TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            tokio::time::sleep(CHANGE_CHECK).await;
        }
        wall.group.remove();
        self.let_others_compute().await;
        // What its servers filled may be large.
        let folders = [self.mps.gate(&self.place), self.folder()];
        let removed = tokio::task::spawn_blocking(move || {
            folders
                .iter()
                .try_for_each(|folder| removal::remove(folder))
        });
        removed.await.map_err(io::Error::other)?
    }

    async fn begin(&self, sharer: &Sharer) -> io::Result<Control> {
        let socket = self.mps.pipe(&self.place).join(SOCKET_NAME);
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            let remedy = format!("at most {SOCKET_PATH_MAX} bytes: set a shorter state_dir");
            let words = format!("its socket {} is refused: {remedy}", socket.display());
            return Err(io::Error::other(words));
        }
        let rules = &self.mps.rules;
        let own = !rules.across_teams;
        let mut daemon = Daemon {
            pid: 0,
            start_ticks: 0,
            team: own.then_some(sharer.team),
            uid: (own && rules.isolated).then_some(sharer.team),
            mark: rules.isolated.then_some(sharer.mark),
            visible: sharer.visible.clone(),
        };
        self.make_folders(&daemon)?;
        self.keep_others_off().await?;
        // Written down before: what began all the same is found by it.
        files::write_json(&self.record(), &daemon, Durability::Buffered)?;
        let limits = Limits {
            memory_mib: rules.memory_mib,
            ..Limits::default()
        };
        let open = sharer.open.as_deref();
        self.mps.cgroups.create(&self.group(), &limits, open)?;
        let mut command = self.control(&daemon).command()?;
        command
            .arg("-f")
            .args((!own).then_some(FOR_ALL_USERS))
            .env("CUDA_VISIBLE_DEVICES", &daemon.visible)
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
        Ok(self.control(&daemon))
    }

    /// Makes the folders of a daemon. Those who share the device pass to the pipe folder, of which each name is
    /// known, and the daemon alone changes it, by its mark.
    fn make_folders(&self, daemon: &Daemon) -> io::Result<()> {
        let (gate, pipe) = (self.mps.gate(&self.place), self.mps.pipe(&self.place));
        files::ensure_folder(&self.mps.root, 0o711)?;
        files::ensure_folder(&self.mps.pipes, 0o711)?;
        files::ensure_folder(&self.folder(), 0o711)?;
        let open_to_all = self.mps.rules.isolated && daemon.uid.is_none();
        files::ensure_folder(&gate, if open_to_all { 0o711 } else { 0o700 })?;
        files::ensure_folder(&pipe, if open_to_all { 0o755 } else { 0o700 })?;
        files::ensure_folder(&self.log(), 0o700)?;
        if daemon.uid.is_some() {
            for (folder, group, mode) in [
                (&gate, daemon.uid, 0o710),
                (&pipe, daemon.mark, 0o775),
                (&self.log(), daemon.mark, 0o770),
            ] {
                chown(folder, None, group)?;
                std::fs::set_permissions(folder, Permissions::from_mode(mode))?;
            }
        }
        Ok(())
    }

    /// Gives the daemon a command; what it answers.
    async fn ask(&self, line: &str, daemon: &Daemon) -> io::Result<String> {
        let (control, line) = (self.control(daemon), line.to_owned());
        let asked = tokio::task::spawn_blocking(move || control.ask(&line, ANSWER_TIMEOUT)).await;
        asked.map_err(io::Error::other)?
    }

    fn control(&self, daemon: &Daemon) -> Control {
        Control {
            program: self.program.to_owned(),
            pipe: self.mps.pipe(&self.place),
            log: self.log(),
            cgroups: self.mps.cgroups.clone(),
            group: self.group(),
            uid: daemon.uid,
            mark: daemon.mark,
        }
    }

    /// The name of the daemon's control group: several agents of a machine may have their groups in
    /// one place, and devices of one name.
    fn group(&self) -> String {
        let agent = checksum::of(self.mps.pipes.as_os_str().as_encoded_bytes());
        format!("mps-{agent}-{}", self.place.short())
    }

    fn folder(&self) -> PathBuf {
        self.mps.root.join(self.place.name())
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
