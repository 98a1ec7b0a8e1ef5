//! Steps that were taken on locked rows and are yet to be written: those of many rows by few statements.
//!
//! Rows in memory are brought up to date at once, and what a step says in the database is kept here until
//! [`Steps::write`]. Whoever reads one of these rows from the database writes what is kept before.

use std::collections::BTreeMap;

use domain::Timestamp;
use domain::ids::{AssignmentId, AttemptId, JobId, TeamId};
use domain::state::{AssignmentPhase, JobState};
use serde_json::{Value, json};

use super::{Actor, LifecycleError, with_message};
use crate::accounting::meter;
use crate::store::assignments::{self, Assignment, AssignmentStep, Exit};
use crate::store::attempts::{self, AttemptRow, AttemptStep, StepFrom};
use crate::store::events::{Events, NewEvent, Subject};
use crate::store::jobs::{self, JobGuard, JobRow, JobStep};
use crate::store::{Tx, outbox, waits};

/// Steps that are kept until they are written.
#[derive(Debug, Default)]
pub struct Steps {
    workers: Rounds<AssignmentId, AssignmentStep>,
    attempts: Rounds<AttemptId, StepFrom>,
    jobs: Rounds<JobId, (JobGuard, JobStep)>,
    /// Jobs that wait no more.
    begun: Vec<(TeamId, JobId)>,
    /// Jobs that have ended.
    ended: Vec<JobId>,
    charged: Vec<(AssignmentId, Timestamp)>,
    closed: Vec<(AssignmentId, Timestamp)>,
    events: Events,
}

/// What a node said of a worker's process.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// Its number there.
    pub pid: Option<i64>,
    /// What names the image of its container for good.
    pub image_digest: Option<String>,
    /// How it ended.
    pub exit: Option<Exit>,
}

/// Steps of many rows: a round has one of each row at the most, so that one statement takes it.
#[derive(Debug)]
struct Rounds<K, S> {
    taken: BTreeMap<K, usize>,
    rounds: Vec<Vec<S>>,
}

impl<K, S> Default for Rounds<K, S> {
    fn default() -> Self {
        Self {
            taken: BTreeMap::new(),
            rounds: Vec::new(),
        }
    }
}

impl<K: Ord, S> Rounds<K, S> {
    fn put(&mut self, row: K, step: S) {
        let round = self.taken.entry(row).or_default();
        if self.rounds.len() == *round {
            self.rounds.push(Vec::new());
        }
        self.rounds[*round].push(step);
        *round += 1;
    }
}

impl Steps {
    /// Takes one step of a job whose row is locked, and brings the row up to date.
    pub fn job(
        &mut self,
        job: &mut JobRow,
        step: JobStep,
        actor: &Actor,
        data: Value,
    ) -> Result<(), LifecycleError> {
        job.state.step(step.to)?;
        let guard = JobGuard {
            id: job.id,
            state: job.state,
            version: job.version,
        };
        self.events.put(&NewEvent {
            subject: Subject::Job(job.id),
            job: Some((job.team_id, job.id)),
            node_id: None,
            from: Some(job.state.as_str()),
            to: step.to.as_str(),
            actor,
            reason: step.reason.as_deref().unwrap_or_default(),
            data: with_message(data, &step.message),
        });
        if job.state == JobState::Queued {
            self.begun.push((job.team_id, job.id));
        }
        if step.to.terminal() {
            self.ended.push(job.id);
        }
        job.state = step.to;
        job.version += 1;
        job.reason.clone_from(&step.reason);
        job.message.clone_from(&step.message);
        job.exit_code = step.exit_code;
        job.exit_signal = step.exit_signal;
        job.not_before = step.not_before;
        job.attempt += i32::from(step.begins_attempt);
        job.retries_used += i32::from(step.spends_retry);
        job.requeues += i32::from(step.counts_requeue);
        self.jobs.put(job.id, (guard, step));
        Ok(())
    }

    /// Takes one step of an attempt whose row is locked, and brings the row up to date.
    pub fn attempt(
        &mut self,
        attempt: &mut AttemptRow,
        step: AttemptStep,
        actor: &Actor,
        data: Value,
    ) -> Result<(), LifecycleError> {
        attempt.state.step(step.to)?;
        let (from, to) = (attempt.state, step.to);
        if attempt.reason.is_none() {
            attempt.reason = step.reason;
            attempt.message.clone_from(&step.message);
            attempt.exit_code = step.exit_code;
            attempt.exit_signal = step.exit_signal;
        }
        self.events.put(&NewEvent {
            subject: Subject::Attempt(attempt.id),
            job: Some((attempt.team_id, attempt.job_id)),
            node_id: None,
            from: Some(from.as_str()),
            to: to.as_str(),
            actor,
            reason: attempt.reason.map_or("", |end| end.as_str()),
            data: with_message(data, &attempt.message),
        });
        attempt.state = to;
        attempt.version += 1;
        let id = attempt.id;
        self.attempts.put(id, StepFrom { id, from, step });
        Ok(())
    }

    /// Takes one step of a worker whose job is locked, with what is known of its process by then, and
    /// brings the row up to date.
    pub fn worker(
        &mut self,
        worker: &mut Assignment,
        to: AssignmentPhase,
        process: Process,
        (actor, reason): (&Actor, &str),
        now: Timestamp,
    ) -> Result<(), LifecycleError> {
        worker.phase.step(to)?;
        self.events.put(&NewEvent {
            subject: Subject::Assignment(worker.id),
            job: Some((worker.team_id, worker.job_id)),
            node_id: Some(worker.node_id),
            from: Some(worker.phase.as_str()),
            to: to.as_str(),
            actor,
            reason,
            data: json!({ "worker": worker.worker }),
        });
        self.put_worker(worker, to, process, now);
        Ok(())
    }

    /// Notes what is known of a worker's process, where it stays in its phase.
    pub fn process(&mut self, worker: &mut Assignment, process: Process, now: Timestamp) {
        self.put_worker(worker, worker.phase, process, now);
    }

    fn put_worker(
        &mut self,
        worker: &mut Assignment,
        to: AssignmentPhase,
        process: Process,
        now: Timestamp,
    ) {
        let Process {
            pid,
            image_digest,
            exit,
        } = process;
        let leaves = matches!(to, AssignmentPhase::Cleaning | AssignmentPhase::Released);
        if let Some(exit) = exit.as_ref().filter(|_| worker.exited_at.is_none()) {
            worker.exit_code = exit.code;
            worker.exit_signal = exit.signal;
            worker.exit_asked = exit.asked;
        }
        if exit.is_some() || leaves {
            worker.exited_at.get_or_insert(now);
        }
        let step = AssignmentStep {
            id: worker.id,
            from: worker.phase,
            to,
            at: now,
            pid,
            image_digest,
            exit,
        };
        worker.phase = to;
        self.workers.put(worker.id, step);
    }

    /// A worker's node acknowledged it: its team pays from now on.
    pub fn charge(&mut self, worker: AssignmentId, now: Timestamp) {
        self.charged.push((worker, now));
    }

    /// A worker holds nothing any more.
    pub fn close(&mut self, worker: AssignmentId, now: Timestamp) {
        self.closed.push((worker, now));
    }

    /// Puts an event behind those of the steps before.
    pub fn event(&mut self, event: &NewEvent<'_>) {
        self.events.put(event);
    }

    /// Writes what is kept, in the order in which it was taken for each row. A row that does not
    /// stand where it was seen is [`LifecycleError::Missed`].
    pub async fn write(&mut self, tx: &mut Tx) -> Result<(), LifecycleError> {
        let all = std::mem::take(self);
        for round in &all.workers.rounds {
            let stepped = assignments::step(tx, round).await?;
            if let Some(missed) = round.iter().find(|step| !stepped.contains(&step.id)) {
                return Err(LifecycleError::Missed(format!("assignment {}", missed.id)));
            }
        }
        for round in &all.attempts.rounds {
            let stepped = attempts::step(tx, round).await?;
            if let Some(missed) = round.iter().find(|step| !stepped.contains(&step.id)) {
                return Err(LifecycleError::Missed(format!("attempt {}", missed.id)));
            }
        }
        for round in &all.jobs.rounds {
            let stepped = jobs::step(tx, round).await?;
            if let Some((missed, _)) = round.iter().find(|(job, _)| !stepped.contains(&job.id)) {
                return Err(LifecycleError::Missed(format!("job {}", missed.id)));
            }
        }
        if !all.ended.is_empty() {
            outbox::tell_jobs_ended(tx, &all.ended).await?;
        }
        if !all.begun.is_empty() {
            waits::end(tx, &all.begun).await?;
        }
        if !all.charged.is_empty() {
            meter::charge(tx, &all.charged).await?;
        }
        if !all.closed.is_empty() {
            meter::close(tx, &all.closed).await?;
        }
        all.events.write(tx).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_one_step_of_each_row_and_rows_keep_their_order() {
        let mut rounds = Rounds::default();
        for (row, step) in [("a", 1), ("a", 2), ("b", 3), ("c", 4), ("b", 5), ("a", 6)] {
            rounds.put(row, step);
        }
        assert_eq!(rounds.rounds, [vec![1, 3, 4], vec![2, 5], vec![6]]);
    }
}
