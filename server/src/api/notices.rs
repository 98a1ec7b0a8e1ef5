//! What teams asked to hear of, and what was delivered.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::ids::{DeliveryId, SubscriptionId};
use domain::name::Name;
use domain::notice::DeliveryState;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiPath, ApiPost, ApiQuery, NoQuery, RepeatKey, SignedIn};
use super::problem::Refusals;
use crate::app::idempotency::Answer;
use crate::app::notices::{self, Delivery, NewAsk, Subscription};
use crate::app::page::{Page, PageAsk};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_subscriptions, create_subscription))
        .routes(routes!(delete_subscription))
        .routes(routes!(list_deliveries))
        .routes(routes!(resend_delivery))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct SubscriptionPath {
    /// The team's name.
    team: Name,
    /// The subscription's id.
    subscription: SubscriptionId,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct DeliveryPath {
    /// The team's name.
    team: Name,
    /// The delivery's id.
    delivery: DeliveryId,
}

/// What is said of sending something again: nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Again {}

/// Which deliveries to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeliveryQuery {
    /// Only those that stand there.
    state: Option<DeliveryState>,
    /// Most items of the page, 1 to 500; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List what a team asked to hear of.
#[utoipa::path(
    get, path = "/teams/{team}/subscriptions", tag = "notices",
    params(("team" = Name, Path, description = "The team.")),
    responses((status = 200, description = "In the order in which it was asked for.", body = Page<Subscription>), Refusals)
)]
async fn list_subscriptions(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Page<Subscription>>, AppError> {
    notices::list(&app, &asker, &team).await.map(Json)
}

/// Ask to hear of something: by e-mail, or at a webhook of the team.
#[utoipa::path(
    post, path = "/teams/{team}/subscriptions", tag = "notices",
    params(("team" = Name, Path, description = "The team."), RepeatKey),
    request_body = NewAsk,
    responses((status = 201, description = "What was asked for.", body = Subscription), Refusals)
)]
async fn create_subscription(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NewAsk>,
) -> Result<Answer<Subscription>, AppError> {
    notices::create(&app, &asker, post.repeat, &team, post.input).await
}

/// End what was asked for.
#[utoipa::path(
    delete, path = "/teams/{team}/subscriptions/{subscription}", tag = "notices", params(SubscriptionPath),
    responses((status = 204, description = "Nothing more is told there."), Refusals)
)]
async fn delete_subscription(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<SubscriptionPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<StatusCode, AppError> {
    notices::delete(&app, &asker, &path.team, path.subscription).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List what a team's addresses were told, the latest first, with what came of each try.
#[utoipa::path(
    get, path = "/teams/{team}/deliveries", tag = "notices",
    params(("team" = Name, Path, description = "The team."), DeliveryQuery),
    responses((status = 200, description = "A page of deliveries.", body = Page<Delivery>), Refusals)
)]
async fn list_deliveries(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(query): ApiQuery<DeliveryQuery>,
) -> Result<Json<Page<Delivery>>, AppError> {
    let ask = PageAsk::new(query.limit, query.cursor)?;
    notices::deliveries(&app, &asker, &team, query.state, &ask)
        .await
        .map(Json)
}

/// Send a delivery again, whatever came of it.
#[utoipa::path(
    post, path = "/teams/{team}/deliveries/{delivery}/resend", tag = "notices", params(DeliveryPath, RepeatKey),
    request_body(content = Option<Again>, description = "Nothing needs to be said."),
    responses((status = 204, description = "It is on its way."), Refusals)
)]
async fn resend_delivery(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<DeliveryPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<Again>,
) -> Result<Answer<()>, AppError> {
    notices::resend(&app, &asker, post.repeat, &path.team, path.delivery).await
}
