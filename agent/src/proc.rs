//! What the kernel says of processes: who they are, and that they are still the same.

use std::collections::{BTreeMap, BTreeSet};
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

/// A process as one look at the kernel's list shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Its pid.
    pub pid: i32,
    /// When it started, in ticks since boot.
    ticks: u64,
    parent: i32,
    group: i32,
    session: i32,
    over: bool,
}

impl Seen {
    fn of(pid: i32) -> Option<Self> {
        let stat = read_stat(pid).ok()??;
        let number = |at| field_of(&stat, at)?.parse().ok();
        Some(Self {
            pid,
            ticks: field_of(&stat, 22)?.parse().ok()?,
            parent: number(4)?,
            group: number(5)?,
            session: number(6)?,
            over: over(&stat),
        })
    }
}

/// All descendants of a process, found by looking at all processes: works without the kernel's
/// list of children, which is a build option.
pub fn descendants(root: i32) -> Vec<Seen> {
    let mut by_parent: BTreeMap<i32, Vec<Seen>> = BTreeMap::new();
    for seen in all().filter_map(Seen::of) {
        by_parent.entry(seen.parent).or_default().push(seen);
    }
    let mut found: Vec<Seen> = by_parent.remove(&root).unwrap_or_default();
    let mut looked_at = 0;
    while let Some(next) = found.get(looked_at).map(|seen| seen.pid) {
        found.extend(by_parent.remove(&next).unwrap_or_default());
        looked_at += 1;
    }
    found
}

/// The children of the calling thread, by the kernel's own list: so fast that who forks and leaves
/// is caught. Nothing where that list is not built in.
pub fn own_children() -> Vec<i32> {
    let list = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    list.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// The living processes of a group in a session; zombies hold nothing any more.
pub fn members(session: i32, group: i32) -> Vec<Seen> {
    all()
        .filter_map(Seen::of)
        .filter(|seen| seen.group == group && seen.session == session && !seen.over)
        .collect()
}

/// The living processes that bear a group among those that are theirs besides their own.
pub fn bearers(group: u32) -> Vec<Seen> {
    all()
        .filter(|pid| groups_of(*pid).contains(&group))
        .filter_map(Seen::of)
        .filter(|seen| !seen.over)
        .collect()
}

/// All groups that processes bear besides their own.
pub fn groups_borne() -> BTreeSet<u32> {
    all().flat_map(groups_of).collect()
}

/// A process and those that it descends from, as far as the kernel tells.
pub fn ancestors(pid: i32) -> Vec<i32> {
    /// No line of processes is so long; one that is would be a loop by numbers given out again.
    const LINE_MAX: usize = 256;
    let parent = |pid: &i32| stat_field(*pid, 4)?.parse().ok().filter(|above| *above > 0);
    std::iter::successors(Some(pid), parent)
        .take(LINE_MAX)
        .collect()
}

/// The name that the kernel has of a process's program; nothing where it is gone.
pub fn name(pid: i32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// The user that a process runs as.
pub fn user(pid: i32) -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// The groups that a process bears besides its own.
pub fn groups_of(pid: i32) -> Vec<u32> {
    numbers_of(pid, "Groups:")
}

/// The numbers in a line of a process's status.
fn numbers_of(pid: i32, name: &str) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default()
        .split_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// Whether any living process is a user's.
pub fn runs_as(uid: u32) -> bool {
    let living = |pid: i32| {
        read_stat(pid)
            .ok()
            .flatten()
            .is_some_and(|stat| !over(&stat))
    };
    all().any(|pid| numbers_of(pid, "Uid:").contains(&uid) && living(pid))
}

/// The process group of a process.
pub fn group_of(pid: i32) -> Option<i32> {
    stat_field(pid, 5)?.parse().ok()
}

/// Whether the process has ended by what its `stat` says, and only waits for its parent to hear of
/// it. One whose first thread has left while others run looks the same but for their number.
fn over(stat: &str) -> bool {
    let ended = field_of(stat, 3).is_some_and(|state| state == "Z" || state == "X");
    ended && field_of(stat, 20).and_then(|threads| threads.parse().ok()) <= Some(1)
}

fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
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

/// Sends SIGKILL to a process that was seen, and to nobody who has its number since.
pub fn kill_seen(seen: &Seen) {
    let started = |stat: &str| field_of(stat, 22).and_then(|field| field.parse().ok());
    if let Ok(Some(process)) = Process::hold(seen.pid, |stat| started(stat) == Some(seen.ticks)) {
        process.signal(Signal::SIGKILL);
    }
}

/// Sends a signal to a child of this process that nobody has collected, so that nobody else has its
/// number.
pub fn signal_child(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
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
        Self::hold(pid, |stat| {
            let started = field_of(stat, 22).and_then(|field| field.parse().ok());
            started == Some(ticks) && !over(stat)
        })
    }

    /// Takes hold of the process that has this pid, if what its `stat` says is what was meant.
    pub fn hold(pid: i32, meant: impl FnOnce(&str) -> bool) -> io::Result<Option<Self>> {
        let descriptor = match open_pidfd(pid) {
            Ok(descriptor) => descriptor,
            Err(error) if names_no_process(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Read after the descriptor was opened: what it names cannot change any more.
        let Some(stat) = read_stat(pid)? else {
            return Ok(None);
        };
        Ok(meant(&stat).then_some(Self { descriptor }))
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

/// How much memory the machine has, in MiB.
pub fn machine_memory_mib() -> i64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: i64 = total
        .and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse().ok())
        .unwrap_or_default();
    kib / 1024
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
    fn a_process_whose_first_thread_has_left_lives_on() {
        let stat = |state: &str, threads: u32| {
            format!("7 (a) b) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 5")
        };
        assert!(over(&stat("Z", 1)) && over(&stat("X", 0)));
        assert!(!over(&stat("Z", 2)) && !over(&stat("S", 1)));
    }

    #[test]
    fn a_child_is_found_with_whatever_name() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .expect("sleep starts");
        let me = i32::try_from(std::process::id()).expect("a pid");
        let pid = i32::try_from(child.id()).expect("a pid");
        let found = descendants(me);
        assert!(found.iter().any(|seen| seen.pid == pid), "{found:?}");
        let ticks = start_ticks(pid).expect("it runs");
        child.kill().expect("killed");
        let process = Process::find(pid, ticks).expect("told");
        let ended = || process.is_none() || Seen::of(pid).is_none_or(|seen| seen.over);
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
