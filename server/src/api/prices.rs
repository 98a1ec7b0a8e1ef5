//! The price book.

use axum::Json;
use axum::extract::State;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiPost, ApiQuery, NoQuery, RepeatKey, SignedIn};
use super::problem::Refusals;
use crate::app::idempotency::Answer;
use crate::app::page::{Page, PageAsk};
use crate::app::prices::{self, NewPrice, Price};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list_prices, create_price))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PriceQuery {
    /// Only of this pool.
    pool: Option<Name>,
    /// Most items of the page, 1 to 500; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List the price book, the latest first.
#[utoipa::path(
    get, path = "/prices", tag = "money", params(PriceQuery),
    responses((status = 200, description = "A page of prices.", body = Page<Price>), Refusals)
)]
async fn list_prices(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(query): ApiQuery<PriceQuery>,
) -> Result<Json<Page<Price>>, AppError> {
    let ask = PageAsk::new(query.limit, query.cursor)?;
    prices::list(&app, &asker, query.pool.as_ref(), &ask)
        .await
        .map(Json)
}

/// Add a price, from a time on.
#[utoipa::path(
    post, path = "/prices", tag = "money",
    params(RepeatKey),
    request_body = NewPrice,
    responses((status = 201, description = "The price.", body = Price), Refusals)
)]
async fn create_price(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NewPrice>,
) -> Result<Answer<Price>, AppError> {
    prices::create(&app, &asker, post.repeat, post.input).await
}
