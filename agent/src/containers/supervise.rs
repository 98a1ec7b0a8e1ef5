//! One job's container from its image to its end, by the job's supervisor.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerState;
use bollard::query_parameters::{CreateContainerOptionsBuilder, KillContainerOptionsBuilder};
use nix::sys::signal::Signal;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::output::Output;
use super::wishes::{Due, Wishes};
use super::{Container, body, engine, image, name, strays};
use crate::clock;
use crate::points::Point;
use crate::proc::{self, Process};
use crate::runs::{
    CODE_NOT_EXECUTABLE, CODE_NOT_FOUND, Exit, Image, Orders, Refusal, RunFolder, Started,
};
use crate::supervise::cgroup::OutOfMemory;
use crate::supervise::ends::{self, End};
use crate::supervise::{check_lease, dated, open_log, report_readiness, write_exit};

/// How long a runtime may take to hand a signal on, and to write down how a container ended, before it is
/// done without: the stop's grace goes on meanwhile.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a runtime may take to say what became of a container that it has just started.
const STATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Wait between questions how a container ended.
const END_WAIT: Duration = Duration::from_millis(50);
/// Longest such wait.
const END_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long a runtime that is gone may take to come back and say how a container ended: upgrades of one
/// take minutes.
const END_TIMEOUT: Duration = Duration::from_secs(600);
/// How long output may still come when the container has ended.
const REST_TIMEOUT: Duration = Duration::from_secs(5);
/// Exit codes above this are signals, by the custom of runtimes.
const SIGNAL_BASE: i64 = 128;
/// The highest signal of Linux.
const SIGNAL_MAX: i64 = 64;

/// Runs a job's container to its end, in a run folder that this supervisor has claimed.
pub fn run(folder: &RunFolder, orders: &Orders, container: &Container) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let exit = runtime.block_on(async {
        let mut wishes = Wishes::listen(folder, orders)?;
        // Pulling may take long, and who launched us need not wait: the folder is claimed.
        report_readiness();
        io::Result::Ok(
            match to_end(folder, (orders, container), &mut wishes).await {
                Ok(exit) => exit,
                Err(refusal) => Exit {
                    refused: Some(refusal),
                    ..Exit::default()
                },
            },
        )
    })?;
    write_exit(folder, &dated(exit))?;
    Point::EndWritten.reached();
    Ok(())
}

/// What is there of a job's container.
struct Made<'a> {
    orders: &'a Orders,
    docker: Docker,
    id: String,
    image: image::Found,
    memory: Option<OutOfMemory>,
}

async fn to_end(
    folder: &RunFolder,
    (orders, container): (&Orders, &Container),
    wishes: &mut Wishes<'_>,
) -> Result<Exit, Refusal> {
    folder
        .reserve_exit()
        .map_err(|e| Refusal::here(format!("there is no room for how it ends: {e}")))?;
    let mut output = Output::new(open_log(orders)?);
    let made = tokio::select! {
        made = make(orders, container, &mut output) => Some(made),
        // Nothing of it runs: nobody has to be asked.
        _ = wishes.due() => None,
    };
    let ended = match made {
        Some(Ok(mut made)) => made.run(folder, wishes, &mut output).await,
        Some(Err(refusal)) => Err(refusal),
        None => Ok(stopped_early(orders, wishes)),
    };
    clear(orders, container, &mut output).await;
    output.close();
    ended
}

/// The end of what was stopped before it had begun.
fn stopped_early(orders: &Orders, wishes: &Wishes<'_>) -> Exit {
    let end = End {
        signal: Some(Signal::SIGTERM as i32),
        asked: true,
        lease_over: wishes.lease_over(),
        ..End::default()
    };
    let told = ends::told(orders, end);
    Exit {
        message: match told.message.is_empty() {
            true => "stopped before its container had started".to_owned(),
            false => told.message.clone(),
        },
        ..told
    }
}

/// Finds or pulls the image and makes the container, which does not run yet.
async fn make<'a>(
    orders: &'a Orders,
    container: &Container,
    output: &mut Output,
) -> Result<Made<'a>, Refusal> {
    let docker = engine::open(&container.socket).await.map_err(|error| {
        let socket = container.socket.display();
        Refusal::here(format!(
            "the container runtime at {socket} does not answer: {error}"
        ))
    })?;
    let image = image::have(&docker, container, output).await?;
    let limits = |e: io::Error| Refusal::here(format!("its limits cannot be set: {e}"));
    let memory = match container.parent {
        Some(_) => {
            let name = &orders.assignment_id;
            let made = orders.cgroups.create(name, &orders.limits, None);
            made.map_err(limits)?;
            Point::GroupMade.reached();
            Some(OutOfMemory::watch(&orders.cgroups, name).map_err(limits)?)
        }
        None => None,
    };
    let options = CreateContainerOptionsBuilder::default()
        .name(&name(&orders.assignment_id))
        .build();
    let body = body::body(orders, container, &image.id);
    let made = docker.create_container(Some(options), body).await;
    let made = made.map_err(|error| unmade(orders, &error))?;
    Ok(Made {
        orders,
        docker,
        id: made.id,
        image,
        memory,
    })
}

/// Why a container was not made or not started, and whose fault that is.
fn unmade(orders: &Orders, error: &Error) -> Refusal {
    let said = error.to_string();
    let program = orders
        .command
        .first()
        .map(String::as_str)
        .unwrap_or_default();
    let program = domain::error::quote(program);
    let lower = said.to_lowercase();
    if lower.contains("executable file not found") {
        return Refusal::command(
            CODE_NOT_FOUND,
            format!("command not found in the image: {program}"),
        );
    }
    if lower.contains("exec") && lower.contains("permission denied") {
        return Refusal::command(
            CODE_NOT_EXECUTABLE,
            format!("command cannot be executed: {program}: {said}"),
        );
    }
    Refusal::here(format!("the container could not be started: {said}"))
}

impl Made<'_> {
    async fn run(
        &mut self,
        folder: &RunFolder,
        wishes: &mut Wishes<'_>,
        output: &mut Output,
    ) -> Result<Exit, Refusal> {
        // A pull takes minutes: the lease may have ended meanwhile.
        check_lease(self.orders)?;
        if wishes.asked() {
            return Ok(stopped_early(self.orders, wishes));
        }
        let unstarted = |error: Error| unmade(self.orders, &error);
        output
            .attach(&self.docker, &self.id)
            .await
            .map_err(unstarted)?;
        self.docker
            .start_container(&self.id, None)
            .await
            .map_err(unstarted)?;
        Point::JobSpawned.reached();
        let process = self.started(folder).await?;
        Point::StartWritten.reached();
        if let Some(first) = process {
            self.follow(&first, wishes, output).await;
        }
        Point::JobEnded.reached();
        let code = self.code(wishes, output).await;
        let rest = async {
            while output.open() {
                output.pass().await;
            }
        };
        // What is left when that is over is what the container's end has cut off.
        let _ = timeout(REST_TIMEOUT, rest).await;
        Ok(self.ended(code, wishes))
    }

    /// Writes that it has started; its first process, unless that has ended already.
    async fn started(&self, folder: &RunFolder) -> Result<Option<First>, Refusal> {
        let state = timeout(STATE_TIMEOUT, self.state()).await;
        let state = state
            .map_err(|_| Refusal::here("the runtime does not say what became of its container"))?;
        let state = state.map_err(|error| unmade(self.orders, &error))?;
        let pid = state.pid.unwrap_or_default();
        let pid = i32::try_from(pid).unwrap_or_default();
        let start_ticks = proc::start_ticks(pid).filter(|_| pid > 0);
        let started = Started {
            pid,
            start_ticks: start_ticks.unwrap_or_default(),
            at_micros: clock::wall_micros(),
            image: Some(Image {
                id: self.image.id.clone(),
                digest: self.image.digest.clone(),
            }),
        };
        let first = match start_ticks {
            Some(ticks) => First::of(pid, ticks),
            None => Ok(None),
        };
        let told = first.and_then(|first| folder.write_started(&started).map(|()| first));
        // Nobody could find it again: better no job than one that nobody knows. Who called removes it.
        told.map_err(|error| Refusal::here(format!("its run folder cannot be written: {error}")))
    }

    /// The state of the container that was started. Podman has words for one on its way out that its API
    /// does not have otherwise: it is asked until that is over.
    async fn state(&self) -> Result<ContainerState, Error> {
        loop {
            match self.docker.inspect_container(&self.id, None).await {
                Ok(seen) => return Ok(seen.state.unwrap_or_default()),
                Err(Error::JsonDataError { .. }) => tokio::time::sleep(END_WAIT).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Follows it until its first process, and with it all others of it, has ended.
    async fn follow(&self, first: &First, wishes: &mut Wishes<'_>, output: &mut Output) {
        loop {
            tokio::select! {
                _ = first.ended.readable() => return,
                () = output.pass() => {}
                due = wishes.due() => self.act(due, Some(&first.process)).await,
            }
        }
    }

    /// Asks it to leave by the runtime, or kills it, for which no runtime is needed.
    async fn act(&self, due: Due, process: Option<&Process>) {
        match due {
            Due::Terminate => {
                let term = KillContainerOptionsBuilder::default()
                    .signal("SIGTERM")
                    .build();
                let asked = self.docker.kill_container(&self.id, Some(term));
                let told = timeout(SIGNAL_TIMEOUT, asked).await;
                if !matches!(told, Ok(Ok(())))
                    && let Some(process) = process
                {
                    process.signal(Signal::SIGTERM);
                }
            }
            Due::Kill => match process {
                // With the first process of its namespace goes each.
                Some(process) => process.signal(Signal::SIGKILL),
                None => {
                    let kill = KillContainerOptionsBuilder::default()
                        .signal("SIGKILL")
                        .build();
                    let asked = self.docker.kill_container(&self.id, Some(kill));
                    let _ = timeout(SIGNAL_TIMEOUT, asked).await;
                }
            },
        }
    }

    /// What it ended with, when the runtime has written that down; none where it never says.
    async fn code(&self, wishes: &mut Wishes<'_>, output: &mut Output) -> Option<State> {
        let asked = async {
            let mut wait = END_WAIT;
            loop {
                match self.docker.inspect_container(&self.id, None).await {
                    Ok(seen) => {
                        let state = seen.state.unwrap_or_default();
                        if state.running != Some(true) && state.pid.unwrap_or_default() == 0 {
                            return Some(State {
                                code: state.exit_code,
                                out_of_memory: state.oom_killed == Some(true),
                            });
                        }
                    }
                    Err(Error::DockerResponseServerError {
                        status_code: 404, ..
                    }) => return None,
                    Err(_) => {}
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(END_WAIT_MAX);
            }
        };
        let asked = timeout(END_TIMEOUT, asked);
        tokio::pin!(asked);
        loop {
            tokio::select! {
                told = &mut asked => return told.ok().flatten(),
                () = output.pass() => {}
                due = wishes.due() => self.act(due, None).await,
            }
        }
    }

    fn ended(&self, state: Option<State>, wishes: &Wishes<'_>) -> Exit {
        let Some(state) = state else {
            return Exit {
                asked: wishes.asked(),
                lease_over: wishes.lease_over(),
                message: "its container runtime did not say how it ended".to_owned(),
                ..Exit::default()
            };
        };
        let (code, signal) = told_apart(state.code);
        let counted = self.memory.as_ref().is_some_and(OutOfMemory::killed);
        let end = End {
            code,
            signal,
            out_of_memory: state.out_of_memory || counted,
            asked: wishes.asked(),
            lease_over: wishes.lease_over(),
        };
        ends::told(self.orders, end)
    }
}

/// How a runtime says that a container ended.
struct State {
    code: Option<i64>,
    out_of_memory: bool,
}

/// An exit code, or the signal that runtimes tell by one.
fn told_apart(code: Option<i64>) -> (Option<i32>, Option<i32>) {
    let Some(code) = code else {
        return (None, None);
    };
    let signal = code - SIGNAL_BASE;
    if (1..=SIGNAL_MAX).contains(&signal) {
        (None, i32::try_from(signal).ok())
    } else {
        (i32::try_from(code).ok(), None)
    }
}

/// The first process of a container.
struct First {
    process: Process,
    /// Readable once it has ended.
    ended: AsyncFd<OwnedFd>,
}

impl First {
    /// Takes hold of it; none where it has ended.
    fn of(pid: i32, ticks: u64) -> io::Result<Option<Self>> {
        let Some(process) = Process::find(pid, ticks)? else {
            return Ok(None);
        };
        let descriptor = process.descriptor()?;
        // SAFETY: the descriptor is owned by what is registered, and closed by nobody else.
        #[allow(unsafe_code)]
        let ended =
            unsafe { AsyncFd::register_with_interest(descriptor, tokio::io::Interest::READABLE)? };
        Ok(Some(Self { process, ended }))
    }
}

/// Removes the container, and the control group that it was below. What cannot be removed now the agent
/// removes later.
async fn clear(orders: &Orders, container: &Container, output: &mut Output) {
    if let Err(error) = strays::remove(&container.socket, &orders.assignment_id).await {
        output.say(&format!("the container is not removed yet: {error}"));
    }
    if container.parent.is_some() {
        let group = orders.cgroups.group(&orders.assignment_id);
        group.kill();
        group.remove();
    }
    Point::GroupEmptied.reached();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_signals_are_told_apart_as_runtimes_tell_them() {
        assert_eq!(told_apart(Some(0)), (Some(0), None));
        assert_eq!(told_apart(Some(128)), (Some(128), None));
        assert_eq!(told_apart(Some(137)), (None, Some(9)));
        assert_eq!(told_apart(Some(192)), (None, Some(64)));
        assert_eq!(told_apart(Some(193)), (Some(193), None));
        assert_eq!(told_apart(None), (None, None));
    }
}
