//! The pages: handlers that call `app` and render the views of the `web` crate.

use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::MethodRouter;
use axum::{Extension, Router};
use tower_http::catch_panic::CatchPanicLayer;
use web::Template;

use crate::app::App;

mod assets;
mod bookings;
mod calendar;
mod changes;
mod classes;
mod effect;
mod evictions;
mod fault;
mod fields;
mod fleet;
pub mod form;
mod job;
mod jobs;
mod lanes;
mod node;
mod policies;
mod policy_fields;
mod pool;
mod query;
mod queue;
mod quota_fields;
mod quotas;
mod refusal;
mod signin;
mod spend;
mod submit;
mod team;
mod teams;
mod told;
mod users;
mod visit;
mod week_grid;
mod window_fields;
mod windows;
pub mod words;

use fault::PageError;
use signin::Nothing;

macro_rules! pages {
    ($($path:literal $(<$query:ty>)? $([$($known:literal)+])? { $($method:ident $handler:expr;)+ })+) => {
        /// Method and path of every page; a test walks them all and fails on one that is new to it.
        pub const ROUTES: &[(&str, &str)] = &[$($((stringify!($method), $path),)+)+];

        fn routes() -> Router<App> {
            Router::new()$(.route(
                $path,
                MethodRouter::new()
                    $(.$method($handler))+
                    .route_layer(Extension(query::Known::of(
                        &[$(query::parameters::<$query>(),)?],
                        &[$($($known),+)?],
                    ))),
            ))+
        }
    };
}

pages! {
    "/" { get |_: query::Checked| async { Redirect::to("/jobs") }; }
    "/signin" <signin::SigninQuery> { get signin::show_signin; post signin::sign_in; }
    "/signout" { post signin::sign_out; }
    "/theme" { post signin::choose_theme; }
    "/fleet" { get fleet::show_fleet; }
    "/nodes/{node}" ["done"] { get node::show_node; }
    "/nodes/{node}/cordon" { post node::cordon_node; }
    "/nodes/{node}/uncordon" { post node::uncordon_node; }
    "/nodes/{node}/drain" { post node::drain_node; }
    "/nodes/{node}/declare-lost" { post node::declare_node_lost; }
    "/jobs" <jobs::JobsQuery> ["done"] { get jobs::list_jobs; }
    "/jobs/{job}" <job::JobQuery> ["done"] { get job::show_job; }
    "/jobs/{job}/log/stream" <job::log::StreamQuery> { get job::log::stream_log; }
    "/jobs/{job}/cancel" { post job::cancel_job; }
    "/jobs/{job}/change" { post job::change_job; }
    "/jobs/{job}/suspend" { post job::suspend_job; }
    "/jobs/{job}/resume" { post job::resume_job; }
    "/queue" <queue::QueueQuery> { get queue::show_queue; }
    "/submit" <submit::SubmitQuery> { get submit::show_submit; post submit::submit_job; }
    "/submit/dry-run" { post submit::check_job; }
    "/teams" ["done"] { get teams::list_teams; post teams::make_team; }
    "/teams/{team}" ["done"] { get team::show_team; }
    "/teams/{team}/members" { get team::show_members; post team::add_member; }
    "/teams/{team}/members/{user}/remove" { post team::remove_member; }
    "/quotas" ["done"] { get quotas::show_quotas; post quotas::put_quotas; }
    "/classes" ["done"] { get classes::list_classes; post classes::make_class; }
    "/classes/{class}" { post classes::change_class; }
    "/classes/{class}/delete" { post classes::delete_class; }
    "/pools" { post pool::make_pool; }
    "/pools/{pool}" ["done"] { get pool::show_pool; post pool::set_policy; }
    "/pools/{pool}/bookings" <bookings::CalendarQuery> ["done"] { get bookings::show_bookings; post bookings::make_booking; }
    "/pools/{pool}/bookings/{booking}" { post bookings::change_booking; }
    "/pools/{pool}/bookings/{booking}/delete" { post bookings::delete_booking; }
    "/pools/{pool}/windows" <windows::WindowsQuery> ["done"] { get windows::show_windows; post windows::make_window; }
    "/pools/{pool}/windows/{window}" { post windows::change_window; }
    "/pools/{pool}/windows/{window}/delete" { post windows::delete_window; }
    "/policy-versions" <changes::ChangesQuery> ["done"] { get changes::list_changes; }
    "/policy-versions/{policy_version}/restore" { post changes::restore_version; }
    "/users" <users::ListQuery> ["done"] { get users::list_users; post users::add_user; }
    "/users/{user}/disable" { post users::disable_user; }
    "/users/{user}/enable" { post users::enable_user; }
    "/assets/{*path}" { get assets::send; }
}

/// Every page, to be merged at the root; what is no page is answered by one that says so.
pub fn router(app: App) -> Router {
    routes()
        .fallback(|visit| nothing(visit, StatusCode::NOT_FOUND))
        .method_not_allowed_fallback(|visit| nothing(visit, StatusCode::METHOD_NOT_ALLOWED))
        .layer(CatchPanicLayer::custom(fault::answer_panic))
        .layer(from_fn_with_state(app.clone(), fault::render))
        .with_state(app)
}

/// What is no page. Who asks is found out for the sake of what the error's page offers.
async fn nothing(_: Result<visit::Visit, PageError>, status: StatusCode) -> PageError {
    PageError::status(status)
}

/// A rendered view.
fn page(view: &impl Template) -> Result<Response, PageError> {
    Ok(Html(view.render()?).into_response())
}
