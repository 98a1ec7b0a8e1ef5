//! What is done from a job's page: cancel, suspend, resume, and a change that would start it sooner.

use std::str::FromStr;

use axum::extract::{Path, State};
use axum::response::Redirect;
use domain::FieldError;
use domain::ids::JobId;
use serde::Deserialize;

use super::super::PageError;
use super::super::visit::Posted;
use crate::app::idempotency::Repeat;
use crate::app::jobs::{JobPatch, JobWish, Part};
use crate::app::{App, AppError, jobs};

/// Which elements of an array are meant; empty is the whole job.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartFields {
    #[serde(default)]
    elements: String,
}

/// Cancels a job.
pub async fn cancel_job(
    State(app): State<App>,
    Path(id): Path<String>,
    posted: Posted<PartFields>,
) -> Result<Redirect, PageError> {
    steer(&app, &id, &posted, JobWish::Cancel, "cancelled").await
}

/// Holds a job back.
pub async fn suspend_job(
    State(app): State<App>,
    Path(id): Path<String>,
    posted: Posted<PartFields>,
) -> Result<Redirect, PageError> {
    steer(&app, &id, &posted, JobWish::Suspend, "suspended").await
}

/// Lets a suspended job queue again.
pub async fn resume_job(
    State(app): State<App>,
    Path(id): Path<String>,
    posted: Posted<PartFields>,
) -> Result<Redirect, PageError> {
    steer(&app, &id, &posted, JobWish::Resume, "resumed").await
}

/// A change of a job that was pressed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeFields {
    /// The version that the page showed.
    version: String,
    /// Empty where it stays.
    #[serde(default)]
    time_limit_seconds: String,
    /// Likewise.
    #[serde(default)]
    preemptible: String,
}

impl ChangeFields {
    fn patch(&self) -> Result<JobPatch, FieldError> {
        let limit = read(
            &self.time_limit_seconds,
            "time_limit_seconds",
            "a whole number of seconds",
        )?;
        let preemptible = read(&self.preemptible, "preemptible", "true or false")?;
        Ok(JobPatch {
            class: None,
            time_limit_seconds: limit.map(Some),
            preemptible: preemptible.map(Some),
        })
    }
}

fn read<T: FromStr>(text: &str, field: &str, remedy: &str) -> Result<Option<T>, FieldError> {
    let refused = |_| FieldError::new(field, text, remedy);
    let said = Some(text).filter(|text| !text.is_empty());
    said.map(|text| text.parse().map_err(refused)).transpose()
}

/// Changes a job that waits, if it is still as its page showed it.
pub async fn change_job(
    State(app): State<App>,
    Path(id): Path<String>,
    posted: Posted<ChangeFields>,
) -> Result<Redirect, PageError> {
    let id = read_id(&id)?;
    let fields = &posted.fields;
    let version = read(&fields.version, "version", "the version of the page")
        .map_err(AppError::from)?
        .unwrap_or_default();
    let patch = fields.patch().map_err(AppError::from)?;
    let changed = jobs::update(&app, &posted.visit.asker, id, version, patch).await;
    changed.map_err(|error| match error {
        AppError::Stale { .. } => AppError::changed_meanwhile(error.to_string()),
        other => other,
    })?;
    Ok(Redirect::to(&format!("/jobs/{id}?done=changed")))
}

async fn steer(
    app: &App,
    id: &str,
    posted: &Posted<PartFields>,
    wish: JobWish,
    done: &str,
) -> Result<Redirect, PageError> {
    let id = read_id(id)?;
    let elements = match posted.fields.elements.trim() {
        "" => None,
        text => Some(text.parse().map_err(AppError::Invalid)?),
    };
    let of = if elements.is_some() { "_part" } else { "" };
    let (asker, part) = (&posted.visit.asker, Part { elements });
    jobs::steer_part(app, asker, Repeat::none(), id, part, wish).await?;
    Ok(Redirect::to(&format!("/jobs/{id}?done={done}{of}")))
}

/// A job's id from the path; what is none names no job.
pub fn read_id(text: &str) -> Result<JobId, AppError> {
    text.parse().map_err(|_| AppError::not_found("job", text))
}
