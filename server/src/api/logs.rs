//! Logs: what a worker of a job wrote, as text.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use domain::ids::JobId;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiPath, ApiQuery, SignedIn};
use super::problem::Refusals;
use crate::app::logs::{self, LogAsk};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(get_job_logs))
}

/// Which log, and from where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogsQuery {
    /// The worker's rank; 0 unless given.
    #[param(minimum = 0)]
    worker: Option<i32>,
    /// The attempt; the last unless given.
    #[param(minimum = 1)]
    attempt: Option<i32>,
    /// Which filling of the rank, of one that an elastic gang gave up or lost and filled anew, the first
    /// being 1; the last unless given.
    #[param(minimum = 1)]
    filling: Option<i32>,
    /// The first byte; 0 unless given.
    #[param(minimum = 0)]
    offset: Option<i64>,
    /// Whether to go on until the worker has ended; false unless given.
    follow: Option<bool>,
}

/// Read what a worker of a job wrote.
///
/// With `follow` the answer ends when the worker has ended; where no attempt of the job has begun it
/// begins with the first, and ends where the job does before that.
#[utoipa::path(
    get, path = "/jobs/{job}/logs", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), LogsQuery),
    responses((status = 200, description = "The log, as it was written.", body = String, content_type = "text/plain"), Refusals)
)]
async fn get_job_logs(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(job): ApiPath<JobId>,
    ApiQuery(query): ApiQuery<LogsQuery>,
) -> Result<Response, AppError> {
    let ask = LogAsk {
        worker: at_least("worker", query.worker.unwrap_or(0), 0)?,
        attempt: query
            .attempt
            .map(|attempt| at_least("attempt", attempt, 1))
            .transpose()?,
        filling: query
            .filling
            .map(|filling| at_least("filling", filling, 1))
            .transpose()?,
        offset: at_least("offset", query.offset.unwrap_or(0), 0)?,
        follow: query.follow.unwrap_or(false),
    };
    let reader = logs::open(&app, &asker, job, ask).await?;
    let bytes = futures_util::stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        let next = reader.next().await?;
        // After a break nothing follows: the answer is cut, so that who reads it can tell.
        let reader = next.is_ok().then_some(reader);
        Some((next, reader))
    });
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((headers, Body::from_stream(bytes)).into_response())
}

fn at_least<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: T,
    least: T,
) -> Result<T, AppError> {
    if value >= least {
        Ok(value)
    } else {
        Err(AppError::invalid(field, value, format!("{least} or more")))
    }
}
