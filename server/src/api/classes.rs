//! Priority classes.

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
use crate::app::classes::{self, Class, ClassPatch, NewClass};
use crate::app::idempotency::Answer;
use crate::app::page::Page;
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_classes, create_class))
        .routes(routes!(update_class, delete_class))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct ClassPath {
    /// The class's name.
    class: Name,
}

/// List the priority classes.
#[utoipa::path(
    get, path = "/classes", tag = "policy", params(PageQuery),
    responses((status = 200, description = "A page of classes, by name.", body = Page<Class>), Refusals)
)]
async fn list_classes(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<Class>>, AppError> {
    classes::list(&app, &asker, &page.ask()?).await.map(Json)
}

/// Make a priority class.
#[utoipa::path(
    post, path = "/classes", tag = "policy",
    params(ReasonQuery, RepeatKey),
    request_body = NewClass,
    responses((status = 201, description = "The class.", body = Class), Refusals)
)]
async fn create_class(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    post: ApiPost<NewClass>,
) -> Result<Answer<Class>, AppError> {
    classes::create(&app, &asker, post.repeat, post.input, &why.reason).await
}

/// Change a priority class; work that waits is ordered by it at once.
#[utoipa::path(
    patch, path = "/classes/{class}", tag = "policy",
    params(ClassPath, ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    request_body = ClassPatch,
    responses((status = 200, description = "The class.", body = Class), UpdateRefusals)
)]
async fn update_class(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<ClassPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
    ApiJson(patch): ApiJson<ClassPatch>,
) -> Result<Versioned<Class>, AppError> {
    let class = classes::update(&app, &asker, &path.class, version, patch, &why.reason).await?;
    let version = class.version;
    Ok(Versioned(class, version))
}

/// Remove a priority class that no job names.
#[utoipa::path(
    delete, path = "/classes/{class}", tag = "policy",
    params(ClassPath, ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    responses((status = 204, description = "It is gone."), UpdateRefusals)
)]
async fn delete_class(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<ClassPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
) -> Result<StatusCode, AppError> {
    classes::delete(&app, &asker, &path.class, version, &why.reason).await?;
    Ok(StatusCode::NO_CONTENT)
}
