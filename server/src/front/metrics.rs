//! Numbers for Prometheus, on a listener of their own.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Router, routing};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::app::App;

/// Bounds of the latency histogram, in seconds.
const LATENCY_BUCKETS: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();

/// Begins to record; the same recorder serves the whole process.
pub fn install() -> anyhow::Result<PrometheusHandle> {
    if let Some(handle) = RECORDER.get() {
        return Ok(handle.clone());
    }
    let handle = PrometheusBuilder::new()
        .set_buckets(&LATENCY_BUCKETS)
        .context("set the buckets of the histograms")?
        .install_recorder()
        .context("install the recorder of metrics")?;
    describe();
    count_from_nothing();
    Ok(RECORDER.get_or_init(|| handle).clone())
}

fn describe() {
    metrics::describe_counter!(
        "allotment_http_requests_total",
        "Requests answered, by method, route and status."
    );
    metrics::describe_histogram!(
        "allotment_http_request_seconds",
        "Time to answer a request, by method and route."
    );
    metrics::describe_gauge!(
        "allotment_database_connections",
        "Connections to the database, by role and use."
    );
    metrics::describe_gauge!(
        "allotment_nodes",
        "Nodes that are not retired, by state; 0 where this server does not lead."
    );
    metrics::describe_gauge!(
        "allotment_devices",
        "Devices of nodes that are not retired, by health; 0 where this server does not lead."
    );
    metrics::describe_gauge!(
        "allotment_jobs_waiting",
        "Jobs that wait; 0 where this server does not lead."
    );
    metrics::describe_gauge!(
        "allotment_scheduler_age_seconds",
        "Time since the scheduling loop last finished a round."
    );
}

/// Counters of what may never happen: one that is absent until then cannot be watched for it.
const COUNTED_FROM_NOTHING: [&str; 18] = [
    "allotment_agent_connections_refused",
    "allotment_agent_facts_passed_over",
    "allotment_agent_facts_put_off",
    "allotment_agent_facts_refused",
    "allotment_agent_heartbeats_put_off",
    "allotment_agent_losses_refused",
    "allotment_enrolments_refused",
    "allotment_ledger_entries",
    "allotment_ledger_entries_unpriced",
    "allotment_ledger_entries_corrected",
    "allotment_reconciliation_devices_off",
    "allotment_log_reads_cut",
    "allotment_samples_lost",
    "allotment_samples_written",
    "allotment_scheduler_errors_total",
    "allotment_scheduler_faults_total",
    "allotment_scheduler_refused_total",
    "allotment_world_differences_total",
];

fn count_from_nothing() {
    for name in COUNTED_FROM_NOTHING {
        metrics::counter!(name).increment(0);
    }
}

/// Notes one request.
pub fn record_request(method: &str, route: &str, status: u16, elapsed: Duration) {
    metrics::counter!(
        "allotment_http_requests_total",
        "method" => method.to_owned(), "route" => route.to_owned(), "status" => status.to_string()
    )
    .increment(1);
    metrics::histogram!(
        "allotment_http_request_seconds",
        "method" => method.to_owned(), "route" => route.to_owned()
    )
    .record(elapsed.as_secs_f64());
}

/// The router of the listener for metrics.
pub fn router(app: App, handle: PrometheusHandle) -> Router {
    let scrape = move || {
        let (app, handle) = (app.clone(), handle.clone());
        async move {
            observe(&app);
            (
                [(CONTENT_TYPE, "text/plain; version=0.0.4")],
                handle.render(),
            )
                .into_response()
        }
    };
    Router::new().route("/metrics", routing::get(scrape))
}

fn observe(app: &App) {
    for use_of in app.db.pools_in_use() {
        let gauge = |state: &'static str| metrics::gauge!("allotment_database_connections", "role" => use_of.role, "state" => state);
        gauge("open").set(f64::from(use_of.open));
        gauge("idle").set(f64::from(use_of.idle));
    }
    if let Some(age) = app.pulse.scheduler_age() {
        metrics::gauge!("allotment_scheduler_age_seconds").set(age.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_never_happened_is_counted_as_0() {
        let shown = install().expect("a recorder").render();
        for name in [
            "allotment_agent_losses_refused",
            "allotment_enrolments_refused",
        ] {
            assert!(shown.contains(&format!("{name} 0")), "{shown}");
        }
    }
}
