//! Arrays as the scheduler sees them: the next elements are brought to life before they are needed,
//! no more run at once than may, and what has no element left is noted as ended.

use std::collections::{BTreeMap, BTreeSet};

use domain::Timestamp;
use domain::ids::JobId;
use domain::state::{ArrayIntent, JobState};

use super::settle::Settled;
use super::world::{JobRecord, Records};
use crate::app::App;
use crate::store::arrays::{self, Birth, LiveArray};
use crate::store::epochs::{self, Epoch};
use crate::store::events::Actor;

/// Elements of an array that wait at a time: enough for two commits of a plan, so that bringing
/// more to life never keeps devices idle.
const AHEAD_MAX: i64 = 512;
/// Where only so many run at once, twice as many wait: one set to start, one to follow.
const AHEAD_SETS: i64 = 2;
/// Of an array that is held back, or of which nothing else is known, one element stands for the
/// rest: what follows the array waits for it.
const STAND_IN: i64 = 1;

/// The elements of arrays among the jobs of the world, by array.
fn elements(records: &Records) -> BTreeMap<JobId, Vec<&JobRecord>> {
    let mut elements: BTreeMap<JobId, Vec<&JobRecord>> = BTreeMap::new();
    for (id, job) in &records.jobs {
        if let Some(array) = id.array() {
            elements.entry(array).or_default().push(job);
        }
    }
    elements
}

/// Brings elements to life that are needed soon, and notes which arrays have ended.
pub async fn settle(app: &App, epoch: Epoch, records: &Records) -> Result<Settled, sqlx::Error> {
    let elements = elements(records);
    let due = records.arrays.values().filter_map(|array| {
        let living = elements.get(&array.id).map_or(&[][..], Vec::as_slice);
        Some((array.id, need(array, living)?))
    });
    let due: Vec<(JobId, Need)> = due.collect();
    if due.is_empty() {
        return Ok(Settled::Nothing);
    }
    let mut tx = app.db.begin_system().await?;
    if epochs::share(&mut tx).await? != epoch {
        return Ok(Settled::Fenced);
    }
    for (id, need) in due {
        // What people want of it may have changed since; the next turn sees that.
        let Some(array) = arrays::lock(&mut tx, id).await? else {
            continue;
        };
        match need {
            Need::End => arrays::set_finished(&mut tx, id).await?,
            Need::Elements { .. } if array.intent == ArrayIntent::Cancelled => {}
            Need::Elements { more } => {
                let next = arrays::untouched(&mut tx, &array, more).await?;
                let birth = Birth {
                    state: array.intent.untouched(),
                    reason: "submitted",
                    message: "",
                    actor: &Actor::User(array.user.clone()),
                };
                arrays::bring(&mut tx, &array, &next, birth).await?;
            }
        }
    }
    tx.commit().await?;
    Ok(Settled::Changed)
}

/// What an array needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// More elements.
    Elements {
        /// How many.
        more: i64,
    },
    /// To be noted as ended.
    End,
}

fn need(array: &LiveArray, living: &[&JobRecord]) -> Option<Need> {
    let to_come = array.to_come();
    if to_come == 0 {
        return living.is_empty().then_some(Need::End);
    }
    let number = |found: usize| i64::try_from(found).unwrap_or(i64::MAX);
    let (waiting, ahead) = match array.intent {
        ArrayIntent::Open => {
            let ahead = ahead(array);
            let soon = living.iter().filter(|job| soon(array, job, ahead));
            (number(soon.count()), ahead)
        }
        _ => (number(living.len()), STAND_IN),
    };
    // Half of them are started before more come, so that not each start brings one.
    let more = (ahead - waiting).min(to_come);
    (waiting < (ahead + 1) / 2).then_some(Need::Elements { more })
}

/// Whether an element waits and its turn is near: one that was brought to life by itself, far ahead
/// of the others, does not stand for those before it.
fn soon(array: &LiveArray, job: &JobRecord, ahead: i64) -> bool {
    let index = job.row.id.index().map_or(0, i64::from);
    job.row.state == JobState::Queued && index < array.brought + ahead
}

fn ahead(array: &LiveArray) -> i64 {
    let most = array.at_most.map_or(AHEAD_MAX, i64::from);
    most.saturating_mul(AHEAD_SETS).min(AHEAD_MAX)
}

/// Waiting elements that may not start yet because as many of their array hold places as may, or
/// will by those before them; each with one that it waits for.
pub fn held_back(records: &Records, now: Timestamp) -> BTreeMap<JobId, JobId> {
    let mut held = BTreeMap::new();
    for (array, elements) in elements(records) {
        let known = records.arrays.get(&array);
        let Some(most) = known.and_then(|array| array.at_most) else {
            continue;
        };
        let holds = |job: &&&JobRecord| job.attempt.is_some() || !job.workers.is_empty();
        let holding = elements.iter().filter(holds).map(|job| job.row.id);
        let mut holding: BTreeSet<JobId> = holding.collect();
        let mut waiting: Vec<&JobRecord> = elements
            .iter()
            .filter(|job| !holds(job) && job.row.state == JobState::Queued)
            .copied()
            .collect();
        // Room that is kept for one is not given up, and one that is tried again later leaves its
        // turn to those that can start now.
        waiting.sort_by_key(|job| {
            let later = job.row.not_before.filter(|at| *at > now);
            (job.row.nominated.is_none(), later, job.row.id)
        });
        for job in waiting {
            match holding.first() {
                Some(first) if holding.len() >= most.unsigned_abs() as usize => {
                    held.insert(job.row.id, *first);
                }
                _ => {
                    holding.insert(job.row.id);
                }
            }
        }
    }
    held
}

/// Whom a waiting job follows, as workloads of the world: an array by one of its elements, since
/// it has not ended while one of them lives. Nothing where none lives yet, which the next turn mends.
/// Elements that somebody follows were brought to life with that.
pub fn followed(records: &Records, after: &[String]) -> Option<Vec<String>> {
    let stands_for = |name: &String| match name.parse::<JobId>() {
        Ok(array) if records.arrays.contains_key(&array) => {
            let (first, _) = records.jobs.range(array..).next()?;
            (first.array() == Some(array)).then(|| first.to_string())
        }
        _ => Some(name.clone()),
    };
    after.iter().map(stands_for).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(count: i32, at_most: Option<i32>, intent: ArrayIntent, brought: i64) -> LiveArray {
        LiveArray {
            id: JobId::new_array(),
            count,
            at_most,
            intent,
            brought,
        }
    }

    #[test]
    fn no_more_elements_live_ahead_than_are_soon_needed() {
        let more = |more| Some(Need::Elements { more });
        let open = ArrayIntent::Open;
        assert_eq!(need(&array(10_000, None, open, 0), &[]), more(AHEAD_MAX));
        assert_eq!(need(&array(10_000, Some(4), open, 0), &[]), more(8));
        assert_eq!(need(&array(3, Some(2), open, 0), &[]), more(3));
        assert_eq!(need(&array(3, None, open, 3), &[]), Some(Need::End));
        let held = array(9, None, ArrayIntent::Suspended, 0);
        assert_eq!(need(&held, &[]), more(1));
        let cancelled = array(9, None, ArrayIntent::Cancelled, 2);
        assert_eq!(need(&cancelled, &[]), Some(Need::End));
    }
}
