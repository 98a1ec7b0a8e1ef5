//! The pages: handlers that call `app` and render the views of the `web` crate.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::MethodRouter;
use axum::{Extension, Router};
use tower_http::catch_panic::CatchPanicLayer;
use web::Template;

use crate::app::App;
use crate::app::authorise::Action;
use crate::front::gate::{Actions, Asked};

mod assets;
mod billing;
mod bookings;
mod budgets;
mod calendar;
mod changes;
mod classes;
mod device;
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
mod utilisation;
mod visit;
mod week_grid;
mod window_fields;
mod windows;
pub mod words;

use fault::PageError;
use signin::Nothing;

macro_rules! pages {
    ($($path:literal $(<$query:ty>)? $([$($known:literal)+])? { $($method:ident $handler:expr $(, $action:ident)?;)+ })+) => {
        /// Method and path of every page; a test walks them all and fails on one that is new to it.
        pub const ROUTES: &[(&str, &str)] = &[$($((stringify!($method), $path),)+)+];

        /// What each form does, by method and path.
        const FORMS: &[(&str, &str, Action)] =
            &[$($($((stringify!($method), $path, Action::$action),)?)+)+];

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
    "/nodes/{node}" <node::NodeQuery> ["done"] { get node::show_node; }
    "/nodes/{node}/cordon" { post node::cordon_node, CordonNode; }
    "/nodes/{node}/uncordon" { post node::uncordon_node, UncordonNode; }
    "/nodes/{node}/drain" { post node::drain_node, DrainNode; }
    "/nodes/{node}/declare-lost" { post node::declare_node_lost, DeclareNodeLost; }
    "/nodes/{node}/devices/{device}" <device::DeviceQuery> { get device::show_device; }
    "/nodes/{node}/devices/{device}/clear" { post node::clear_device, ClearDevice; }
    "/jobs" <jobs::JobsQuery> ["done"] { get jobs::list_jobs; }
    "/jobs/{job}" <job::JobQuery> ["done"] { get job::show_job; }
    "/jobs/{job}/log/stream" <job::log::StreamQuery> { get job::log::stream_log; }
    "/jobs/{job}/cancel" { post job::cancel_job, CancelJob; }
    "/jobs/{job}/change" { post job::change_job, UpdateJob; }
    "/jobs/{job}/suspend" { post job::suspend_job, SuspendJob; }
    "/jobs/{job}/resume" { post job::resume_job, ResumeJob; }
    "/queue" <queue::QueueQuery> { get queue::show_queue; }
    "/submit" <submit::SubmitQuery> { get submit::show_submit; post submit::submit_job, SubmitJob; }
    "/submit/dry-run" { post submit::check_job, DryRunJob; }
    "/teams" ["done"] { get teams::list_teams; post teams::make_team, CreateTeam; }
    "/teams/{team}" ["done"] { get team::show_team; }
    "/teams/{team}/members" { get team::show_members; post team::add_member, AddMember; }
    "/teams/{team}/members/{user}/remove" { post team::remove_member, RemoveMember; }
    "/quotas" ["done"] { get quotas::show_quotas; post quotas::put_quotas, PutQuotas; }
    "/budgets" { get budgets::list_budgets; }
    "/classes" ["done"] { get classes::list_classes; post classes::make_class, CreateClass; }
    "/classes/{class}" { post classes::change_class, UpdateClass; }
    "/classes/{class}/delete" { post classes::delete_class, DeleteClass; }
    "/pools" { post pool::make_pool, CreatePool; }
    "/pools/{pool}" ["done"] { get pool::show_pool; post pool::set_policy, UpdatePool; }
    "/pools/{pool}/bookings" <bookings::CalendarQuery> ["done"] { get bookings::show_bookings; post bookings::make_booking, CreateBooking; }
    "/pools/{pool}/bookings/{booking}" { post bookings::change_booking, UpdateBooking; }
    "/pools/{pool}/bookings/{booking}/delete" { post bookings::delete_booking, DeleteBooking; }
    "/pools/{pool}/windows" <windows::WindowsQuery> ["done"] { get windows::show_windows; post windows::make_window, CreateWindow; }
    "/pools/{pool}/windows/{window}" { post windows::change_window, UpdateWindow; }
    "/pools/{pool}/windows/{window}/delete" { post windows::delete_window, DeleteWindow; }
    "/policy-versions" <changes::ChangesQuery> ["done"] { get changes::list_changes; }
    "/policy-versions/{policy_version}/restore" { post changes::restore_version, RestorePolicyVersion; }
    "/price-books" <billing::BooksQuery> ["done"] { get billing::list_books; post billing::draft_book, CreatePriceBook; }
    "/price-books/{price_book}/activate" { post billing::activate_book, ActivatePriceBook; }
    "/price-books/{price_book}/discard" { post billing::discard_book, DiscardPriceBook; }
    "/billing" ["done"] { get billing::show_billing; }
    "/billing/{period}" { get billing::show_period; }
    "/billing/{period}/close" { post billing::close_period, CloseBillingPeriod; }
    "/billing/{period}/issue" { post billing::issue_period, IssueBillingPeriod; }
    "/teams/{team}/statements" { get billing::show_team_statements; }
    "/teams/{team}/statements/{period}" { get billing::show_statement; }
    "/reconciliations/{day}" <billing::DayQuery> { get billing::show_day; }
    "/users" <users::ListQuery> ["done"] { get users::list_users; post users::add_user, CreateUser; }
    "/users/{user}/disable" { post users::disable_user, UpdateUser; }
    "/users/{user}/enable" { post users::enable_user, UpdateUser; }
    "/assets/{*path}" { get assets::send; }
}

/// Every page, to be merged at the root; what is no page is answered by one that says so.
pub fn router(app: App) -> Router {
    routes()
        .fallback(|visit| nothing(visit, StatusCode::NOT_FOUND))
        .method_not_allowed_fallback(|visit| nothing(visit, StatusCode::METHOD_NOT_ALLOWED))
        .layer(from_fn_with_state((app.clone(), Arc::new(forms())), judge))
        .layer(CatchPanicLayer::custom(fault::answer_panic))
        .layer(from_fn_with_state(app.clone(), fault::render))
        .with_state(app)
}

fn forms() -> Actions {
    let method = |name: &str| name.to_uppercase().parse::<Method>();
    let forms = FORMS
        .iter()
        .filter_map(|(name, path, action)| Some((method(name).ok()?, (*path).to_owned(), *action)));
    forms.collect()
}

/// Layer: a form that was refused for what it holds is refused for who sent it, where it may not.
async fn judge(
    State((app, forms)): State<(App, Arc<Actions>)>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let asked = Asked::of(&mut parts, &forms).await;
    let response = next.run(Request::from_parts(parts, body)).await;
    match asked.judged(&app, response.status()).await {
        Ok(()) => response,
        Err(refused) => PageError::from(refused).into_response(),
    }
}

/// What is no page. Who asks is found out for the sake of what the error's page offers.
async fn nothing(_: Result<visit::Visit, PageError>, status: StatusCode) -> PageError {
    PageError::status(status)
}

/// A rendered view.
fn page(view: &impl Template) -> Result<Response, PageError> {
    Ok(Html(view.render()?).into_response())
}
