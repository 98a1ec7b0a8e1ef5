//! A dry run of policies: the live world planned as it is and as it would be, side by side.
//! Nothing is written.

mod conflicts;
mod draft;
mod sent;
mod twice;

use std::collections::{BTreeMap, BTreeSet};

use domain::MilliGpu;
use domain::Timestamp;
use domain::ids::JobId;
use domain::state::JobState;
use engine::cycles::{self, Stage};
use engine::plan::{Plan, Share};
use engine::statement::{Starved, Statement, statements};
use engine::world::{Team, WorkloadState, World};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::jobs::{self, BeyondQuota};
use super::quotas::Warning;
use super::{App, AppError, Asker, questions};
use crate::scheduler::week::Week;
use crate::store;
pub use conflicts::BookingConflicts;
use draft::Known;
pub use draft::{BookingDraft, ClassDraft, PolicyDraft, PoolDraft, QuotaDraft, WindowDraft};

/// Most jobs of which is told what becomes of them; the rest is counted.
const JOBS_MAX: usize = 1_000;
/// Most bookings whose conflicts are told: more than a calendar of some weeks shows.
const CONFLICTS_MAX: usize = 100;

/// What would come of changed policies, beside what comes of the present ones.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PolicyDiff {
    /// The moment of both plans. Each is made anew once those have left who make way by it, as if
    /// nothing else happened meanwhile.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The moment by whose windows quotas were taken in both; null where that is the same.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub windows_at: Option<Timestamp>,
    /// Jobs of which something else would become.
    pub jobs: Vec<JobDiff>,
    /// How many more there are.
    pub jobs_left_out: usize,
    /// What each team would have once those have left who make way, in pools where somebody's part
    /// changes.
    pub shares: Vec<ShareDiff>,
    /// Teams that would hold more beyond their guarantee than they do now.
    pub cuts: Vec<Cut>,
    /// What would not keep the policies from holding, and should be known.
    pub warnings: Vec<Warning>,
    /// Bookings that would be in conflict: those of the draft, and others that it brings to that,
    /// as their calendar would mark them.
    pub conflicts: Vec<BookingConflicts>,
    /// How many more there are.
    pub conflicts_left_out: usize,
}

/// What would become of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobDiff {
    /// Its id.
    pub job: String,
    /// Its name.
    pub name: String,
    /// Its team.
    pub team: String,
    /// What the change means to it.
    pub effect: Effect,
    /// What becomes of it by the present policies.
    pub before: Fate,
    /// What would become of it.
    pub after: Fate,
}

/// What a change means to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It would start now.
    Starts,
    /// It would start once those have left who make room for it.
    StartsAfterVictims,
    /// It would be stopped.
    Stops,
    /// It would move.
    Moves,
    /// It would have another number of workers.
    Resized,
    /// It would stay, and does not by the present policies.
    Stays,
    /// It would start later, or nobody knows when.
    Delayed,
    /// It would wait, and the quota that it would have then never admits it.
    NeverStarts,
    /// It would start sooner, though not now.
    Sooner,
    /// It would wait for another cause.
    WaitsOtherwise,
}

/// What a plan makes of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fate {
    /// What is done with it.
    pub outcome: Outcome,
    /// The rule by which it gives way, or the code of its waiting.
    pub reason: Option<String>,
    /// When it starts: by the ends that are known while it waits, once those have left who make room
    /// for it, or again after it was stopped.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expected_start: Option<Timestamp>,
    /// What of its quota can never admit it, while it waits; null where no quota is in its way for good.
    pub beyond_quota: Option<BeyondQuota>,
}

/// What a plan does with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It starts.
    Starts,
    /// It starts once those have left who make room for it.
    StartsAfterVictims,
    /// It runs on.
    Runs,
    /// It is stopped, and queues again.
    Stops,
    /// It goes on elsewhere.
    Moves,
    /// It goes on with fewer or more workers.
    Resized,
    /// It waits.
    Waits,
}

/// What a team has of a pool after a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ShareView {
    /// Its guarantee, as shrunk to what is there.
    pub guaranteed: MilliGpu,
    /// What it holds, with all below it.
    pub used: MilliGpu,
    /// What of that is above its guarantee.
    pub borrowed: MilliGpu,
    /// What others use of its guarantee.
    pub lent: MilliGpu,
    /// What it would have if everybody took what is theirs, limited by demand.
    pub fair_share: MilliGpu,
}

impl From<&Share> for ShareView {
    fn from(share: &Share) -> Self {
        Self {
            guaranteed: share.guaranteed,
            used: share.used,
            borrowed: share.borrowed,
            lent: share.lent,
            fair_share: share.fair_share,
        }
    }
}

/// What a team has of a pool by the present policies, and what it would have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShareDiff {
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// By the present policies.
    pub before: ShareView,
    /// By the changed ones.
    pub after: ShareView,
}

/// What a team holds already and would hold as a borrower.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cut {
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// What it and all below it hold now.
    pub held: MilliGpu,
    /// Its guarantee now.
    pub guaranteed_before: MilliGpu,
    /// Its guarantee then.
    pub guaranteed_after: MilliGpu,
    /// How much of what it holds would become borrowed.
    pub becomes_borrowed: MilliGpu,
    /// How much of what it holds would lie in the guarantees of others, who may take it back.
    pub reclaimable: MilliGpu,
    /// How much of what it holds would be above its limit: it stays, and nothing more starts.
    pub over_limit: MilliGpu,
}

/// Plans the live world by the present policies and by changed ones.
pub async fn diff(app: &App, asker: &Asker, draft: PolicyDraft) -> Result<PolicyDiff, AppError> {
    authorise(asker, Action::DiffPolicy, Target::Platform)?;
    let mut present = questions::live(app).await?;
    let mut changed = present.clone();
    let both = (&mut present, &mut changed);
    let week = questions::week(app).await?;
    let known = draft.apply(app, asker, both).await?;
    let again = queue_again(app, asker, &present).await?;
    let compared = move || compare(&present, &changed, &week, known, &again);
    let mut diff = app.questions.ask("plan a draft", compared).await?;
    name_jobs(app, asker, &mut diff.jobs).await?;
    Ok(diff)
}

/// Who of those that leave already queues again once it has left.
async fn queue_again(
    app: &App,
    asker: &Asker,
    world: &World,
) -> Result<BTreeSet<String>, AppError> {
    let leaving = world.workloads.iter();
    let leaving = leaving.filter(|work| work.state == WorkloadState::Leaving);
    let ids: Vec<JobId> = leaving.filter_map(|work| work.name.parse().ok()).collect();
    if ids.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::jobs::find_all(&mut tx, &ids).await?;
    tx.commit().await?;
    let preempting = rows.iter().filter(|row| row.state == JobState::Preempting);
    Ok(preempting.map(|row| row.id.to_string()).collect())
}

/// The planner knows jobs by their ids; people know them by their names.
async fn name_jobs(app: &App, asker: &Asker, jobs: &mut [JobDiff]) -> Result<(), AppError> {
    let ids: Vec<JobId> = jobs.iter().filter_map(|job| job.job.parse().ok()).collect();
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let rows = store::jobs::find_all(&mut tx, &ids).await?;
    tx.commit().await?;
    let names: BTreeMap<String, String> = rows
        .into_iter()
        .map(|row| (row.id.to_string(), row.name))
        .collect();
    for job in jobs {
        job.name = names.get(&job.job).cloned().unwrap_or_default();
    }
    Ok(())
}

fn compare(
    present: &World,
    changed: &World,
    week: &Week,
    known: Known,
    again: &BTreeSet<String>,
) -> PolicyDiff {
    let stages = |world: &World| cycles::until_left(world.clone(), again);
    let (before, after) = (stages(present), stages(changed));
    let fates_before = fates(present, &before, || week.otherwise());
    let fates_after = fates(changed, &after, || known.at_other_times(changed, week));
    let mut jobs = jobs(present, &fates_before, &fates_after);
    let jobs_left_out = jobs.len().saturating_sub(JOBS_MAX);
    jobs.truncate(JOBS_MAX);
    let mut conflicts = known.conflicts;
    let conflicts_left_out = conflicts.len().saturating_sub(CONFLICTS_MAX);
    conflicts.truncate(CONFLICTS_MAX);
    PolicyDiff {
        at: present.now,
        windows_at: known.windows_at,
        jobs,
        jobs_left_out,
        shares: shares(&before, &after),
        cuts: cuts(present, changed),
        warnings: known.warnings,
        conflicts,
        conflicts_left_out,
    }
}

/// What plans in a row make of the work that they do not leave as it is; with the quotas of the world's
/// teams at other times.
fn fates<'p>(
    world: &World,
    stages: &'p [Stage],
    otherwise: impl FnOnce() -> Vec<Vec<Team>>,
) -> BTreeMap<&'p str, Fate> {
    let last = stages.last().map(|stage| &stage.plan.waiting);
    let asked = last.into_iter().flatten();
    let asked = asked.filter(|waiting| jobs::may_be_beyond(waiting.code.as_str()));
    let works = asked.filter_map(|waiting| world.workload(&waiting.workload).cloned());
    let mut beyond = jobs::beyond_at_all_times(world, otherwise, works.collect());
    let mut fates = BTreeMap::new();
    for (at, stage) in stages.iter().enumerate() {
        tell(&mut fates, &stage.plan, (at > 0).then_some(stage.at));
    }
    let waits = fates.iter_mut();
    for (name, fate) in waits.filter(|(_, fate)| fate.outcome == Outcome::Waits) {
        fate.beyond_quota = beyond.remove(*name);
    }
    fates
}

/// Adds what a plan makes of work: `later` is when it is made, where others had to leave before.
fn tell<'p>(fates: &mut BTreeMap<&'p str, Fate>, plan: &'p Plan, later: Option<Timestamp>) {
    let fate = |outcome, reason: Option<&str>, expected_start| Fate {
        outcome,
        reason: reason.map(str::to_owned),
        expected_start,
        beyond_quota: None,
    };
    // What was decided stays; who was stopped is told when it starts again.
    let mut put = |name: &'p str, told: Fate| match fates.get_mut(name) {
        Some(known) if known.outcome == Outcome::Stops => {
            known.expected_start = told.expected_start;
        }
        Some(known) if known.outcome != Outcome::Waits => {}
        _ => {
            fates.insert(name, told);
        }
    };
    for waiting in &plan.waiting {
        let code = Some(waiting.code.as_str());
        let waits = fate(Outcome::Waits, code, waiting.expected_start);
        put(waiting.workload.as_str(), waits);
    }
    for start in &plan.starts {
        let outcome = match later {
            None => Outcome::Starts,
            Some(_) => Outcome::StartsAfterVictims,
        };
        put(start.workload.as_str(), fate(outcome, None, later));
    }
    for resize in &plan.resizes {
        put(resize.workload.as_str(), fate(Outcome::Resized, None, None));
    }
    for migration in &plan.migrations {
        put(
            migration.workload.as_str(),
            fate(Outcome::Moves, None, None),
        );
    }
    for preemption in &plan.preemptions {
        let outcome = if preemption.to_workers > 0 {
            Outcome::Resized
        } else {
            Outcome::Stops
        };
        let rule = Some(preemption.reason.as_str());
        put(preemption.workload.as_str(), fate(outcome, rule, None));
    }
}

fn jobs(
    world: &World,
    before: &BTreeMap<&str, Fate>,
    after: &BTreeMap<&str, Fate>,
) -> Vec<JobDiff> {
    let runs = || Fate {
        outcome: Outcome::Runs,
        reason: None,
        expected_start: None,
        beyond_quota: None,
    };
    let told = world.workloads.iter().filter_map(|work| {
        let of = |fates: &BTreeMap<&str, Fate>| {
            fates.get(work.name.as_str()).cloned().unwrap_or_else(runs)
        };
        let (before, after) = (of(before), of(after));
        Some(JobDiff {
            effect: effect(&before, &after)?,
            job: work.name.clone(),
            name: String::new(),
            team: work.team.clone(),
            before,
            after,
        })
    });
    told.collect()
}

/// What the difference means; nothing where there is none.
fn effect(before: &Fate, after: &Fate) -> Option<Effect> {
    if before == after {
        return None;
    }
    let same = before.outcome == after.outcome;
    if before.beyond_quota.is_none() && after.beyond_quota.is_some() {
        return Some(Effect::NeverStarts);
    }
    match after.outcome {
        Outcome::Waits if before.outcome == Outcome::Waits => {
            match (before.expected_start, after.expected_start) {
                (Some(_), None) => Some(Effect::Delayed),
                (None, Some(_)) => Some(Effect::Sooner),
                (before, after) if after > before => Some(Effect::Delayed),
                (before, after) if after < before => Some(Effect::Sooner),
                _ => Some(Effect::WaitsOtherwise),
            }
        }
        Outcome::Waits => Some(Effect::Delayed),
        _ if same => None,
        Outcome::Starts => Some(Effect::Starts),
        Outcome::StartsAfterVictims if before.outcome == Outcome::Starts => Some(Effect::Delayed),
        Outcome::StartsAfterVictims => Some(Effect::StartsAfterVictims),
        Outcome::Stops => Some(Effect::Stops),
        Outcome::Moves => Some(Effect::Moves),
        Outcome::Resized => Some(Effect::Resized),
        Outcome::Runs => Some(Effect::Stays),
    }
}

/// What teams have by the last plans, after which nobody leaves any more.
fn shares(before: &[Stage], after: &[Stage]) -> Vec<ShareDiff> {
    let of = |stages: &[Stage]| -> BTreeMap<(String, String), ShareView> {
        let last = stages.last().map(|stage| &stage.plan.shares);
        let shares = last.into_iter().flatten();
        shares
            .map(|s| ((s.pool.clone(), s.team.clone()), ShareView::from(s)))
            .collect()
    };
    let (before, mut after) = (of(before), of(after));
    let mut all: Vec<ShareDiff> = Vec::new();
    for ((pool, team), before) in before {
        let after = after
            .remove(&(pool.clone(), team.clone()))
            .unwrap_or_default();
        all.push(ShareDiff {
            team,
            pool,
            before,
            after,
        });
    }
    // A team has no part in a pool before its first quota there.
    all.extend(after.into_iter().map(|((pool, team), after)| ShareDiff {
        team,
        pool,
        before: ShareView::default(),
        after,
    }));
    let differs = all.iter().filter(|share| share.before != share.after);
    let touched: BTreeSet<String> = differs.map(|share| share.pool.clone()).collect();
    all.retain(|share| touched.contains(&share.pool));
    all
}

fn cuts(present: &World, changed: &World) -> Vec<Cut> {
    let unknown = Starved::new();
    let before = statements(present, &unknown);
    let after = statements(changed, &unknown);
    let pairs = after.iter().filter_map(|after| {
        let same = |s: &&Statement| s.team == after.team && s.pool == after.pool;
        Some((before.iter().find(same)?, after))
    });
    pairs
        .filter_map(|(before, after)| {
            let becomes_borrowed = after.borrowed.saturating_sub(before.borrowed);
            let over = |s: &Statement| s.limit.map_or(MilliGpu::ZERO, |l| s.held.saturating_sub(l));
            let (over_before, over_limit) = (over(before), over(after));
            if becomes_borrowed == MilliGpu::ZERO && over_limit <= over_before {
                return None;
            }
            Some(Cut {
                team: after.team.clone(),
                pool: after.pool.clone(),
                held: after.held,
                guaranteed_before: before.guaranteed,
                guaranteed_after: after.guaranteed,
                becomes_borrowed,
                reclaimable: after.borrows_from.iter().map(|p| p.amount).sum(),
                over_limit,
            })
        })
        .collect()
}
