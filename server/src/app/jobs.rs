//! Jobs as people see them: one, and lists of them.

mod arrays;
mod batch;
mod check;
mod history;
mod prospect;
mod steer;
mod submit;
mod view;
mod waits;

use domain::Timestamp;
use domain::ids::JobId;
use domain::name::Name;
use domain::state::JobState;

use super::authorise::{Action, Target, authorise};
use super::page::{self, Page, PageAsk};
use super::{App, AppError, Asker, teams};
use crate::store::jobs::{self, Filter, JobRow};
use crate::store::{self, Tx};

pub(super) use arrays::counts;
pub use arrays::{ArrayOf, elements, grid};
pub use batch::{Batch, submit_batch};
pub(super) use check::check;
pub use history::{Attempt, Event, attempts, events, steps};
pub use prospect::{BeyondQuota, QuotaCode};
pub(super) use prospect::{Prospect, beyond_at_all_times, may_be_beyond, of as prospect};
pub(crate) use prospect::{beyond_quotas, waits_for_quota};
pub use steer::{JobPatch, JobWish, Part, cancel, resume, steer, steer_part, suspend, update};
pub use submit::submit;
pub(crate) use view::rust_decimal_number;
pub use view::{Job, PlacedDevice, PlacedWorker};
pub use waits::{Wait, WaitCause, Waits, waits};

/// The code of why a job waits while nothing is planned. It is no verdict of the engine, which is what
/// fails then.
pub(crate) const PLANNING_STOPPED: &str = "planning_stopped";

/// What a list of jobs is cut to.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// Of this team and those below it.
    pub team: Option<Name>,
    /// In one of these states.
    pub states: Vec<JobState>,
    /// Submitted by this user.
    pub user: Option<Name>,
}

/// Lists what the asker may see, the newest first; an array is one of them, its elements are none.
pub async fn list(
    app: &App,
    asker: &Asker,
    filter: &JobFilter,
    ask: &PageAsk,
) -> Result<Page<Job>, AppError> {
    authorise(asker, Action::ListJobs, Target::Platform)?;
    let before: Option<(Timestamp, JobId)> = ask.after("job")?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let mut rows = Filter {
        states: filter.states.clone(),
        before,
        ..Filter::default()
    };
    if let Some(team) = &filter.team {
        let team = teams::find_as(&mut tx, asker, Action::ListJobs, team).await?;
        rows.teams = store::teams::with_children(&mut tx, team.id).await?;
    }
    if let Some(user) = &filter.user {
        let found = store::users::find(&mut tx, user.as_str()).await?;
        rows.user_id = Some(
            found
                .ok_or_else(|| AppError::invalid("user", user, "a user whom you may see"))?
                .id,
        );
    }
    let mut found = jobs::list(&mut tx, &rows, ask.rows_wanted()).await?;
    found.extend(arrays::list(&mut tx, &rows, ask.rows_wanted()).await?);
    found.sort_by_key(|row| std::cmp::Reverse((row.created_at, row.id)));
    let shown = view::show(&mut tx, found).await?;
    tx.commit().await?;
    Ok(page::cut(ask, "job", shown, |job: &Job| {
        (job.created_at, job.id)
    }))
}

/// Shows one job.
pub async fn get(app: &App, asker: &Asker, id: JobId) -> Result<Job, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = find(&mut tx, asker, Action::GetJob, id).await?;
    let shown = view::show_one(&mut tx, job).await?;
    tx.commit().await?;
    Ok(shown)
}

/// A job that the asker may do `action` on. What it may not see is not there.
pub(super) async fn find(
    tx: &mut Tx,
    asker: &Asker,
    action: Action,
    id: JobId,
) -> Result<JobRow, AppError> {
    let job = arrays::find(tx, id).await?;
    allowed(asker, action, id, job)
}

fn allowed(
    asker: &Asker,
    action: Action,
    id: JobId,
    job: Option<JobRow>,
) -> Result<JobRow, AppError> {
    let job = job.ok_or_else(|| AppError::not_found("job", id))?;
    let target = Target::Work {
        team: job.team_id,
        user: job.user_id,
    };
    authorise(asker, action, target).map_err(|error| match error {
        AppError::NotFound { .. } => AppError::not_found("job", id),
        other => other,
    })?;
    Ok(job)
}
