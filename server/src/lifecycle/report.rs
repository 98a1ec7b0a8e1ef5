//! What nodes report: each fact moves one assignment, and with it its attempt and its job.
//!
//! A fact is applied by state, so that one that comes twice, or after its assignment has
//! ended, changes nothing. Who may report is decided here too: a node speaks of its own
//! assignments only.

use domain::ids::NodeId;
use domain::state::{AssignmentPhase, AttemptEnd, AttemptState, JobState};
use protocol::report::{Exited, Fact, FactKind, Lost};
use serde_json::json;

use super::resize::go_on_without;
use super::{Actor, LifecycleError, Stop, end, refuse_growth, step_attempt, step_job, stop, words};
use crate::accounting::meter;
use crate::config::Timers;
use crate::store::assignments::{self, Assignment, Exit};
use crate::store::attempts::{self, AttemptRow, AttemptStep};
use crate::store::events::{self, NewEvent, Subject};
use crate::store::jobs::{self, JobRow, JobStep};
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

/// A worker with all that is locked for changing it.
struct Locked {
    job: JobRow,
    attempt: AttemptRow,
    worker: Assignment,
}

impl Locked {
    /// Whether its gang runs already and was to grow by it.
    fn newcomer(&self) -> bool {
        let new = [AssignmentPhase::Granted, AssignmentPhase::HandedOver];
        self.attempt.state == AttemptState::Running && new.contains(&self.worker.phase)
    }

    /// A gang that was to grow by this worker goes on without it and those above it.
    async fn give_up(
        &mut self,
        tx: &mut Tx,
        timers: &Timers,
        message: String,
        actor: &Actor,
    ) -> Result<(), LifecycleError> {
        let (attempt, from) = (&self.attempt, self.worker.worker);
        refuse_growth(tx, timers, &mut self.job, attempt, from, message, actor).await?;
        self.worker.phase = AssignmentPhase::Stopping;
        Ok(())
    }

    /// Whether its gang goes on without this worker, which was lost with its node.
    async fn go_on_without(
        &mut self,
        tx: &mut Tx,
        message: &str,
        actor: &Actor,
    ) -> Result<bool, LifecycleError> {
        let lost = [self.worker.id];
        go_on_without(tx, &mut self.job, &self.attempt, &lost, message, actor).await
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
    let Some(seen) = assignments::find(tx, &[fact.assignment]).await?.pop() else {
        return Ok(Outcome::Unknown);
    };
    if seen.node_id != node_id || seen.attempt_id != fact.attempt {
        return Ok(Outcome::Foreign);
    }
    let Some(mut locked) = lock(tx, &seen).await? else {
        return late(tx, &seen, actor, fact).await;
    };
    let moved = match &fact.kind {
        FactKind::Accepted => accepted(tx, &mut locked, actor).await?,
        FactKind::Refused {
            invalid,
            message,
            exit_code,
        } => {
            let told = (*invalid, message.as_str(), *exit_code);
            refused(tx, timers, &mut locked, actor, told).await?
        }
        FactKind::Started { pid } => started(tx, &mut locked, actor, *pid).await?,
        FactKind::Exited(exited) => exited_so(tx, &mut locked, actor, exited).await?,
        FactKind::Released => released(tx, timers, &mut locked, actor).await?,
    };
    if !moved {
        return Ok(Outcome::Known);
    }
    settle(tx, timers, &mut locked.job, actor).await?;
    Ok(Outcome::Applied)
}

/// Locks job, live attempt and worker; nothing when the worker has ended.
async fn lock(tx: &mut Tx, seen: &Assignment) -> Result<Option<Locked>, LifecycleError> {
    let missed = || LifecycleError::Missed(format!("job {}", seen.job_id));
    let job = jobs::lock(tx, seen.job_id).await?.ok_or_else(missed)?;
    let Some(attempt) = attempts::lock_live(tx, job.id).await? else {
        return Ok(None);
    };
    if attempt.id != seen.attempt_id {
        return Ok(None);
    }
    let worker = assignments::lock_of_attempt(tx, attempt.id)
        .await?
        .into_iter()
        .find(|worker| worker.id == seen.id)
        .filter(|worker| worker.phase.live());
    Ok(worker.map(|worker| Locked {
        job,
        attempt,
        worker,
    }))
}

/// A fact of an assignment that has ended. Its end stands; that its process is gone as well
/// is worth an event when the assignment was fenced, since until then nobody could know.
async fn late(
    tx: &mut Tx,
    seen: &Assignment,
    actor: &Actor,
    fact: &Fact,
) -> Result<Outcome, LifecycleError> {
    if seen.phase == AssignmentPhase::Fenced && fact.kind == FactKind::Released {
        let event = NewEvent {
            subject: Subject::Assignment(seen.id),
            job: Some((seen.team_id, seen.job_id)),
            node_id: Some(seen.node_id),
            from: Some(seen.phase.as_str()),
            to: seen.phase.as_str(),
            actor,
            reason: "reported_ended",
            data: json!({ "worker": seen.worker, "message": "its node came back and says that it has ended" }),
        };
        events::insert(tx, &event).await?;
    }
    Ok(Outcome::Known)
}

async fn accepted(tx: &mut Tx, on: &mut Locked, actor: &Actor) -> Result<bool, LifecycleError> {
    let now = store::clock(tx).await?;
    match on.worker.phase {
        AssignmentPhase::Granted => {
            step_worker(tx, &mut on.worker, AssignmentPhase::HandedOver, actor, "").await?;
        }
        // The stop and the acceptance crossed: its node holds it, and will until it is clean.
        AssignmentPhase::Stopping if assignments::note_taken(tx, on.worker.id, now).await? => {
            note_taken(tx, &on.worker, actor).await?;
        }
        _ => return Ok(false),
    }
    meter::charge(tx, on.worker.id, now).await?;
    Ok(true)
}

/// An acceptance that changes no phase, since its worker is to stop, and begins the charge.
async fn note_taken(tx: &mut Tx, worker: &Assignment, actor: &Actor) -> Result<(), sqlx::Error> {
    let event = NewEvent {
        subject: Subject::Assignment(worker.id),
        job: Some((worker.team_id, worker.job_id)),
        node_id: Some(worker.node_id),
        from: Some(worker.phase.as_str()),
        to: worker.phase.as_str(),
        actor,
        reason: "taken_while_stopping",
        data: json!({ "worker": worker.worker, "message": "its node took it before the stop arrived" }),
    };
    events::insert(tx, &event).await
}

async fn refused(
    tx: &mut Tx,
    timers: &Timers,
    on: &mut Locked,
    actor: &Actor,
    (invalid, message, exit_code): (bool, &str, Option<i32>),
) -> Result<bool, LifecycleError> {
    let end = if invalid {
        AttemptEnd::Invalid
    } else {
        AttemptEnd::StartRefused
    };
    let to = match on.worker.phase {
        AssignmentPhase::Cleaning | AssignmentPhase::Released | AssignmentPhase::Fenced => {
            return Ok(false);
        }
        // What was refused before it was accepted held nothing, and no release will follow.
        _ if !assignments::accepted(tx, on.worker.id).await? => AssignmentPhase::Released,
        _ => AssignmentPhase::Cleaning,
    };
    let message = format!(
        "{} would not start worker {}: {message}",
        actor.name(),
        on.worker.worker
    );
    let newcomer = on.newcomer();
    if newcomer {
        on.give_up(tx, timers, message.clone(), actor).await?;
    }
    step_worker(tx, &mut on.worker, to, actor, end.as_str()).await?;
    if to == AssignmentPhase::Released {
        let now = store::clock(tx).await?;
        meter::close(tx, on.worker.id, now).await?;
    }
    if newcomer || on.worker.dismissed_at.is_some() {
        return Ok(true);
    }
    let wish = Stop {
        exit: exit_code.map(|code| (Some(code), None)),
        ..Stop::because(end, message)
    };
    stop(tx, &mut on.job, &wish, actor).await?;
    Ok(true)
}

async fn started(
    tx: &mut Tx,
    on: &mut Locked,
    actor: &Actor,
    pid: i64,
) -> Result<bool, LifecycleError> {
    let before = accepted(tx, on, actor).await?;
    assignments::note_pid(tx, on.worker.id, pid).await?;
    if on.worker.phase != AssignmentPhase::HandedOver {
        return Ok(before);
    }
    step_worker(tx, &mut on.worker, AssignmentPhase::Running, actor, "").await?;
    Ok(true)
}

async fn exited_so(
    tx: &mut Tx,
    on: &mut Locked,
    actor: &Actor,
    exited: &Exited,
) -> Result<bool, LifecycleError> {
    accepted(tx, on, actor).await?;
    let worker = on.worker.worker;
    let exit = Exit {
        code: exited.code,
        signal: exited.signal,
        asked: exited.asked,
        message: words::exit(exited),
    };
    let now = store::clock(tx).await?;
    let first = assignments::note_exit(tx, on.worker.id, &exit, now).await?;
    if first && exited.lost == Some(Lost::Unseen) {
        // Nobody knows how long it ran: its team pays for what an agent was there to see.
        let heard_at = nodes::heard_before_life(tx, on.worker.node_id).await?;
        meter::silent(tx, on.worker.id, heard_at, now).await?;
    }
    if !first || on.worker.phase == AssignmentPhase::Cleaning {
        return Ok(false);
    }
    // What its gang goes on without counts for nothing, however it ends.
    let end = end_of(exited).filter(|_| on.worker.dismissed_at.is_none());
    let Some(end) = end else {
        step_worker(tx, &mut on.worker, AssignmentPhase::Cleaning, actor, "exit").await?;
        return Ok(true);
    };
    step_worker(
        tx,
        &mut on.worker,
        AssignmentPhase::Cleaning,
        actor,
        end.as_str(),
    )
    .await?;
    let message = format!("worker {worker} {}", exit.message);
    if end == AttemptEnd::NodeLost && on.go_on_without(tx, &message, actor).await? {
        return Ok(true);
    }
    // The first that fails stops the others, and its exit is the job's.
    let wish = Stop {
        exit: Some((exited.code, exited.signal)),
        ..Stop::because(end, message)
    };
    stop(tx, &mut on.job, &wish, actor).await?;
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

async fn released(
    tx: &mut Tx,
    timers: &Timers,
    on: &mut Locked,
    actor: &Actor,
) -> Result<bool, LifecycleError> {
    let silent = |on: &Locked| {
        format!(
            "{} let go of worker {} without saying how it ended",
            actor.name(),
            on.worker.worker
        )
    };
    if on.newcomer() {
        on.give_up(tx, timers, silent(on), actor).await?;
    }
    let before = on.worker.phase;
    step_worker(tx, &mut on.worker, AssignmentPhase::Released, actor, "").await?;
    let now = store::clock(tx).await?;
    meter::close(tx, on.worker.id, now).await?;
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
        if end == AttemptEnd::NodeLost && on.go_on_without(tx, &message, actor).await? {
            return Ok(true);
        }
        let wish = Stop::because(end, message);
        stop(tx, &mut on.job, &wish, actor).await?;
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
    let Some(mut attempt) = attempts::lock_live(tx, job.id).await? else {
        return Ok(());
    };
    let workers = assignments::lock_of_attempt(tx, attempt.id).await?;
    let waiting = |worker: &Assignment| {
        matches!(
            worker.phase,
            AssignmentPhase::Granted | AssignmentPhase::HandedOver
        )
    };
    if attempt.state == AttemptState::Starting && !workers.iter().any(waiting) {
        let step = AttemptStep::to(AttemptState::Running);
        step_attempt(tx, &mut attempt, &step, actor, json!({})).await?;
        if job.state == JobState::Starting {
            step_job(tx, job, &JobStep::to(JobState::Running), actor, json!({})).await?;
        }
    }
    if workers.iter().all(|worker| worker.phase.terminal()) {
        end::end(tx, timers, job, &mut attempt, &workers, actor).await?;
    }
    Ok(())
}

/// Takes one step of a worker whose job is locked, and writes its event.
pub(super) async fn step_worker(
    tx: &mut Tx,
    worker: &mut Assignment,
    to: AssignmentPhase,
    actor: &Actor,
    reason: &str,
) -> Result<(), LifecycleError> {
    worker.phase.step(to)?;
    let now = store::clock(tx).await?;
    if !assignments::step(tx, worker.id, worker.phase, to, now).await? {
        return Err(LifecycleError::Missed(format!("assignment {}", worker.id)));
    }
    let event = NewEvent {
        subject: Subject::Assignment(worker.id),
        job: Some((worker.team_id, worker.job_id)),
        node_id: Some(worker.node_id),
        from: Some(worker.phase.as_str()),
        to: to.as_str(),
        actor,
        reason,
        data: json!({ "worker": worker.worker }),
    };
    events::insert(tx, &event).await?;
    worker.phase = to;
    Ok(())
}
