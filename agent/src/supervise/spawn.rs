//! Starts a job's first process: as the team's user, in its group and folder, with nothing
//! of ours in its environment, descriptors or signals.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sched::{CloneFlags, setns};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigmaskHow, Signal, sigprocmask};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, fchdir, setgid, setgroups, setuid};

use super::cgroup::Group;
use super::private::Private;
use crate::runs::{CODE_NOT_EXECUTABLE, CODE_NOT_FOUND, Directory, Orders, Refusal};

/// A started process with the pipe that its output comes through.
pub struct Child {
    /// Its pid, which is also its group's.
    pub pid: i32,
    /// The end to read.
    pub output: OwnedFd,
}

/// What the new process was doing when it failed, told through a pipe since a failed start
/// passes an error number only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    Group = b'g',
    Limits = b'l',
    Private = b'p',
    Root = b'r',
    Identity = b'i',
    Directory = b'd',
    Exec = b'x',
}

/// Starts the job's command, or says in words why not.
pub fn spawn(orders: &Orders, group: &Group) -> Result<Child, Refusal> {
    let pipe = |e: io::Error| Refusal::here(format!("no pipe: {e}"));
    let (output, job_end) = io::pipe().map_err(pipe)?;
    let (mut steps, step_end) = io::pipe().map_err(pipe)?;
    let program = orders
        .command
        .first()
        .ok_or_else(|| Refusal::invalid("the command is empty"))?;
    let doors = group
        .doors()
        .map_err(|e| Refusal::here(format!("its control group cannot be entered: {e}")))?;

    let mut command = Command::new(program);
    command
        .args(&orders.command[1..])
        .env_clear()
        .envs(&orders.environment)
        .stdin(Stdio::null())
        .stdout(job_end.try_clone().map_err(pipe)?)
        .stderr(job_end)
        .process_group(0);
    let entry = Entry {
        doors,
        walls: match &orders.private {
            Some(private) => Walls::Made(private.clone()),
            None => Walls::None,
        },
        directory: orders.directory.clone(),
        uid: orders.uid,
        mark: orders.mark,
        steps: step_end,
    };
    // SAFETY: the supervisor has one thread, so the copy of it that runs this between fork
    // and exec may allocate and take locks like any other code.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(move || entry.enter());
    }
    let spawned = command.spawn();
    // Closes our copies of the pipes' far ends: the log must see the job's end.
    drop(command);
    match spawned {
        Ok(child) => Ok(Child {
            pid: i32::try_from(child.id()).map_err(|e| Refusal::here(e.to_string()))?,
            output: output.into(),
        }),
        Err(error) => {
            let mut passed = Vec::new();
            let _ = steps.read_to_end(&mut passed);
            Err(refusal(program, orders, passed.last().copied(), &error))
        }
    }
}

/// Why a process could not be started: what it was doing, once it has told.
pub struct Steps(io::PipeReader);

impl Steps {
    /// The reason in words.
    pub fn words(mut self, program: &str, orders: &Orders, error: &io::Error) -> String {
        let mut passed = Vec::new();
        let _ = self.0.read_to_end(&mut passed);
        refusal(program, orders, passed.last().copied(), error).message
    }
}

/// The entry of a process that is run beside a job, within its walls: its group, its user, its limits, and
/// the namespaces given.
pub fn entry_beside(orders: &Orders, namespaces: Vec<File>) -> Result<(Entry, Steps), String> {
    let (steps, step_end) = io::pipe().map_err(|error| format!("no pipe: {error}"))?;
    let doors = orders.cgroups.group(&orders.assignment_id).doors();
    let entry = Entry {
        doors: doors.map_err(|e| format!("its control group cannot be entered: {e}"))?,
        walls: Walls::Joined(namespaces),
        directory: orders.directory.clone(),
        uid: orders.uid,
        mark: orders.mark,
        steps: step_end,
    };
    Ok((entry, Steps(steps)))
}

/// What a new process has of its own.
enum Walls {
    /// Nothing.
    None,
    /// What is made for it.
    Made(Private),
    /// What was made for its job: these namespaces.
    Joined(Vec<File>),
}

/// What the new process does before it becomes the job.
pub struct Entry {
    doors: Vec<File>,
    walls: Walls,
    directory: Directory,
    uid: Option<u32>,
    mark: Option<u32>,
    steps: io::PipeWriter,
}

impl Entry {
    /// Enters; the last step before exec.
    pub fn enter(&self) -> io::Result<()> {
        self.at(Step::Group)?;
        for mut door in &self.doors {
            door.write_all(b"0")?;
        }
        // Protection from memory pressure is the supervisor's alone.
        let _ = std::fs::write("/proc/self/oom_score_adj", "0");
        self.at(Step::Limits)?;
        set_limits()?;
        self.at(Step::Private)?;
        match &self.walls {
            Walls::None => {}
            Walls::Made(private) => private.enter()?,
            Walls::Joined(namespaces) => {
                for namespace in namespaces {
                    setns(namespace, CloneFlags::empty())?;
                }
            }
        }
        umask(Mode::from_bits_truncate(0o077));
        self.at(Step::Root)?;
        // Opened here and not before: a folder of the machine's own mounts would lead out of ours.
        let root = open_folder(&self.directory.root)?;
        self.at(Step::Identity)?;
        if let Some(uid) = self.uid {
            let mark: Vec<Gid> = self.mark.into_iter().map(Gid::from_raw).collect();
            setgroups(&mark)?;
            setgid(Gid::from_raw(uid))?;
            setuid(Uid::from_raw(uid))?;
        }
        leave_session_keyring()?;
        nix::sys::prctl::set_no_new_privs()?;
        // Set after the change of user, which clears it. It ends the first process with its
        // supervisor unless that has cleared it; for all else see `launch::kill_orphans`.
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&super::no_signals()), None)?;
        self.at(Step::Directory)?;
        // As the job's user: what that user may not enter, the job may not either.
        fchdir(step_down(&root, &self.directory.below)?)?;
        self.at(Step::Exec)?;
        close_others_on_exec()
    }

    fn at(&self, step: Step) -> io::Result<()> {
        (&self.steps).write_all(&[step as u8])
    }
}

/// Opens a folder below another, through no link and no way out.
pub fn step_down(root: &OwnedFd, below: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(root.as_fd(), below, how)
}

/// Opens a folder of ours as a place to start from.
pub fn open_folder(path: &Path) -> nix::Result<OwnedFd> {
    open(
        path,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
}

/// Leaves behind the keys of whoever started the agent: a process may use those of its session
/// whoever it has become, and takes them through a change of user.
fn leave_session_keyring() -> io::Result<()> {
    // SAFETY: the name of the new session's keyring is none, and no memory is passed.
    #[allow(unsafe_code)]
    let keyring = unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    };
    if keyring >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // A kernel without keys, and a container that lets nobody near them.
        Some(libc::ENOSYS | libc::EPERM) => Ok(()),
        _ => Err(error),
    }
}

fn set_limits() -> io::Result<()> {
    // A core dump of a job that maps device memory fills the disk of the node.
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    // Without control groups this alone ends a fork bomb. The kernel counts all processes of the
    // user, so that with them it bounds what a team's jobs have together on this machine.
    let (_, hard) = getrlimit(Resource::RLIMIT_NPROC)?;
    let pids = rlim_t::from(super::cgroup::pids_max()).min(hard);
    setrlimit(Resource::RLIMIT_NPROC, pids, pids)?;
    // GPU libraries pin host memory, whose amount its memory limit bounds: no other bound where we
    // may set none, else as much as the node allows. And they open many files.
    if setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_err() {
        as_allowed(Resource::RLIMIT_MEMLOCK)?;
    }
    as_allowed(Resource::RLIMIT_NOFILE)?;
    Ok(())
}

fn as_allowed(resource: Resource) -> io::Result<()> {
    let (_, hard) = getrlimit(resource)?;
    Ok(setrlimit(resource, hard, hard)?)
}

/// Marks every descriptor but the three standard ones to close on exec, also those that a
/// library opened without saying so.
fn close_others_on_exec() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: close_range with this flag changes flags of descriptors only.
    #[allow(unsafe_code)]
    let failed = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if failed == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // A kernel before 5.9 does not know the call, one before 5.11 not the flag.
        Some(libc::ENOSYS | libc::EINVAL) => close_each_on_exec(FIRST),
        _ => Err(error),
    }
}

/// The same one by one, from a number on.
fn close_each_on_exec(first: libc::c_uint) -> io::Result<()> {
    let open: Vec<libc::c_int> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| libc::c_uint::try_from(*number).is_ok_and(|number| number >= first))
        .collect();
    for number in open {
        // SAFETY: it changes a flag of a descriptor; of the one that listed them, which is closed
        // by now, it says EBADF.
        #[allow(unsafe_code)]
        let failed = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        let error = io::Error::last_os_error();
        if failed != 0 && error.raw_os_error() != Some(libc::EBADF) {
            return Err(error);
        }
    }
    Ok(())
}

fn refusal(program: &str, orders: &Orders, step: Option<u8>, error: &io::Error) -> Refusal {
    let shown = domain::error::quote(program);
    match step {
        Some(step) if step == Step::Directory as u8 => Refusal::invalid(format!(
            "working_directory: {} cannot be entered by the team's user: {error}",
            domain::error::quote(
                &orders
                    .directory
                    .root
                    .join(&orders.directory.below)
                    .to_string_lossy()
            )
        )),
        Some(step) if step == Step::Exec as u8 => match error.raw_os_error() {
            Some(libc::ENOENT) => {
                Refusal::command(CODE_NOT_FOUND, format!("command not found: {shown}"))
            }
            Some(libc::EACCES) => Refusal::command(
                CODE_NOT_EXECUTABLE,
                format!("command cannot be executed: {shown}: permission denied"),
            ),
            Some(libc::ENOMEM | libc::EAGAIN | libc::EMFILE | libc::ENFILE) => {
                Refusal::here(format!("{shown} could not be started: {error}"))
            }
            _ => Refusal::command(
                CODE_NOT_EXECUTABLE,
                format!("command cannot be executed: {shown}: {error}"),
            ),
        },
        Some(step) if step == Step::Private as u8 => Refusal::here(format!(
            "folders of its own cannot be put in the place of the machine's (private_tmp): {error}"
        )),
        Some(step) if step == Step::Root as u8 => Refusal::here(format!(
            "{} cannot be opened: {error}",
            orders.directory.root.display()
        )),
        Some(step) if step == Step::Identity as u8 => Refusal::here(format!(
            "user {} cannot be taken on: {error}",
            orders.uid.unwrap_or_default()
        )),
        _ => Refusal::here(format!("the process could not be prepared: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_marked_one_by_one_where_the_kernel_cannot_do_it_at_once() {
        use std::os::fd::AsRawFd as _;
        let (kept, _other) = std::io::pipe().expect("a pipe");
        let flags = |fd: &std::io::PipeReader| {
            nix::fcntl::fcntl(fd.as_fd(), nix::fcntl::FcntlArg::F_GETFD).expect("asked")
        };
        let none = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty());
        nix::fcntl::fcntl(kept.as_fd(), none).expect("unmarked");
        assert_eq!(flags(&kept), 0);
        let first = libc::c_uint::try_from(kept.as_raw_fd()).expect("a descriptor");
        close_each_on_exec(first).expect("marked");
        assert_eq!(flags(&kept), libc::FD_CLOEXEC);
    }

    #[test]
    fn no_step_leads_out_of_the_root_or_through_a_link() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(root.path().join("in")).expect("made");
        std::os::unix::fs::symlink("/etc", root.path().join("link")).expect("linked");
        let opened = open_folder(root.path()).expect("opened");
        assert!(step_down(&opened, Path::new("in")).is_ok());
        assert!(step_down(&opened, Path::new(".")).is_ok());
        for bad in ["..", "in/../..", "/etc", "link", "link/ssh"] {
            assert!(step_down(&opened, Path::new(bad)).is_err(), "{bad}");
        }
    }
}
