//! Versions of the price book.

use axum::Json;
use axum::extract::State;
use domain::Timestamp;
use domain::state::PriceBookState;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{
    ApiPath, ApiPost, ApiQuery, NoInput, NoQuery, PageQuery, RepeatKey, SignedIn,
};
use super::problem::Refusals;
use crate::app::idempotency::Answer;
use crate::app::page::Page;
use crate::app::price_books::{self, NewPriceBook, PriceBook, PricePreview};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_price_books, create_price_book))
        .routes(routes!(get_price_book))
        .routes(routes!(activate_price_book))
        .routes(routes!(discard_price_book))
        .routes(routes!(preview_price_book))
}

/// Which version.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct PriceBookPath {
    /// Its number.
    price_book: i64,
}

/// List the versions of the price book, the latest first.
#[utoipa::path(
    get, path = "/price-books", tag = "money", params(PageQuery),
    responses((status = 200, description = "A page of versions with their lines.", body = Page<PriceBook>), Refusals)
)]
async fn list_price_books(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(page): ApiQuery<PageQuery>,
) -> Result<Json<Page<PriceBook>>, AppError> {
    price_books::list(&app, &asker, &page.ask()?)
        .await
        .map(Json)
}

/// Draft a version of the price book.
#[utoipa::path(
    post, path = "/price-books", tag = "money",
    params(RepeatKey),
    request_body = NewPriceBook,
    responses((status = 201, description = "The draft.", body = PriceBook), Refusals)
)]
async fn create_price_book(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NewPriceBook>,
) -> Result<Answer<PriceBook>, AppError> {
    price_books::create(&app, &asker, post.repeat, post.input).await
}

/// Read a version of the price book.
#[utoipa::path(
    get, path = "/price-books/{price_book}", tag = "money", params(PriceBookPath),
    responses((status = 200, description = "The version with its lines.", body = PriceBook), Refusals)
)]
async fn get_price_book(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PriceBookPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
) -> Result<Json<PriceBook>, AppError> {
    price_books::get(&app, &asker, path.price_book)
        .await
        .map(Json)
}

/// Put a draft in force; what was rated by other prices since it is to hold is rated anew.
#[utoipa::path(
    post, path = "/price-books/{price_book}/activate", tag = "money",
    params(PriceBookPath, RepeatKey),
    responses((status = 200, description = "The version, in force.", body = PriceBook), Refusals)
)]
async fn activate_price_book(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PriceBookPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NoInput>,
) -> Result<Answer<PriceBook>, AppError> {
    let to = PriceBookState::Active;
    price_books::decide(&app, &asker, post.repeat, path.price_book, to).await
}

/// Give a draft up.
#[utoipa::path(
    post, path = "/price-books/{price_book}/discard", tag = "money",
    params(PriceBookPath, RepeatKey),
    responses((status = 200, description = "The version, given up.", body = PriceBook), Refusals)
)]
async fn discard_price_book(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PriceBookPath>,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    post: ApiPost<NoInput>,
) -> Result<Answer<PriceBook>, AppError> {
    let to = PriceBookState::Discarded;
    price_books::decide(&app, &asker, post.repeat, path.price_book, to).await
}

/// Over what a version is tried.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PreviewQuery {
    /// From this time on; the beginning of the last month before `to`, in UTC, unless given.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Up to before this time; the beginning of this month, in UTC, unless given. At most 92 days after `from`.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
}

/// Report what a version would have charged for what was used.
#[utoipa::path(
    get, path = "/price-books/{price_book}/preview", tag = "money", params(PriceBookPath, PreviewQuery),
    responses((status = 200, description = "What is charged, and what would have been.", body = PricePreview), Refusals)
)]
async fn preview_price_book(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PriceBookPath>,
    ApiQuery(query): ApiQuery<PreviewQuery>,
) -> Result<Json<PricePreview>, AppError> {
    price_books::preview(&app, &asker, path.price_book, query.from, query.to)
        .await
        .map(Json)
}
