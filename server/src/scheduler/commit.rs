//! Commits a plan in one transaction: under the epoch, each decision against the row that it was made for.

mod moved;
mod why;

use std::collections::{BTreeMap, BTreeSet};

use domain::eviction::EvictionKind;
use domain::ids::{JobId, NodeId};
use domain::quantity::MILLI;
use domain::sharing::SharingMode;
use domain::state::{AttemptEnd, JobState, NodeIntent, Reachability};
use engine::plan::{Migration, Plan, Preemption, Reason, Resize, Start, WorkerPlace};
use serde_json::{Value, json};

use super::world::{JobRecord, Mirror, NodeRecord};
use super::{gang, kept, slices, translate};
use crate::app::App;
use crate::lifecycle::{
    self, Actor, Dismissal, Grant, GrantDevice, GrantWorker, LifecycleError, Stop,
};
use crate::store::assignments::Assignment;
use crate::store::attempts::{self, AttemptRow};
use crate::store::epochs::{self, Epoch};
use crate::store::jobs::{self, JobRow};
use crate::store::world as rows;
use crate::store::{self, Tx};

/// Most starts and preemptions of one commit: a longer plan is committed in parts, in its
/// order, so that no transaction holds its locks for long.
const DECISIONS_MAX: usize = 200;

/// What came of a commit.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Decisions that were committed.
    pub committed: usize,
    /// Workloads whose decision was refused, and why; to be planned again.
    pub refused: Vec<(String, String)>,
    /// Another leader has raised the epoch: nothing was committed.
    pub fenced: bool,
}

impl Outcome {
    fn refuse(&mut self, workload: &str, why: &LifecycleError) {
        self.refused.push((workload.to_owned(), why.to_string()));
    }
}

/// What the decisions of one plan are checked against.
struct Desk<'p> {
    mirror: &'p Mirror,
    nodes: BTreeMap<&'p str, &'p NodeRecord>,
    /// Nodes that may take work; they stay so until this transaction ends.
    open: BTreeSet<NodeId>,
    /// Teams whose quotas, or whose ancestors' quotas, are not those of the plan.
    moved: BTreeSet<String>,
    preferred: &'p BTreeMap<String, String>,
    grace_ms: i64,
}

/// Commits what `plan` decided on the world in `mirror`.
pub async fn commit(
    app: &App,
    epoch: Epoch,
    mirror: &Mirror,
    plan: &Plan,
    preferred: &BTreeMap<String, String>,
) -> Result<Outcome, sqlx::Error> {
    let mut outcome = Outcome::default();
    let nominations = kept::changes(app, mirror, plan);
    if plan.idle() && nominations.is_empty() {
        return Ok(outcome);
    }
    let mut tx = app.db.begin_system().await?;
    if epochs::share(&mut tx).await? != epoch {
        outcome.fenced = true;
        return Ok(outcome);
    }
    // All jobs before all nodes, each in the order of their ids: whoever fences the work of a
    // lost node locks a job and then its node, and the two would wait for each other. A job that
    // others give way for is among them, since their evictions refer to it.
    let decided: BTreeSet<JobId> = decisions(plan)
        .take(DECISIONS_MAX)
        .flat_map(|decision| [Some(decision.workload()), decision.gainer()])
        .filter_map(|workload| translate::job_id(workload?))
        .collect();
    jobs::lock_all(&mut tx, &decided.into_iter().collect::<Vec<_>>()).await?;
    let desk = Desk::lay(
        &mut tx,
        mirror,
        plan,
        preferred,
        app.config.timers.kill_grace_ms,
    )
    .await?;
    let (starts, others): (Vec<Decision<'_>>, Vec<Decision<'_>>) = decisions(plan)
        .take(DECISIONS_MAX)
        .partition(|decision| matches!(decision, Decision::Start(_)));
    let (leaving, growing): (Vec<Decision<'_>>, Vec<Decision<'_>>) = others
        .into_iter()
        .partition(|decision| !matches!(decision, Decision::Resize(_)));
    let starts: Vec<&Start> = starts.into_iter().filter_map(Decision::start).collect();
    desk.take_each(&mut tx, &leaving, &mut outcome).await?;
    desk.start_all(&mut tx, &starts, &mut outcome).await?;
    desk.take_each(&mut tx, &growing, &mut outcome).await?;
    if let Some(later) = decisions(plan).nth(DECISIONS_MAX) {
        let why = "the plan is longer than one commit".to_owned();
        outcome.refused.push((later.workload().to_owned(), why));
    }
    for (id, nominated) in &nominations {
        jobs::set_nominated(&mut tx, *id, nominated.as_ref()).await?;
    }
    tx.commit().await?;
    Ok(outcome)
}

/// One thing that a plan wants to be done.
#[derive(Debug, Clone, Copy)]
enum Decision<'p> {
    Preempt(&'p Preemption),
    Migrate(&'p Migration),
    Start(&'p Start),
    Resize(&'p Resize),
}

/// The decisions of a plan: what leaves, then what starts, each in the plan's own order.
fn decisions(plan: &Plan) -> impl Iterator<Item = Decision<'_>> {
    let leaving = plan.preemptions.iter().map(Decision::Preempt);
    let moving = plan.migrations.iter().map(Decision::Migrate);
    let starting = plan.starts.iter().map(Decision::Start);
    leaving
        .chain(moving)
        .chain(starting)
        .chain(plan.resizes.iter().map(Decision::Resize))
}

impl<'p> Decision<'p> {
    fn workload(self) -> &'p str {
        match self {
            Self::Preempt(preemption) => &preemption.workload,
            Self::Migrate(migration) => &migration.workload,
            Self::Start(start) => &start.workload,
            Self::Resize(resize) => &resize.workload,
        }
    }

    fn start(self) -> Option<&'p Start> {
        match self {
            Self::Start(start) => Some(start),
            Self::Preempt(_) | Self::Migrate(_) | Self::Resize(_) => None,
        }
    }

    /// For whom something gives way.
    fn gainer(self) -> Option<&'p str> {
        match self {
            Self::Preempt(preemption) => preemption.gainer.as_deref(),
            Self::Migrate(migration) => migration.gainer.as_deref(),
            Self::Start(_) | Self::Resize(_) => None,
        }
    }
}

impl<'p> Desk<'p> {
    async fn lay(
        tx: &mut Tx,
        mirror: &'p Mirror,
        plan: &Plan,
        preferred: &'p BTreeMap<String, String>,
        grace_ms: i64,
    ) -> Result<Self, sqlx::Error> {
        let nodes: BTreeMap<&str, &NodeRecord> = mirror
            .records
            .nodes
            .values()
            .map(|n| (n.row.name.as_str(), n))
            .collect();
        let used: BTreeSet<NodeId> = plan
            .starts
            .iter()
            .map(|start| &start.placement)
            .chain(plan.resizes.iter().map(|resize| &resize.placement))
            .flatten()
            .filter_map(|place| nodes.get(place.node.as_str()).map(|n| n.row.id))
            .collect();
        let found = rows::hold_nodes(tx, &used.into_iter().collect::<Vec<_>>()).await?;
        let open = found
            .into_iter()
            .filter(|n| n.intent == NodeIntent::Open && n.reachability == Reachability::Ready)
            .map(|n| n.id)
            .collect();
        let moved = moved::teams(tx, mirror, plan).await?;
        Ok(Self {
            mirror,
            nodes,
            open,
            moved,
            preferred,
            grace_ms,
        })
    }

    /// Takes decisions one by one: each is done or refused by itself.
    async fn take_each(
        &self,
        tx: &mut Tx,
        decisions: &[Decision<'_>],
        outcome: &mut Outcome,
    ) -> Result<(), sqlx::Error> {
        for decision in decisions {
            store::mark(tx).await?;
            match self.take(tx, *decision).await {
                Ok(()) => {
                    store::release_mark(tx).await?;
                    outcome.committed += 1;
                }
                Err(LifecycleError::Database(error)) => return Err(error),
                Err(error) => {
                    store::undo_to_mark(tx).await?;
                    outcome.refuse(decision.workload(), &error);
                }
            }
        }
        Ok(())
    }

    async fn take(&self, tx: &mut Tx, decision: Decision<'_>) -> Result<(), LifecycleError> {
        match decision {
            Decision::Preempt(p) if p.to_workers > 0 => self.shrink(tx, p).await,
            Decision::Preempt(p) => {
                let (kind, gainer) = (EvictionKind::Preemption, p.gainer.as_deref());
                self.displace(tx, &p.workload, kind, p.reason, gainer).await
            }
            Decision::Migrate(m) => {
                let (kind, gainer) = (EvictionKind::Move, m.gainer.as_deref());
                let reason = if gainer.is_some() {
                    Reason::Consolidation
                } else {
                    Reason::Drain
                };
                self.displace(tx, &m.workload, kind, reason, gainer).await
            }
            Decision::Start(start) => {
                let job = self.lock(tx, &start.workload).await?;
                self.start(tx, vec![self.prepared(job, start)?]).await
            }
            Decision::Resize(resize) => self.grow(tx, resize).await,
        }
    }

    /// Starts all together, and one by one where together they are refused.
    async fn start_all(
        &self,
        tx: &mut Tx,
        starts: &[&Start],
        outcome: &mut Outcome,
    ) -> Result<(), sqlx::Error> {
        let ids = starts.iter().filter_map(|s| translate::job_id(&s.workload));
        let rows = jobs::lock_and_read(tx, &ids.collect::<Vec<_>>()).await?;
        let mut rows: BTreeMap<JobId, JobRow> = rows.into_iter().map(|job| (job.id, job)).collect();
        let mut ready = Vec::with_capacity(starts.len());
        let mut granted = Vec::with_capacity(starts.len());
        for start in starts {
            let row = translate::job_id(&start.workload).and_then(|id| rows.remove(&id));
            let seen = self.seen(&start.workload, row);
            match seen.and_then(|job| self.prepared(job, start)) {
                Ok(grant) => {
                    granted.push(grant);
                    ready.push(Decision::Start(start));
                }
                Err(LifecycleError::Database(error)) => return Err(error),
                Err(error) => outcome.refuse(&start.workload, &error),
            }
        }
        if granted.is_empty() {
            return Ok(());
        }
        store::mark(tx).await?;
        match self.start(tx, granted).await {
            Ok(()) => {
                store::release_mark(tx).await?;
                outcome.committed += ready.len();
                Ok(())
            }
            Err(LifecycleError::Database(error)) => Err(error),
            Err(_) => {
                store::undo_to_mark(tx).await?;
                self.take_each(tx, &ready, outcome).await
            }
        }
    }

    /// The job behind a workload, locked, if it is still as the plan saw it.
    async fn lock(
        &self,
        tx: &mut Tx,
        workload: &str,
    ) -> Result<(&'p JobRecord, JobRow), LifecycleError> {
        let row = match translate::job_id(workload) {
            Some(id) => jobs::lock(tx, id).await?,
            None => None,
        };
        self.seen(workload, row)
    }

    /// A locked job with what the plan saw of it, if it is still so.
    fn seen(
        &self,
        workload: &str,
        row: Option<JobRow>,
    ) -> Result<(&'p JobRecord, JobRow), LifecycleError> {
        let missed = || LifecycleError::Missed(format!("job {workload}"));
        let job = row.ok_or_else(missed)?;
        let seen = self.mirror.records.jobs.get(&job.id).ok_or_else(missed)?;
        if (job.state, job.version) != (seen.row.state, seen.row.version) {
            return Err(missed());
        }
        Ok((seen, job))
    }

    /// A locked job with what it is given.
    fn prepared(
        &self,
        (seen, job): (&JobRecord, JobRow),
        start: &Start,
    ) -> Result<(JobRow, Grant), LifecycleError> {
        let note = self.checkpoint_note(&start.workload, &start.placement);
        let grant = self.granted(seen, &start.placement, note)?;
        Ok((job, grant))
    }

    async fn start(
        &self,
        tx: &mut Tx,
        mut granted: Vec<(JobRow, Grant)>,
    ) -> Result<(), LifecycleError> {
        lifecycle::grant(tx, &mut granted, &Actor::Scheduler).await
    }

    /// Gives a running gang the workers that it grows by.
    async fn grow(&self, tx: &mut Tx, resize: &Resize) -> Result<(), LifecycleError> {
        let (seen, mut job) = self.lock(tx, &resize.workload).await?;
        let grant = self.granted(seen, &resize.placement, json!({}))?;
        lifecycle::grow(tx, &mut job, &grant, &Actor::Scheduler).await
    }

    /// Lets a running gang go on without its highest ranks.
    async fn shrink(&self, tx: &mut Tx, victim: &Preemption) -> Result<(), LifecycleError> {
        let (seen, mut job) = self.lock(tx, &victim.workload).await?;
        let missed = || LifecycleError::Missed(format!("the gang of job {}", victim.workload));
        let attempt = attempts::lock_live(tx, job.id).await?;
        let same = |attempt: &AttemptRow| seen.attempt.is_some_and(|seen| seen.id == attempt.id);
        let attempt = attempt.filter(same).ok_or_else(missed)?;
        let mut members = gang::members(seen).map(|(worker, _)| worker.worker);
        let from = members.nth(victim.to_workers as usize).ok_or_else(missed)?;
        let gainer = victim.gainer.as_deref();
        let evicted = why::eviction(
            &self.mirror.records,
            &job,
            EvictionKind::Shrink,
            victim.reason,
            gainer,
        );
        let why = Dismissal {
            rule: evicted.rule.as_str(),
            message: "shrunk to make room".to_owned(),
            evicted: Some(evicted),
            grace_ms: self.pool_grace_ms(seen),
        };
        let leaves = |worker: &Assignment| worker.worker >= from;
        let shrunk = lifecycle::shrink(tx, &mut job, &attempt, leaves, &why, &Actor::Scheduler);
        if shrunk.await? { Ok(()) } else { Err(missed()) }
    }

    /// What a job is given at these places, if its team's quota is still as the plan saw it.
    fn granted(
        &self,
        job: &JobRecord,
        places: &[WorkerPlace],
        note: Value,
    ) -> Result<Grant, LifecycleError> {
        let (id, team) = (job.row.id, &job.row.team);
        if self.moved.contains(team) {
            return Err(LifecycleError::Missed(format!("the quota of team {team}")));
        }
        let Ok(spec) = &job.spec else {
            return Err(LifecycleError::Missed(format!("the spec of job {id}")));
        };
        let workers = places.iter().map(|place| self.worker(place));
        Ok(Grant {
            workers: workers.collect::<Result<_, _>>()?,
            cpus: spec.per_worker.cpus,
            memory_mib: spec.per_worker.memory_mib,
            grace_ms: self.grace_ms,
            note,
        })
    }

    fn worker(&self, place: &WorkerPlace) -> Result<GrantWorker, LifecycleError> {
        let node = *self
            .nodes
            .get(place.node.as_str())
            .filter(|node| self.open.contains(&node.row.id))
            .ok_or_else(|| LifecycleError::Missed(format!("node {}", place.node)))?;
        let devices = place.devices.iter().map(|wanted| {
            let device = node.devices.get(&wanted.index).ok_or_else(|| {
                LifecycleError::Missed(format!("device {} of node {}", wanted.index, place.node))
            })?;
            if wanted.mode == SharingMode::Vgpu {
                return Err(LifecycleError::Held(format!(
                    "mode {} is not built yet",
                    wanted.mode
                )));
            }
            let mig = slices::granted(&device.model, wanted)?;
            let memory = match wanted.mode {
                SharingMode::Exclusive => Some(device.memory_mib),
                SharingMode::Mig => Some(device.memory_mib * wanted.gpus.milli() / MILLI),
                _ => wanted.memory_mib,
            };
            Ok(GrantDevice {
                device_id: device.id,
                mode: wanted.mode,
                gpus_milli: i32::try_from(wanted.gpus.milli())
                    .expect("a device is at most 1,000 thousandths"),
                memory_mib: memory.unwrap_or(0),
                mig,
            })
        });
        Ok(GrantWorker {
            node_id: node.row.id,
            node: place.node.clone(),
            devices: devices.collect::<Result<_, LifecycleError>>()?,
        })
    }

    /// Says so when a job's local checkpoints stay behind on another node.
    fn checkpoint_note(&self, workload: &str, places: &[WorkerPlace]) -> Value {
        match self.preferred.get(workload) {
            Some(last) if places.iter().any(|place| place.node != *last) => json!({
                "checkpoints": format!("node {last}, where its checkpoints lie, could not be had"),
            }),
            _ => json!({}),
        }
    }

    /// Tells a running job to leave; it queues again when its last worker has left.
    async fn displace(
        &self,
        tx: &mut Tx,
        workload: &str,
        kind: EvictionKind,
        reason: Reason,
        gainer: Option<&str>,
    ) -> Result<(), LifecycleError> {
        let (seen, mut job) = self.lock(tx, workload).await?;
        let evicted = why::eviction(&self.mirror.records, &job, kind, reason, gainer);
        let told = why::told(evicted.rule);
        let wish = Stop {
            evicted: Some(evicted),
            grace_ms: self.pool_grace_ms(seen),
            job_to: Some(JobState::Preempting),
            ..Stop::because(AttemptEnd::Preempted, told)
        };
        if lifecycle::stop(tx, &mut job, &wish, &Actor::Scheduler).await? {
            Ok(())
        } else {
            Err(LifecycleError::Missed(format!(
                "the attempt of job {workload}"
            )))
        }
    }

    /// The grace of the pool that a job runs in.
    fn pool_grace_ms(&self, job: &JobRecord) -> Option<i64> {
        let (worker, _) = job.workers.first()?;
        let node = self.mirror.records.nodes.get(&worker.node_id)?;
        let pool = self
            .mirror
            .records
            .pools
            .iter()
            .find(|p| p.name == node.row.pool)?;
        let grace = translate::policy(pool).preemption.grace_seconds;
        Some(grace.saturating_mul(1000))
    }
}
