//! What waiting jobs were last told, so that only what has changed is written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use domain::Timestamp;
use domain::ids::JobId;
use domain::state::JobState;
use engine::plan::{Code, Plan, Waiting};
use engine::world::{Workload, World};
use serde_json::json;

use super::discreet::{self, Tried};
use super::translate;
use super::week::Week;
use super::world::{Mirror, Records};
use crate::app::jobs::{PLANNING_STOPPED, beyond_quotas, waits_for_quota};
use crate::store::jobs::{self, Verdict};
use crate::store::waits::{self, Cause};
use crate::store::{self, Tx, expected_starts};

/// Most verdicts stored in one turn, so that a long queue does not make one long transaction.
const VERDICTS_MAX: usize = 500;
/// How old a stored verdict's figures may grow while its cause and its sentence stay: with each
/// start every rank behind it moves, and a long queue would be written anew in each turn.
const VERDICT_AGE_MAX: Duration = Duration::from_secs(5);

/// What was last stored for each waiting job.
#[derive(Debug, Default)]
pub(super) struct Told {
    verdicts: BTreeMap<JobId, Last>,
    /// Those that were told that planning is stopped, with their versions then.
    stopped: BTreeMap<JobId, i64>,
}

/// What was last stored for one job.
#[derive(Debug)]
struct Last {
    waiting: Waiting,
    at: Instant,
    /// The job's version then: a step that it takes clears its verdict.
    version: i64,
}

impl Last {
    /// Whether it will do for now.
    fn still(&self, waiting: &Waiting) -> bool {
        let last = &self.waiting;
        let same = (last.code, &last.scope, &last.message)
            == (waiting.code, &waiting.scope, &waiting.message);
        last == waiting || (same && self.at.elapsed() < VERDICT_AGE_MAX)
    }
}

/// What a plan says that was not told yet.
#[derive(Debug, Default)]
pub(super) struct News {
    verdicts: Vec<Verdict>,
    causes: Vec<Cause>,
    estimates: Vec<(JobId, Timestamp)>,
    /// Whether there is more than is stored in one turn.
    pub cut: bool,
}

impl Told {
    /// What a plan says that is another than before, which counts as told from now on.
    pub fn news(&mut self, world: &World, records: &Records, plan: &Plan) -> News {
        let mut news = News::default();
        let mut present = BTreeMap::new();
        self.stopped.clear();
        for waiting in &plan.waiting {
            let Some(id) = translate::job_id(&waiting.workload) else {
                continue;
            };
            let Some(job) = records.jobs.get(&id) else {
                continue;
            };
            let waiting = discreet::verdict(world, &job.row.team, waiting);
            let waiting = discreet::retried(waiting, &Tried::of_live(&job.row));
            let version = job.row.version;
            let last = self
                .verdicts
                .remove(&id)
                .filter(|last| last.version == version);
            match last {
                Some(last) if last.still(&waiting) => {
                    present.insert(id, last);
                }
                last if news.verdicts.len() < VERDICTS_MAX => {
                    if job.row.state == JobState::Queued {
                        news.of_wait(id, last.as_ref().map(|last| &last.waiting), &waiting);
                    }
                    news.verdicts.push(Verdict {
                        id,
                        code: waiting.code.as_str().to_owned(),
                        message: waiting.message.to_string(),
                        whole: serde_json::to_value(&waiting).unwrap_or_default(),
                    });
                    let at = Instant::now();
                    present.insert(
                        id,
                        Last {
                            waiting,
                            at,
                            version,
                        },
                    );
                }
                _ => news.cut = true,
            }
        }
        self.verdicts = present;
        news
    }

    /// What is said of jobs that wait while planning is stopped, where it was not said yet. Once
    /// there is a plan again all that waits is told anew why.
    pub fn stopped(&mut self, records: &Records, since: Timestamp) -> News {
        self.verdicts.clear();
        let since = domain::time::format(since);
        let message = format!(
            "planning is stopped since {since}, because every plan fails or is refused by its checks; \
             /readyz and the server's log tell administrators"
        );
        let mut news = News::default();
        let waiting = records.jobs.values().map(|job| &job.row);
        for row in waiting.filter(|row| row.state == JobState::Queued) {
            if self.stopped.get(&row.id) == Some(&row.version) {
                continue;
            }
            if news.verdicts.len() == VERDICTS_MAX {
                news.cut = true;
                break;
            }
            self.stopped.insert(row.id, row.version);
            news.verdicts.push(Verdict {
                id: row.id,
                code: PLANNING_STOPPED.to_owned(),
                message: message.clone(),
                whole: json!({ "code": PLANNING_STOPPED, "scope": since, "message": message }),
            });
            news.causes.push(Cause {
                job_id: row.id,
                code: PLANNING_STOPPED.to_owned(),
                scope: String::new(),
                message: message.clone(),
                need_milli: 0,
                have_milli: 0,
            });
        }
        news
    }
}

impl News {
    /// Adds what the history of a wait keeps: another cause, and the first estimate.
    fn of_wait(&mut self, job_id: JobId, last: Option<&Waiting>, now: &Waiting) {
        let bound = last.map(|last| (last.code, &last.scope));
        if bound != Some((now.code, &now.scope)) {
            self.causes.push(Cause {
                job_id,
                code: now.code.as_str().to_owned(),
                scope: now.scope.to_string(),
                message: now.message.to_string(),
                need_milli: now.need.milli(),
                have_milli: now.have.milli(),
            });
        }
        if last.and_then(estimate).is_none()
            && let Some(at) = estimate(now)
        {
            self.estimates.push((job_id, at));
        }
    }

    /// Says of jobs that their quota never admits just that, in the words of their submission.
    pub async fn tell_beyond(&mut self, world: &World, mirror: &Mirror) {
        let asked: BTreeSet<String> = self
            .verdicts
            .iter()
            .filter(|verdict| waits_for_quota(&verdict.code))
            .map(|verdict| verdict.id.to_string())
            .collect();
        if asked.is_empty() {
            return;
        }
        let works = world.workloads.iter();
        let works: Vec<Workload> = works
            .filter(|work| asked.contains(&work.name))
            .cloned()
            .collect();
        let week = Week::of(&mirror.records, mirror.now);
        let beyond = tokio::task::spawn_blocking(move || beyond_quotas(&week, works)).await;
        match beyond {
            Ok(beyond) => {
                for verdict in &mut self.verdicts {
                    if let Some(beyond) = beyond.get(&verdict.id.to_string()) {
                        verdict.message = beyond.to_string();
                        beyond.keep(&mut verdict.whole);
                    }
                }
            }
            // The engine's own words stay, which say less.
            Err(error) => tracing::error!(%error, "quotas could not be asked for waiting jobs"),
        }
    }

    /// Whether there is nothing to store.
    pub fn nothing(&self) -> bool {
        self.verdicts.is_empty()
    }

    /// Stores it; whether any job's verdict changed.
    pub async fn store(&self, tx: &mut Tx) -> Result<bool, sqlx::Error> {
        let changed = jobs::set_waiting(tx, &self.verdicts).await? > 0;
        if !self.causes.is_empty() {
            let now = store::clock(tx).await?;
            waits::turn(tx, &self.causes, now).await?;
        }
        if !self.estimates.is_empty() {
            expected_starts::tell(tx, &self.estimates).await?;
        }
        Ok(changed)
    }
}

/// When a job is expected to start. Its own earliest start is no estimate.
fn estimate(waiting: &Waiting) -> Option<Timestamp> {
    waiting
        .expected_start
        .filter(|_| waiting.code != Code::NotYet)
}
