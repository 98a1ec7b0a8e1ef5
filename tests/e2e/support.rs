//! Starting a product for a test, submitting to it, and the laws at its end.

use std::time::Duration;

use e2e::traces::Traces;
use rig::agents_file::{Machine, default_machines};
use rig::api::Api;
use rig::{Cluster, Options};
use serde_json::Value;

/// A start of one job on an idle product, on a machine with few cores that is busy.
pub const START_BOUND: Duration = Duration::from_secs(60);
/// An end of what was told to end.
pub const END_BOUND: Duration = Duration::from_secs(120);

/// The states in which a job stays.
pub const ENDED: [&str; 3] = ["succeeded", "failed", "cancelled"];

/// Three machines with 20 devices.
pub async fn three_machines(name: &str) -> Cluster {
    start(Options::for_test(name, default_machines()).unwrap()).await
}

/// One machine with 4 devices, in the pool `l40s`.
pub fn one_machine() -> Vec<Machine> {
    vec![Machine::simulated("l40s-1", "l40s-4", "l40s")]
}

pub async fn start(options: Options) -> Cluster {
    match Cluster::start(options).await {
        Ok(cluster) => cluster,
        Err(error) => panic!("the product does not start: {error:#}"),
    }
}

/// Submits a job; its id.
pub async fn submit(api: &Api, team: &str, spec: &Value) -> String {
    let job = api
        .post(&format!("/teams/{team}/jobs"), spec)
        .await
        .unwrap();
    job["id"].as_str().expect("a job has an id").to_owned()
}

/// Waits until every one of these jobs is in one of the states.
pub async fn all_in(
    cluster: &Cluster,
    ids: &[String],
    states: &[&str],
    bound: Duration,
) -> Vec<Value> {
    let mut jobs = Vec::new();
    let end = tokio::time::Instant::now() + bound;
    for id in ids {
        let left = end.saturating_duration_since(tokio::time::Instant::now());
        jobs.push(
            cluster
                .job_in(cluster.admin(), id, states, left)
                .await
                .unwrap(),
        );
    }
    jobs
}

/// Checks the laws and stops the product.
pub async fn finish(mut cluster: Cluster, traces: Option<&Traces>) {
    cluster.check().unwrap();
    if let Some(traces) = traces {
        traces.check().unwrap();
    }
    e2e::laws::check(&cluster).await.unwrap();
    e2e::journals::check(&cluster).await.unwrap();
    cluster.stop().await.unwrap();
}
