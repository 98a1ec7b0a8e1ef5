//! REST under /api/v1: handlers read the request, call `app`, and write the answer.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;

mod asked;
pub mod audit;
pub mod auth;
pub mod billing;
pub mod bookings;
pub mod budgets;
pub mod classes;
pub mod events;
pub mod evictions;
pub mod extract;
mod gate;
pub mod jobs;
pub mod json;
pub mod logs;
pub mod nodes;
pub mod notices;
mod objects;
pub mod openapi;
pub mod planning;
pub mod policy;
pub mod pools;
pub mod price_books;
pub mod prices;
pub mod problem;
pub mod reconciliations;
pub mod reply;
pub mod results;
pub mod schedules;
pub mod teams;
pub mod telemetry;
pub mod terminals;
pub mod usage;
pub mod users;
pub mod webhooks;
pub mod windows;

/// Where the API stands.
pub const PREFIX: &str = "/api/v1";

/// Every operation; a new one is added to its noun's `routes`.
fn operations() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::base())
        .merge(auth::routes())
        .merge(teams::routes())
        .merge(users::routes())
        .merge(pools::routes())
        .merge(classes::routes())
        .merge(bookings::routes())
        .merge(windows::routes())
        .merge(policy::routes())
        .merge(prices::routes())
        .merge(price_books::routes())
        .merge(billing::routes())
        .merge(reconciliations::routes())
        .merge(audit::routes())
        .merge(jobs::routes())
        .merge(evictions::routes())
        .merge(logs::routes())
        .merge(results::routes())
        .merge(telemetry::routes())
        .merge(terminals::routes())
        .merge(nodes::routes())
        .merge(usage::routes())
        .merge(budgets::routes())
        .merge(webhooks::routes())
        .merge(notices::routes())
        .merge(schedules::routes())
        .merge(planning::routes())
        .merge(events::routes())
}

/// The API's document, as generated from the handlers.
pub fn document() -> OpenApi {
    operations().into_openapi()
}

/// The API, to be nested under [`PREFIX`].
pub fn router(app: App) -> Router {
    let (router, document) = operations().split_for_parts();
    let operations = Arc::new(gate::operations(&document));
    router
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(CatchPanicLayer::custom(problem::answer_panic))
        .layer(from_fn_with_state((app.clone(), operations), gate::judge))
        .layer(from_fn_with_state(app.clone(), problem::render))
        .with_state(app)
}
