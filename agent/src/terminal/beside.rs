//! The process beside a job: runs one command within the job's walls, or carries one port of it.
//!
//! It has one thread until it has started the command. What it starts descends from it, and ends when
//! the command, the job or the agent's control of it does.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, fchown};
use serde::{Deserialize, Serialize};

use super::port;
use crate::proc::{self, Process};
use crate::runs::{Orders, RunFolder};
use crate::supervise::entry_beside;

/// The descriptor of the control: what is to be done comes through it, how that went goes back.
pub const CONTROL: i32 = 3;
/// Longest wish: a command with its arguments, which the server bounds by less.
const ASK_BYTES_MAX: u64 = 256 * 1024;
/// Time that a command has to leave after it was told that its terminal is gone.
const HANGUP_MS: u16 = 1_000;
/// Wait between two rounds of killing what a command left behind.
const ROUND: Duration = Duration::from_millis(5);
/// What a terminal is that a browser or another terminal shows.
const TERM: &str = "xterm-256color";

/// What is to be done.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// A command, with a terminal as its standard streams or without.
    Command {
        /// The program and its arguments.
        arguments: Vec<String>,
        /// Whether it has a terminal.
        terminal: bool,
    },
    /// A port on the job's loopback.
    Port {
        /// Which.
        port: u16,
    },
}

/// How it goes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// It has begun.
    Begun,
    /// It has ended. Neither code nor signal: it never began, or was ended.
    Ended {
        /// The exit code.
        code: Option<i32>,
        /// Or the signal.
        signal: Option<i32>,
        /// Why, where nothing else says so.
        reason: String,
    },
}

/// Does what the control says, for the job of a run folder.
pub fn run(path: &Path) -> io::Result<()> {
    // SAFETY: the agent that launched this process passed that descriptor, and nobody else here knows it.
    #[allow(unsafe_code)]
    let control = unsafe { UnixStream::from_raw_fd(CONTROL) };
    let mut line = String::new();
    BufReader::new((&control).take(ASK_BYTES_MAX)).read_line(&mut line)?;
    let ask: Ask = serde_json::from_str(&line)?;
    let ended = perform(&RunFolder::at(path.to_owned()), ask, &control);
    let told = ended.unwrap_or_else(|reason| Told::Ended {
        code: None,
        signal: None,
        reason,
    });
    tell(&control, &told)
}

fn tell(mut control: &UnixStream, told: &Told) -> io::Result<()> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    control.write_all(&line)
}

fn perform(folder: &RunFolder, ask: Ask, control: &UnixStream) -> Result<Told, String> {
    let words = |what: &str, error: io::Error| format!("{what}: {error}");
    let read = |error| words("the job's run folder cannot be read", error);
    let (Some(orders), Some(started), Some(claim)) = (
        folder.orders().map_err(read)?,
        folder.started().map_err(read)?,
        folder.claim().map_err(read)?,
    ) else {
        return Err("the job does not run any more".to_owned());
    };
    if orders.container.is_some() && matches!(ask, Ask::Command { .. }) {
        return Err(
            "the job runs in a container, in which no command can be begun yet: \
            have the job's own command begin it"
                .to_owned(),
        );
    }
    let job = Process::find(started.pid, started.start_ticks)
        .map_err(|error| words("the job's first process cannot be found", error))?
        .ok_or("the job does not run any more")?;
    let joined = namespaces(started.pid)
        .map_err(|error| words("the job's namespaces cannot be opened", error))?;
    let job = job
        .descriptor()
        .map_err(|error| words("the job's first process cannot be held", error))?;
    // Else its number may have been another's when its namespaces were opened.
    if readable(&job) {
        return Err("the job does not run any more".to_owned());
    }
    match ask {
        Ask::Command {
            arguments,
            terminal,
        } => command(&orders, joined, &arguments, terminal, control, &job),
        Ask::Port { port } => {
            for (name, namespace) in &joined {
                if *name == "net" {
                    let joined = nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET);
                    joined.map_err(|error| words("the job's network", error.into()))?;
                }
            }
            let stream = port::connect(&orders, claim.pid, port)?;
            carry(stream, control, &job)
        }
    }
}

/// The namespaces of a process that are not ours, in the order in which they are entered.
fn namespaces(pid: i32) -> io::Result<Vec<(&'static str, File)>> {
    const KINDS: [&str; 4] = ["ipc", "uts", "net", "mnt"];
    let mut found = Vec::new();
    for kind in KINDS {
        let path = format!("/proc/{pid}/ns/{kind}");
        if fs::read_link(&path)? != fs::read_link(format!("/proc/self/ns/{kind}"))? {
            found.push((kind, File::open(path)?));
        }
    }
    Ok(found)
}

fn readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, PollTimeout::ZERO), Ok(ready) if ready > 0)
}

fn command(
    orders: &Orders,
    joined: Vec<(&'static str, File)>,
    arguments: &[String],
    terminal: bool,
    control: &UnixStream,
    job: &OwnedFd,
) -> Result<Told, String> {
    let program = arguments.first().ok_or("the command is empty")?;
    nix::sys::prctl::set_child_subreaper(true).map_err(|error| error.to_string())?;
    if let Some(uid) = orders.uid.filter(|_| terminal) {
        // Programs open their terminal by its name, too.
        let (user, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)));
        fchown(io::stdin().as_fd(), user, group).map_err(|error| error.to_string())?;
    }
    let joined = joined.into_iter().map(|(_, namespace)| namespace).collect();
    let (entry, steps) = entry_beside(orders, joined)?;
    let mut command = Command::new(program);
    command
        .args(&arguments[1..])
        .env_clear()
        .envs(&orders.environment);
    if terminal {
        command.env("TERM", TERM);
    }
    // SAFETY: this process has one thread, so the copy of it that runs this between fork and exec may
    // allocate and take locks like any other code.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(move || {
            nix::unistd::setsid()?;
            if terminal {
                take_terminal()?;
            }
            entry.enter()
        });
    }
    let spawned = command.spawn();
    drop(command);
    let child = spawned.map_err(|error| steps.words(program, orders, &error))?;
    let pid = i32::try_from(child.id()).map_err(|error| error.to_string())?;
    // What reads the other ends is to see the end of what the command wrote.
    let _ = let_go_of_streams();
    let ended = watch(pid, control, job);
    kill_descendants();
    ended.map_err(|error| format!("the command cannot be watched: {error}"))
}

/// Makes the terminal at standard input the one that controls this session.
fn take_terminal() -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes a number and no memory.
    #[allow(unsafe_code)]
    let failed = unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn let_go_of_streams() -> io::Result<()> {
    let null = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&null)?;
    Ok(())
}

/// Waits until the command has ended, or has to.
fn watch(pid: i32, control: &UnixStream, job: &OwnedFd) -> io::Result<Told> {
    let child = Process::hold(pid, |_| true)?.ok_or(io::ErrorKind::NotFound)?;
    let child = child.descriptor()?;
    tell(control, &Told::Begun)?;
    let mut fds = [
        PollFd::new(child.as_fd(), PollFlags::POLLIN),
        PollFd::new(job.as_fd(), PollFlags::POLLIN),
        PollFd::new(control.as_fd(), PollFlags::POLLIN),
    ];
    wait(&mut fds, PollTimeout::NONE)?;
    let told = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
    let reason = match (told(&fds[0]), told(&fds[1])) {
        (true, _) => "",
        (_, true) => "the job has ended",
        _ => "nobody is at the other end any more",
    };
    if !reason.is_empty() {
        proc::signal_group(pid, Signal::SIGHUP);
        wait(&mut fds[..1], PollTimeout::from(HANGUP_MS))?;
        proc::signal_child(pid, Signal::SIGKILL);
    }
    let (code, signal) = match waitpid(Pid::from_raw(pid), None)? {
        WaitStatus::Exited(_, code) => (Some(code), None),
        WaitStatus::Signaled(_, signal, _) => (None, Some(signal as i32)),
        _ => (None, None),
    };
    let ended = reason.is_empty();
    Ok(Told::Ended {
        code: code.filter(|_| ended),
        signal: signal.filter(|_| ended),
        reason: reason.to_owned(),
    })
}

fn wait(fds: &mut [PollFd<'_>], timeout: PollTimeout) -> io::Result<()> {
    loop {
        match poll(fds, timeout) {
            Err(Errno::EINTR) => {}
            polled => return Ok(polled.map(drop)?),
        }
    }
}

/// Kills what the command left behind until nothing is left: this process is what orphans fall to.
fn kill_descendants() {
    let me = i32::try_from(std::process::id()).unwrap_or_default();
    loop {
        proc::descendants(me).iter().for_each(proc::kill_seen);
        loop {
            match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
        std::thread::sleep(ROUND);
    }
}

/// Carries the port until it, the job or the agent's control ends.
fn carry(stream: std::net::TcpStream, control: &UnixStream, job: &OwnedFd) -> Result<Told, String> {
    let (ended, over) = io::pipe().map_err(|error| error.to_string())?;
    let carried = std::thread::Builder::new().name("port".to_owned());
    carried
        .spawn(move || {
            let _ = port::carry(stream);
            drop(over);
        })
        .map_err(|error| error.to_string())?;
    tell(control, &Told::Begun).map_err(|error| error.to_string())?;
    let mut fds = [
        PollFd::new(ended.as_fd(), PollFlags::POLLIN),
        PollFd::new(job.as_fd(), PollFlags::POLLIN),
        PollFd::new(control.as_fd(), PollFlags::POLLIN),
    ];
    wait(&mut fds, PollTimeout::NONE).map_err(|error| error.to_string())?;
    let over = fds[0].any().unwrap_or(true);
    let reason = if over { "" } else { "the job has ended" };
    Ok(Told::Ended {
        code: over.then_some(0),
        signal: None,
        reason: reason.to_owned(),
    })
}
