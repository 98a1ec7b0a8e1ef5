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
    stat_field(pid, 3).is_some_and(|state| !over(&state))
}

fn over(state: &str) -> bool {
    state == "Z" || state == "X"
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
    field_of(&read_stat(pid).ok()??, number).map(str::to_owned)
}

/// What `/proc/PID/stat` says; `None` where there is no such process.
fn read_stat(pid: i32) -> io::Result<Option<String>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(Some(stat)),
        // The second where it ends between the opening and the reading.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                || error.raw_os_error() == Some(libc::ESRCH) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn field_of(stat: &str, number: usize) -> Option<&str> {
    // The name in parentheses may hold blanks and parentheses itself.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number - 3)
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
    /// nobody has heard of its end yet. An error says nothing of the process: the kernel had no
    /// descriptor or no memory to answer with, and is to be asked again.
    pub fn find(pid: i32, ticks: u64) -> io::Result<Option<Self>> {
        let descriptor = match open_pidfd(pid) {
            Ok(descriptor) => descriptor,
            Err(error) if names_no_process(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Read after the descriptor was opened: what it names cannot change any more.
        let Some(stat) = read_stat(pid)? else {
            return Ok(None);
        };
        let same = field_of(&stat, 22).and_then(|field| field.parse().ok()) == Some(ticks);
        let lives = field_of(&stat, 3).is_some_and(|state| !over(state));
        Ok((same && lives).then_some(Self { descriptor }))
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

/// Whether the kernel says that a number is no process: nobody has it, or, by its second and
/// third word, a thread of another process has been given it.
fn names_no_process(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ESRCH | libc::EINVAL | libc::ENOENT)
    )
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
        assert!(Process::find(me, ticks).expect("told").is_some());
        assert!(Process::find(me, ticks + 1).expect("told").is_none());
    }

    #[test]
    fn a_number_that_a_thread_was_given_is_no_process() {
        let (told, ask) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            told.send(nix::unistd::gettid().as_raw()).expect("told");
            // An error is the end of the test.
            let _ = wait.recv();
        });
        let number = ask.recv().expect("a thread's number");
        let found = Process::find(number, 1).map(|found| found.is_some());
        drop(end);
        thread.join().expect("it ended");
        assert!(matches!(found, Ok(false)), "{found:?}");
    }

    /// A limit of a process reaches all of its threads, so that another test would see it: the
    /// limit is set in a child, which is this program again.
    #[test]
    fn a_want_of_descriptors_is_no_end_of_a_process() {
        const INSIDE: &str = "ALLOTMENT_TEST_WITHOUT_DESCRIPTORS";
        if std::env::var_os(INSIDE).is_some() {
            let me = i32::try_from(std::process::id()).expect("a pid");
            let ticks = start_ticks(me).expect("I run");
            nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 0, 0)
                .expect("limited");
            let found = Process::find(me, ticks).map(|found| found.is_some());
            assert!(found.is_err(), "it lives, and cannot be seen: {found:?}");
            return;
        }
        let program = std::env::current_exe().expect("this program");
        let own = "proc::tests::a_want_of_descriptors_is_no_end_of_a_process";
        let child = std::process::Command::new(program)
            .args([own, "--exact"])
            .env(INSIDE, "1")
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && said.contains("1 passed"),
            "{said}"
        );
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
        let process = Process::find(pid, ticks).expect("told");
        let ended = || process.is_none() || !lives(pid);
        while !ended() {
            std::thread::yield_now();
        }
        assert!(
            Process::find(pid, ticks).expect("told").is_none(),
            "it has ended, and is not reaped yet"
        );
        child.wait().expect("reaped");
    }
}
