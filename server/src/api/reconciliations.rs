//! Reconciliations: whether the time of devices adds up, by day.

use axum::Json;
use axum::extract::State;
use chrono::NaiveDate;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiPath, ApiQuery, PageQuery, SignedIn};
use super::problem::Refusals;
use crate::app::page::Page;
use crate::app::reconciliations::{self, ReconciledDay, ReconciledDevice};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_reconciliations))
        .routes(routes!(get_reconciliation))
}

/// List the days that were reconciled, the latest first.
#[utoipa::path(
    get, path = "/reconciliations", tag = "money", params(PageQuery),
    responses((status = 200, description = "A page of days.", body = Page<ReconciledDay>), Refusals)
)]
async fn list_reconciliations(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<ReconciledDay>>, AppError> {
    reconciliations::list(&app, &asker, &page.ask()?)
        .await
        .map(Json)
}

/// Which day.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct DayPath {
    /// Its date: `2026-10-15`.
    #[param(value_type = String, format = Date)]
    day: NaiveDate,
}

/// Read what became of each device's time on a day, those that are off first.
#[utoipa::path(
    get, path = "/reconciliations/{day}", tag = "money", params(DayPath, PageQuery),
    responses((status = 200, description = "A page of devices.", body = Page<ReconciledDevice>), Refusals)
)]
async fn get_reconciliation(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<DayPath>,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<ReconciledDevice>>, AppError> {
    reconciliations::get(&app, &asker, path.day, &page.ask()?)
        .await
        .map(Json)
}
