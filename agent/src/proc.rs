//! What the kernel says of processes: who they are, and that they are still the same.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// The kernel's id of this boot; another one means that no process survived.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// When a process started, in the kernel's ticks since boot: with its pid it names the
/// process for good, since a pid alone is given out again.
pub fn start_ticks(pid: i32) -> Option<u64> {
    stat_field(pid, 22)?.parse().ok()
}

/// The children of a process, found by looking at all processes: works without the
/// kernel's list of children, which is a build option.
pub fn children(parent: i32) -> Vec<i32> {
    all()
        .filter(|pid| stat_number(*pid, 4) == Some(parent))
        .collect()
}

/// The living processes of a group in a session; zombies hold nothing any more.
pub fn members(session: i32, group: i32) -> Vec<i32> {
    all()
        .filter(|pid| stat_number(*pid, 5) == Some(group) && stat_number(*pid, 6) == Some(session))
        .filter(|pid| lives(*pid))
        .collect()
}

/// Whether a process is there and not only waits for its parent to hear of its end.
fn lives(pid: i32) -> bool {
    stat_field(pid, 3).is_some_and(|state| state != "Z" && state != "X")
}

fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn stat_number(pid: i32, number: usize) -> Option<i32> {
    stat_field(pid, number)?.parse().ok()
}

/// A field of `/proc/PID/stat`, counted from 1 as in proc(5).
fn stat_field(pid: i32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold blanks and parentheses itself.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number - 3).map(str::to_owned)
}

/// Sends a signal to a process group that may be gone.
pub fn signal_group(group: i32, signal: Signal) {
    // ESRCH is the wanted end; EPERM cannot be, since we are root or the group's user.
    let _ = killpg(Pid::from_raw(group), signal);
}

/// Sends SIGKILL to a process that may be gone.
pub fn kill_process(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// A process held by its descriptor: signals reach it and nobody who came after it.
#[derive(Debug)]
pub struct Process {
    descriptor: OwnedFd,
}

impl Process {
    /// Takes hold of the process that had this pid and start; `None` when it is gone, also when
    /// nobody has heard of its end yet.
    pub fn find(pid: i32, ticks: u64) -> Option<Self> {
        let descriptor = open_pidfd(pid).ok()?;
        // Checked after the descriptor was opened: what it names cannot change any more.
        (start_ticks(pid) == Some(ticks) && lives(pid)).then_some(Self { descriptor })
    }

    /// The descriptor, which is readable once the process has ended.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.descriptor.try_clone()
    }

    /// Sends a signal; a process that has ended is not an error.
    pub fn signal(&self, signal: Signal) {
        // SAFETY: a plain system call on a descriptor that we own; no memory is passed.
        #[allow(unsafe_code)]
        unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.descriptor.as_raw_fd(),
                signal as libc::c_int,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            );
        }
    }
}

fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor, which is ours.
    #[allow(unsafe_code)]
    unsafe {
        let raw = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        let raw = i32::try_from(raw).map_err(io::Error::other)?;
        Ok(OwnedFd::from_raw_fd(raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_pid_and_start_only() {
        let me = i32::try_from(std::process::id()).expect("a pid");
        let ticks = start_ticks(me).expect("I run");
        assert!(Process::find(me, ticks).is_some());
        assert!(Process::find(me, ticks + 1).is_none());
    }

    #[test]
    fn a_child_is_found_with_whatever_name() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .expect("sleep starts");
        let me = i32::try_from(std::process::id()).expect("a pid");
        let pid = i32::try_from(child.id()).expect("a pid");
        assert!(children(me).contains(&pid));
        let ticks = start_ticks(pid).expect("it runs");
        child.kill().expect("killed");
        let process = Process::find(pid, ticks);
        let ended = || process.is_none() || !lives(pid);
        while !ended() {
            std::thread::yield_now();
        }
        assert!(
            Process::find(pid, ticks).is_none(),
            "it has ended, and is not reaped yet"
        );
        child.wait().expect("reaped");
    }
}
