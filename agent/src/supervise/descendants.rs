//! Ends whatever a job left behind, so that its devices are free when it is released.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::cgroup::Group;
use crate::proc;

/// Wait between two rounds. Killed processes take some milliseconds to be gone, and one
/// that hangs in a driver takes as long as it takes: its device is not free before.
const ROUND: Duration = Duration::from_millis(5);
/// Longest wait between two rounds.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// Kills all descendants of this process until none is left. Orphans fall to it, since it
/// is a sub-reaper: whatever a job did to hide, it ends up among the children.
pub fn kill_all(group: &Group) {
    let me = i32::try_from(std::process::id()).unwrap_or_default();
    let mut round = ROUND;
    loop {
        group.kill();
        proc::children(me).into_iter().for_each(proc::kill_process);
        loop {
            match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(nix::sys::wait::WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                // No child is left.
                Err(_) => return,
            }
        }
        std::thread::sleep(round);
        round = (round * 2).min(ROUND_MAX);
    }
}
