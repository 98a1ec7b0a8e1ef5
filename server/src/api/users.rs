//! People.

use axum::Json;
use axum::extract::State;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{
    ApiJson, ApiPath, ApiPost, ApiQuery, IfMatch, NoQuery, PageQuery, RepeatKey, SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use super::reply::Versioned;
use crate::app::idempotency::Answer;
use crate::app::page::Page;
use crate::app::users::{self, NewUser, User, UserPatch};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_users, create_user))
        .routes(routes!(get_user, update_user))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct UserPath {
    /// The person's name.
    user: Name,
}

/// List the people that the asker may know.
#[utoipa::path(
    get, path = "/users", tag = "people", params(PageQuery),
    responses((status = 200, description = "A page of people, by name.", body = Page<User>), Refusals)
)]
async fn list_users(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<User>>, AppError> {
    users::list(&app, &asker, &page.ask()?).await.map(Json)
}

/// Make a person.
#[utoipa::path(
    post, path = "/users", tag = "people",
    params(RepeatKey),
    request_body = NewUser,
    responses((status = 201, description = "The person.", body = User), Refusals)
)]
async fn create_user(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NewUser>,
) -> Result<Answer<User>, AppError> {
    users::create(&app, &asker, post.repeat, post.input).await
}

/// Show a person.
#[utoipa::path(
    get, path = "/users/{user}", tag = "people", params(UserPath),
    responses((status = 200, description = "The person.", body = User), Refusals)
)]
async fn get_user(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<UserPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Versioned<User>, AppError> {
    let user = users::get(&app, &asker, &path.user).await?;
    let version = user.version;
    Ok(Versioned(user, version))
}

/// Change a person: its role, whether it may sign in, its password.
#[utoipa::path(
    patch, path = "/users/{user}", tag = "people",
    params(UserPath, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    request_body = UserPatch,
    responses((status = 200, description = "The person.", body = User), UpdateRefusals)
)]
async fn update_user(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<UserPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    IfMatch(version): IfMatch,
    ApiJson(patch): ApiJson<UserPatch>,
) -> Result<Versioned<User>, AppError> {
    let user = users::update(&app, &asker, &path.user, version, patch).await?;
    let version = user.version;
    Ok(Versioned(user, version))
}
