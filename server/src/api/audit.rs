//! The audit log.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiQuery, SignedIn};
use super::problem::Refusals;
use crate::app::audit::{self, AuditEntry, AuditFilter};
use crate::app::page::{Page, PageAsk};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list_audit))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditQuery {
    /// Only of this object, such as `team/vision`.
    object: Option<String>,
    /// Most items of the page, 1 to 500; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List the audit log, the newest first.
#[utoipa::path(
    get, path = "/audit", tag = "people", params(AuditQuery),
    responses((status = 200, description = "A page of the log.", body = Page<AuditEntry>), Refusals)
)]
async fn list_audit(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(query): ApiQuery<AuditQuery>,
) -> Result<Json<Page<AuditEntry>>, AppError> {
    let ask = PageAsk::new(query.limit, query.cursor)?;
    let filter = AuditFilter {
        object: query.object,
    };
    audit::list(&app, &asker, &filter, &ask).await.map(Json)
}
