//! A job's gang under lock: the job, its live attempt, and all workers of that.

use std::collections::BTreeMap;

use domain::ids::JobId;

use super::LifecycleError;
use crate::store::Tx;
use crate::store::assignments::{self, Assignment};
use crate::store::attempts::{self, AttemptRow};
use crate::store::jobs::{self, JobRow};

/// A job that is locked, with its live attempt and all workers of that.
pub(super) struct Gang {
    pub job: JobRow,
    pub attempt: AttemptRow,
    pub workers: Vec<Assignment>,
}

impl Gang {
    /// Locks the live attempt of a job that is locked, and its workers.
    pub async fn lock(tx: &mut Tx, job: JobRow) -> Result<Option<Self>, sqlx::Error> {
        let Some(attempt) = attempts::lock_live(tx, job.id).await? else {
            return Ok(None);
        };
        let workers = assignments::lock_of_attempt(tx, attempt.id).await?;
        Ok(Some(Self {
            job,
            attempt,
            workers,
        }))
    }

    /// Locks those of these jobs that have a live attempt, by job.
    pub async fn lock_all(
        tx: &mut Tx,
        jobs: &[JobId],
    ) -> Result<BTreeMap<JobId, Self>, sqlx::Error> {
        let rows = jobs::lock_and_read(tx, jobs).await?;
        let live = attempts::lock_all_live(tx, jobs).await?;
        let ids: Vec<_> = live.iter().map(|attempt| attempt.id).collect();
        let mut workers = BTreeMap::<_, Vec<Assignment>>::new();
        for worker in assignments::lock_of_attempts(tx, &ids).await? {
            workers.entry(worker.attempt_id).or_default().push(worker);
        }
        let mut live: BTreeMap<JobId, AttemptRow> = live
            .into_iter()
            .map(|attempt| (attempt.job_id, attempt))
            .collect();
        let gang = |job: JobRow| {
            let attempt = live.remove(&job.id)?;
            let workers = workers.remove(&attempt.id).unwrap_or_default();
            Some((
                job.id,
                Self {
                    job,
                    attempt,
                    workers,
                },
            ))
        };
        Ok(rows.into_iter().filter_map(gang).collect())
    }

    /// Reads attempt and workers anew, after what was written by itself.
    pub async fn look_again(&mut self, tx: &mut Tx) -> Result<(), LifecycleError> {
        let missed = || LifecycleError::Missed(format!("job {}", self.job.id));
        let attempt = attempts::lock_live(tx, self.job.id).await?;
        self.attempt = attempt.ok_or_else(missed)?;
        self.workers = assignments::lock_of_attempt(tx, self.attempt.id).await?;
        Ok(())
    }
}
