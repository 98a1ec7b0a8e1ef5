//! Usage: who held how much, what it costs, and where capacity went.

use axum::Json;
use axum::extract::State;
use domain::Timestamp;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiPath, ApiQuery, SignedIn};
use super::problem::Refusals;
use crate::app::usage::{self, CapacityUsage, Usage, UsageAsk, parse_grouping};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(get_team_usage))
        .routes(routes!(get_usage))
        .routes(routes!(get_capacity_usage))
}

/// What a report is over.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct UsageQuery {
    /// From this time on; the beginning of this month, in UTC, unless given.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Up to before this time; now unless given.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// team, user, job, pool, mode, day or hour; several are separated by commas.
    group_by: Option<String>,
}

impl UsageQuery {
    fn ask(self) -> Result<UsageAsk, AppError> {
        Ok(UsageAsk {
            from: self.from,
            to: self.to,
            by: parse_grouping(self.group_by.as_deref())?,
        })
    }
}

/// Report what a team, with all teams below it, has used.
#[utoipa::path(
    get, path = "/teams/{team}/usage", tag = "money",
    params(("team" = Name, Path, description = "The team."), UsageQuery),
    responses((status = 200, description = "The report.", body = Usage), Refusals)
)]
async fn get_team_usage(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(team): ApiPath<Name>,
    ApiQuery(query): ApiQuery<UsageQuery>,
) -> Result<Json<Usage>, AppError> {
    usage::of_team(&app, &asker, &team, &query.ask()?)
        .await
        .map(Json)
}

/// Report what all teams have used that the asker may see.
#[utoipa::path(
    get, path = "/usage", tag = "money", params(UsageQuery),
    responses((status = 200, description = "The report.", body = Usage), Refusals)
)]
async fn get_usage(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(query): ApiQuery<UsageQuery>,
) -> Result<Json<Usage>, AppError> {
    usage::of_all(&app, &asker, &query.ask()?).await.map(Json)
}

/// Which pool's capacity a report is over.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CapacityQuery {
    /// The pool.
    pool: Name,
    /// From this time on; the beginning of this month, in UTC, unless given.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Up to before this time; now unless given.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
}

/// Report where a pool's capacity went: allocated, idle and unavailable add up to it.
#[utoipa::path(
    get, path = "/usage/capacity", tag = "money", params(CapacityQuery),
    responses((status = 200, description = "The report.", body = CapacityUsage), Refusals)
)]
async fn get_capacity_usage(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(query): ApiQuery<CapacityQuery>,
) -> Result<Json<CapacityUsage>, AppError> {
    let ask = UsageAsk {
        from: query.from,
        to: query.to,
        ..UsageAsk::default()
    };
    usage::of_capacity(&app, &asker, &query.pool, &ask)
        .await
        .map(Json)
}
