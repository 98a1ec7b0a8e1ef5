//! The time from a job's submission to its first line of log: the figure that people feel.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;

use crate::api::{Api, text};
use crate::up_file::UpFile;
use crate::wait;

/// A job that has not spoken by then waits for something else than the product.
const FIRST_LINE_BOUND: Duration = Duration::from_secs(60);

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
    }
}
