//! One process of the product: started with its log file, watched, stopped or killed.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Command;

use crate::who::Owner;

/// Lines of a log that are shown when its process has failed: the cause is in the last ones.
const TAIL_LINES: usize = 12;
/// After SIGKILL the kernel has only to reap; longer means that it hangs in a device.
const REAP_BOUND: Duration = Duration::from_secs(10);

/// What to start.
pub struct Program {
    /// What it is called in messages: `server 1`, `agent h100-1`, `PostgreSQL`.
    pub name: String,
    /// The command, without its output's destination.
    pub command: Command,
    /// Where its output is appended.
    pub log: PathBuf,
    /// Whom it runs as, when not as ourselves.
    pub owner: Option<Owner>,
    /// The signal that asks it to end.
    pub stop_signal: Signal,
}

/// A running process.
#[derive(Debug)]
pub struct Child {
    /// What it is called in messages.
    pub name: String,
    /// Its log.
    pub log: PathBuf,
    pid: u32,
    process: tokio::process::Child,
    stop_signal: Signal,
}

impl Child {
    /// Starts the program. It is asked to end when the thread that called this ends, so
    /// that nothing outlives a rig that was killed.
    pub fn start(program: Program) -> anyhow::Result<Self> {
        let Program {
            name,
            mut command,
            log,
            owner,
            stop_signal,
        } = program;
        let out = open_log(&log)?;
        let err = out.try_clone().context("open the log twice")?;
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        // Ctrl-C goes to the rig, which ends its children in order.
        command.process_group(0);
        if let Some(owner) = owner {
            command.uid(owner.uid).gid(owner.gid);
        }
        end_with_parent(&mut command, stop_signal);
        let process = command.spawn().with_context(|| format!("start {name}"))?;
        let pid = process
            .id()
            .expect("a process that was just started has an id");
        Ok(Self {
            name,
            log,
            pid,
            process,
            stop_signal,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.process
            .try_wait()
            .with_context(|| format!("watch {}", self.name))
    }

    /// An error that names the process and its log, if it has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} has ended ({}); its log {} ends with:\n{}",
                self.name,
                in_words(status),
                self.log.display(),
                tail(&self.log)
            ),
        }
    }

    /// Asks it to end, and kills it when it has not after `bound`.
    pub async fn stop(&mut self, bound: Duration) -> anyhow::Result<()> {
        if self.ended()?.is_none() {
            self.signal(self.stop_signal)?;
            if tokio::time::timeout(bound, self.process.wait())
                .await
                .is_err()
            {
                self.kill().await?;
            }
        }
        Ok(())
    }

    /// `kill -9`, and waits until it is gone.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        if self.ended()?.is_none() {
            self.signal(Signal::SIGKILL)?;
            tokio::time::timeout(REAP_BOUND, self.process.wait())
                .await
                .with_context(|| format!("{} does not end even by SIGKILL", self.name))?
                .with_context(|| format!("wait for the end of {}", self.name))?;
        }
        Ok(())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.pid).context("a process id beyond i32")?);
        kill(pid, signal).with_context(|| format!("send {signal} to {}", self.name))
    }
}

/// A process that is started, ended and started again: at most one at a time.
#[derive(Debug, Default)]
pub struct Process {
    child: Option<Child>,
}

impl Process {
    /// Starts it.
    pub fn start(&mut self, program: Program) -> anyhow::Result<()> {
        self.child = Some(Child::start(program)?);
        Ok(())
    }

    /// Fails, naming the process and its log, when it has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        self.child.as_mut().map_or(Ok(()), Child::check)
    }

    /// Whether it has ended by itself with this exit code; it counts as stopped then.
    pub fn has_left(&mut self, code: i32) -> anyhow::Result<bool> {
        let Some(child) = &mut self.child else {
            return Ok(false);
        };
        let left = child.ended()?.is_some_and(|how| how.code() == Some(code));
        if left {
            self.child = None;
        }
        Ok(left)
    }

    /// Its process id, 0 while it is stopped.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::pid)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        self.child
            .as_ref()
            .context("it is stopped, so that no signal reaches it")?
            .signal(signal)
    }

    /// Asks it to end, and kills it when it has not after `bound`.
    pub async fn stop(&mut self, bound: Duration) -> anyhow::Result<()> {
        match self.child.take() {
            Some(mut child) => child.stop(bound).await,
            None => Ok(()),
        }
    }

    /// `kill -9`, and waits until it is gone.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        match self.child.take() {
            Some(mut child) => child.kill().await,
            None => Ok(()),
        }
    }
}

/// Asks the kernel to send the signal to the child when our thread ends.
#[allow(unsafe_code)]
fn end_with_parent(command: &mut Command, signal: Signal) {
    let ours = nix::unistd::getpid();
    // SAFETY: between fork and exec only prctl and getppid are called, both of which are
    // async-signal-safe and neither allocates.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(signal)?;
            if nix::unistd::getppid() != ours {
                return Err(std::io::Error::other("the parent has ended already"));
            }
            Ok(())
        });
    }
}

fn open_log(path: &Path) -> anyhow::Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("open the log {}", path.display()))
}

/// How a process ended, in words.
pub fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => match Signal::try_from(number) {
            Ok(signal) => format!("killed by {signal}"),
            Err(_) => format!("killed by signal {number}"),
        },
        (None, None) => "ended".to_owned(),
    }
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Runs a command to its end; its output, or an error that shows what it said.
pub async fn finish(name: &str, mut command: Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .await
        .with_context(|| format!("start {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let also = String::from_utf8_lossy(&output.stdout);
        bail!(
            "{name} failed ({}): {}{}",
            in_words(output.status),
            also.trim(),
            said.trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("{name} printed invalid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, script: &str) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Program {
            name: name.to_owned(),
            command,
            log: std::env::temp_dir().join(format!("allotment-rig-{name}-{}", std::process::id())),
            owner: None,
            stop_signal: Signal::SIGTERM,
        }
    }

    #[tokio::test]
    async fn a_crashed_child_is_named_with_its_log() {
        let mut child = Child::start(program("crash", "echo no such table >&2; exit 3")).unwrap();
        let error = loop {
            if let Err(error) = child.check() {
                break error.to_string();
            }
            tokio::task::yield_now().await;
        };
        std::fs::remove_file(&child.log).unwrap();
        assert!(
            error.starts_with("crash has ended (exit code 3)"),
            "{error}"
        );
        assert!(error.contains("no such table"), "{error}");
    }

    #[tokio::test]
    async fn a_child_that_ignores_sigterm_is_killed() {
        let mut child = Child::start(program(
            "deaf",
            "trap '' TERM; echo up; while :; do sleep 0.05; done",
        ))
        .unwrap();
        crate::wait::until_true("it traps", Duration::from_secs(10), || {
            tail(&child.log) == "up"
        })
        .await
        .unwrap();
        child.stop(Duration::from_millis(100)).await.unwrap();
        std::fs::remove_file(&child.log).unwrap();
        let status = child.ended().unwrap().expect("it is gone");
        assert_eq!(in_words(status), "killed by SIGKILL");
    }
}
