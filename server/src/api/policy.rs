//! Policies as a whole: quotas of all teams as one table, what was changed and how to go back, and
//! what a change would do.

use axum::Json;
use axum::extract::State;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{
    ApiJson, ApiPath, ApiPost, ApiQuery, NoInput, NoQuery, PageQuery, Presupposes, ReasonQuery,
    RepeatKey, SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use crate::app::idempotency::Answer;
use crate::app::page::{Page, PageAsk};
use crate::app::policy_diff::{self, PolicyDiff, PolicyDraft};
use crate::app::quotas::{self, Quota, QuotaBatch, QuotasSet};
use crate::app::versions::{self, PolicyNoun, PolicyVersion, VersionFilter};
use crate::app::{App, AppError};

/// The operations of these nouns.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_all_quotas))
        .routes(routes!(put_quotas))
        .routes(routes!(list_policy_versions))
        .routes(routes!(restore_policy_version))
        .routes(routes!(diff_policy))
}

/// List the quotas of all teams that the asker may see.
#[utoipa::path(
    get, path = "/quotas", tag = "policy", params(PageQuery),
    responses((status = 200, description = "A page of quotas, by team and pool.", body = Page<Quota>), Refusals)
)]
async fn list_all_quotas(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<Quota>>, AppError> {
    quotas::list_all(&app, &asker, &page.ask()?).await.map(Json)
}

/// Set many quotas, of any teams and pools: all or none.
#[utoipa::path(
    post, path = "/quotas/batch", tag = "policy",
    params(ReasonQuery, RepeatKey),
    request_body = QuotaBatch,
    responses((status = 200, description = "The quotas, and the pools of which more is guaranteed than they have.", body = QuotasSet), Refusals)
)]
async fn put_quotas(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    post: ApiPost<QuotaBatch>,
) -> Result<Answer<QuotasSet>, AppError> {
    quotas::put_all(&app, &asker, post.repeat, post.input, &why.reason).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct VersionQuery {
    /// Only of this kind.
    #[param(inline)]
    noun: Option<PolicyNoun>,
    /// Only of this object, such as `pool/h100`, `quota/vision/h100` or `booking/h100/demo`.
    object: Option<String>,
    /// Only of this pool.
    pool: Option<Name>,
    /// Most items of the page, 1 to 500; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List what was changed of pools, classes, quotas, bookings and windows.
#[utoipa::path(
    get, path = "/policy-versions", tag = "policy", params(VersionQuery),
    responses((status = 200, description = "A page of changes, newest first.", body = Page<PolicyVersion>), Refusals)
)]
async fn list_policy_versions(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(query): ApiQuery<VersionQuery>,
) -> Result<Json<Page<PolicyVersion>>, AppError> {
    let ask = PageAsk::new(query.limit, query.cursor)?;
    let filter = VersionFilter {
        noun: query.noun,
        object: query.object,
        pool: query.pool,
    };
    versions::list(&app, &asker, &filter, &ask).await.map(Json)
}

/// Set an object back to how it was after a change; checked as any change is.
#[utoipa::path(
    post, path = "/policy-versions/{policy_version}/restore", tag = "policy",
    params(
        ("policy_version" = i64, Path, description = "The number of the change."),
        ReasonQuery, RepeatKey,
        ("If-Match" = Option<String>, Header, description = "The object's version that was read, in quotes."),
        ("If-None-Match" = Option<String>, Header, description = "`*` for an object that was removed."),
    ),
    responses((status = 200, description = "The change that this was.", body = PolicyVersion), UpdateRefusals)
)]
async fn restore_policy_version(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(id): ApiPath<i64>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    presupposes: Presupposes,
    post: ApiPost<NoInput>,
) -> Result<Answer<PolicyVersion>, AppError> {
    versions::restore(
        &app,
        &asker,
        post.repeat,
        id,
        presupposes.into(),
        &why.reason,
    )
    .await
}

/// Plan with changed policies beside the present ones: what would start, stop, move or be delayed,
/// and each team's share; changes nothing.
#[utoipa::path(
    post, path = "/planning/policy-diff", tag = "policy",
    request_body = PolicyDraft,
    responses((status = 200, description = "What would come of it.", body = PolicyDiff), Refusals)
)]
async fn diff_policy(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    ApiJson(draft): ApiJson<PolicyDraft>,
) -> Result<Json<PolicyDiff>, AppError> {
    policy_diff::diff(&app, &asker, draft).await.map(Json)
}
