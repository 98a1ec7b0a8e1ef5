//! Teams, their quotas and their members.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{
    ApiJson, ApiPath, ApiPost, ApiQuery, IfMatch, NoQuery, PageQuery, Presupposes, ReasonQuery,
    RepeatKey, SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use super::reply::Versioned;
use crate::app::idempotency::Answer;
use crate::app::page::Page;
use crate::app::quotas::{self, NewQuota, Quota, SetQuota};
use crate::app::statements::{self, QuotaStatement};
use crate::app::teams::{self, Member, NewMember, NewTeam, Team, TeamPatch};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_teams, create_team))
        .routes(routes!(get_team, update_team))
        .routes(routes!(list_quotas))
        .routes(routes!(put_quota))
        .routes(routes!(get_quota_statement))
        .routes(routes!(list_members, add_member))
        .routes(routes!(remove_member))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct TeamPath {
    /// The team's name.
    team: Name,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct QuotaPath {
    /// The team's name.
    team: Name,
    /// The pool's name.
    pool: Name,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct MemberPath {
    /// The team's name.
    team: Name,
    /// The person's name.
    user: Name,
}

/// List the teams that the asker may know.
#[utoipa::path(
    get, path = "/teams", tag = "people", params(PageQuery),
    responses((status = 200, description = "A page of teams, by name.", body = Page<Team>), Refusals)
)]
async fn list_teams(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<Team>>, AppError> {
    teams::list(&app, &asker, &page.ask()?).await.map(Json)
}

/// Make a team.
#[utoipa::path(
    post, path = "/teams", tag = "people",
    params(RepeatKey),
    request_body = NewTeam,
    responses((status = 201, description = "The team.", body = Team), Refusals)
)]
async fn create_team(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NewTeam>,
) -> Result<Answer<Team>, AppError> {
    teams::create(&app, &asker, post.repeat, post.input).await
}

/// Show a team.
#[utoipa::path(
    get, path = "/teams/{team}", tag = "people", params(TeamPath),
    responses((status = 200, description = "The team.", body = Team), Refusals)
)]
async fn get_team(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<TeamPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Versioned<Team>, AppError> {
    let team = teams::get(&app, &asker, &path.team).await?;
    let version = team.version;
    Ok(Versioned(team, version))
}

/// Rename a team, or move it in the tree.
#[utoipa::path(
    patch, path = "/teams/{team}", tag = "people",
    params(TeamPath, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    request_body = TeamPatch,
    responses((status = 200, description = "The team.", body = Team), UpdateRefusals)
)]
async fn update_team(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<TeamPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    IfMatch(version): IfMatch,
    ApiJson(patch): ApiJson<TeamPatch>,
) -> Result<Versioned<Team>, AppError> {
    let team = teams::update(&app, &asker, &path.team, version, patch).await?;
    let version = team.version;
    Ok(Versioned(team, version))
}

/// List a team's quotas.
#[utoipa::path(
    get, path = "/teams/{team}/quotas", tag = "policy", params(TeamPath, PageQuery),
    responses((status = 200, description = "A page of quotas, by pool.", body = Page<Quota>), Refusals)
)]
async fn list_quotas(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<TeamPath>,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<Quota>>, AppError> {
    quotas::list(&app, &asker, &path.team, &page.ask()?)
        .await
        .map(Json)
}

/// Set a team's quota in a pool.
#[utoipa::path(
    put, path = "/teams/{team}/quotas/{pool}", tag = "policy",
    params(
        QuotaPath, ReasonQuery,
        ("If-Match" = Option<String>, Header, description = "The version that was read, in quotes."),
        ("If-None-Match" = Option<String>, Header, description = "`*` for a quota that is not there yet."),
    ),
    request_body = NewQuota,
    responses(
        (status = 200, description = "The quota, changed.", body = SetQuota),
        (status = 201, description = "The quota, new.", body = SetQuota),
        UpdateRefusals,
    )
)]
async fn put_quota(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<QuotaPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    presupposes: Presupposes,
    ApiJson(new): ApiJson<NewQuota>,
) -> Result<Answer<SetQuota>, AppError> {
    let which = (&path.team, &path.pool);
    quotas::put(&app, &asker, which, presupposes.into(), new, &why.reason).await
}

/// Say what a team holds, borrows and lends of each pool now.
#[utoipa::path(
    get, path = "/teams/{team}/quota-statement", tag = "policy", params(TeamPath),
    responses((status = 200, description = "A line for each pool, of the team and of each below it.", body = QuotaStatement), Refusals)
)]
async fn get_quota_statement(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<TeamPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<QuotaStatement>, AppError> {
    statements::of_team(&app, &asker, &path.team)
        .await
        .map(Json)
}

/// List a team's members.
#[utoipa::path(
    get, path = "/teams/{team}/members", tag = "people", params(TeamPath, PageQuery),
    responses((status = 200, description = "A page of members, by name.", body = Page<Member>), Refusals)
)]
async fn list_members(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<TeamPath>,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<Member>>, AppError> {
    teams::list_members(&app, &asker, &path.team, &page.ask()?)
        .await
        .map(Json)
}

/// Add a person to a team, or give it another role there.
#[utoipa::path(
    post, path = "/teams/{team}/members", tag = "people",
    params(TeamPath, RepeatKey),
    request_body = NewMember,
    responses(
        (status = 200, description = "The member, with its new role.", body = Member),
        (status = 201, description = "The member, added.", body = Member),
        Refusals,
    )
)]
async fn add_member(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<TeamPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NewMember>,
) -> Result<Answer<Member>, AppError> {
    teams::add_member(&app, &asker, post.repeat, &path.team, post.input).await
}

/// Take a person out of a team; its work there stays the team's.
#[utoipa::path(
    delete, path = "/teams/{team}/members/{user}", tag = "people", params(MemberPath),
    responses((status = 204, description = "It does not belong to the team any more."), Refusals)
)]
async fn remove_member(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<MemberPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<StatusCode, AppError> {
    teams::remove_member(&app, &asker, &path.team, &path.user).await?;
    Ok(StatusCode::NO_CONTENT)
}
