//! The supervisor: the small parent of one job's processes, which outlives the agent.
//!
//! It holds the log, enforces the stop, its grace and the node's lease, and writes how the
//! job ended. It enforces the lease itself, since an agent that was killed or stopped could
//! not, and the server gives the job's devices to others once the lease is over.

pub mod cgroup;
mod descendants;
mod device_program;
pub mod devices;
pub mod ends;
pub mod private;
mod spawn;
mod watch;

pub use spawn::{entry_beside, open_folder, step_down};
pub use watch::signals;

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use crate::logs::writer::BoundedLog;
use crate::points::Point;
use crate::runs::{Exit, Orders, Refusal, RunFolder, Started};
use crate::{clock, containers, proc};

/// Wait before the end of a job is written again for which the disk had no room.
const ROOM_WAIT: Duration = Duration::from_secs(1);
/// Most such waits, an hour of them: who clears a disk is called sooner.
const ROOM_WAITS_MAX: u32 = 3600;

/// Runs one job to its end. Returns early where another supervisor has claimed the folder.
pub fn run(path: &Path) -> io::Result<()> {
    let folder = RunFolder::at(path.to_owned());
    let Some(orders) = folder.orders()? else {
        // The assignment was given up between our launch and now.
        return Ok(());
    };
    // Signals wait until the watch reads them: none is lost, none interrupts.
    watch::signals().thread_block().map_err(io::Error::from)?;
    nix::sys::prctl::set_child_subreaper(true).map_err(io::Error::from)?;
    protect_from_memory_pressure();
    if !folder.claim_as_supervisor()? {
        return Ok(());
    }
    Point::RunClaimed.reached();
    if let Some(container) = &orders.container {
        return containers::run(&folder, &orders, container);
    }
    match begin(&folder, &orders) {
        Ok(run) => {
            report_readiness();
            let exit = watch::to_end(&folder, &orders, run)?;
            Point::GroupEmptied.reached();
            write_exit(&folder, &exit)?;
            Point::EndWritten.reached();
            Ok(())
        }
        Err(refusal) => {
            let written = folder.write_refusal(refusal);
            report_readiness();
            written
        }
    }
}

/// Writes how a job ended, on a disk that is full in the room that was taken before it began. Where even that is
/// too little it waits for room: an end that nobody can read would be told as one that nobody saw, and the job be
/// run again.
pub fn write_exit(folder: &RunFolder, exit: &Exit) -> io::Result<()> {
    match folder.write_exit(exit) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
        written => return written,
    }
    if folder.write_exit_in_its_room(exit).is_ok() {
        return Ok(());
    }
    for _ in 0..ROOM_WAITS_MAX {
        match folder.write_exit(exit) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                std::thread::sleep(ROOM_WAIT);
            }
            written => return written,
        }
    }
    folder.write_exit(exit)
}

/// A job that has been started.
struct Run {
    pid: i32,
    group: cgroup::Group,
    output: std::os::fd::OwnedFd,
    log: BoundedLog,
}

/// Refuses to start what needs a lease where there is none any more.
pub fn check_lease(orders: &Orders) -> Result<(), Refusal> {
    let Some(lease) = &orders.lease else {
        return Ok(());
    };
    let boot_id = proc::boot_id().map_err(|e| Refusal::here(format!("boot id: {e}")))?;
    if crate::lease::end(lease, &boot_id) <= clock::boot_ms() {
        return Err(Refusal::here(
            "the node's lease ended before the job started",
        ));
    }
    Ok(())
}

/// Opens the job's log.
pub fn open_log(orders: &Orders) -> Result<BoundedLog, Refusal> {
    BoundedLog::open(&orders.log, orders.log_bytes_max)
        .map_err(|e| Refusal::here(format!("the log cannot be written: {e}")))
}

fn begin(folder: &RunFolder, orders: &Orders) -> Result<Run, Refusal> {
    check_lease(orders)?;
    folder
        .reserve_exit()
        .map_err(|e| Refusal::here(format!("there is no room for how it ends: {e}")))?;
    let log = open_log(orders)?;
    let group = orders
        .cgroups
        .create(
            &orders.assignment_id,
            &orders.limits,
            orders.devices.as_deref(),
        )
        .map_err(|e| Refusal::here(format!("its limits cannot be set: {e}")))?;
    Point::GroupMade.reached();
    let child = match spawn::spawn(orders, &group) {
        Ok(child) => child,
        Err(refusal) => {
            group.remove();
            return Err(refusal);
        }
    };
    Point::JobSpawned.reached();
    let started = Started {
        pid: child.pid,
        start_ticks: proc::start_ticks(child.pid).unwrap_or_default(),
        at_micros: clock::wall_micros(),
        image: None,
    };
    if let Err(error) = folder.write_started(&started) {
        // Nobody could find it again: better no job than one that nobody knows.
        proc::signal_group(child.pid, Signal::SIGKILL);
        descendants::kill_all(&group);
        group.remove();
        return Err(Refusal::here(format!(
            "its run folder cannot be written: {error}"
        )));
    }
    Point::StartWritten.reached();
    Ok(Run {
        pid: child.pid,
        group,
        output: child.output,
        log,
    })
}

/// Tells the agent that the run folder says how the start went, if it still listens, and
/// lets go of its pipe.
pub fn report_readiness() {
    // An agent that is gone reads the folder when it is back.
    let _ = io::stdout().write_all(b".");
    let _ = io::stdout().flush();
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(null);
    }
}

/// Asks the kernel to spare the supervisor when memory is short: without it the job's end
/// would be unknown. Only root may; without it the job's end is told as the node's fault.
fn protect_from_memory_pressure() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "-500");
}

/// The signals that a job's process starts with: none blocked.
fn no_signals() -> SigSet {
    SigSet::empty()
}

/// An end that the supervisor dates itself.
pub fn dated(exit: Exit) -> Exit {
    Exit {
        at_micros: clock::wall_micros(),
        ..exit
    }
}
