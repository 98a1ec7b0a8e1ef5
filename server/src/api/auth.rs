//! Signing in and out, and who one is.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiJson, ApiPost, ApiQuery, Context, NoInput, NoQuery, RepeatKey, SignedIn};
use super::problem::Refusals;
use crate::app::idempotency::Answer;
use crate::app::sessions::{self, LogIn, PasswordChange, SessionKind};
use crate::app::users::{self, Whoami};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(log_in))
        .routes(routes!(log_out))
        .routes(routes!(get_whoami))
        .routes(routes!(change_password))
}

/// A name with its password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Credentials {
    username: String,
    #[schema(format = Password)]
    password: String,
}

/// A bearer token.
#[derive(Serialize, ToSchema)]
struct Token {
    /// To be sent as `Authorization: Bearer TOKEN`; it is shown this once.
    token: String,
    /// When it ends.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

/// Log in and get a bearer token.
#[utoipa::path(
    post, path = "/auth/login", tag = "people", security(()),
    request_body = Credentials,
    responses(
        (status = 200, description = "The token.", body = Token),
        (status = 429, description = "Too many wrong passwords; wait as Retry-After says.", body = super::problem::Problem, content_type = "application/problem+json"),
        Refusals,
    )
)]
async fn log_in(
    State(app): State<App>,
    Context(context): Context,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    ApiJson(given): ApiJson<Credentials>,
) -> Result<Json<Token>, AppError> {
    let opened = sessions::log_in(
        &app,
        LogIn {
            name: given.username,
            password: given.password,
            kind: SessionKind::Token,
            address: context.address,
            browser: None,
            request_id: context.request_id,
        },
    )
    .await?;
    Ok(Json(Token {
        token: opened.secret,
        expires_at: opened.expires_at,
    }))
}

/// End the session that the token belongs to.
#[utoipa::path(
    post, path = "/auth/logout", tag = "people", params(RepeatKey),
    responses((status = 204, description = "The token is good for nothing any more."), Refusals)
)]
async fn log_out(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    _: ApiPost<NoInput>,
) -> Result<StatusCode, AppError> {
    sessions::log_out(&app, &asker).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Who the token belongs to, with its roles.
#[utoipa::path(
    get, path = "/auth/whoami", tag = "people",
    responses((status = 200, description = "The asker.", body = Whoami), Refusals)
)]
async fn get_whoami(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<Whoami>, AppError> {
    users::whoami(&app, &asker).await.map(Json)
}

/// The present password and a new one.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PasswordInput {
    #[schema(format = Password)]
    current: String,
    #[schema(format = Password)]
    new: String,
}

/// Change one's own password; all other sessions end.
#[utoipa::path(
    post, path = "/auth/password", tag = "people", params(RepeatKey),
    request_body = PasswordInput,
    responses(
        (status = 204, description = "Changed."),
        (status = 429, description = "Too many wrong passwords; wait as Retry-After says.", body = super::problem::Problem, content_type = "application/problem+json"),
        Refusals,
    )
)]
async fn change_password(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<PasswordInput>,
) -> Result<Answer<()>, AppError> {
    let PasswordInput { current, new } = post.input;
    let change = PasswordChange { current, new };
    sessions::change_password(&app, &asker, post.repeat, change).await
}
