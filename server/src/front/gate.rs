//! Who may not do a thing is told that, before what is wrong with how it was asked.
//!
//! Handlers read the whole request before `app` judges who asks. A request that cannot be read would
//! therefore be told to whoever sent it, with the operation's fields and bounds. So doors judge such a
//! request by the same table, for every operation and form, when it has been refused.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};

use super::RequestContext;
use crate::app::authorise::Action;
use crate::app::gate::{self, On};
use crate::app::{App, AppError};

/// What is done by which method at which path.
#[derive(Debug, Default)]
pub struct Actions(HashMap<(Method, String), Action>);

impl FromIterator<(Method, String, Action)> for Actions {
    fn from_iter<I: IntoIterator<Item = (Method, String, Action)>>(known: I) -> Self {
        let known = known.into_iter();
        Self(
            known
                .map(|(method, path, action)| ((method, path), action))
                .collect(),
        )
    }
}

/// What was asked, as far as its method and path tell.
#[derive(Debug)]
pub struct Asked {
    context: Option<Arc<RequestContext>>,
    action: Option<Action>,
    on: On,
}

impl Asked {
    /// Reads it before the request is taken apart.
    pub async fn of(parts: &mut Parts, actions: &Actions) -> Self {
        let path = parts.extensions.get::<MatchedPath>();
        let found = |path: &MatchedPath| {
            let key = (parts.method.clone(), path.as_str().to_owned());
            actions.0.get(&key).copied()
        };
        Self {
            context: parts.extensions.get::<Arc<RequestContext>>().cloned(),
            action: path.and_then(found),
            on: on(RawPathParams::from_request_parts(parts, &()).await.ok()),
        }
    }

    /// Refuses it for who asks, where it was refused for what it held and the asker may not do it.
    pub async fn judged(&self, app: &App, status: StatusCode) -> Result<(), AppError> {
        let asker = self.context.as_ref().and_then(|c| c.asker.get());
        let (Some(asker), Some(action)) = (asker, self.action.filter(|_| of_content(status)))
        else {
            return Ok(());
        };
        gate::judge(app, asker, action, &self.on).await
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

/// On what something was asked, by the path; a part that is no name or id names nothing.
fn on(params: Option<RawPathParams>) -> On {
    for (key, value) in params.iter().flatten() {
        match key {
            "team" => return value.parse().map_or(On::Unknown, On::Team),
            "job" => return value.parse().map_or(On::Unknown, On::Job),
            _ => {}
        }
    }
    On::Platform
}
