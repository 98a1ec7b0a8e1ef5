//! What a job has waited for: each cause, from when to when, and how long it held in all.

use domain::ids::JobId;
use domain::{MilliGpu, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::find;
use crate::app::authorise::Action;
use crate::app::{App, AppError, Asker};
use crate::store;
use crate::store::jobs::JobRow;
use crate::store::waits::{self, WaitRow};

/// What a job has waited for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Waits {
    /// Every stretch in which one cause held, the first first: 48 at the most. Of longer histories
    /// older stretches of one code are told as one.
    pub items: Vec<Wait>,
    /// How long each cause held in all, the longest first; they add up to `waited_seconds`.
    pub causes: Vec<WaitCause>,
    /// How long it waited in all, up to now.
    pub waited_seconds: i64,
}

/// A stretch in which one cause kept a job from starting, or several that are told as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Wait {
    /// The verdict's code.
    pub code: String,
    /// What bound, as a verdict names it; empty where it was not always the same.
    pub scope: String,
    /// The same as a sentence, as it was when it began to hold.
    pub message: String,
    /// GPUs that it needed then.
    pub need: MilliGpu,
    /// GPUs that there were for it then.
    pub have: MilliGpu,
    /// From when.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// To when; null while it holds.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub to: Option<Timestamp>,
    /// How many stretches it tells of; between them other causes held.
    pub stretches: i32,
    /// How long they held in all.
    pub seconds: i64,
}

/// How long one cause held in all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitCause {
    /// The verdict's code.
    pub code: String,
    /// In how many stretches.
    pub stretches: i32,
    /// For how long.
    pub seconds: i64,
}

/// What a job has waited for.
pub async fn waits(app: &App, asker: &Asker, id: JobId) -> Result<Waits, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = find(&mut tx, asker, Action::ListJobWaits, id).await?;
    let rows = waits::of_job(&mut tx, job.team_id, id).await?;
    let now = store::clock(&mut tx).await?;
    tx.commit().await?;
    let mut told = told(rows, now);
    told.begin(&job, now);
    Ok(told)
}

impl Waits {
    /// Of an element that its array has held back ever since, of which nothing is written yet: that.
    fn begin(&mut self, job: &JobRow, now: Timestamp) {
        let scope = job.waiting.as_ref().and_then(|told| told["scope"].as_str());
        let scope = scope.filter(|_| self.items.is_empty() && job.id.index().is_some());
        let (Some(scope), Some(code)) = (scope, &job.reason) else {
            return;
        };
        let each = job
            .spec()
            .map(|spec| (spec.per_worker.gpus().milli(), spec.workers));
        let need = each.map_or(0, |(milli, workers)| milli * i64::from(workers));
        let seconds = (now.timestamp() - job.queued_at.timestamp()).max(0);
        self.items.push(Wait {
            code: code.clone(),
            scope: scope.to_owned(),
            message: job.message.clone(),
            need: MilliGpu::from_milli(need),
            have: MilliGpu::ZERO,
            from: job.queued_at,
            to: None,
            stretches: 1,
            seconds,
        });
        self.causes.push(WaitCause {
            code: code.clone(),
            stretches: 1,
            seconds,
        });
        self.waited_seconds = seconds;
    }
}

fn told(rows: Vec<WaitRow>, now: Timestamp) -> Waits {
    let mut causes: Vec<WaitCause> = Vec::new();
    let items: Vec<Wait> = rows.into_iter().map(|row| stretch(row, now)).collect();
    for item in &items {
        match causes.iter_mut().find(|cause| cause.code == item.code) {
            Some(cause) => {
                cause.stretches += item.stretches;
                cause.seconds += item.seconds;
            }
            None => causes.push(WaitCause {
                code: item.code.clone(),
                stretches: item.stretches,
                seconds: item.seconds,
            }),
        }
    }
    // A stable sort: equal ones stay in the order in which they first held.
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.seconds));
    Waits {
        waited_seconds: causes.iter().map(|cause| cause.seconds).sum(),
        items,
        causes,
    }
}

fn stretch(row: WaitRow, now: Timestamp) -> Wait {
    let so_far = now.timestamp() - row.began_at.timestamp();
    Wait {
        code: row.code,
        scope: row.scope,
        message: row.message,
        need: MilliGpu::from_milli(row.need_milli),
        have: MilliGpu::from_milli(row.have_milli),
        from: row.began_at,
        to: row.ended_at,
        stretches: row.stretches,
        seconds: row.held_seconds.unwrap_or(so_far.max(0)),
    }
}
