//! The supervisor's loop: output, signals, grace and lease of one running job.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::ends::{self, End};
use super::{Run, dated, descendants};
use crate::points::Point;
use crate::runs::{Exit, Orders, RunFolder, Warning};
use crate::{clock, lease, proc};

/// Bytes of output taken at once; a pipe holds no more by default.
const OUTPUT_BYTES_AT_ONCE: usize = 64 * 1024;
/// First wait, in milliseconds, before what was killed and is still there is killed again: what was
/// on its way into being at the first time is met by the second.
const KILL_AGAIN_MS: i64 = 20;
/// Longest such wait: what hangs in a driver may hang for days.
const KILL_AGAIN_MS_MAX: i64 = 1000;
/// Longest wait, in milliseconds: longer ones are cut in two, since poll takes an int.
const WAIT_MS_MAX: i64 = 3600 * 1000;

/// The signals that the loop reads: an agent's hint to look for a stop, the end of a
/// child, and the signals by which a machine that shuts down asks all to leave.
pub fn signals() -> SigSet {
    let mut set = SigSet::empty();
    for signal in [
        Signal::SIGCHLD,
        Signal::SIGUSR1,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
    ] {
        set.add(signal);
    }
    set
}

/// Why a job is being stopped, and when patience ends.
struct Stopping {
    kill_at_ms: i64,
    lease_over: bool,
    /// How long after the next time it is killed again.
    again_ms: i64,
}

struct Watch<'a> {
    folder: &'a RunFolder,
    orders: &'a Orders,
    run: Run,
    boot_id: String,
    stopping: Option<Stopping>,
    /// The lease has ended, and what follows from it is done.
    lease_over: bool,
    status: Option<(Option<i32>, Option<i32>)>,
    output_open: bool,
    /// The warning that stands in the log.
    warned: Option<Warning>,
    /// What it does on a shared device has been ended.
    terminated: bool,
}

/// Follows a job until all its processes are gone, and tells how it ended.
pub fn to_end(folder: &RunFolder, orders: &Orders, run: Run) -> io::Result<Exit> {
    let signals = SignalFd::with_flags(&signals(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let mut watch = Watch {
        folder,
        orders,
        run,
        boot_id: proc::boot_id()?,
        stopping: None,
        lease_over: false,
        status: None,
        output_open: true,
        warned: None,
        terminated: false,
    };
    // A stop may have been written, and a child may have ended, before signals were read.
    watch.read_stop();
    watch.reap();
    while watch.status.is_none() {
        let timeout = watch.act_on_time();
        watch.wait(&signals, timeout)?;
    }
    Point::JobEnded.reached();
    Ok(watch.finish())
}

impl Watch<'_> {
    fn wait(&mut self, signals: &SignalFd, timeout: PollTimeout) -> io::Result<()> {
        let (signalled, output) = {
            let mut sources = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            if self.output_open {
                sources.push(PollFd::new(self.run.output.as_fd(), PollFlags::POLLIN));
            }
            match poll(&mut sources, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready = |at: usize| sources.get(at).and_then(PollFd::any).unwrap_or(false);
            (ready(0), ready(1))
        };
        if output {
            self.drain();
        }
        if signalled {
            self.read_signals(signals);
        }
        Ok(())
    }

    fn read_signals(&mut self, signals: &SignalFd) {
        while let Ok(Some(received)) = signals.read_signal() {
            match i32::try_from(received.ssi_signo).ok().map(Signal::try_from) {
                Some(Ok(Signal::SIGCHLD)) => {}
                Some(Ok(Signal::SIGUSR1)) => {
                    self.read_warning();
                    self.read_stop();
                }
                _ => self.stop(self.orders.grace_ms, false),
            }
        }
        // Signals of one kind melt into one: always look for ended children.
        self.reap();
    }

    /// Writes a warning to the log that is not there yet.
    fn read_warning(&mut self) {
        let warning = self.folder.warning().ok().flatten();
        if warning.is_some() && warning != self.warned {
            let line = warning.as_ref().map(|warning| warning.line.as_str());
            self.run
                .log
                .append(format!("{}\n", line.unwrap_or_default()).as_bytes());
            self.warned = warning;
        }
    }

    fn read_stop(&mut self) {
        if let Ok(Some(stop)) = self.folder.stop() {
            self.stop(stop.grace_ms, false);
        }
    }

    /// Begins to stop the job; a second call can only shorten the grace.
    fn stop(&mut self, grace_ms: i64, lease_over: bool) {
        let kill_at_ms = clock::boot_ms().saturating_add(grace_ms);
        if let Some(stopping) = &mut self.stopping {
            stopping.kill_at_ms = stopping.kill_at_ms.min(kill_at_ms);
            return;
        }
        self.stopping = Some(Stopping {
            kill_at_ms,
            lease_over,
            again_ms: KILL_AGAIN_MS,
        });
        self.signal(Signal::SIGTERM);
        // A process that is stopped could not act on SIGTERM.
        self.signal(Signal::SIGCONT);
    }

    /// Signals the job's group, and its first process where that has left for another group. It
    /// has not been collected: its number is nobody else's, and no other group's.
    fn signal(&self, signal: Signal) {
        proc::signal_group(self.run.pid, signal);
        if proc::group_of(self.run.pid) != Some(self.run.pid) {
            proc::signal_child(self.run.pid, signal);
        }
    }

    /// Does what is due by the clock, and says how long nothing else will be.
    fn act_on_time(&mut self) -> PollTimeout {
        let now = clock::boot_ms();
        let lease_end = self.lease_end();
        // Also while it is being stopped: whoever places it elsewhere reckons with the node's
        // grace after the lease, however long the grace of that stop was to be.
        if lease_end.is_some_and(|end| end <= now) {
            self.lease_over = true;
            self.stop(self.orders.grace_ms, true);
        }
        if self.stopping.as_ref().is_some_and(|s| s.kill_at_ms <= now) {
            self.terminate_clients();
        }
        let due = match &mut self.stopping {
            // All that descends from us, wherever it has gone: a process may choose its group.
            Some(stopping) if stopping.kill_at_ms <= now => {
                descendants::kill_once(&self.run.group);
                stopping.kill_at_ms = now + stopping.again_ms;
                stopping.again_ms = (stopping.again_ms * 2).min(KILL_AGAIN_MS_MAX);
                Some(stopping.kill_at_ms)
            }
            Some(stopping) => {
                Some(lease_end.map_or(stopping.kill_at_ms, |end| end.min(stopping.kill_at_ms)))
            }
            None => lease_end,
        };
        let wait_ms = due.map(|due| (due - now).clamp(1, WAIT_MS_MAX));
        wait_ms.map_or(PollTimeout::NONE, |ms| {
            PollTimeout::try_from(ms).unwrap_or(PollTimeout::NONE)
        })
    }

    /// Ends what it does on a device that it shares by MPS, once, before anything of it is killed. Not when
    /// the lease is over: then nobody waits for it.
    fn terminate_clients(&mut self) {
        let Some(control) = &self.orders.sharing else {
            return;
        };
        if std::mem::replace(&mut self.terminated, true) || self.lease_over {
            return;
        }
        let me = i32::try_from(std::process::id()).unwrap_or_default();
        let clients = proc::descendants(me).iter().map(|seen| seen.pid).collect();
        control.terminate(&clients);
    }

    /// When the lease ends, unless it has ended or the job does not need one.
    fn lease_end(&self) -> Option<i64> {
        let path = self.orders.lease.as_ref().filter(|_| !self.lease_over)?;
        Some(lease::end(path, &self.boot_id))
    }

    /// Collects ended children: the job's first process, and orphans that fell to us.
    fn reap(&mut self) {
        loop {
            match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid.as_raw() == self.run.pid => {
                    self.status = Some((Some(code), None));
                }
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid.as_raw() == self.run.pid => {
                    self.status = Some((None, Some(signal as i32)));
                }
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }

    /// Moves what is in the pipe to the log, once.
    fn drain(&mut self) {
        let log = &mut self.run.log;
        let read = read_once(&self.run.output, |bytes| log.append(bytes));
        if read == Ok(0) {
            self.output_open = false;
        }
    }

    fn finish(mut self) -> Exit {
        self.terminate_clients();
        // Read before the group is emptied: its counters go with it on some kernels.
        descendants::kill_all(&self.run.group);
        let out_of_memory = self.run.group.oom_kills() > 0;
        if self.output_open {
            let log = &mut self.run.log;
            read_rest(&self.run.output, |bytes| log.append(bytes));
        }
        self.run.log.close();
        self.run.group.remove();
        let (code, signal) = self.status.unwrap_or_default();
        let end = End {
            code,
            signal,
            out_of_memory,
            asked: self.stopping.is_some(),
            lease_over: self.stopping.as_ref().is_some_and(|s| s.lease_over),
        };
        dated(ends::told(self.orders, end))
    }
}

/// Takes what is in a pipe, once; how many bytes that were.
fn read_once(output: &OwnedFd, take: impl FnOnce(&[u8])) -> nix::Result<usize> {
    let mut buffer = [0; OUTPUT_BYTES_AT_ONCE];
    let count = nix::unistd::read(output.as_fd(), &mut buffer)?;
    take(&buffer[..count]);
    Ok(count)
}

/// Takes what a job has left in its pipe: no more than the pipe holds, since another process of the team may
/// have got its other end and write without end.
fn read_rest(output: &OwnedFd, mut take: impl FnMut(&[u8])) {
    let _ = fcntl(output.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
    let holds = fcntl(output.as_fd(), FcntlArg::F_GETPIPE_SZ);
    let mut left = holds.map_or(0, |bytes| usize::try_from(bytes).unwrap_or_default());
    while left > 0 {
        match read_once(output, &mut take) {
            Ok(0) | Err(_) => break,
            Ok(count) => left = left.saturating_sub(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_last_reading_ends_though_somebody_writes_on() {
        let (output, mut end) = io::pipe().expect("a pipe");
        end.write_all(b"the last words\n").expect("written");
        let mut taken = Vec::new();
        read_rest(&output.into(), |bytes| {
            taken.extend_from_slice(bytes);
            assert!(taken.len() < 1024 * 1024, "it is read without end");
            end.write_all(&[b'y'; OUTPUT_BYTES_AT_ONCE / 2])
                .expect("written");
        });
        assert!(taken.starts_with(b"the last words\n"));
    }
}
