//! Pools and their policies.

use axum::Json;
use axum::extract::State;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{
    ApiJson, ApiPath, ApiPost, ApiQuery, IfMatch, NoQuery, PageQuery, ReasonQuery, RepeatKey,
    SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use super::reply::Versioned;
use crate::app::idempotency::Answer;
use crate::app::page::Page;
use crate::app::pool_policy::PolicyPatch;
use crate::app::pools::{self, NewPool, Pool};
use crate::app::queue::{self, Queue};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_pools, create_pool))
        .routes(routes!(get_pool, update_pool))
        .routes(routes!(list_queue))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct PoolPath {
    /// The pool's name.
    pool: Name,
}

/// List the pools.
#[utoipa::path(
    get, path = "/pools", tag = "policy", params(PageQuery),
    responses((status = 200, description = "A page of pools, by name.", body = Page<Pool>), Refusals)
)]
async fn list_pools(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<Pool>>, AppError> {
    pools::list(&app, &asker, &page.ask()?).await.map(Json)
}

/// Make a pool; keys of its policy that are absent have their defaults.
#[utoipa::path(
    post, path = "/pools", tag = "policy",
    params(ReasonQuery, RepeatKey),
    request_body = NewPool,
    responses((status = 201, description = "The pool.", body = Pool), Refusals)
)]
async fn create_pool(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    post: ApiPost<NewPool>,
) -> Result<Answer<Pool>, AppError> {
    pools::create(&app, &asker, post.repeat, post.input, &why.reason).await
}

/// Show a pool.
#[utoipa::path(
    get, path = "/pools/{pool}", tag = "policy", params(PoolPath),
    responses((status = 200, description = "The pool.", body = Pool), Refusals)
)]
async fn get_pool(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PoolPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Versioned<Pool>, AppError> {
    let pool = pools::get(&app, &asker, &path.pool).await?;
    let version = pool.version;
    Ok(Versioned(pool, version))
}

/// Change a pool's policy; keys that are absent stay.
#[utoipa::path(
    patch, path = "/pools/{pool}", tag = "policy",
    params(PoolPath, ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    request_body = PolicyPatch,
    responses((status = 200, description = "The pool.", body = Pool), UpdateRefusals)
)]
async fn update_pool(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PoolPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
    ApiJson(keys): ApiJson<PolicyPatch>,
) -> Result<Versioned<Pool>, AppError> {
    let pool = pools::update(&app, &asker, &path.pool, version, keys, &why.reason).await?;
    let version = pool.version;
    Ok(Versioned(pool, version))
}

/// List what waits in a pool, in the order in which it is looked at; of what the asker may not see
/// only how much stands where.
#[utoipa::path(
    get, path = "/pools/{pool}/queue", tag = "work", params(PoolPath, PageQuery),
    responses((status = 200, description = "A page of the queue, the next job first.", body = Queue), Refusals)
)]
async fn list_queue(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PoolPath>,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Queue>, AppError> {
    queue::list(&app, &asker, &path.pool, &page.ask()?)
        .await
        .map(Json)
}
