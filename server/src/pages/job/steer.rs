//! What is done from a job's page: cancel, suspend, resume.

use axum::extract::{Path, State};
use axum::response::Redirect;
use domain::ids::JobId;

use super::super::visit::Posted;
use super::super::{Nothing, PageError};
use crate::app::idempotency::Repeat;
use crate::app::{App, AppError, jobs};

/// Cancels a job.
pub async fn cancel_job(
    State(app): State<App>,
    Path(id): Path<String>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    let id = read_id(&id)?;
    jobs::cancel(&app, &visit.asker, Repeat::none(), id).await?;
    Ok(back_to(id, "cancelled"))
}

/// Holds a job back.
pub async fn suspend_job(
    State(app): State<App>,
    Path(id): Path<String>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    let id = read_id(&id)?;
    jobs::suspend(&app, &visit.asker, Repeat::none(), id).await?;
    Ok(back_to(id, "suspended"))
}

/// Lets a suspended job queue again.
pub async fn resume_job(
    State(app): State<App>,
    Path(id): Path<String>,
    Posted {
        visit,
        fields: Nothing {},
    }: Posted<Nothing>,
) -> Result<Redirect, PageError> {
    let id = read_id(&id)?;
    jobs::resume(&app, &visit.asker, Repeat::none(), id).await?;
    Ok(back_to(id, "resumed"))
}

/// A job's id from the path; what is none names no job.
pub fn read_id(text: &str) -> Result<JobId, AppError> {
    text.parse().map_err(|_| AppError::not_found("job", text))
}

fn back_to(id: JobId, done: &str) -> Redirect {
    Redirect::to(&format!("/jobs/{id}?done={done}"))
}
