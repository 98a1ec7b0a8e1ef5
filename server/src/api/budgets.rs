//! Budgets.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{
    ApiJson, ApiPath, ApiPost, ApiQuery, IfMatch, NoQuery, ReasonQuery, RepeatKey, SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use super::reply::Versioned;
use crate::app::budgets::{self, Budget, BudgetPatch, NewBudget};
use crate::app::idempotency::Answer;
use crate::app::page::Page;
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_all_budgets))
        .routes(routes!(list_budgets, create_budget))
        .routes(routes!(update_budget, delete_budget))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct BudgetPath {
    /// The team's name.
    team: Name,
    /// The budget's name.
    budget: Name,
}

/// List the budgets of all teams that the asker may see, each with how it stands.
#[utoipa::path(
    get, path = "/budgets", tag = "money",
    responses((status = 200, description = "By team and name.", body = Page<Budget>), Refusals)
)]
async fn list_all_budgets(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Page<Budget>>, AppError> {
    budgets::of_all(&app, &asker).await.map(Json)
}

/// List a team's budgets, each with how it stands.
#[utoipa::path(
    get, path = "/teams/{team}/budgets", tag = "money",
    params(("team" = Name, Path, description = "The team.")),
    responses((status = 200, description = "By name.", body = Page<Budget>), Refusals)
)]
async fn list_budgets(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Page<Budget>>, AppError> {
    budgets::of_team(&app, &asker, &team).await.map(Json)
}

/// Give a team a budget.
#[utoipa::path(
    post, path = "/teams/{team}/budgets", tag = "money",
    params(("team" = Name, Path, description = "The team."), ReasonQuery, RepeatKey),
    request_body = NewBudget,
    responses((status = 201, description = "The budget.", body = Budget), Refusals)
)]
async fn create_budget(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    post: ApiPost<NewBudget>,
) -> Result<Answer<Budget>, AppError> {
    budgets::create(&app, &asker, post.repeat, &team, post.input, &why.reason).await
}

/// Change a budget; what it stops follows within half a minute.
#[utoipa::path(
    patch, path = "/teams/{team}/budgets/{budget}", tag = "money",
    params(BudgetPath, ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    request_body = BudgetPatch,
    responses((status = 200, description = "The budget.", body = Budget), UpdateRefusals)
)]
async fn update_budget(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<BudgetPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
    ApiJson(patch): ApiJson<BudgetPatch>,
) -> Result<Versioned<Budget>, AppError> {
    let place = (&path.team, &path.budget);
    let budget = budgets::update(&app, &asker, place, version, patch, &why.reason).await?;
    let version = budget.version;
    Ok(Versioned(budget, version))
}

/// Remove a budget; what it stopped goes on.
#[utoipa::path(
    delete, path = "/teams/{team}/budgets/{budget}", tag = "money",
    params(BudgetPath, ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    responses((status = 204, description = "It is gone."), UpdateRefusals)
)]
async fn delete_budget(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<BudgetPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
) -> Result<StatusCode, AppError> {
    let place = (&path.team, &path.budget);
    budgets::delete(&app, &asker, place, version, &why.reason).await?;
    Ok(StatusCode::NO_CONTENT)
}
