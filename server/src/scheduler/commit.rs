//! Commits a plan in one transaction: under the epoch, each decision against the row that it was made for.

use std::collections::{BTreeMap, BTreeSet};

use domain::eviction::{EvictionKind, EvictionRule};
use domain::ids::{JobId, NodeId};
use domain::quantity::MILLI;
use domain::sharing::SharingMode;
use domain::state::{AttemptEnd, JobState, NodeIntent, Reachability};
use engine::plan::{Migration, Plan, Preemption, Reason, Resize, Start, WorkerPlace};
use serde_json::{Value, json};

use super::world::{JobRecord, Mirror, NodeRecord};
use super::{gang, kept, slices, translate};
use crate::app::{App, bookings};
use crate::lifecycle::{
    self, Actor, Dismissal, Eviction, Gainer, Grant, GrantDevice, GrantWorker, LifecycleError, Stop,
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
    for decision in decisions(plan).take(DECISIONS_MAX) {
        store::mark(&mut tx).await?;
        match desk.take(&mut tx, decision).await {
            Ok(()) => {
                store::release_mark(&mut tx).await?;
                outcome.committed += 1;
            }
            Err(LifecycleError::Database(error)) => return Err(error),
            Err(error) => {
                store::undo_to_mark(&mut tx).await?;
                outcome
                    .refused
                    .push((decision.workload().to_owned(), error.to_string()));
            }
        }
    }
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
        let moved = moved_teams(tx, mirror, plan).await?;
        Ok(Self {
            mirror,
            nodes,
            open,
            moved,
            preferred,
            grace_ms,
        })
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
            Decision::Start(start) => self.start(tx, &start.workload, &start.placement).await,
            Decision::Resize(resize) => self.grow(tx, resize).await,
        }
    }

    /// The job behind a workload, locked, if it is still as the plan saw it.
    async fn lock(
        &self,
        tx: &mut Tx,
        workload: &str,
    ) -> Result<(&'p JobRecord, JobRow), LifecycleError> {
        let missed = || LifecycleError::Missed(format!("job {workload}"));
        let id: JobId = translate::job_id(workload).ok_or_else(missed)?;
        let seen = self.mirror.records.jobs.get(&id).ok_or_else(missed)?;
        let job = jobs::lock(tx, id).await?.ok_or_else(missed)?;
        if (job.state, job.version) != (seen.row.state, seen.row.version) {
            return Err(missed());
        }
        Ok((seen, job))
    }

    async fn start(
        &self,
        tx: &mut Tx,
        workload: &str,
        places: &[WorkerPlace],
    ) -> Result<(), LifecycleError> {
        let (seen, mut job) = self.lock(tx, workload).await?;
        let note = self.checkpoint_note(workload, places);
        let grant = self.granted(seen, places, note)?;
        lifecycle::grant(tx, &mut job, &grant, &Actor::Scheduler).await?;
        Ok(())
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
        let evicted = self.eviction(&job, EvictionKind::Shrink, victim.reason, gainer);
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
        let evicted = self.eviction(&job, kind, reason, gainer);
        let told = told(evicted.rule);
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

    /// Why a victim gives way. A plan says of a gang only that it is shrunk: between two teams that is
    /// to take a guarantee back, and within one for work of higher priority.
    fn eviction(
        &self,
        victim: &JobRow,
        kind: EvictionKind,
        reason: Reason,
        gainer: Option<&str>,
    ) -> Eviction {
        let records = &self.mirror.records;
        let job = gainer.and_then(translate::job_id);
        let team = job.and_then(|id| Some(&records.jobs.get(&id)?.row.team));
        let booking = || {
            let name = gainer?;
            let mut all = records.bookings.iter();
            let found = all.find(|b| bookings::world_name(&b.pool, &b.name) == name)?;
            Some(Gainer::Booking(found.name.to_string(), found.team_id))
        };
        Eviction {
            kind,
            rule: match reason {
                Reason::Reclaim => EvictionRule::Reclaim,
                Reason::Priority => EvictionRule::Priority,
                Reason::Share => EvictionRule::Share,
                Reason::Shrink if team == Some(&victim.team) => EvictionRule::Priority,
                Reason::Shrink => EvictionRule::Reclaim,
                Reason::Consolidation => EvictionRule::Consolidation,
                Reason::Reservation => EvictionRule::Reservation,
                Reason::Drain => EvictionRule::Drain,
            },
            gainer: job.map(Gainer::Job).or_else(booking),
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

/// Teams of work that starts or grows whose quotas, or those above them, changed since the plan was made. The rows
/// stay locked, so that no quota is lowered beside an admission that it should have stopped.
async fn moved_teams(
    tx: &mut Tx,
    mirror: &Mirror,
    plan: &Plan,
) -> Result<BTreeSet<String>, sqlx::Error> {
    let parents: BTreeMap<&str, Option<&str>> = mirror
        .records
        .teams
        .iter()
        .map(|t| (t.name.as_str(), t.parent.as_deref()))
        .collect();
    let line = |team: &str| {
        let mut line = vec![team.to_owned()];
        let mut at = parents.get(team).copied().flatten();
        while let Some(parent) = at.filter(|parent| !line.iter().any(|seen| seen == parent)) {
            line.push(parent.to_owned());
            at = parents.get(parent).copied().flatten();
        }
        line
    };
    let starters: BTreeSet<&str> = plan
        .starts
        .iter()
        .map(|start| &start.workload)
        .chain(plan.resizes.iter().map(|resize| &resize.workload))
        .filter_map(|workload| translate::job_id(workload))
        .filter_map(|id| mirror.records.jobs.get(&id))
        .map(|job| job.row.team.as_str())
        .collect();
    let lines: BTreeMap<&str, Vec<String>> =
        starters.iter().map(|team| (*team, line(team))).collect();
    let wanted: Vec<String> = lines
        .values()
        .flatten()
        .cloned()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let windows = store::windows::share(tx).await?;
    let known = mirror.records.windows.iter().map(|w| (w.id, w.version));
    if !starters.is_empty() && windows != known.collect::<BTreeMap<_, _>>() {
        // What they bring may have been lowered, for whomever.
        return Ok(lines.into_keys().map(str::to_owned).collect());
    }
    let found = rows::share_quotas(tx, &wanted).await?;
    let known: Vec<_> = mirror
        .records
        .quotas
        .iter()
        .filter(|q| wanted.contains(&q.team))
        .collect();
    let differs = |team: &String| {
        found
            .iter()
            .filter(|q| q.team == *team)
            .ne(known.iter().copied().filter(|q| q.team == *team))
    };
    Ok(lines
        .into_iter()
        .filter(|(_, line)| line.iter().any(differs))
        .map(|(team, _)| team.to_owned())
        .collect())
}

/// What a victim is told. Not for whom: that may be another team's.
fn told(rule: EvictionRule) -> &'static str {
    match rule {
        EvictionRule::Reclaim => {
            "preempted: a team took back its guarantee, which this job had borrowed"
        }
        EvictionRule::Priority => "preempted by work of higher priority of its own team",
        EvictionRule::Share => "preempted: another borrower held less than this team",
        EvictionRule::Consolidation => "moved to make room for work on whole devices",
        EvictionRule::Reservation => "preempted: capacity that was booked ahead begins",
        EvictionRule::Drain => "preempted: its node is being emptied",
    }
}
