//! Evictions: what is taken from running work, for whom, by which rule, and what that destroys.

use domain::Timestamp;
use domain::eviction::{EvictionKind, EvictionRule};
use domain::ids::AssignmentId;
use serde_json::{Value, json};

use crate::store::attempts::AttemptRow;
use crate::store::evictions::{self, Gainer, Held, NewEviction};
use crate::store::jobs::JobRow;
use crate::store::{self, Tx};

/// Why running work gives way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// What it does to the work.
    pub kind: EvictionKind,
    /// By which rule.
    pub rule: EvictionRule,
    /// For whom; nobody, where its node is emptied.
    pub gainer: Option<Gainer>,
}

impl Eviction {
    /// All of it leaves a node that is emptied, by which of the two rules.
    pub fn drained(rule: EvictionRule) -> Self {
        Self {
            kind: EvictionKind::Preemption,
            rule,
            gainer: None,
        }
    }
}

/// Writes an eviction of these workers, or of all that an attempt has; what an event says of it. Job
/// and attempt are locked, and the workers have not been told to stop yet.
pub(super) async fn record(
    tx: &mut Tx,
    job: &JobRow,
    attempt: &AttemptRow,
    leaving: Option<&[AssignmentId]>,
    why: &Eviction,
) -> Result<Value, sqlx::Error> {
    let held = evictions::held(tx, attempt.id).await?;
    let leaves = |held: &&Held| leaving.is_none_or(|ids| ids.contains(&held.id));
    let gone: Vec<&Held> = held.iter().filter(leaves).collect();
    let Some(first) = gone.first() else {
        return Ok(json!({}));
    };
    let now = store::clock(tx).await?;
    let saved_at = saved_at(job, attempt, now);
    let lost: i64 = gone
        .iter()
        .map(|held| lost_gpu_milli_seconds(held, saved_at, now))
        .fold(0, i64::saturating_add);
    let count = |workers: usize| i32::try_from(workers).expect("a gang has at most 1,024 workers");
    let devices: i64 = gone.iter().map(|held| held.devices).sum();
    let new = NewEviction {
        team_id: job.team_id,
        job_id: job.id,
        attempt_id: attempt.id,
        pool_id: first.pool_id,
        kind: why.kind,
        rule: why.rule,
        gainer: why.gainer.clone(),
        workers_before: count(held.len()),
        workers_after: count(held.len() - gone.len()),
        gpus_milli: gone.iter().map(|held| held.gpus_milli).sum(),
        devices: i32::try_from(devices).unwrap_or(i32::MAX),
        lost_gpu_milli_seconds: lost,
    };
    evictions::insert(tx, &new).await?;
    // Not the newcomer's id: it may be another team's.
    Ok(json!({ "rule": why.rule, "lost_gpu_milli_seconds": lost }))
}

/// When an attempt last saved its state, as far as its spec tells; nothing where it does not run yet.
fn saved_at(job: &JobRow, attempt: &AttemptRow, now: Timestamp) -> Option<Timestamp> {
    let started_at = attempt.started_at?;
    let every = job.spec().ok().and_then(|spec| spec.checkpoint_seconds);
    let ran = (now - started_at).num_seconds().max(0);
    let saved = every
        .filter(|every| *every > 0)
        .map(|every| ran - ran % every);
    Some(started_at + chrono::TimeDelta::seconds(saved.unwrap_or(0)))
}

/// Work of one worker since then, or since it began.
fn lost_gpu_milli_seconds(held: &Held, saved_at: Option<Timestamp>, now: Timestamp) -> i64 {
    let (Some(saved_at), Some(began)) = (saved_at, held.started_at) else {
        return 0;
    };
    let seconds = (now - saved_at.max(began)).num_seconds().max(0);
    held.gpus_milli.saturating_mul(seconds)
}

#[cfg(test)]
mod tests {
    use domain::ids::PoolId;

    use super::*;

    #[test]
    fn a_worker_loses_what_it_did_since_the_last_checkpoint_or_since_it_joined() {
        let at = |seconds| Timestamp::UNIX_EPOCH + chrono::TimeDelta::seconds(seconds);
        let held = |began| Held {
            id: AssignmentId::new(),
            pool_id: PoolId::new(),
            started_at: began,
            gpus_milli: 2500,
            devices: 2,
        };
        let lost = |began: Option<i64>, saved: Option<i64>| {
            lost_gpu_milli_seconds(&held(began.map(at)), saved.map(at), at(100))
        };
        assert_eq!(lost(Some(0), Some(60)), 2500 * 40);
        assert_eq!(lost(Some(90), Some(60)), 2500 * 10);
        assert_eq!(lost(None, Some(60)), 0, "it has not begun");
        assert_eq!(lost(Some(0), None), 0, "its gang has not begun");
    }
}
