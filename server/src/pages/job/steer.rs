//! What is done from a job's page: cancel, suspend, resume.

use axum::extract::{Path, State};
use axum::response::Redirect;
use domain::ids::JobId;

use super::super::visit::Posted;
use super::super::{Nothing, PageError};
use crate::app::idempotency::Repeat;
use crate::app::jobs::JobWish;
use crate::app::{App, AppError, jobs};

/// Cancels a job.
pub async fn cancel_job(
    State(app): State<App>,
    Path(id): Path<String>,
    posted: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    steer(&app, &id, &posted, JobWish::Cancel, "cancelled").await
}

/// Holds a job back.
pub async fn suspend_job(
    State(app): State<App>,
    Path(id): Path<String>,
    posted: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    steer(&app, &id, &posted, JobWish::Suspend, "suspended").await
}

/// Lets a suspended job queue again.
pub async fn resume_job(
    State(app): State<App>,
    Path(id): Path<String>,
    posted: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    steer(&app, &id, &posted, JobWish::Resume, "resumed").await
}

async fn steer(
    app: &App,
    id: &str,
    posted: &Posted<Nothing>,
    wish: JobWish,
    done: &str,
) -> Result<Redirect, PageError> {
    let id = read_id(id)?;
    jobs::steer(app, &posted.visit.asker, Repeat::none(), id, wish).await?;
    Ok(Redirect::to(&format!("/jobs/{id}?done={done}")))
}

/// A job's id from the path; what is none names no job.
pub fn read_id(text: &str) -> Result<JobId, AppError> {
    text.parse().map_err(|_| AppError::not_found("job", text))
}
