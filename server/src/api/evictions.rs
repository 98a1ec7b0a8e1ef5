//! Evictions: what gave way, for whom, and by which rule.

use axum::Json;
use axum::extract::State;
use domain::ids::JobId;
use domain::name::Name;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiPath, ApiQuery, PageQuery, SignedIn};
use super::problem::Refusals;
use crate::app::evictions::{self, Eviction, TeamEvictions};
use crate::app::page::Page;
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_job_evictions))
        .routes(routes!(list_team_evictions))
}

/// The times that a job gave way, the newest first.
#[utoipa::path(
    get, path = "/jobs/{job}/evictions", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), PageQuery),
    responses((status = 200, description = "A page of evictions.", body = Page<Eviction>), Refusals)
)]
async fn list_job_evictions(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> Result<Json<Page<Eviction>>, AppError> {
    evictions::of_job(&app, &asker, id, &query.ask()?)
        .await
        .map(Json)
}

/// The times that work of a team gave way, the newest first, with their sums by month and rule.
#[utoipa::path(
    get, path = "/teams/{team}/evictions", tag = "work",
    params(("team" = Name, Path, description = "The team; those below it are with it."), PageQuery),
    responses((status = 200, description = "A page of evictions, and the sums of all.", body = TeamEvictions), Refusals)
)]
async fn list_team_evictions(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> Result<Json<TeamEvictions>, AppError> {
    evictions::of_team(&app, &asker, &team, &query.ask()?)
        .await
        .map(Json)
}
