//! Webhooks of teams.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiJson, ApiPath, ApiQuery, NoQuery, ReasonQuery, SignedIn};
use super::problem::Refusals;
use crate::app::page::Page;
use crate::app::webhooks::{self, NewHook, Webhook, WebhookWithKey};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_webhooks, create_webhook))
        .routes(routes!(delete_webhook))
        .routes(routes!(rotate_webhook_key))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct WebhookPath {
    /// The team's name.
    team: Name,
    /// The webhook's name.
    webhook: Name,
}

/// List a team's webhooks.
#[utoipa::path(
    get, path = "/teams/{team}/webhooks", tag = "notices",
    params(("team" = Name, Path, description = "The team.")),
    responses((status = 200, description = "Its webhooks, by name; never their keys.", body = Page<Webhook>), Refusals)
)]
async fn list_webhooks(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Page<Webhook>>, AppError> {
    webhooks::list(&app, &asker, &team).await.map(Json)
}

/// Make a webhook. Its key is shown once.
#[utoipa::path(
    post, path = "/teams/{team}/webhooks", tag = "notices",
    params(("team" = Name, Path, description = "The team."), ReasonQuery),
    request_body = NewHook,
    responses((status = 201, description = "The webhook, with its key.", body = WebhookWithKey), Refusals)
)]
async fn create_webhook(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    ApiJson(new): ApiJson<NewHook>,
) -> Result<impl IntoResponse, AppError> {
    let made = webhooks::create(&app, &asker, &team, new, &why.reason).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Give a webhook a new key, which is shown once. Messages bear a signature by the old one, too, for a day.
#[utoipa::path(
    post, path = "/teams/{team}/webhooks/{webhook}/rotate", tag = "notices", params(WebhookPath),
    responses((status = 200, description = "The webhook, with its new key.", body = WebhookWithKey), Refusals)
)]
async fn rotate_webhook_key(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<WebhookPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<WebhookWithKey>, AppError> {
    webhooks::rotate(&app, &asker, (&path.team, &path.webhook))
        .await
        .map(Json)
}

/// Remove a webhook, with what was asked to be told there.
#[utoipa::path(
    delete, path = "/teams/{team}/webhooks/{webhook}", tag = "notices", params(WebhookPath, ReasonQuery),
    responses((status = 204, description = "It is gone."), Refusals)
)]
async fn delete_webhook(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<WebhookPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
) -> Result<StatusCode, AppError> {
    webhooks::delete(&app, &asker, (&path.team, &path.webhook), &why.reason).await?;
    Ok(StatusCode::NO_CONTENT)
}
