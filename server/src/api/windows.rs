//! Weekly windows of pools.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{
    ApiJson, ApiPath, ApiPost, ApiQuery, IfMatch, PageQuery, ReasonQuery, RepeatKey, SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use super::reply::Versioned;
use crate::app::idempotency::Answer;
use crate::app::page::Page;
use crate::app::windows::{self, NewWindow, Window, WindowPatch};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_windows, create_window))
        .routes(routes!(update_window, delete_window))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct PoolPath {
    /// The pool's name.
    pool: Name,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct WindowPath {
    /// The pool's name.
    pool: Name,
    /// The window's name.
    window: Name,
}

/// List a pool's weekly windows.
#[utoipa::path(
    get, path = "/pools/{pool}/windows", tag = "policy", params(PoolPath, PageQuery),
    responses((status = 200, description = "A page of windows, by name.", body = Page<Window>), Refusals)
)]
async fn list_windows(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PoolPath>,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<Window>>, AppError> {
    windows::list(&app, &asker, &path.pool, &page.ask()?)
        .await
        .map(Json)
}

/// Make a weekly window: quotas that hold for some hours of the week in place of others.
#[utoipa::path(
    post, path = "/pools/{pool}/windows", tag = "policy",
    params(PoolPath, ReasonQuery, RepeatKey),
    request_body = NewWindow,
    responses((status = 201, description = "The window.", body = Window), Refusals)
)]
async fn create_window(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PoolPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    post: ApiPost<NewWindow>,
) -> Result<Answer<Window>, AppError> {
    windows::create(
        &app,
        &asker,
        post.repeat,
        &path.pool,
        post.input,
        &why.reason,
    )
    .await
}

/// Change a weekly window; what is absent stays.
#[utoipa::path(
    patch, path = "/pools/{pool}/windows/{window}", tag = "policy",
    params(WindowPath, ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    request_body = WindowPatch,
    responses((status = 200, description = "The window.", body = Window), UpdateRefusals)
)]
async fn update_window(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<WindowPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
    ApiJson(patch): ApiJson<WindowPatch>,
) -> Result<Versioned<Window>, AppError> {
    let which = (&path.pool, &path.window);
    let window = windows::update(&app, &asker, which, version, patch, &why.reason).await?;
    let version = window.version;
    Ok(Versioned(window, version))
}

/// Remove a weekly window.
#[utoipa::path(
    delete, path = "/pools/{pool}/windows/{window}", tag = "policy",
    params(WindowPath, ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    responses((status = 204, description = "It is gone."), UpdateRefusals)
)]
async fn delete_window(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<WindowPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
) -> Result<StatusCode, AppError> {
    let which = (&path.pool, &path.window);
    windows::delete(&app, &asker, which, version, &why.reason).await?;
    Ok(StatusCode::NO_CONTENT)
}
