//! B8: how long an array of many elements and a batch of different jobs take until they are durable, beside plain
//! inserts of as many rows into the same PostgreSQL in the same minutes.

use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::{Value, json};

use super::{POOL, median};
use crate::Cluster;
use crate::postgres::DATABASE;

/// Elements of the array.
pub const ELEMENTS: usize = 10_000;
/// Jobs of the batch: as many as one may have.
pub const JOBS: usize = 1_000;
/// Rows of one statement of the peer.
const ROWS: usize = 100;
/// Bytes that fill a spec up to what people send: 1 to 2 KB.
const FILLING: usize = 1_200;

/// What one round came to.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// An array of [`ELEMENTS`] until it was acknowledged.
    pub array: Duration,
    /// A batch of [`JOBS`] jobs, each with a spec of its own, likewise.
    pub batch: Duration,
    /// As many rows of the table of jobs without its triggers, by statements of a hundred rows that are each
    /// committed.
    pub inserts: Duration,
}

/// Submits an array and a batch and inserts the same rows, `rounds` times.
pub async fn rounds(cluster: &Cluster, rounds: usize) -> anyhow::Result<Vec<Round>> {
    let api = cluster.sign_in("vision-member").await?;
    let mut told = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let spec = json!({
            "name": "array", "pools": [POOL], "command": ["true"], "per_worker": {"gpus": 4},
            "array": {"count": ELEMENTS}
        });
        let begun = Instant::now();
        let made = api.post("/teams/vision/jobs", &spec).await?;
        let array = begun.elapsed();
        let id = crate::api::text(&made, "id")?;
        api.post(&format!("/jobs/{id}/cancel"), &json!({})).await?;

        let jobs: Vec<Value> = (0..JOBS).map(|at| job(round, at)).collect();
        let body = json!({ "jobs": jobs });
        let begun = Instant::now();
        api.post("/teams/vision/jobs/batch", &body).await?;
        let batch = begun.elapsed();
        let inserts = inserts(cluster, &jobs).await?;
        told.push(Round {
            array,
            batch,
            inserts,
        });
    }
    Ok(told)
}

/// A job like no other of its round: another name, command and size.
fn job(round: usize, at: usize) -> Value {
    json!({
        "name": format!("batch-{round}-{at}"), "pools": [POOL],
        "command": ["train", format!("--seed={at}"), "x".repeat(FILLING)],
        "per_worker": {"gpus": 1 + at % 4}, "time_limit_seconds": 60 + at
    })
}

async fn inserts(cluster: &Cluster, jobs: &[Value]) -> anyhow::Result<Duration> {
    let mut script = String::from(
        "CREATE TABLE IF NOT EXISTS bench_rows (LIKE jobs INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES);
         SELECT extract(epoch FROM clock_timestamp());\n",
    );
    for rows in jobs.chunks(ROWS) {
        let values: Vec<String> = rows
            .iter()
            .map(|spec| {
                let text = spec.to_string().replace('\'', "''");
                let id = "gen_random_uuid()";
                format!("({id}, {id}, {id}, 'row', 'batch', 'normal', '{text}'::jsonb)")
            })
            .collect();
        let columns = "id, team_id, user_id, name, kind, class, spec";
        script += &format!(
            "INSERT INTO bench_rows ({columns}) VALUES {};\n",
            values.join(", ")
        );
    }
    script += "SELECT extract(epoch FROM clock_timestamp());\n";
    let told = cluster.postgres.query_text(DATABASE, &script).await?;
    let moments: Vec<f64> = told
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect();
    let [began, ended] = moments[..] else {
        bail!("two moments were expected: {told}");
    };
    Ok(Duration::from_secs_f64(ended - began))
}

/// The medians of all rounds.
pub fn medians(rounds: &[Round]) -> Round {
    let of = |part: fn(&Round) -> Duration| {
        let mut all: Vec<Duration> = rounds.iter().map(part).collect();
        all.sort();
        median(&all)
    };
    Round {
        array: of(|round| round.array),
        batch: of(|round| round.batch),
        inserts: of(|round| round.inserts),
    }
}
