//! Launches a job's supervisor, and takes hold of one that is there.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use protocol::desired::Assignment;
use tokio::io::AsyncReadExt as _;
use tokio::io::unix::AsyncFd;

use super::devices::View;
use super::walls;
use super::workdir::Layout;
use super::{Node, containers, environment};
use crate::checksum;
use crate::containers::Container;
use crate::points::{self, Point};
use crate::proc::{self, Process};
use crate::runs::{Orders, RunFolder, Stop};
use crate::supervise::cgroup::Limits;
use crate::supervise::devices::DeviceFile;

/// Longest wait until a supervisor says how the start went; a loaded machine with a slow
/// disk takes seconds.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// The first group that marks a job's processes: just above the range that systemd gives to
/// containers.
const MARK_MIN: u32 = 0x7000_0000;
/// So many such groups, up to the next range of systemd's: of 200 million pairs of jobs one would
/// meet, and a group that a process bears is passed over.
const MARKS: u32 = 0x0FFE_0000;

/// How long a look at the groups of all processes serves: of two jobs that start within it one in 200
/// million pairs would meet, and what this agent gave out meanwhile is known.
const BORNE_FOR: Duration = Duration::from_secs(1);

/// The orders for an assignment that has been laid out. With `open` it is barred from all device
/// files but these.
pub fn orders(
    node: &Node,
    assignment: &Assignment,
    layout: &Layout,
    devices: &View,
    open: Option<Vec<DeviceFile>>,
    container: Option<Container>,
) -> Orders {
    // A container has its own of all that.
    let private = match container {
        Some(_) => None,
        None => walls::private(node, assignment, layout),
    };
    let places = environment::Places {
        home: &layout.work,
        temporary: match (&private, &container) {
            (None, None) => &layout.temporary,
            _ => Path::new(walls::TEMPORARY),
        },
        checkpoint: &layout.checkpoint,
        output: &layout.output,
        workers: &layout.workers,
    };
    Orders {
        assignment_id: assignment.id.to_string(),
        command: assignment.command.clone(),
        environment: match container {
            Some(_) => containers::environment(assignment, &places, devices),
            None => environment::build(assignment, &places, devices),
        },
        directory: layout.directory.clone(),
        uid: node.isolated.then_some(assignment.uid),
        mark: node.isolated.then(|| free_mark(&assignment.id.to_string())),
        limits: Limits {
            cpus_milli: assignment.cpus.milli(),
            memory_mib: assignment.memory_mib,
        },
        cgroups: node.cgroups.clone(),
        devices: open,
        private,
        sharing: devices.control.clone(),
        container,
        log: node.folders.log(assignment.id),
        log_bytes_max: node.config.log_bytes_max,
        lease: (!assignment.keep_on_partition).then(|| node.folders.lease()),
        grace_ms: node
            .kill_grace_ms
            .load(std::sync::atomic::Ordering::Relaxed),
    }
}

/// Launches a supervisor for a run folder and waits until the folder says how the start
/// went. Launching twice starts nothing twice.
pub async fn launch(run: &RunFolder) -> io::Result<()> {
    // Our own program, also when its file was replaced by an upgrade.
    let mut command = std::process::Command::new("/proc/self/exe");
    command
        .arg0("allotment-agent")
        .arg("supervise")
        .arg(run.path())
        .env_clear()
        .envs(points::wanted().map(|point| (points::VARIABLE, point)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // SAFETY: setsid is a single system call and touches no memory.
    #[allow(unsafe_code)]
    unsafe {
        // A session of its own: what ends our terminal or our service does not end it.
        command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?));
    }
    let mut child = tokio::process::Command::from(command)
        .kill_on_drop(false)
        .spawn()?;
    Point::Launched.reached();
    let mut ready = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // The runtime collects the child when it ends; its end is seen through its descriptor.
    let mut word = [0; 1];
    match tokio::time::timeout(READY_TIMEOUT, ready.read(&mut word)).await {
        Ok(read) => read.map(drop),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// A supervisor that was found alive.
pub struct Supervisor {
    process: Process,
    ended: AsyncFd<OwnedFd>,
}

impl Supervisor {
    /// Takes hold of the supervisor that claimed a run folder; `None` when it is gone. After an
    /// error it may live: ask again.
    pub fn find(run: &RunFolder) -> io::Result<Option<Self>> {
        let Some(claim) = run.claim()? else {
            return Ok(None);
        };
        if claim.pid == 0 {
            return Ok(None);
        }
        let Some(process) = Process::find(claim.pid, claim.start_ticks)? else {
            return Ok(None);
        };
        // SAFETY: the descriptor is owned by what is registered, and closed by nobody else.
        #[allow(unsafe_code)]
        let ended = unsafe {
            AsyncFd::register_with_interest(process.descriptor()?, tokio::io::Interest::READABLE)?
        };
        Ok(Some(Self { process, ended }))
    }

    /// Returns when it has ended.
    pub async fn ended(&self) {
        // An error would mean that the runtime is going away.
        let _ = self.ended.readable().await;
    }

    /// Asks it to stop its job. Asking again can only shorten the grace.
    pub fn stop(&self, run: &RunFolder, grace_ms: i64) -> io::Result<()> {
        let wished = Stop { grace_ms };
        if run.stop()?.as_ref() != Some(&wished) {
            run.write_stop(&wished)?;
        }
        self.hint();
        Ok(())
    }

    /// Has it look at what its run folder says.
    pub fn hint(&self) {
        self.process.signal(Signal::SIGUSR1);
    }
}

/// The groups that processes of this machine bear, when they were looked up, and the marks that were
/// given out since.
static BORNE: Mutex<Option<(Instant, BTreeSet<u32>)>> = Mutex::new(None);

/// The group that all processes of a job or a daemon bear, in a range that neither people nor systemd use. A
/// process that is not root cannot put it off, whatever it does to its parents, group and session,
/// and none of those who may run now bears it. A look at all processes serves for a moment: where
/// many jobs start, looking would take longer than starting them.
pub fn free_mark(assignment: &str) -> u32 {
    let hash = u32::from_str_radix(&checksum::of(assignment.as_bytes()), 16).unwrap_or_default();
    let mark = |at: u32| MARK_MIN + hash.wrapping_add(at) % MARKS;
    // A panic elsewhere leaves no set half filled that would do harm: it only names what is taken.
    let mut borne = BORNE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = borne.take().filter(|(at, _)| at.elapsed() < BORNE_FOR);
    let known = known.unwrap_or_else(|| (Instant::now(), proc::groups_borne()));
    let (_, taken) = borne.insert(known);
    (0..MARKS)
        .map(mark)
        .find(|mark| taken.insert(*mark))
        .unwrap_or(mark(0))
}

/// Kills what is left of a job whose supervisor is gone, and tells whether anything was.
/// It is found by its control group, by its session and process group, and as root by its mark,
/// which it bears wherever it has gone. Where the agent is not root and there are no control groups,
/// a process that left its session while its supervisor was killed is not found: such a node has no
/// isolation. Repeat until nothing is left.
pub fn kill_orphans(node: &Node, run: &RunFolder, name: &str) -> bool {
    let group = node.cgroups.group(name);
    let mut left = !group.empty();
    group.kill();
    let mut orphans = Vec::new();
    if let (Ok(Some(claim)), Ok(Some(started))) = (run.claim(), run.started()) {
        // By session and group together: one number alone may have been given out anew.
        orphans.extend(proc::members(claim.pid, started.pid));
    }
    if let Ok(Some(mark)) = run
        .orders()
        .map(|orders| orders.and_then(|found| found.mark))
    {
        orphans.extend(proc::bearers(mark));
    }
    for orphan in orphans {
        left = true;
        proc::kill_seen(&orphan);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_of_their_range_and_differ() {
        let marks = ["a", "b"].map(free_mark);
        assert_ne!(marks[0], marks[1]);
        assert!(
            marks
                .iter()
                .all(|mark| (MARK_MIN..MARK_MIN + MARKS).contains(mark))
        );
    }
}
