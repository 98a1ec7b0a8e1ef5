//! Ends whatever a job left behind, so that its devices are free when it is released.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::cgroup::Group;
use crate::proc;

/// Wait between two rounds. Killed processes take some milliseconds to be gone, and one
/// that hangs in a driver takes as long as it takes: its device is not free before.
const ROUND: Duration = Duration::from_millis(5);
/// Longest wait between two rounds.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// Looks at our own children within a round while each shows new ones: a chain of processes of
/// which each starts the next and leaves is broken by looking faster than they fork.
const LOOKS_MAX: u32 = 1000;

/// Kills all descendants of this process until none is left. Orphans fall to it, since it
/// is a sub-reaper: whatever a job did to hide, it ends up among the children.
pub fn kill_all(group: &Group) {
    group.kill();
    // Most jobs leave nothing behind: all processes need not be looked at for that.
    if childless() {
        return;
    }
    let mut round = ROUND;
    loop {
        kill_once(group);
        if childless() {
            return;
        }
        std::thread::sleep(round);
        round = (round * 2).min(ROUND_MAX);
    }
}

/// Collects children that have ended; whether none is left, and with them no descendant.
fn childless() -> bool {
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return false,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return true,
        }
    }
}

/// Kills all descendants of this process that there are now, in whatever group and session. Nobody
/// is collected.
pub fn kill_once(group: &Group) {
    group.kill();
    let me = i32::try_from(std::process::id()).unwrap_or_default();
    proc::descendants(me).iter().for_each(proc::kill_seen);
    let mut killed = BTreeSet::new();
    for _ in 0..LOOKS_MAX {
        let fresh: Vec<i32> = proc::own_children()
            .into_iter()
            .filter(|child| killed.insert(*child))
            .collect();
        if fresh.is_empty() {
            break;
        }
        for child in fresh {
            proc::signal_child(child, Signal::SIGKILL);
        }
    }
}
