//! Who may not do a thing is told that, before what is wrong with how it was asked.
//!
//! Handlers read the whole request before `app` judges who asks. A request that cannot be read would
//! therefore be told to whoever sent it, with the operation's fields and bounds. So the layer here
//! judges such a request by the same table, for every operation, when it has been refused.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::OpenApi;

use super::PREFIX;
use crate::app::authorise::Action;
use crate::app::gate::{self, On};
use crate::app::{App, AppError};
use crate::front::RequestContext;

/// The operations by method and path.
#[derive(Debug)]
pub struct Operations(HashMap<(Method, String), Action>);

impl Operations {
    /// Those of the API's document.
    pub fn of(document: &OpenApi) -> Self {
        let mut actions = HashMap::new();
        for (path, item) in &document.paths.paths {
            for (method, operation) in [
                (Method::GET, &item.get),
                (Method::POST, &item.post),
                (Method::PUT, &item.put),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ] {
                let id = operation.as_ref().and_then(|o| o.operation_id.as_deref());
                let action = Action::ALL
                    .iter()
                    .find(|action| Some(action.as_str()) == id);
                if let Some(action) = action {
                    actions.insert((method, path.clone()), *action);
                }
            }
        }
        Self(actions)
    }

    fn find(&self, method: &Method, path: &str) -> Option<Action> {
        let path = path.strip_prefix(PREFIX).unwrap_or(path);
        self.0.get(&(method.clone(), path.to_owned())).copied()
    }
}

/// Layer: a request that was refused for what it holds is refused for who sent it, where it may not.
pub async fn judge(
    State((app, operations)): State<(App, Arc<Operations>)>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let asked = Asked {
        context: parts.extensions.get::<Arc<RequestContext>>().cloned(),
        action: parts
            .extensions
            .get::<MatchedPath>()
            .and_then(|path| operations.find(&parts.method, path.as_str())),
        on: on(RawPathParams::from_request_parts(&mut parts, &())
            .await
            .ok()),
    };
    let response = next.run(Request::from_parts(parts, body)).await;
    if !of_content(response.status()) {
        return response;
    }
    match asked.judged(&app).await {
        Ok(()) => response,
        Err(refused) => refused.into_response(),
    }
}

/// Whether a refusal is for what the request held.
fn of_content(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::PRECONDITION_FAILED
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::PRECONDITION_REQUIRED
    )
}

struct Asked {
    context: Option<Arc<RequestContext>>,
    action: Option<Action>,
    on: On,
}

impl Asked {
    async fn judged(&self, app: &App) -> Result<(), AppError> {
        let asker = self.context.as_ref().and_then(|c| c.asker.get());
        let (Some(asker), Some(action)) = (asker, self.action) else {
            return Ok(());
        };
        gate::judge(app, asker, action, &self.on).await
    }
}

/// On what something was asked, by the path; a part that is no name or id names nothing.
fn on(params: Option<RawPathParams>) -> On {
    let params = params.iter().flatten();
    for (key, value) in params {
        let found = match key {
            "team" => value.parse().ok().map(On::Team),
            "job" => value.parse().ok().map(On::Job),
            _ => None,
        };
        if let Some(found) = found {
            return found;
        }
    }
    On::Platform
}
