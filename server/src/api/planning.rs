//! What the planner would do, and what it works on.

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use domain::ids::JobId;
use domain::name::Name;
use domain::spec::JobSpec;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiJson, ApiPath, ApiQuery, NoQuery, SignedIn};
use super::problem::Refusals;
use crate::app::planning::{self, DryRun, Explanation};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(dry_run_job))
        .routes(routes!(explain_job))
        .routes(routes!(get_scenario))
}

/// Say what would happen to a job that was submitted now; changes nothing.
#[utoipa::path(
    post, path = "/teams/{team}/jobs/dry-run", tag = "work",
    params(("team" = Name, Path, description = "The team that it would be for.")),
    request_body = JobSpec,
    responses((status = 200, description = "Verdict, placement, cost and whom it would displace.", body = DryRun), Refusals)
)]
async fn dry_run_job(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    ApiJson(spec): ApiJson<JobSpec>,
) -> Result<Json<DryRun>, AppError> {
    planning::dry_run(&app, &asker, &team, spec).await.map(Json)
}

/// Say why a job waits.
#[utoipa::path(
    get, path = "/jobs/{job}/explanation", tag = "work",
    params(("job" = JobId, Path, description = "Its id.")),
    responses((status = 200, description = "Why it waits, or that it does not.", body = Explanation), Refusals)
)]
async fn explain_job(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Explanation>, AppError> {
    planning::explain(&app, &asker, id).await.map(Json)
}

/// The live world as a scenario file; workloads and users are ids. The scheduler plans the same of it,
/// but for what such a file has no key for: which modes a node's agent can drive, kinds of past
/// work, and on which node a job's checkpoints lie.
#[utoipa::path(
    get, path = "/planning/scenario", tag = "work",
    responses((status = 200, description = "A scenario file.", body = Object, content_type = "application/yaml"), Refusals)
)]
async fn get_scenario(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<impl IntoResponse, AppError> {
    let text = planning::scenario(&app, &asker).await?;
    Ok(([(CONTENT_TYPE, "application/yaml")], text))
}
