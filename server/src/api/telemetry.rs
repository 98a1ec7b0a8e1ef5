//! What devices and jobs did, by steps of a window of time.

use axum::Json;
use axum::extract::State;
use domain::Timestamp;
use domain::ids::JobId;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiPath, ApiQuery, SignedIn};
use super::problem::Refusals;
use crate::app::telemetry::{self, JobTelemetry, NodeTelemetry, Step, TelemetryAsk};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(get_node_telemetry))
        .routes(routes!(get_job_telemetry))
}

/// Which window, and by which steps: at most 1,500 of them.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TelemetryQuery {
    /// From this time on; unless given an hour before the end, for a job from its first start.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Up to before this time; now unless given, for a job that is over its end.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// sample, minute, hour or day; unless given as fine as the window allows.
    step: Option<Step>,
}

impl From<TelemetryQuery> for TelemetryAsk {
    fn from(query: TelemetryQuery) -> Self {
        Self {
            from: query.from,
            to: query.to,
            step: query.step,
        }
    }
}

/// Tell what the devices of a node did.
#[utoipa::path(
    get, path = "/nodes/{node}/telemetry", tag = "fleet",
    params(("node" = Name, Path, description = "The node's name."), TelemetryQuery),
    responses((status = 200, description = "What each device did.", body = NodeTelemetry), Refusals)
)]
async fn get_node_telemetry(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(node): ApiPath<Name>,
    ApiQuery(query): ApiQuery<TelemetryQuery>,
) -> Result<Json<NodeTelemetry>, AppError> {
    telemetry::of_node(&app, &asker, &node, query.into())
        .await
        .map(Json)
}

/// Tell what a job did on its devices.
#[utoipa::path(
    get, path = "/jobs/{job}/telemetry", tag = "work",
    params(("job" = JobId, Path, description = "Its id."), TelemetryQuery),
    responses((status = 200, description = "What it did.", body = JobTelemetry), Refusals)
)]
async fn get_job_telemetry(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(job): ApiPath<JobId>,
    ApiQuery(query): ApiQuery<TelemetryQuery>,
) -> Result<Json<JobTelemetry>, AppError> {
    telemetry::of_job(&app, &asker, job, query.into())
        .await
        .map(Json)
}
