//! Results: the files that workers left in ALLOTMENT_OUTPUT_DIR.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use domain::ids::JobId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiPath, ApiQuery, SignedIn};
use super::logs::at_least;
use super::problem::Refusals;
use crate::app::results::{self, ResultsOf};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_job_results))
        .routes(routes!(get_job_result))
}

/// Whose results.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ResultsQuery {
    /// The worker's rank; 0 unless given.
    #[param(minimum = 0)]
    worker: Option<i32>,
    /// The attempt; the last unless given.
    #[param(minimum = 1)]
    attempt: Option<i32>,
    /// Which filling of the rank; the last unless given.
    #[param(minimum = 1)]
    filling: Option<i32>,
}

impl ResultsQuery {
    fn read(self) -> Result<ResultsOf, AppError> {
        let optional = |field, value: Option<i32>| value.map(|v| at_least(field, v, 1)).transpose();
        Ok(ResultsOf {
            worker: at_least("worker", self.worker.unwrap_or(0), 0)?,
            attempt: optional("attempt", self.attempt)?,
            filling: optional("filling", self.filling)?,
        })
    }
}

/// What a worker left in its output folder.
#[derive(Debug, Serialize, ToSchema)]
struct JobResults {
    /// The files, by path.
    items: Vec<JobResult>,
    /// How many entries of the folder were not kept: no plain files of the job's own, too many, too deep or too large.
    dropped: u64,
}

/// A file that a worker left.
#[derive(Debug, Serialize, ToSchema)]
struct JobResult {
    /// The number by which it is read.
    number: usize,
    /// Its path below the output folder. The job chose it.
    path: String,
    /// Its size in bytes.
    bytes: u64,
}

/// List the files that a worker of a job left.
///
/// They are there once the worker has ended.
#[utoipa::path(
    get, path = "/jobs/{job}/results", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), ResultsQuery),
    responses((status = 200, description = "The files.", body = JobResults), Refusals)
)]
async fn list_job_results(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(job): ApiPath<JobId>,
    ApiQuery(query): ApiQuery<ResultsQuery>,
) -> Result<Json<JobResults>, AppError> {
    let found = results::list(&app, &asker, job, query.read()?).await?;
    let items = found.files.into_iter().enumerate();
    let items = items.map(|(number, file)| JobResult {
        number,
        path: file.path,
        bytes: file.bytes,
    });
    Ok(Json(JobResults {
        items: items.collect(),
        dropped: found.dropped,
    }))
}

/// Read a file that a worker of a job left.
///
/// It is never shown in a browser: whoever wrote it may be no friend of whoever reads it.
#[utoipa::path(
    get, path = "/jobs/{job}/results/{number}", tag = "work",
    params(("job" = JobId, Path, description = "Its id."),
           ("number" = u32, Path, description = "The file's number in the list."), ResultsQuery),
    responses((status = 200, description = "The file, as an attachment.", body = String,
               content_type = "application/octet-stream"), Refusals)
)]
async fn get_job_result(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath((job, number)): ApiPath<(JobId, u32)>,
    ApiQuery(query): ApiQuery<ResultsQuery>,
) -> Result<Response, AppError> {
    let (file, reader) = results::open(&app, &asker, job, query.read()?, number).await?;
    let bytes = futures_util::stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        let next = reader.next().await?;
        let reader = next.is_ok().then_some(reader);
        Some((next, reader))
    });
    let headers = [
        (
            CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        ),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CONTENT_DISPOSITION, disposition(&file.path)),
        (CONTENT_LENGTH, HeaderValue::from(file.bytes)),
    ];
    Ok((headers, Body::from_stream(bytes)).into_response())
}

/// An attachment of the file's own name, in RFC 5987's form: nothing of the name is a header's syntax.
fn disposition(path: &str) -> HeaderValue {
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut text = "attachment; filename*=UTF-8''".to_owned();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use super::disposition;

    #[test]
    fn no_name_is_more_than_a_name() {
        assert_eq!(
            disposition("a/b/x\"; filename=evil.html\r\nSet-Cookie: y"),
            "attachment; filename*=UTF-8''x%22%3B%20filename%3Devil.html%0D%0ASet-Cookie%3A%20y"
        );
    }
}
