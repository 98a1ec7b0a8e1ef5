//! What is done from a job's page: cancel, suspend, resume, and a change that would start it sooner.

use std::str::FromStr;

use axum::extract::{Path, State};
use axum::response::Redirect;
use domain::FieldError;
use domain::ids::JobId;
use serde::Deserialize;

use super::super::PageError;
use super::super::form::minutes;
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

/// A change of a job: a remedy that was pressed, or the form that says all that may be changed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeFields {
    /// The version that the page showed.
    version: String,
    /// Absent where it stays.
    #[serde(default, deserialize_with = "crate::app::some")]
    class: Option<String>,
    /// Likewise.
    #[serde(default, deserialize_with = "crate::app::some")]
    time_limit_seconds: Option<String>,
    /// The same as people type it; empty for none.
    #[serde(default, deserialize_with = "crate::app::some")]
    time_limit_minutes: Option<String>,
    /// Absent where it stays; empty for as its class says.
    #[serde(default, deserialize_with = "crate::app::some")]
    preemptible: Option<String>,
}

impl ChangeFields {
    fn patch(&self) -> Result<JobPatch, Vec<FieldError>> {
        let mut faults = Vec::new();
        let limit = match (&self.time_limit_seconds, &self.time_limit_minutes) {
            (Some(text), _) => {
                let remedy = "a whole number of seconds";
                keep(&mut faults, read(text, "time_limit_seconds", remedy))
            }
            (None, Some(text)) => keep(&mut faults, minutes(text, "time_limit_minutes")),
            (None, None) => None,
        };
        let class = self.class.as_ref().and_then(|text| {
            let remedy = "the name of a class that is there";
            keep(&mut faults, read(text, "class", remedy))
        });
        let preemptible = self
            .preemptible
            .as_ref()
            .and_then(|text| keep(&mut faults, read(text, "preemptible", "true or false")));
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(JobPatch {
            class: class.flatten(),
            time_limit_seconds: limit,
            preemptible,
        })
    }
}

/// What was read, where it could be; else its fault is kept.
fn keep<T>(faults: &mut Vec<FieldError>, read: Result<T, FieldError>) -> Option<T> {
    read.map_err(|fault| faults.push(fault)).ok()
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
    let patch = match fields.patch() {
        Ok(patch) => patch,
        Err(faults) => {
            AppError::of_faults(faults)?;
            JobPatch::default()
        }
    };
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
