//! Layer of REST: a request that was refused for what it holds is refused for who sent it, where it may not.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::OpenApi;

use super::PREFIX;
use crate::app::App;
use crate::app::authorise::Action;
use crate::front::gate::{Actions, Asked};

/// The operations of the API's document, by method and path.
pub fn operations(document: &OpenApi) -> Actions {
    let of_path = document.paths.paths.iter().flat_map(|(path, item)| {
        let methods = [
            (Method::GET, &item.get),
            (Method::POST, &item.post),
            (Method::PUT, &item.put),
            (Method::PATCH, &item.patch),
            (Method::DELETE, &item.delete),
        ];
        methods.into_iter().filter_map(move |(method, operation)| {
            let id = operation.as_ref()?.operation_id.as_deref();
            let mut known = Action::ALL.iter();
            let action = known.find(|action| Some(action.as_str()) == id)?;
            Some((method, format!("{PREFIX}{path}"), *action))
        })
    });
    of_path.collect()
}

/// Judges who asks, once a request was refused.
pub async fn judge(
    State((app, operations)): State<(App, Arc<Actions>)>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let asked = Asked::of(&mut parts, &operations).await;
    let response = next.run(Request::from_parts(parts, body)).await;
    match asked.judged(&app, response.status()).await {
        Ok(()) => response,
        Err(refused) => refused.into_response(),
    }
}
