//! The control program of MPS as it is asked: behind the wall of the daemon that it speaks to, and never
//! for longer than a bound.

use std::collections::BTreeSet;
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use super::wall::Wall;
use crate::supervise::cgroup::Cgroups;

/// Longest answer that is read: a daemon has some words for each server, and what answers in its place has
/// as many as it likes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Bytes of it that are read at once.
const ANSWER_BYTES_AT_ONCE: usize = 4096;
/// Servers that are asked: a daemon has one for each user.
const SERVERS_MAX: usize = 4;
/// How often a program that has said all is looked after until it has left.
const LEAVE_CHECK: Duration = Duration::from_millis(1);
/// Longest that a job's clients may take to be terminated before they are killed all the same: what
/// that reckons with, the time until a lost node's work is placed elsewhere, waits for nobody.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(1);
/// Names a client's daemon.
pub const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Where daemon and servers write.
const LOG_VARIABLE: &str = "CUDA_MPS_LOG_DIRECTORY";

/// How one daemon is spoken to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// The control program.
    pub program: PathBuf,
    /// The daemon's pipe folder.
    pub pipe: PathBuf,
    /// Its log folder.
    pub log: PathBuf,
    /// Where it has its control group.
    pub cgroups: Cgroups,
    /// That group's name.
    pub group: String,
    /// The user that it runs as; none where that is ours.
    pub uid: Option<u32>,
    /// A group that all that it begins bears.
    pub mark: Option<u32>,
}

impl Control {
    /// The control program behind the daemon's wall, with nothing of ours in its environment.
    pub fn command(&self) -> io::Result<Command> {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env(PIPE_VARIABLE, &self.pipe)
            .env(LOG_VARIABLE, &self.log)
            .current_dir("/");
        self.wall().put(&mut command)?;
        Ok(command)
    }

    /// What the daemon is behind.
    pub fn wall(&self) -> Wall {
        Wall {
            group: self.cgroups.group(&self.group),
            uid: self.uid,
            mark: self.mark,
        }
    }

    /// Gives the daemon commands, each on a line; what it answers.
    pub fn ask(&self, lines: &str, within: Duration) -> io::Result<String> {
        let deadline = Instant::now() + within;
        let (answers, end) = io::pipe()?;
        let mut command = self.command()?;
        command
            .stdin(Stdio::piped())
            .stdout(end.try_clone()?)
            .stderr(end);
        let mut asked = Asked(command.spawn()?);
        // It holds the other end, too.
        drop(command);
        let mut input = asked.0.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        // A program that has left already says why by its status.
        let _ = input.write_all(format!("{lines}\n").as_bytes());
        drop(input);
        let told = read(answers, deadline)?;
        if asked.left(deadline)?.success() {
            return Ok(told);
        }
        Err(io::Error::other(told.trim().to_owned()))
    }

    /// The daemon's servers, by pid.
    pub fn servers(&self, within: Duration) -> io::Result<Vec<i32>> {
        let told = self.ask("get_server_list", within)?;
        Ok(pids(&told).take(SERVERS_MAX).collect())
    }

    /// Whether a client's fault has brought a server down for all.
    pub fn faulted(&self, within: Duration) -> bool {
        let servers = self.servers(within).unwrap_or_default();
        servers.iter().any(|server| {
            let told = self.ask(&format!("get_server_status {server}"), within);
            told.is_ok_and(|told| told.contains("FAULT"))
        })
    }

    /// Has the servers end what these processes do on the device, before they are killed: who is killed in
    /// the middle of a kernel may leave those undefined who share the device. It takes no longer than a
    /// bound, and what it cannot do is left undone.
    pub fn terminate(&self, clients: &BTreeSet<i32>) {
        if clients.is_empty() {
            return;
        }
        let deadline = Instant::now() + TERMINATE_TIMEOUT;
        let left = || deadline.saturating_duration_since(Instant::now());
        let Ok(servers) = self.servers(left()) else {
            return;
        };
        for server in servers {
            let Ok(told) = self.ask(&format!("get_client_list {server}"), left()) else {
                return;
            };
            let ours = pids(&told).filter(|pid| clients.contains(pid));
            let lines: Vec<String> = ours
                .map(|client| format!("terminate_client {server} {client}"))
                .collect();
            if !lines.is_empty() {
                let _ = self.ask(&lines.join("\n"), left());
            }
        }
    }
}

fn pids(told: &str) -> impl Iterator<Item = i32> {
    told.lines().filter_map(|line| line.trim().parse().ok())
}

/// Reads what a program says until it has said all, or too much.
fn read(mut answers: PipeReader, deadline: Instant) -> io::Result<String> {
    let mut told = Vec::new();
    let mut buffer = [0; ANSWER_BYTES_AT_ONCE];
    while told.len() < ANSWER_BYTES_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(answers.as_fd(), PollFlags::POLLIN)], left) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match answers.read(&mut buffer)? {
            0 => break,
            count => told.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&told).into_owned())
}

/// A program that was asked. One that is let go of is killed, and collected unless it hangs.
struct Asked(Child);

impl Asked {
    /// Waits until it has left.
    fn left(&mut self, deadline: Instant) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(LEAVE_CHECK);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.try_wait();
    }
}
