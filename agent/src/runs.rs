//! The run folder of an assignment: what agent and supervisor tell one another, by files
//! that are whole or absent.
//!
//! A supervisor begins by claiming the folder. Whoever claims it first wins, for good: an
//! agent may launch a supervisor twice and one of the two leaves at once, and an agent that
//! claims the folder itself has made sure that nothing will ever start in it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::containers::Container;
use crate::files::{self, Durability};
use crate::mps::control::Control;
use crate::supervise::cgroup::{Cgroups, Limits};
use crate::supervise::devices::DeviceFile;
use crate::supervise::private::Private;
use crate::{clock, proc};

/// All that a supervisor must know; passed as a file, since arguments are visible to all.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    /// The assignment, which names the control group.
    pub assignment_id: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The whole environment.
    pub environment: BTreeMap<String, String>,
    /// Where it runs.
    pub directory: Directory,
    /// The user and group to become; `None` where the agent is not root.
    pub uid: Option<u32>,
    /// A group that its processes bear and nobody else does; `None` where the agent is not root.
    #[serde(default)]
    pub mark: Option<u32>,
    /// What it may use.
    pub limits: Limits,
    /// How limits are enforced here.
    pub cgroups: Cgroups,
    /// The device files that it may open beside those that all programs need; `None` where it is
    /// barred from none.
    #[serde(default)]
    pub devices: Option<Vec<DeviceFile>>,
    /// What it has of its own where users share; `None` where it shares all.
    #[serde(default)]
    pub private: Option<Private>,
    /// How the daemon of MPS is spoken to by which it shares a device; `None` where it shares none so.
    #[serde(default)]
    pub sharing: Option<Control>,
    /// Its container; `None` of a job that runs as a process.
    #[serde(default)]
    pub container: Option<Container>,
    /// Where its output goes.
    pub log: PathBuf,
    /// How much of its output is kept.
    pub log_bytes_max: u64,
    /// The file with the node's lease, for work that may not outlive it.
    pub lease: Option<PathBuf>,
    /// Time between SIGTERM and SIGKILL where nobody says otherwise, in milliseconds.
    pub grace_ms: i64,
}

/// A folder below a root; the step from one to the other is made as the job's user and
/// follows no link.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Directory {
    /// The root, chosen by the agent's configuration.
    pub root: PathBuf,
    /// The path below it, as the job asked; `.` for the root itself.
    pub below: PathBuf,
}

/// Who has a run folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The supervisor's pid; 0 where the agent claimed it so that nothing starts.
    pub pid: i32,
    /// When the supervisor started, in ticks since boot.
    pub start_ticks: u64,
}

/// The job's first process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Its pid, which is also its group's.
    pub pid: i32,
    /// When it started, in ticks since boot.
    pub start_ticks: u64,
    /// The same by the wall clock.
    pub at_micros: i64,
    /// The image of its container; `None` of a process.
    #[serde(default)]
    pub image: Option<Image>,
}

/// The image that a container was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The runtime's id of it.
    pub id: String,
    /// What names it for good: its digest in a registry, or else its id.
    pub digest: String,
}

/// A wish to end a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: i64,
}

/// What the job's owner is to find in its log. The supervisor alone writes to that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// The line.
    pub line: String,
}

/// Why a run was stopped that held too much of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Over {
    /// The reason, in words for the job's owner.
    pub message: String,
}

/// Why a run never started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// `invalid` where it could run nowhere, else `start_refused`.
    pub code: RefusalCode,
    /// The reason, in words for the job's owner.
    pub message: String,
    /// What a shell would have ended with, where the command is what is wrong.
    #[serde(default)]
    pub exit_code: Option<i32>,
}

/// What a shell ends with when it finds no such command.
pub const CODE_NOT_FOUND: i32 = 127;
/// What a shell ends with when it may not execute the command.
pub const CODE_NOT_EXECUTABLE: i32 = 126;

/// Whose fault a refusal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The job's: another node would refuse it too.
    Invalid,
    /// This node's.
    StartRefused,
}

impl RefusalCode {
    /// The word that the protocol uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::StartRefused => "start_refused",
        }
    }
}

impl Refusal {
    /// The job can run nowhere.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self {
            code: RefusalCode::Invalid,
            message: message.into(),
            exit_code: None,
        }
    }

    /// Its command cannot be run, which a shell tells by an exit code.
    pub fn command(exit_code: i32, message: impl Into<String>) -> Self {
        Self {
            exit_code: Some(exit_code),
            ..Self::invalid(message)
        }
    }

    /// This node would not start it.
    pub fn here(message: impl Into<String>) -> Self {
        Self {
            code: RefusalCode::StartRefused,
            message: message.into(),
            exit_code: None,
        }
    }
}

/// Room that is taken for how a run ends: figures and a sentence, many times over.
const EXIT_BYTES: u64 = 16 * 1024;
/// The file that is that room.
const EXIT_ROOM: &str = "exit.room";

/// How a run ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code of the first process.
    pub code: Option<i32>,
    /// Or the signal that ended it.
    pub signal: Option<i32>,
    /// Whether the kernel killed one of its processes for want of memory.
    pub out_of_memory: bool,
    /// Whether somebody had begun to stop it.
    pub asked: bool,
    /// Whether that was for the node's lease.
    pub lease_over: bool,
    /// Set where it never started.
    pub refused: Option<Refusal>,
    /// Anything else that its owner should know.
    pub message: String,
    /// When, by the wall clock.
    pub at_micros: i64,
}

/// The folder of one run.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
}

macro_rules! part {
    ($read:ident, $write:ident, $type:ty, $file:literal, $durability:expr) => {
        #[doc = concat!("Reads `", $file, "`; `None` while there is none.")]
        pub fn $read(&self) -> io::Result<Option<$type>> {
            files::read_json(&self.path.join($file))
        }

        #[doc = concat!("Writes `", $file, "`.")]
        pub fn $write(&self, value: &$type) -> io::Result<()> {
            files::write_json(&self.path.join($file), value, $durability)
        }
    };
}

impl RunFolder {
    /// The run folder at a path, there or not.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it.
    pub fn create(&self) -> io::Result<()> {
        files::ensure_folder(&self.path, 0o700)
    }

    /// Whether it is there.
    pub fn exists(&self) -> bool {
        self.path.is_dir()
    }

    part!(
        orders,
        write_orders,
        Orders,
        "orders.json",
        Durability::Buffered
    );
    part!(
        started,
        write_started,
        Started,
        "started.json",
        Durability::Buffered
    );
    part!(stop, write_stop, Stop, "stop.json", Durability::Buffered);
    part!(
        warning,
        write_warning,
        Warning,
        "warning.json",
        Durability::Buffered
    );
    part!(over, write_over, Over, "over.json", Durability::Buffered);
    // Not synced: after a power loss the attempt is lost with its node in any case.
    part!(exit, write_exit, Exit, "exit.json", Durability::Buffered);

    /// Who claimed it.
    pub fn claim(&self) -> io::Result<Option<Claim>> {
        files::read_json(&self.path.join("claim.json"))
    }

    /// Claims it for this process, as its supervisor; false where somebody was earlier.
    pub fn claim_as_supervisor(&self) -> io::Result<bool> {
        let pid = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        let start_ticks = proc::start_ticks(pid).ok_or(io::ErrorKind::NotFound)?;
        files::claim_json(&self.path.join("claim.json"), &Claim { pid, start_ticks })
    }

    /// Takes room for how it ends: its job may fill the disk.
    pub fn reserve_exit(&self) -> io::Result<()> {
        files::reserve_new(&self.path.join(EXIT_ROOM), EXIT_BYTES)
    }

    /// Writes how it ended where room was taken for that.
    pub fn write_exit_in_its_room(&self, exit: &Exit) -> io::Result<()> {
        let [room, path] = [EXIT_ROOM, "exit.json"].map(|name| self.path.join(name));
        files::write_json_in(&room, &path, exit)
    }

    /// Claims it so that nothing starts in it; false where a supervisor was earlier.
    pub fn claim_as_void(&self) -> io::Result<bool> {
        let void = Claim {
            pid: 0,
            start_ticks: 0,
        };
        files::claim_json(&self.path.join("claim.json"), &void)
    }

    /// Writes the end of a run that never started.
    pub fn write_refusal(&self, refusal: Refusal) -> io::Result<()> {
        self.write_exit(&Exit {
            refused: Some(refusal),
            at_micros: clock::wall_micros(),
            ..Exit::default()
        })
    }
}
