//! What nodes report: each fact moves one assignment, and with it its attempt and its job.
//!
//! A fact is applied by state, so that one that comes twice, or after its assignment has
//! ended, changes nothing. Who may report is decided here too: a node speaks of its own
//! assignments only. Facts of many assignments are applied together: their gangs are locked and
//! read at once, and what the facts change is written at once. What happens rarely (a stop, a loss)
//! is read and written by itself.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use domain::Timestamp;
use domain::ids::{AssignmentId, JobId, NodeId};
use domain::state::{AssignmentPhase, AttemptEnd, AttemptState, JobState};
use protocol::report::{Exited, Fact, FactKind, Lost};
use serde_json::json;

use super::gang::Gang;
use super::resize::go_on_without;
use super::{Actor, LifecycleError, Process, Steps, Stop, end, refuse_growth, stop, words};
use crate::accounting::meter;
use crate::config::Timers;
use crate::store::assignments::{self, Assignment, Exit};
use crate::store::attempts::AttemptStep;
use crate::store::events::{NewEvent, Subject};
use crate::store::jobs::{JobRow, JobStep};
use crate::store::{self, Tx, nodes};

/// What became of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It changed something.
    Applied,
    /// Everything that it says was known, or its assignment has ended.
    Known,
    /// The assignment is another node's, or of another attempt: refused.
    Foreign,
    /// Nobody knows the assignment.
    Unknown,
}

/// A fact with who tells it.
#[derive(Debug, Clone, Copy)]
pub struct Heard<'f> {
    /// The node.
    pub node_id: NodeId,
    /// Its agent.
    pub actor: &'f Actor,
    /// The fact.
    pub fact: &'f Fact,
}

/// A worker of a locked gang, and what is done with it.
struct On<'g> {
    gang: &'g mut Gang,
    /// The worker's place among the gang's rows.
    at: usize,
    steps: &'g mut Steps,
    timers: &'g Timers,
    actor: &'g Actor,
    now: Timestamp,
}

impl On<'_> {
    fn worker(&self) -> &Assignment {
        &self.gang.workers[self.at]
    }

    /// Whether its gang runs already and was to grow by it.
    fn newcomer(&self) -> bool {
        let new = [AssignmentPhase::Granted, AssignmentPhase::HandedOver];
        self.gang.attempt.state == AttemptState::Running && new.contains(&self.worker().phase)
    }

    fn step(
        &mut self,
        to: AssignmentPhase,
        process: Process,
        reason: &str,
    ) -> Result<(), LifecycleError> {
        let worker = &mut self.gang.workers[self.at];
        self.steps
            .worker(worker, to, process, (self.actor, reason), self.now)
    }

    fn note(&mut self, process: Process) {
        let worker = &mut self.gang.workers[self.at];
        self.steps.process(worker, process, self.now);
    }

    /// A gang that was to grow by this worker goes on without it and those above it.
    async fn give_up(&mut self, tx: &mut Tx, message: String) -> Result<(), LifecycleError> {
        self.steps.write(tx).await?;
        let from = self.worker().worker;
        let Gang { job, attempt, .. } = &mut *self.gang;
        refuse_growth(tx, self.timers, job, attempt, from, message, self.actor).await?;
        self.gang.look_again(tx).await
    }

    /// Whether its gang goes on without this worker, which was lost with its node.
    async fn go_on_without(&mut self, tx: &mut Tx, message: &str) -> Result<bool, LifecycleError> {
        self.steps.write(tx).await?;
        let lost = [self.worker().id];
        let Gang { job, attempt, .. } = &mut *self.gang;
        let goes_on = go_on_without(tx, job, attempt, &lost, message, self.actor).await?;
        self.gang.look_again(tx).await?;
        Ok(goes_on)
    }

    /// Stops the gang's attempt.
    async fn stop(&mut self, tx: &mut Tx, wish: &Stop) -> Result<(), LifecycleError> {
        self.steps.write(tx).await?;
        stop(tx, &mut self.gang.job, wish, self.actor).await?;
        self.gang.look_again(tx).await
    }
}

/// Applies one fact of `node_id`.
pub async fn apply(
    tx: &mut Tx,
    timers: &Timers,
    node_id: NodeId,
    actor: &Actor,
    fact: &Fact,
) -> Result<Outcome, LifecycleError> {
    let heard = Heard {
        node_id,
        actor,
        fact,
    };
    let outcomes = apply_all(tx, timers, &[heard]).await?;
    Ok(outcomes[0])
}

/// Applies facts one after the other; what became of each.
pub async fn apply_all(
    tx: &mut Tx,
    timers: &Timers,
    facts: &[Heard<'_>],
) -> Result<Vec<Outcome>, LifecycleError> {
    let ids: BTreeSet<AssignmentId> = facts.iter().map(|heard| heard.fact.assignment).collect();
    let ids: Vec<AssignmentId> = ids.into_iter().collect();
    let seen = assignments::find(tx, &ids).await?;
    let seen: BTreeMap<AssignmentId, Assignment> =
        seen.into_iter().map(|seen| (seen.id, seen)).collect();
    let own = |heard: &Heard<'_>| {
        let seen = seen.get(&heard.fact.assignment)?;
        let own = seen.node_id == heard.node_id && seen.attempt_id == heard.fact.attempt;
        Some((seen, own))
    };
    let told = facts.iter().filter_map(own).filter(|(_, own)| *own);
    let jobs: BTreeSet<JobId> = told.map(|(seen, _)| seen.job_id).collect();
    let jobs: Vec<JobId> = jobs.into_iter().collect();
    let mut gangs = Gang::lock_all(tx, &jobs).await?;
    let now = store::clock(tx).await?;
    let mut steps = Steps::default();
    let mut outcomes = Vec::with_capacity(facts.len());
    for heard in facts {
        outcomes.push(match own(heard) {
            None => Outcome::Unknown,
            Some((_, false)) => Outcome::Foreign,
            Some((seen, true)) => {
                let gang = gangs.get_mut(&seen.job_id);
                match gang.and_then(|gang| live(gang, seen)) {
                    None => late(&mut steps, seen, heard),
                    Some((gang, at)) => {
                        let on = On {
                            gang,
                            at,
                            steps: &mut steps,
                            timers,
                            actor: heard.actor,
                            now,
                        };
                        take(tx, on, heard.fact).await?
                    }
                }
            }
        });
    }
    steps.write(tx).await?;
    Ok(outcomes)
}

/// A worker's place in its gang; nothing when the worker has ended.
fn live<'g>(gang: &'g mut Gang, seen: &Assignment) -> Option<(&'g mut Gang, usize)> {
    let same = gang.attempt.id == seen.attempt_id && gang.attempt.state != AttemptState::Ended;
    let mut workers = gang.workers.iter();
    let at = workers.position(|worker| worker.id == seen.id && worker.phase.live())?;
    same.then_some((gang, at))
}

/// Takes one fact of a worker that lives.
async fn take(tx: &mut Tx, mut on: On<'_>, fact: &Fact) -> Result<Outcome, LifecycleError> {
    let moved = match &fact.kind {
        FactKind::Accepted => accepted(tx, &mut on).await?,
        FactKind::Refused {
            invalid,
            message,
            exit_code,
        } => refused(tx, &mut on, (*invalid, message.as_str(), *exit_code)).await?,
        FactKind::Started { pid, image_digest } => {
            started(tx, &mut on, *pid, image_digest.clone()).await?
        }
        FactKind::Exited(exited) => exited_so(tx, &mut on, exited).await?,
        FactKind::Released => released(tx, &mut on, fact.kept_micros).await?,
    };
    if !moved {
        return Ok(Outcome::Known);
    }
    settle_gang(tx, on.timers, on.gang, on.steps, on.actor).await?;
    Ok(Outcome::Applied)
}

/// A fact of an assignment that has ended. Its end stands; that its process is gone as well
/// is worth an event when the assignment was fenced, since until then nobody could know.
fn late(steps: &mut Steps, seen: &Assignment, heard: &Heard<'_>) -> Outcome {
    if seen.phase == AssignmentPhase::Fenced && heard.fact.kind == FactKind::Released {
        steps.event(&NewEvent {
            subject: Subject::Assignment(seen.id),
            job: Some((seen.team_id, seen.job_id)),
            node_id: Some(seen.node_id),
            from: Some(seen.phase.as_str()),
            to: seen.phase.as_str(),
            actor: heard.actor,
            reason: "reported_ended",
            data: json!({ "worker": seen.worker, "message": "its node came back and says that it has ended" }),
        });
    }
    Outcome::Known
}

async fn accepted(tx: &mut Tx, on: &mut On<'_>) -> Result<bool, LifecycleError> {
    let (id, now) = (on.worker().id, on.now);
    match on.worker().phase {
        AssignmentPhase::Granted => {
            on.step(AssignmentPhase::HandedOver, Process::default(), "")?;
        }
        // The stop and the acceptance crossed: its node holds it, and will until it is clean.
        AssignmentPhase::Stopping => {
            on.steps.write(tx).await?;
            if !assignments::note_taken(tx, id, now).await? {
                return Ok(false);
            }
            note_taken(on);
        }
        _ => return Ok(false),
    }
    on.steps.charge(id, now);
    Ok(true)
}

/// An acceptance that changes no phase, since its worker is to stop, and begins the charge.
fn note_taken(on: &mut On<'_>) {
    let worker = &on.gang.workers[on.at];
    on.steps.event(&NewEvent {
        subject: Subject::Assignment(worker.id),
        job: Some((worker.team_id, worker.job_id)),
        node_id: Some(worker.node_id),
        from: Some(worker.phase.as_str()),
        to: worker.phase.as_str(),
        actor: on.actor,
        reason: "taken_while_stopping",
        data: json!({ "worker": worker.worker, "message": "its node took it before the stop arrived" }),
    });
}

async fn refused(
    tx: &mut Tx,
    on: &mut On<'_>,
    (invalid, message, exit_code): (bool, &str, Option<i32>),
) -> Result<bool, LifecycleError> {
    let end = if invalid {
        AttemptEnd::Invalid
    } else {
        AttemptEnd::StartRefused
    };
    on.steps.write(tx).await?;
    let to = match on.worker().phase {
        AssignmentPhase::Cleaning | AssignmentPhase::Released | AssignmentPhase::Fenced => {
            return Ok(false);
        }
        // What was refused before it was accepted held nothing, and no release will follow.
        _ if !assignments::accepted(tx, on.worker().id).await? => AssignmentPhase::Released,
        _ => AssignmentPhase::Cleaning,
    };
    let message = format!(
        "{} would not start worker {}: {message}",
        on.actor.name(),
        on.worker().worker
    );
    let newcomer = on.newcomer();
    if newcomer {
        on.give_up(tx, message.clone()).await?;
    }
    on.step(to, Process::default(), end.as_str())?;
    if to == AssignmentPhase::Released {
        on.steps.close(on.worker().id, on.now);
    }
    if newcomer || on.worker().dismissed_at.is_some() {
        return Ok(true);
    }
    let wish = Stop {
        exit: exit_code.map(|code| (Some(code), None)),
        ..Stop::because(end, message)
    };
    on.stop(tx, &wish).await?;
    Ok(true)
}

async fn started(
    tx: &mut Tx,
    on: &mut On<'_>,
    pid: i64,
    image_digest: Option<String>,
) -> Result<bool, LifecycleError> {
    let before = accepted(tx, on).await?;
    let process = Process {
        pid: Some(pid),
        image_digest,
        exit: None,
    };
    if on.worker().phase != AssignmentPhase::HandedOver {
        on.note(process);
        return Ok(before);
    }
    on.step(AssignmentPhase::Running, process, "")?;
    Ok(true)
}

async fn exited_so(tx: &mut Tx, on: &mut On<'_>, exited: &Exited) -> Result<bool, LifecycleError> {
    accepted(tx, on).await?;
    let exit = Exit {
        code: exited.code,
        signal: exited.signal,
        asked: exited.asked,
        message: words::exit(exited),
    };
    let message = format!("worker {} {}", on.worker().worker, exit.message);
    let process = Process {
        exit: Some(exit),
        ..Process::default()
    };
    if on.worker().exited_at.is_some() {
        return Ok(false);
    }
    if exited.lost == Some(Lost::Unseen) {
        // Nobody knows how long it ran: its team pays for what an agent was there to see.
        on.steps.write(tx).await?;
        let heard_at = nodes::heard_before_life(tx, on.worker().node_id).await?;
        meter::silent(tx, on.worker().id, heard_at, on.now).await?;
    }
    if on.worker().phase == AssignmentPhase::Cleaning {
        on.note(process);
        return Ok(false);
    }
    // What its gang goes on without counts for nothing, however it ends.
    let end = end_of(exited).filter(|_| on.worker().dismissed_at.is_none());
    let Some(end) = end else {
        on.step(AssignmentPhase::Cleaning, process, "exit")?;
        return Ok(true);
    };
    on.step(AssignmentPhase::Cleaning, process, end.as_str())?;
    if end == AttemptEnd::NodeLost && on.go_on_without(tx, &message).await? {
        return Ok(true);
    }
    // The first that fails stops the others, and its exit is the job's.
    let wish = Stop {
        exit: Some((exited.code, exited.signal)),
        ..Stop::because(end, message)
    };
    on.stop(tx, &wish).await?;
    Ok(true)
}

/// The end that an exit gives the whole attempt; nothing for exit code 0.
fn end_of(exited: &Exited) -> Option<AttemptEnd> {
    if exited.lost.is_some() {
        return Some(AttemptEnd::NodeLost);
    }
    if exited.out_of_memory {
        return Some(AttemptEnd::Oom);
    }
    match (exited.code, exited.signal) {
        (Some(0), None) => None,
        (_, Some(_)) => Some(AttemptEnd::Signal),
        (_, None) => Some(AttemptEnd::Exit),
    }
}

async fn released(tx: &mut Tx, on: &mut On<'_>, kept_micros: i64) -> Result<bool, LifecycleError> {
    let silent = |on: &On<'_>| {
        format!(
            "{} let go of worker {} without saying how it ended",
            on.actor.name(),
            on.worker().worker
        )
    };
    if on.newcomer() {
        on.give_up(tx, silent(on)).await?;
    }
    let before = on.worker().phase;
    on.step(AssignmentPhase::Released, Process::default(), "")?;
    if kept_micros > 0 {
        let left_at = on.now - TimeDelta::microseconds(kept_micros);
        on.steps.write(tx).await?;
        meter::kept(tx, on.worker().id, left_at, on.now).await?;
    }
    on.steps.close(on.worker().id, on.now);
    // An agent that let go of what it was to run, without a word on how it ended: not
    // knowing is no success.
    let unexplained = matches!(
        before,
        AssignmentPhase::Granted | AssignmentPhase::HandedOver | AssignmentPhase::Running
    );
    if unexplained {
        let end = if before == AssignmentPhase::Running {
            AttemptEnd::NodeLost
        } else {
            AttemptEnd::StartRefused
        };
        let message = silent(on);
        if end == AttemptEnd::NodeLost && on.go_on_without(tx, &message).await? {
            return Ok(true);
        }
        on.stop(tx, &Stop::because(end, message)).await?;
    }
    Ok(true)
}

/// Brings an attempt up to date with its workers: it runs when all of them have started, and
/// it has ended when all of them have left. The job's row is locked.
pub async fn settle(
    tx: &mut Tx,
    timers: &Timers,
    job: &mut JobRow,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let Some(mut gang) = Gang::lock(tx, job.clone()).await? else {
        return Ok(());
    };
    let mut steps = Steps::default();
    settle_gang(tx, timers, &mut gang, &mut steps, actor).await?;
    steps.write(tx).await?;
    *job = gang.job;
    Ok(())
}

async fn settle_gang(
    tx: &mut Tx,
    timers: &Timers,
    gang: &mut Gang,
    steps: &mut Steps,
    actor: &Actor,
) -> Result<(), LifecycleError> {
    let waiting = |worker: &Assignment| {
        matches!(
            worker.phase,
            AssignmentPhase::Granted | AssignmentPhase::HandedOver
        )
    };
    if gang.attempt.state == AttemptState::Starting && !gang.workers.iter().any(waiting) {
        let step = AttemptStep::to(AttemptState::Running);
        steps.attempt(&mut gang.attempt, step, actor, json!({}))?;
        if gang.job.state == JobState::Starting {
            let step = JobStep::to(JobState::Running);
            steps.job(&mut gang.job, step, actor, json!({}))?;
        }
    }
    if gang.workers.iter().all(|worker| worker.phase.terminal()) {
        end::end(tx, timers, gang, steps, actor).await?;
    }
    Ok(())
}
