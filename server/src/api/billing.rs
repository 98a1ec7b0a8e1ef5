//! Billing: the organisation's settings, its periods, what they bill teams, and what was committed.

use axum::Json;
use axum::extract::State;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{
    ApiJson, ApiPath, ApiPost, ApiQuery, IfMatch, NoInput, NoQuery, PageQuery, ReasonQuery,
    RepeatKey, SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use super::reply::Versioned;
use crate::app::billing_statements::{self, BillingStatement, BillingStatements};
use crate::app::commitments::{self, Commitment, Commitments, NewCommitment};
use crate::app::idempotency::Answer;
use crate::app::page::Page;
use crate::app::periods::{self, BillingPeriod, Organisation, OrganisationPatch};
use crate::app::{App, AppError};

/// The operations of these nouns.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(get_organisation, update_organisation))
        .routes(routes!(list_billing_periods))
        .routes(routes!(close_billing_period))
        .routes(routes!(issue_billing_period))
        .routes(routes!(list_billing_statements))
        .routes(routes!(list_team_billing_statements))
        .routes(routes!(get_team_billing_statement))
        .routes(routes!(list_commitments, create_commitment))
}

/// Read what the organisation has settled about its bills.
#[utoipa::path(
    get, path = "/organisation", tag = "money",
    responses((status = 200, description = "Its settings.", body = Organisation), Refusals)
)]
async fn get_organisation(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Versioned<Organisation>, AppError> {
    let organisation = periods::organisation(&app, &asker).await?;
    let version = organisation.version;
    Ok(Versioned(organisation, version))
}

/// Change what the organisation has settled about its bills; what is absent stays.
#[utoipa::path(
    patch, path = "/organisation", tag = "money",
    params(ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    request_body = OrganisationPatch,
    responses((status = 200, description = "Its settings.", body = Organisation), UpdateRefusals)
)]
async fn update_organisation(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
    ApiJson(patch): ApiJson<OrganisationPatch>,
) -> Result<Versioned<Organisation>, AppError> {
    let changed = periods::update_organisation(&app, &asker, version, patch, &why.reason).await?;
    let version = changed.version;
    Ok(Versioned(changed, version))
}

/// Which period.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct PeriodPath {
    /// Its name, the month: `2026-10`.
    period: String,
}

/// List the billing periods, the latest first.
#[utoipa::path(
    get, path = "/billing-periods", tag = "money", params(PageQuery),
    responses((status = 200, description = "A page of periods.", body = Page<BillingPeriod>), Refusals)
)]
async fn list_billing_periods(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<BillingPeriod>>, AppError> {
    periods::list(&app, &asker, &page.ask()?).await.map(Json)
}

/// Close a billing period that is over: nothing more is entered in it, and its statements are made.
#[utoipa::path(
    post, path = "/billing-periods/{period}/close", tag = "money",
    params(PeriodPath, RepeatKey),
    responses((status = 200, description = "The period, closing.", body = BillingPeriod), Refusals)
)]
async fn close_billing_period(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PeriodPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NoInput>,
) -> Result<Answer<BillingPeriod>, AppError> {
    periods::close(&app, &asker, post.repeat, &path.period).await
}

/// Issue the statements of a closed billing period.
#[utoipa::path(
    post, path = "/billing-periods/{period}/issue", tag = "money",
    params(PeriodPath, RepeatKey),
    responses((status = 200, description = "The period, issued.", body = BillingPeriod), Refusals)
)]
async fn issue_billing_period(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PeriodPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NoInput>,
) -> Result<Answer<BillingPeriod>, AppError> {
    periods::issue(&app, &asker, post.repeat, &path.period).await
}

/// List the statements of a billing period, by team.
#[utoipa::path(
    get, path = "/billing-periods/{period}/statements", tag = "money", params(PeriodPath),
    responses((status = 200, description = "Its statements, without their lines.", body = BillingStatements), Refusals)
)]
async fn list_billing_statements(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PeriodPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<BillingStatements>, AppError> {
    billing_statements::of_period(&app, &asker, &path.period)
        .await
        .map(Json)
}

/// List a team's statements, the latest first.
#[utoipa::path(
    get, path = "/teams/{team}/statements", tag = "money",
    params(("team" = Name, Path, description = "The team.")),
    responses((status = 200, description = "Its statements, without their lines.", body = BillingStatements), Refusals)
)]
async fn list_team_billing_statements(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<BillingStatements>, AppError> {
    billing_statements::of_team(&app, &asker, &team)
        .await
        .map(Json)
}

/// Which statement.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct StatementPath {
    /// The team.
    team: Name,
    /// The period's name, the month: `2026-10`.
    period: String,
}

/// Read a team's statement of a billing period, with its lines.
#[utoipa::path(
    get, path = "/teams/{team}/statements/{period}", tag = "money", params(StatementPath),
    responses((status = 200, description = "The statement.", body = BillingStatement), Refusals)
)]
async fn get_team_billing_statement(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<StatementPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<BillingStatement>, AppError> {
    billing_statements::get(&app, &asker, &path.team, &path.period)
        .await
        .map(Json)
}

/// List commitments: capacity that teams pay for whether they use it or not.
#[utoipa::path(
    get, path = "/commitments", tag = "money",
    responses((status = 200, description = "Those that the asker may see, the latest first.", body = Commitments), Refusals)
)]
async fn list_commitments(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Commitments>, AppError> {
    commitments::list(&app, &asker).await.map(Json)
}

/// Make a commitment.
#[utoipa::path(
    post, path = "/commitments", tag = "money",
    params(RepeatKey),
    request_body = NewCommitment,
    responses((status = 201, description = "The commitment.", body = Commitment), Refusals)
)]
async fn create_commitment(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NewCommitment>,
) -> Result<Answer<Commitment>, AppError> {
    commitments::create(&app, &asker, post.repeat, post.input).await
}
