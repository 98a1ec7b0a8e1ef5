//! Reports on schedule.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{
    ApiPath, ApiPost, ApiQuery, IfMatch, NoQuery, ReasonQuery, RepeatKey, SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use crate::app::idempotency::Answer;
use crate::app::page::Page;
use crate::app::schedules::{self, NewSchedule, Report, Schedule};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_schedules, create_schedule))
        .routes(routes!(delete_schedule))
        .routes(routes!(list_schedule_reports))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct SchedulePath {
    /// The team's name.
    team: Name,
    /// The schedule's name.
    schedule: Name,
}

/// List a team's reports on schedule.
#[utoipa::path(
    get, path = "/teams/{team}/schedules", tag = "notices",
    params(("team" = Name, Path, description = "The team.")),
    responses((status = 200, description = "By name.", body = Page<Schedule>), Refusals)
)]
async fn list_schedules(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Page<Schedule>>, AppError> {
    schedules::list(&app, &asker, &team).await.map(Json)
}

/// Have a report made on schedule; it is first due after now.
#[utoipa::path(
    post, path = "/teams/{team}/schedules", tag = "notices",
    params(("team" = Name, Path, description = "The team."), ReasonQuery, RepeatKey),
    request_body = NewSchedule,
    responses((status = 201, description = "The schedule.", body = Schedule), Refusals)
)]
async fn create_schedule(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    post: ApiPost<NewSchedule>,
) -> Result<Answer<Schedule>, AppError> {
    schedules::create(&app, &asker, post.repeat, &team, post.input, &why.reason).await
}

/// Remove a schedule.
#[utoipa::path(
    delete, path = "/teams/{team}/schedules/{schedule}", tag = "notices",
    params(SchedulePath, ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    responses((status = 204, description = "It is gone."), UpdateRefusals)
)]
async fn delete_schedule(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<SchedulePath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
) -> Result<StatusCode, AppError> {
    let place = (&path.team, &path.schedule);
    schedules::delete(&app, &asker, place, version, &why.reason).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the reports that a schedule made, the latest first; resend one by its delivery.
#[utoipa::path(
    get, path = "/teams/{team}/schedules/{schedule}/reports", tag = "notices", params(SchedulePath),
    responses((status = 200, description = "The latest hundred.", body = Page<Report>), Refusals)
)]
async fn list_schedule_reports(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<SchedulePath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Page<Report>>, AppError> {
    schedules::reports(&app, &asker, (&path.team, &path.schedule))
        .await
        .map(Json)
}
