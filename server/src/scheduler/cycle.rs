//! One turn of the leader: refresh, settle what needs no plan, think, commit, tell those who wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::Timestamp;
use domain::state::JobState;
use engine::plan::Plan;
use engine::world::{WorkloadState, World};

use super::commit::{self, Outcome};
use super::gauges;
use super::planner::Planner;
use super::settle;
use super::starved::{Look, Looked};
use super::think::Thought;
use super::told::{News, Told};
use super::translate;
use super::windows;
use super::world::{Mirror, Records, Refresh};
use crate::app::App;
use crate::store::epochs::{self, Epoch};

/// Planning again although nothing changed, at the latest: ageing and minimum run times move.
const IDLE_LIMIT: Duration = Duration::from_secs(10);
/// A workload that spoils so many turns is failed as invalid; fewer may be a passing state.
const STRIKES_MAX: u32 = 3;
/// Turns in a row that may be refused whole and planned again at once.
const REFUSALS_MAX: u32 = 3;

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It is done.
    Done,
    /// Something was settled that needs no plan; what is so now is for the next turn, which is due.
    Settled,
    /// The plan for the present world was refused, and one workload may be at fault: it is tried
    /// again, and without that workload in the end.
    Spoiled,
    /// The plan for the present world was refused: until another is not, no work can be done.
    Stuck,
    /// Another leader has raised the epoch.
    Fenced,
}

/// The leader's memory between turns.
pub struct Cycle {
    app: App,
    epoch: Epoch,
    mirror: Mirror,
    planner: Planner,
    told: Told,
    /// Turns that a workload has spoiled.
    strikes: BTreeMap<String, u32>,
    /// Turns in a row of which everything was refused.
    refusals: u32,
    /// Jobs that others follow and that have ended well.
    followed: settle::Followed,
    /// When it was last looked who is short of its guarantee.
    look: Look,
    fresh: bool,
    /// Plans in a row that were refused by the checker.
    spoiled: u32,
    /// Since when planning is stopped, where that is more than a workload's fault.
    stopped_since: Option<Timestamp>,
    last_check: Instant,
    last_thought: Instant,
    next_moment: Option<Timestamp>,
}

impl Cycle {
    /// Begins to lead: loads the world.
    pub async fn begin(app: App, epoch: Epoch) -> Result<Self, sqlx::Error> {
        let mirror = Mirror::load(&app.db).await?;
        Ok(Self {
            app,
            epoch,
            mirror,
            planner: Planner::start().map_err(sqlx::Error::Io)?,
            told: Told::default(),
            strikes: BTreeMap::new(),
            refusals: 0,
            followed: settle::Followed::default(),
            look: Look::default(),
            fresh: true,
            spoiled: 0,
            stopped_since: None,
            last_check: Instant::now(),
            last_thought: Instant::now(),
            next_moment: None,
        })
    }

    /// How often the planner took the world in anew.
    pub fn worlds_taken_in(&self) -> u64 {
        self.planner.taken_in()
    }

    /// One turn. After one that failed the next plans anew, whether anything has changed or not.
    pub async fn turn(&mut self) -> Result<Turn, sqlx::Error> {
        let turn = self.look_and_plan().await;
        self.fresh |= turn.is_err();
        turn
    }

    async fn look_and_plan(&mut self) -> Result<Turn, sqlx::Error> {
        let begun = Instant::now();
        let changed = self.refresh().await?;
        if changed {
            gauges::tell(&self.mirror.records.nodes);
        }
        let settled = settle::settle(
            &self.app,
            self.epoch,
            &self.mirror.records,
            &mut self.followed,
        )
        .await?;
        if settled == settle::Settled::Fenced {
            return Ok(Turn::Fenced);
        }
        if settled == settle::Settled::Changed {
            // What was settled is read again before anything is planned on it.
            self.app.wake.all();
            return Ok(Turn::Settled);
        }
        let due = self.next_moment.is_some_and(|at| at <= self.mirror.now);
        let unsettled = self.spoiled > 0 || self.anybody_waits();
        let idle = self.last_thought.elapsed() >= IDLE_LIMIT && unsettled;
        if !(changed || due || idle) {
            if self.look.due() && self.look_again().await? == Looked::Fenced {
                return Ok(Turn::Fenced);
            }
            return Ok(self.stands());
        }
        let turn = self.plan_and_commit().await?;
        self.last_thought = Instant::now();
        metrics::counter!("allotment_scheduler_cycles_total").increment(1);
        metrics::histogram!("allotment_scheduler_cycle_seconds")
            .record(begun.elapsed().as_secs_f64());
        Ok(turn)
    }

    async fn refresh(&mut self) -> Result<bool, sqlx::Error> {
        if self.last_check.elapsed() < self.app.config.timers.world_check {
            let refresh = self.mirror.refresh(&self.app.db).await?;
            return Ok(std::mem::take(&mut self.fresh) || refresh == Refresh::Changed);
        }
        self.last_check = Instant::now();
        let differences = self.mirror.check(&self.app.db).await?;
        for difference in &differences {
            metrics::counter!("allotment_world_differences_total").increment(1);
            tracing::error!(
                object = difference,
                "world in memory differed from the database and was reloaded"
            );
        }
        Ok(true)
    }

    fn anybody_waits(&self) -> bool {
        self.mirror
            .records
            .jobs
            .values()
            .any(|job| job.row.state == JobState::Queued)
    }

    async fn plan_and_commit(&mut self) -> Result<Turn, sqlx::Error> {
        let memory = self.mirror.recall(&self.app.db).await?;
        let world = Arc::new(translate::world(
            &self.mirror.records,
            self.mirror.now,
            &memory,
        ));
        let preferred = self.preferred();
        let thought = self.planner.think(Arc::clone(&world), preferred.clone());
        let thought = thought.await;
        self.next_moment = next_moment(&world, &self.mirror.records);
        let plan = match thought {
            Thought::Plan(plan) => plan,
            Thought::Fault { culprit, messages } => return self.strike(culprit, &messages).await,
        };
        self.strikes.clear();
        self.spoiled = 0;
        self.stopped_since = None;
        gauges::tell_waiting(plan.waiting.len());
        let outcome =
            commit::commit(&self.app, self.epoch, &self.mirror, &plan, &preferred).await?;
        if outcome.fenced {
            return Ok(Turn::Fenced);
        }
        self.tell(&world, &plan, &outcome).await?;
        self.look.ask();
        if self.look.due() {
            let world = Arc::unwrap_or_clone(world);
            let looked = self.look.take(&self.app, self.epoch, world, Some(*plan));
            if looked.await? == Looked::Fenced {
                return Ok(Turn::Fenced);
            }
        }
        Ok(Turn::Done)
    }

    /// Looks who is short of its guarantee in a world that has come to rest.
    async fn look_again(&mut self) -> Result<Looked, sqlx::Error> {
        let memory = self.mirror.recall(&self.app.db).await?;
        let world = translate::world(&self.mirror.records, self.mirror.now, &memory);
        self.look.take(&self.app, self.epoch, world, None).await
    }

    /// Waiting jobs whose last run was on one node that keeps its checkpoints to itself.
    fn preferred(&self) -> BTreeMap<String, String> {
        let jobs = self.mirror.records.jobs.values();
        jobs.filter(|job| job.row.state == JobState::Queued)
            .filter_map(|job| match job.last_nodes.as_slice() {
                [last] if !last.checkpoints_shared => {
                    Some((job.row.id.to_string(), last.node.clone()))
                }
                _ => None,
            })
            .collect()
    }

    /// How it stands since the last plan.
    fn stands(&self) -> Turn {
        match (self.stopped_since, self.spoiled) {
            (Some(_), _) => Turn::Stuck,
            (None, 0) => Turn::Done,
            (None, _) => Turn::Spoiled,
        }
    }

    /// Says of all that waits that nothing is planned, once it is known that no workload by itself
    /// is at fault.
    async fn tell_stopped(&mut self) -> Result<(), sqlx::Error> {
        let since = *self.stopped_since.get_or_insert(self.mirror.now);
        let news = self.told.stopped(&self.mirror.records, since);
        self.fresh |= news.cut;
        let stored = self.store(&news).await;
        if stored.is_err() {
            self.told = Told::default();
        }
        if stored? {
            self.app.wake.all();
        }
        Ok(())
    }

    /// Nothing is committed; a workload that does this again and again is failed, so that the
    /// others go on.
    async fn strike(
        &mut self,
        culprit: Option<String>,
        messages: &[String],
    ) -> Result<Turn, sqlx::Error> {
        metrics::counter!("allotment_scheduler_faults_total").increment(1);
        let first = messages.first().map_or("", String::as_str);
        tracing::error!(
            workload = culprit,
            fault = first,
            count = messages.len(),
            "plan refused, nothing was committed"
        );
        self.spoiled = self.spoiled.saturating_add(1);
        if culprit.is_none() || self.spoiled > STRIKES_MAX {
            self.tell_stopped().await?;
        }
        let Some(culprit) = culprit else {
            return Ok(Turn::Stuck);
        };
        let strikes = self.strikes.entry(culprit.clone()).or_default();
        *strikes += 1;
        let spent = *strikes >= STRIKES_MAX;
        // The next turn is due at once: the strikes are counted in turns, not in changes.
        self.fresh = true;
        if spent && let Some(id) = translate::job_id(&culprit) {
            let message = "the scheduler could not plan it; an administrator finds the cause in the server's log";
            if settle::fail_waiting(
                &self.app,
                self.epoch,
                &[(id, "invalid", message.to_owned())],
            )
            .await?
                == settle::Settled::Fenced
            {
                return Ok(Turn::Fenced);
            }
            self.strikes.remove(&culprit);
        }
        Ok(self.stands())
    }

    /// Wakes whoever acts on the commit, and stores why the rest waits.
    async fn tell(
        &mut self,
        world: &World,
        plan: &Plan,
        outcome: &Outcome,
    ) -> Result<(), sqlx::Error> {
        self.refusals = if outcome.refused.is_empty() || outcome.committed > 0 {
            0
        } else {
            self.refusals.saturating_add(1)
        };
        // What is refused again and again waits for the tick instead of spinning.
        let again = (1..=REFUSALS_MAX).contains(&self.refusals);
        let mut wake = outcome.committed > 0 || again;
        for (workload, why) in &outcome.refused {
            metrics::counter!("allotment_scheduler_refused_total").increment(1);
            tracing::info!(
                workload,
                why,
                "decision refused at commit, planning it again"
            );
            self.fresh = true;
        }
        let mut news = self.told.news(world, &self.mirror.records, plan);
        news.tell_beyond(world, &self.mirror).await;
        self.fresh |= news.cut;
        let stored = self.store(&news).await;
        if stored.is_err() {
            // What is stored is not known: all of it is told anew.
            self.told = Told::default();
        }
        wake |= stored?;
        if wake {
            self.app.wake.all();
        }
        Ok(())
    }

    /// Stores news of what waits; whether any job's verdict changed.
    async fn store(&self, news: &News) -> Result<bool, sqlx::Error> {
        if news.nothing() {
            return Ok(false);
        }
        let mut tx = self.app.db.begin_system().await?;
        if epochs::share(&mut tx).await? != self.epoch {
            return Ok(false);
        }
        let changed = news.store(&mut tx).await?;
        tx.commit().await?;
        Ok(changed)
    }
}

/// The next moment at which a plan may come out otherwise although no row changes.
fn next_moment(world: &World, records: &Records) -> Option<Timestamp> {
    let later = |at: Option<Timestamp>| at.filter(|at| *at > world.now);
    let delays = world
        .pools
        .iter()
        .map(|pool| pool.preemption.delay_seconds)
        .filter(|s| *s > 0);
    let delay = delays.min().map(chrono::TimeDelta::seconds);
    let of_work = world.workloads.iter().flat_map(|work| {
        let waits = work.state == WorkloadState::Waiting;
        [
            later(work.not_before),
            later(work.nominated.as_ref().map(|n| n.until)),
            later(delay.filter(|_| waits).map(|delay| work.submitted + delay)),
        ]
    });
    let booked = world.bookings.iter().flat_map(|b| [b.from, b.to]);
    let booked = booked.filter_map(|at| later(Some(at)));
    let edge = windows::next_edge(&records.windows, world.now);
    let attempts = records.jobs.values().filter_map(|job| job.attempt);
    let grown = attempts.filter_map(|attempt| later(attempt.grow_after));
    of_work
        .flatten()
        .chain(booked)
        .chain(edge)
        .chain(grown)
        .min()
}
