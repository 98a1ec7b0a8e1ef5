//! The figures that people feel: from a job's submission to its process and its first line of log, and how many
//! jobs go through in a second.

pub mod idle;
pub mod submissions;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use serde_json::json;

use crate::agents_file::Machine;
use crate::api::{Api, text};
use crate::up_file::UpFile;
use crate::{Cluster, Options, wait};

/// A job that has not spoken by then waits for something else than the product.
const FIRST_LINE_BOUND: Duration = Duration::from_secs(60);

/// All of a burst has ended by then, on a machine with few cores.
const BURST_BOUND: Duration = Duration::from_secs(600);
/// The pool of the machines that are started for a measurement.
const POOL: &str = "l40s";

/// A durable product with so many machines of four devices, below `state`.
pub async fn fleet(state: &Path, agents: usize) -> anyhow::Result<Cluster> {
    let machines = (1..=agents).map(|n| Machine::simulated(&format!("n{n}"), "l40s-4", POOL));
    let mut options = Options::for_test("measure", machines.collect())?;
    options.paths = crate::paths::Paths::at(state, options.paths.tools.clone())?;
    options.durable = true;
    // As it is shipped.
    options.timers.clear();
    Cluster::start(options).await
}

/// Submits `count` jobs one after the other on an idle fleet; the sorted times from the request to the
/// process, by the clock that both share.
pub async fn starts(cluster: &Cluster, count: usize) -> anyhow::Result<Vec<Duration>> {
    let api = cluster.sign_in("vision-member").await?;
    let spec = json!({
        "name": "start", "pools": [POOL], "command": ["date", "+%s%N"], "per_worker": {"gpus": 1}
    });
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = SystemTime::now();
        let job = api.post("/teams/vision/jobs", &spec).await?;
        let id = text(&job, "id")?;
        cluster
            .job_in(&api, id, &["succeeded"], FIRST_LINE_BOUND)
            .await?;
        let log = api.text(&format!("/jobs/{id}/logs")).await?;
        let nanos: u64 = log.trim().parse().context("what date printed")?;
        let ran = UNIX_EPOCH + Duration::from_nanos(nanos);
        times.push(ran.duration_since(begun).context("the clock went back")?);
    }
    times.sort();
    Ok(times)
}

/// What came of a burst.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    /// Until the last submission was acknowledged.
    pub submitted: Duration,
    /// Until the last job had ended.
    pub ended: Duration,
}

/// Submits `count` trivial jobs in batches and waits until all have ended well.
pub async fn burst(cluster: &Cluster, count: usize) -> anyhow::Result<Burst> {
    /// Most jobs of one batch.
    const BATCH: usize = 1_000;
    let api = cluster.sign_in("vision-member").await?;
    let spec = json!({
        "name": "burst", "pools": [POOL], "command": ["true"], "per_worker": {"gpus": 1}
    });
    let begun = Instant::now();
    let mut left = count;
    while left > 0 {
        let jobs = vec![spec.clone(); left.min(BATCH)];
        left -= jobs.len();
        api.post("/teams/vision/jobs/batch", &json!({"jobs": jobs}))
            .await?;
    }
    let submitted = begun.elapsed();
    let open = "SELECT count(*) FILTER (WHERE state = 'failed') AS failed,
                       count(*) FILTER (WHERE state NOT IN ('succeeded', 'failed', 'cancelled')) AS open
                FROM jobs WHERE name = 'burst'";
    wait::until("all of the burst has ended", BURST_BOUND, || async {
        let rows = cluster.postgres.query(open).await?;
        if rows[0]["failed"] != 0 {
            bail!("some jobs failed: {rows:?}");
        }
        Ok((rows[0]["open"] == 0).then_some(()))
    })
    .await?;
    Ok(Burst {
        submitted,
        ended: begun.elapsed(),
    })
}

/// Submits `count` jobs one after the other; the sorted times to their first line.
pub async fn first_lines(up: &UpFile, count: usize) -> anyhow::Result<Vec<Duration>> {
    if count == 0 {
        bail!("--count 0 measures nothing; give 1 or more");
    }
    let Some(user) = up.users.iter().find(|user| user.role == "member") else {
        bail!("up.json names no member of a team");
    };
    let team = user.team.as_deref().context("a member is in a team")?;
    let api = Api::log_in(&up.url, &user.name, &user.password).await?;
    let spec = json!({
        "name": "first-line", "kind": "batch", "class": "normal", "command": ["echo", "here"],
        "per_worker": {"gpus": 1}
    });
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        let job = api.post(&format!("/teams/{team}/jobs"), &spec).await?;
        let id = text(&job, "id")?.to_owned();
        let path = format!("/jobs/{id}/logs");
        let line = wait::until("a job's first line of log", FIRST_LINE_BOUND, || async {
            // Before it starts there is no log to ask for.
            let log = api.text(&path).await.unwrap_or_default();
            Ok(log.contains("here").then_some(begun.elapsed()))
        });
        times.push(line.await?);
        // The next begins on an idle machine.
        let path = format!("/jobs/{id}");
        wait::until("the job ends", FIRST_LINE_BOUND, || async {
            Ok((api.get(&path).await?["state"] == "succeeded").then_some(()))
        })
        .await?;
    }
    times.sort();
    Ok(times)
}

/// The time within which 99 of 100 are, of sorted times.
pub fn percentile_99(sorted: &[Duration]) -> Duration {
    sorted[(sorted.len() * 99).div_ceil(100) - 1]
}

/// The median of sorted times: the mean of the middle two for an even count.
pub fn median(sorted: &[Duration]) -> Duration {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_middle_two() {
        let ms = Duration::from_millis;
        assert_eq!(median(&[ms(1), ms(2), ms(9)]), ms(2));
        assert_eq!(median(&[ms(1), ms(2), ms(4), ms(9)]), ms(3));
        assert_eq!(percentile_99(&[ms(1), ms(9)]), ms(9));
        let hundred: Vec<Duration> = (1..=100).map(ms).collect();
        assert_eq!(percentile_99(&hundred), ms(99));
    }
}
