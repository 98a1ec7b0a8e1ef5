//! Server-sent events: that something changed which the asker may see.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{ApiQuery, NoQuery, SignedIn};
use super::problem::Refusals;
use crate::app::feed::{self, FeedItem};
use crate::app::{App, AppError};

/// A comment is sent when nothing else was for so long, so that proxies keep the stream open
/// and a client that is gone is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The operations of this noun.
pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(stream_events))
}

/// Follow what changes. Each event is named by its noun; `Last-Event-ID` resumes after that event.
#[utoipa::path(
    get, path = "/events", tag = "work",
    params(("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was received.")),
    responses((status = 200, description = "Server-sent events, each with an item.", body = FeedItem, content_type = "text/event-stream"), Refusals)
)]
async fn stream_events(
    State(app): State<App>,
    SignedIn(asker): SignedIn,
    ApiQuery(NoQuery {}): ApiQuery<NoQuery>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, AppError> {
    let last = headers
        .get("last-event-id")
        .map(|value| value.to_str().unwrap_or("?"));
    let subscription = feed::subscribe(&app, asker, last).await?;
    let items = futures_util::stream::unfold(subscription, |mut subscription| async move {
        let item = subscription.next().await?;
        Some((Ok(event(&item)), subscription))
    });
    Ok(Sse::new(items).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}

fn event(item: &FeedItem) -> Event {
    let data = serde_json::to_string(item).expect("words and ids are always JSON");
    let event = Event::default().event(&item.noun).data(data);
    if item.id.is_empty() {
        event
    } else {
        event.id(&item.id)
    }
}
