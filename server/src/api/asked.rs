//! A POST that asks for something to be done to one object: who asks, of what, and with what words.

use axum::extract::{FromRequest, FromRequestParts, Request};
use serde::de::DeserializeOwned;

use super::extract::{ApiPath, ApiPost, ApiQuery, NoQuery, SignedIn};
use crate::app::idempotency::Repeat;
use crate::app::{App, AppError, Asker};

/// What every operation that steers an object is given.
pub struct Asked<Object, Input> {
    /// The application.
    pub app: App,
    /// Who asks.
    pub asker: Asker,
    /// The object, from the path.
    pub object: Object,
    /// The body.
    pub input: Input,
    /// How a repeat is told.
    pub repeat: Repeat,
}

impl<Object, Input> FromRequest<App> for Asked<Object, Input>
where
    Object: DeserializeOwned + Send,
    Input: DeserializeOwned,
{
    type Rejection = AppError;

    async fn from_request(request: Request, app: &App) -> Result<Self, AppError> {
        let (mut parts, body) = request.into_parts();
        let SignedIn(asker) = SignedIn::from_request_parts(&mut parts, app).await?;
        let ApiPath(object) = ApiPath::from_request_parts(&mut parts, app).await?;
        let ApiQuery(NoQuery {}) = ApiQuery::from_request_parts(&mut parts, app).await?;
        let request = Request::from_parts(parts, body);
        let ApiPost::<Input> { input, repeat } = ApiPost::from_request(request, app).await?;
        Ok(Self {
            app: app.clone(),
            asker,
            object,
            input,
            repeat,
        })
    }
}
