//! The pages: handlers that call `app` and render the views of the `web` crate.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;
use web::Template;

use crate::app::App;

mod assets;
mod fault;
mod fleet;
pub mod form;
mod job;
mod jobs;
mod node;
mod signin;
mod spend;
mod submit;
mod team;
mod teams;
mod users;
mod visit;
pub mod words;

use fault::PageError;
use signin::Nothing;

/// Largest form that is read: a job's file with room for its encoding.
const FORM_BYTES_MAX: usize = 1024 * 1024;

/// Every page, to be merged at the root; what is no page is answered by one that says so.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/", get(|| async { Redirect::to("/jobs") }))
        .route("/signin", get(signin::show_signin).post(signin::sign_in))
        .route("/signout", post(signin::sign_out))
        .route("/theme", post(signin::choose_theme))
        .route("/fleet", get(fleet::show_fleet))
        .route("/nodes/{node}", get(node::show_node))
        .route("/nodes/{node}/cordon", post(node::cordon_node))
        .route("/nodes/{node}/uncordon", post(node::uncordon_node))
        .route("/nodes/{node}/drain", post(node::drain_node))
        .route("/nodes/{node}/declare-lost", post(node::declare_node_lost))
        .route("/jobs", get(jobs::list_jobs))
        .route("/jobs/{job}", get(job::show_job))
        .route("/jobs/{job}/log/stream", get(job::log::stream_log))
        .route("/jobs/{job}/cancel", post(job::cancel_job))
        .route("/jobs/{job}/suspend", post(job::suspend_job))
        .route("/jobs/{job}/resume", post(job::resume_job))
        .route("/submit", get(submit::show_submit).post(submit::submit_job))
        .route("/submit/dry-run", post(submit::check_job))
        .route("/teams", get(teams::list_teams).post(teams::make_team))
        .route("/teams/{team}", get(team::show_team))
        .route("/teams/{team}/members", post(team::add_member))
        .route(
            "/teams/{team}/members/{user}/remove",
            post(team::remove_member),
        )
        .route("/users", get(users::list_users).post(users::add_user))
        .route("/users/{user}/disable", post(users::disable_user))
        .route("/users/{user}/enable", post(users::enable_user))
        .route("/assets/{*path}", get(assets::send))
        .fallback(|| async { PageError::status(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async { PageError::status(StatusCode::METHOD_NOT_ALLOWED) })
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(CatchPanicLayer::custom(fault::answer_panic))
        .layer(from_fn_with_state(app.clone(), fault::render))
        .with_state(app)
}

/// A rendered view.
fn page(view: &impl Template) -> Result<Response, PageError> {
    Ok(Html(view.render()?).into_response())
}
