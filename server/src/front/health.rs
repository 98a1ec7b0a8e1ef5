//! `/healthz` and `/readyz`: that the process answers, and that work can be done.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};

use crate::app::App;
use crate::store::schema;

/// Longest wait for the database; a probe that hangs tells nothing.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Both probes.
pub fn router(app: App) -> Router {
    Router::new()
        .route(
            "/healthz",
            routing::get(|| async { text(StatusCode::OK, "ok") }),
        )
        .route("/readyz", routing::get(answer_ready))
        .with_state(app)
}

/// Ready is who can do work: the database answers both roles at the right version, and the
/// scheduling loop has finished a round not long ago.
async fn answer_ready(State(app): State<App>) -> Response {
    match tokio::time::timeout(DATABASE_TIMEOUT, database_fault(&app)).await {
        Err(_) => {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "the database does not answer",
            );
        }
        Ok(Err(error)) => {
            tracing::warn!("not ready: {error}");
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "the database does not answer",
            );
        }
        Ok(Ok(Some(fault))) => return text(StatusCode::SERVICE_UNAVAILABLE, &fault),
        Ok(Ok(None)) => {}
    }
    let stall = app.config.timers.stall;
    match app.pulse.scheduler_age() {
        // What is known to be stopped needs no patience: the next plan that is not refused beats.
        _ if app.pulse.plans_refused() => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "every plan of the scheduler is refused, its log says why",
        ),
        None => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "the scheduler has not finished a cycle yet",
        ),
        Some(age) if age > stall => text(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!(
                "the scheduler has finished no cycle for {} s",
                age.as_secs()
            ),
        ),
        Some(_) => text(StatusCode::OK, "ready"),
    }
}

async fn database_fault(app: &App) -> Result<Option<String>, sqlx::Error> {
    let mut tx = app.db.begin_nobody().await?;
    let version = schema::version(&mut tx).await?;
    tx.commit().await?;
    app.db.begin_system().await?.commit().await?;
    let needed = schema::version_needed();
    Ok((version != Some(needed)).then(|| {
        let present = version.map_or_else(|| "none".to_owned(), |v| v.to_string());
        format!("the schema's version is {present} and this program needs {needed}")
    }))
}

fn text(status: StatusCode, words: &str) -> Response {
    let kind = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
    (status, kind, format!("{words}\n")).into_response()
}
