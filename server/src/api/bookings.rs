//! Bookings of pools.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::Timestamp;
use domain::name::Name;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{
    ApiJson, ApiPath, ApiPost, ApiQuery, IfMatch, ReasonQuery, RepeatKey, SignedIn,
};
use super::problem::{Refusals, UpdateRefusals};
use super::reply::Versioned;
use crate::app::bookings::{self, Booking, BookingFilter, BookingPatch, NewBooking};
use crate::app::idempotency::Answer;
use crate::app::page::{Page, PageAsk};
use crate::app::{App, AppError};

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_bookings, create_booking))
        .routes(routes!(update_booking, delete_booking))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct PoolPath {
    /// The pool's name.
    pool: Name,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct BookingPath {
    /// The pool's name.
    pool: Name,
    /// The booking's name.
    booking: Name,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct BookingQuery {
    /// Only those that end after this.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Only those that begin before this.
    #[serde(default, deserialize_with = "domain::time::read")]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// Most items of the page, 1 to 500; 100 unless given.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// List a pool's bookings, with what is in their way.
#[utoipa::path(
    get, path = "/pools/{pool}/bookings", tag = "policy", params(PoolPath, BookingQuery),
    responses((status = 200, description = "A page of bookings, in the order in which they begin.", body = Page<Booking>), Refusals)
)]
async fn list_bookings(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PoolPath>,
    ApiQuery(query): ApiQuery<BookingQuery>,
) -> Result<Json<Page<Booking>>, AppError> {
    let ask = PageAsk::new(query.limit, query.cursor)?;
    let filter = BookingFilter {
        from: query.from,
        to: query.to,
    };
    bookings::list(&app, &asker, &path.pool, filter, &ask)
        .await
        .map(Json)
}

/// Book GPUs of a pool for a team and a time, beyond its guarantee.
#[utoipa::path(
    post, path = "/pools/{pool}/bookings", tag = "policy",
    params(PoolPath, ReasonQuery, RepeatKey),
    request_body = NewBooking,
    responses((status = 201, description = "The booking, with what is in its way.", body = Booking), Refusals)
)]
async fn create_booking(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<PoolPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    post: ApiPost<NewBooking>,
) -> Result<Answer<Booking>, AppError> {
    bookings::create(
        &app,
        &asker,
        post.repeat,
        &path.pool,
        post.input,
        &why.reason,
    )
    .await
}

/// Change a booking; what is absent stays.
#[utoipa::path(
    patch, path = "/pools/{pool}/bookings/{booking}", tag = "policy",
    params(BookingPath, ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    request_body = BookingPatch,
    responses((status = 200, description = "The booking.", body = Booking), UpdateRefusals)
)]
async fn update_booking(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<BookingPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
    ApiJson(patch): ApiJson<BookingPatch>,
) -> Result<Versioned<Booking>, AppError> {
    let which = (&path.pool, &path.booking);
    let booking = bookings::update(&app, &asker, which, version, patch, &why.reason).await?;
    let version = booking.version;
    Ok(Versioned(booking, version))
}

/// Remove a booking.
#[utoipa::path(
    delete, path = "/pools/{pool}/bookings/{booking}", tag = "policy",
    params(BookingPath, ReasonQuery, ("If-Match" = String, Header, description = "The version that was read, in quotes.")),
    responses((status = 204, description = "It is gone."), UpdateRefusals)
)]
async fn delete_booking(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiPath(path): ApiPath<BookingPath>,
    ApiQuery(why): ApiQuery<ReasonQuery>,
    IfMatch(version): IfMatch,
) -> Result<StatusCode, AppError> {
    let which = (&path.pool, &path.booking);
    bookings::delete(&app, &asker, which, version, &why.reason).await?;
    Ok(StatusCode::NO_CONTENT)
}
