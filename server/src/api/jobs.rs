//! Jobs: submit, list, read, steer.

use axum::Json;
use axum::extract::State;
use domain::FieldError;
use domain::ids::JobId;
use domain::name::Name;
use domain::spec::JobSpec;
use domain::state::JobState;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::asked::Asked;
use super::extract::{
    ApiJson, ApiPath, ApiPost, ApiQuery, BODY_BYTES_MAX, IfMatch, NoQuery, PageQuery, RepeatKey,
    SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use super::reply::Versioned;
use crate::app::idempotency::Answer;
use crate::app::jobs::{
    self, Attempt, Batch, Event, Job, JobFilter, JobPatch, JobWish, Part, Waits,
};
use crate::app::lists::read_list;
use crate::app::page::{Page, PageAsk};
use crate::app::{App, AppError};

/// Largest body of a batch: a thousand jobs with a small file each.
const BATCH_BYTES_MAX: usize = 8 * BODY_BYTES_MAX;

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(submit_job))
        .routes(routes!(submit_jobs))
        .routes(routes!(list_jobs))
        .routes(routes!(get_job, update_job))
        .routes(routes!(cancel_job))
        .routes(routes!(suspend_job))
        .routes(routes!(resume_job))
        .routes(routes!(list_job_elements))
        .routes(routes!(list_job_events))
        .routes(routes!(list_job_attempts))
        .routes(routes!(list_job_waits))
}

/// Submit a job.
#[utoipa::path(
    post, path = "/teams/{team}/jobs", tag = "work",
    params(("team" = Name, Path, description = "The team that it is for."), RepeatKey),
    request_body = JobSpec,
    responses((status = 201, description = "The job, queued.", body = Job), Refusals)
)]
async fn submit_job(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<JobSpec>,
) -> Result<Answer<Job>, AppError> {
    jobs::submit(&app, &asker, post.repeat, &team, post.input).await
}

/// Submit many jobs at once: all of them, or none.
#[utoipa::path(
    post, path = "/teams/{team}/jobs/batch", tag = "work",
    params(("team" = Name, Path, description = "The team that they are for."), RepeatKey),
    request_body = Batch,
    responses((status = 201, description = "The jobs, queued, in the order of the request.", body = Page<Job>), Refusals)
)]
async fn submit_jobs(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<Batch, BATCH_BYTES_MAX>,
) -> Result<Answer<Page<Job>>, AppError> {
    jobs::submit_batch(&app, &asker, post.repeat, &team, post.input).await
}

/// What a list of jobs is cut to.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobsQuery {
    /// Of this team and those below it.
    team: Option<Name>,
    /// In this state; several are separated by commas.
    state: Option<String>,
    /// Submitted by this user.
    user: Option<Name>,
    /// Most items of the page, 1 to 500; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List the jobs that the asker may see, the newest first.
#[utoipa::path(
    get, path = "/jobs", tag = "work", params(JobsQuery),
    responses((status = 200, description = "A page of jobs.", body = Page<Job>), Refusals)
)]
async fn list_jobs(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(query): ApiQuery<JobsQuery>,
) -> Result<Json<Page<Job>>, AppError> {
    let ask = PageAsk::new(query.limit, query.cursor)?;
    let filter = JobFilter {
        team: query.team,
        states: read_states(query.state.as_deref())?,
        user: query.user,
    };
    jobs::list(&app, &asker, &filter, &ask).await.map(Json)
}

/// Read a job.
#[utoipa::path(
    get, path = "/jobs/{job}", tag = "work",
    params(("job" = JobId, Path, description = "Its id.")),
    responses((status = 200, description = "The job.", body = Job), Refusals)
)]
async fn get_job(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Versioned<Job>, AppError> {
    let job = jobs::get(&app, &asker, id).await?;
    let version = job.version;
    Ok(Versioned(job, version))
}

/// Change a job's class, its time limit or whether it may be preempted while it waits.
#[utoipa::path(
    patch, path = "/jobs/{job}", tag = "work",
    params(
        ("job" = JobId, Path, description = "Its id."),
        ("If-Match" = String, Header, description = "The version that was read, in quotes."),
    ),
    request_body = JobPatch,
    responses((status = 200, description = "The job as changed.", body = Job), UpdateRefusals)
)]
async fn update_job(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    IfMatch(version): IfMatch,
    ApiJson(patch): ApiJson<JobPatch>,
) -> Result<Versioned<Job>, AppError> {
    let job = jobs::update(&app, &asker, id, version, patch).await?;
    let version = job.version;
    Ok(Versioned(job, version))
}

/// Cancel a job, an array or some elements of it, whatever its state; what has ended already stays as it is.
#[utoipa::path(
    post, path = "/jobs/{job}/cancel", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), RepeatKey),
    request_body(content = Option<Part>, description = "Some elements of an array; empty is the whole job."),
    responses((status = 200, description = "The job: being cancelled, or as it has ended.", body = Job), Refusals)
)]
async fn cancel_job(asked: Asked<JobId, Part>) -> Result<Answer<Job>, AppError> {
    steer(asked, JobWish::Cancel).await
}

/// Hold a job, an array or some elements of it back; what runs of it is stopped.
#[utoipa::path(
    post, path = "/jobs/{job}/suspend", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), RepeatKey),
    request_body(content = Option<Part>, description = "Some elements of an array; empty is the whole job."),
    responses((status = 200, description = "The job, suspended.", body = Job), Refusals)
)]
async fn suspend_job(asked: Asked<JobId, Part>) -> Result<Answer<Job>, AppError> {
    steer(asked, JobWish::Suspend).await
}

/// Let a suspended job, an array or some elements of it queue again.
#[utoipa::path(
    post, path = "/jobs/{job}/resume", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), RepeatKey),
    request_body(content = Option<Part>, description = "Some elements of an array; empty is the whole job."),
    responses((status = 200, description = "The job, queued.", body = Job), Refusals)
)]
async fn resume_job(asked: Asked<JobId, Part>) -> Result<Answer<Job>, AppError> {
    steer(asked, JobWish::Resume).await
}

async fn steer(asked: Asked<JobId, Part>, wish: JobWish) -> Result<Answer<Job>, AppError> {
    let (id, part) = (asked.object, asked.input);
    jobs::steer_part(&asked.app, &asked.asker, asked.repeat, id, part, wish).await
}

/// Which elements of an array are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ElementsQuery {
    /// In this state; several are separated by commas.
    state: Option<String>,
    /// Most items of the page, 1 to 500; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// The elements of an array, by their index.
#[utoipa::path(
    get, path = "/jobs/{job}/elements", tag = "work",
    params(("job" = JobId, Path, description = "The array's id."), ElementsQuery),
    responses((status = 200, description = "A page of elements.", body = Page<Job>), Refusals)
)]
async fn list_job_elements(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(query): ApiQuery<ElementsQuery>,
) -> Result<Json<Page<Job>>, AppError> {
    let ask = PageAsk::new(query.limit, query.cursor)?;
    let states = read_states(query.state.as_deref())?;
    jobs::elements(&app, &asker, id, &states, &ask)
        .await
        .map(Json)
}

/// States, separated by commas.
fn read_states(text: Option<&str>) -> Result<Vec<JobState>, FieldError> {
    read_list("state", text, str::parse)
}

/// What happened to a job, the first thing first.
#[utoipa::path(
    get, path = "/jobs/{job}/events", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), PageQuery),
    responses((status = 200, description = "A page of events.", body = Page<Event>), Refusals)
)]
async fn list_job_events(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> Result<Json<Page<Event>>, AppError> {
    jobs::events(&app, &asker, id, &query.ask()?)
        .await
        .map(Json)
}

/// The runs of a job, the first one first.
#[utoipa::path(
    get, path = "/jobs/{job}/attempts", tag = "work",
    params(("job" = JobId, Path, description = "Its id.")),
    responses((status = 200, description = "All attempts.", body = Page<Attempt>), Refusals)
)]
async fn list_job_attempts(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Page<Attempt>>, AppError> {
    jobs::attempts(&app, &asker, id).await.map(Json)
}

/// What a job has waited for, and for how long.
#[utoipa::path(
    get, path = "/jobs/{job}/waits", tag = "work",
    params(("job" = JobId, Path, description = "Its id.")),
    responses((status = 200, description = "All stretches of its waits, the first first, and their sums.", body = Waits), Refusals)
)]
async fn list_job_waits(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Waits>, AppError> {
    jobs::waits(&app, &asker, id).await.map(Json)
}
