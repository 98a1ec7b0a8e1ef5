//! Logs: what a worker of a job wrote, as text.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use domain::ids::JobId;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiPath, ApiQuery, SignedIn};
use super::problem::Refusals;
use crate::app::links::Part;
use crate::app::log_search::{self, Found, Search};
use crate::app::logs::{self, LogAsk};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(get_job_logs))
        .routes(routes!(search_job_logs))
}

/// Where in what the worker wrote an answer begins.
const LOG_OFFSET: HeaderName = HeaderName::from_static("allotment-log-offset");

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
/// begins with the first, and ends where the job does before that. Offsets count the bytes that the worker
/// wrote, whatever was dropped of a log that is longer than its node or the archive keeps: the answer begins at the
/// byte that its header `Allotment-Log-Offset` says, with a line that tells what is missing in the place of its last
/// bytes. An answer that breaks off goes on at that offset plus the bytes that came.
#[utoipa::path(
    get, path = "/jobs/{job}/logs", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), LogsQuery),
    responses((status = 200, description = "The log, as it was written.", body = String, content_type = "text/plain",
        headers(("Allotment-Log-Offset" = i64, description = "Where in what the worker wrote the answer begins."))), Refusals)
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
        part: Part::Log,
    };
    let reader = logs::open(&app, &asker, job, ask).await?;
    let offset = reader.offset();
    let bytes = futures_util::stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        let next = reader.next().await?;
        // After a break nothing follows: the answer is cut, so that who reads it can tell.
        let reader = next.is_ok().then_some(reader);
        Some((next, reader))
    });
    let headers = [
        (
            CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        ),
        (LOG_OFFSET, HeaderValue::from(offset)),
    ];
    Ok((headers, Body::from_stream(bytes)).into_response())
}

/// Which log, and what is searched for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchQuery {
    /// What is searched for, 1 to 200 characters.
    #[param(min_length = 1, max_length = 200)]
    query: String,
    /// Whether that is a regular expression; false unless given.
    regex: Option<bool>,
    /// The worker's rank; 0 unless given.
    #[param(minimum = 0)]
    worker: Option<i32>,
    /// The attempt; the last unless given.
    #[param(minimum = 1)]
    attempt: Option<i32>,
    /// Which filling of the rank; the last unless given.
    #[param(minimum = 1)]
    filling: Option<i32>,
    /// The first byte that is searched; 0 unless given.
    #[param(minimum = 0)]
    offset: Option<i64>,
    /// The most lines that are answered; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u16>,
}

/// Search in what a worker of a job wrote.
///
/// Each line that has what is searched for is answered with where it begins. A search ends after 10 s or 256 MiB: the
/// answer says from where the next goes on.
#[utoipa::path(
    get, path = "/jobs/{job}/logs/search", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), SearchQuery),
    responses((status = 200, description = "The lines, by where they begin.", body = Found), Refusals)
)]
async fn search_job_logs(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(job): ApiPath<JobId>,
    ApiQuery(query): ApiQuery<SearchQuery>,
) -> Result<Json<Found>, AppError> {
    let optional = |field, value: Option<i32>| value.map(|v| at_least(field, v, 1)).transpose();
    let ask = LogAsk {
        worker: at_least("worker", query.worker.unwrap_or(0), 0)?,
        attempt: optional("attempt", query.attempt)?,
        filling: optional("filling", query.filling)?,
        offset: at_least("offset", query.offset.unwrap_or(0), 0)?,
        follow: false,
        part: Part::Log,
    };
    let search = Search {
        text: query.query,
        regex: query.regex.unwrap_or(false),
        limit: usize::from(query.limit.unwrap_or(100)),
    };
    Ok(Json(
        log_search::search(&app, &asker, job, ask, search).await?,
    ))
}

pub(super) fn at_least<T: PartialOrd + std::fmt::Display>(
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
