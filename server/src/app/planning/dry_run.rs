//! What would happen to a job that was submitted now.

mod array;

use domain::money::Money;
use domain::name::Name;
use domain::sharing::SharingMode;
use domain::spec::{Array, JobSpec};
use domain::{MilliGpu, Timestamp, words};
use engine::plan::{Code, Preemption, SliceChange, Waiting, WorkerPlace};
use engine::world::{Workload, World};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::accuracy::{self, Accuracy};
use super::price::{self, CostThere};
use super::workload;
use crate::app::authorise::Action;
use crate::app::jobs::{self, BeyondQuota, Prospect};
use crate::app::questions::{self, live};
use crate::app::{App, AppError, Asker, budgets, usage};
use crate::scheduler::discreet;
use crate::store;
pub use array::{DryRunArray, ElementsOn, ElementsWaiting};

/// What would happen to a job that was submitted now.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DryRun {
    /// `starts`, `waits_for_victims`, `waits` or `refused`.
    pub verdict: DryRunVerdict,
    /// The same as a sentence.
    pub message: String,
    /// Where it would run, by worker; empty while it would wait.
    pub placement: Vec<DryRunWorker>,
    /// What would be changed on its devices for it: instances that are cut or removed, modes
    /// that are switched.
    pub slices: Vec<DryRunSlices>,
    /// When it would start by the ends that are known; null where it starts at once, and where
    /// no start can be estimated.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expected_start: Option<Timestamp>,
    /// The nodes on which that start would be kept for it, where one would be.
    pub expected_nodes: Vec<String>,
    /// How far expected starts in its pool were out of late, where one is told and such are known.
    pub accuracy: Option<Accuracy>,
    /// What it would cost per hour there, which is nothing without GPUs; where it would wait, what it
    /// costs in the pool in which it is expected to start, else wherever it may, if that is the same
    /// everywhere. Null where no price covers it.
    pub cost_per_hour: Option<Money>,
    /// Where it would wait: what it costs per hour in each pool and mode in which it may start.
    pub costs_per_hour: Vec<CostThere>,
    /// Whom it would displace, in aggregate.
    pub displaces: Displaced,
    /// Why it would wait, in the form of an explanation.
    #[schema(value_type = Option<Object>)]
    pub waiting: Option<Value>,
    /// What of a quota can never admit it; null where no quota is in its way for good.
    pub beyond_quota: Option<BeyondQuota>,
    /// What a submission would be refused for; null where it would be taken.
    pub refusal: Option<Refusal>,
    /// Of an array, what would happen to its elements; the rest is then told of the first of them,
    /// but for whom all of them would displace. Null of any other job.
    pub array: Option<DryRunArray>,
}

/// What a job is refused for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    /// The word for programs that ends the type of the submission's problem.
    pub code: String,
    /// The key of the spec at fault.
    pub field: String,
    /// What it held.
    pub value: String,
    /// What would be accepted.
    pub remedy: String,
}

/// What a dry run comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DryRunVerdict {
    /// It would start at once.
    Starts,
    /// It would start as soon as those whom it displaces have left.
    WaitsForVictims,
    /// It would wait.
    Waits,
    /// It could never run here, and would be refused.
    Refused,
}

/// Where one worker would run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DryRunWorker {
    /// Its rank.
    pub worker: u32,
    /// Its node.
    pub node: String,
    /// Its devices.
    pub devices: Vec<DryRunDevice>,
}

/// A device, or the part of one.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DryRunDevice {
    /// Its place on the node.
    pub index: u32,
    /// How it would be given out.
    pub mode: SharingMode,
    /// How much of it.
    pub gpus: MilliGpu,
    /// The profile of its MIG instance; null where it is none.
    pub mig: Option<String>,
    /// The memory slice of the device at which that instance begins.
    pub start: Option<u32>,
    /// The memory of a fraction, in MiB.
    pub memory_mib: Option<i64>,
}

/// What would be changed on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DryRunSlices {
    /// The node.
    pub node: String,
    /// The device's place on it.
    pub index: u32,
    /// The mode to which it would be switched; null where it stays as it is.
    pub mode: Option<SharingMode>,
    /// Instances that would be cut.
    pub create: Vec<DryRunInstance>,
    /// Idle instances that would be removed.
    pub destroy: Vec<DryRunInstance>,
}

/// An instance of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DryRunInstance {
    /// Its profile.
    pub profile: String,
    /// The memory slice at which it begins.
    pub start: u32,
}

impl From<engine::plan::Instance> for DryRunInstance {
    fn from(instance: engine::plan::Instance) -> Self {
        Self {
            profile: instance.profile,
            start: instance.start,
        }
    }
}

/// Work that would have to leave, without saying whose.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Displaced {
    /// How many jobs.
    pub jobs: u32,
    /// Of these, jobs of the asker's own teams.
    pub own_jobs: u32,
    /// What they hold.
    pub gpus: MilliGpu,
    /// How many jobs more would be moved to another place, and go on there.
    pub moved_jobs: u32,
    /// GPU-seconds of work that would be lost.
    pub lost_gpu_seconds: i64,
}

impl Displaced {
    /// When that is so for which all of them leave.
    fn made_room(&self) -> String {
        let leaving = u64::from(self.jobs + self.moved_jobs);
        format!(
            "when {} {} made room",
            words::counted(leaving, "running job"),
            words::form(leaving, words::HAS)
        )
    }
}

/// Says what would happen to a job that was submitted now; changes nothing.
pub async fn dry_run(
    app: &App,
    asker: &Asker,
    team: &Name,
    spec: JobSpec,
) -> Result<DryRun, AppError> {
    let world = live(app).await?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let team = jobs::check(&mut tx, &world, asker, Action::DryRunJob, team, &spec).await?;
    budgets::admit(app, &mut tx, asker, &team, &[&spec]).await?;
    let own = store::teams::names_of(&mut tx, &asker.scope().teams).await?;
    tx.commit().await?;
    let week = questions::week(app).await?;
    let asked = workload(&world, team.name.as_str(), asker.user_id, &spec);
    let wanted = price::Wanted::of(&spec);
    let shape: Option<Array> = spec.array;
    let tried = move || {
        let prospect = jobs::prospect(&week, &spec, asked.clone());
        let outcomes = engine::dry_runs(&world, array::elements(asked, shape));
        (world, outcomes, prospect)
    };
    let (world, outcomes, prospect) = app.questions.ask("plan a dry run", tried).await?;
    let elements = shape.map(|shape| array::told(&world, shape, &outcomes, &own));
    let first = outcomes.into_iter().next();
    let first = first.expect("a spec asks for one workload at least");
    let (mut answer, pool) = answer(&world, team.name.as_str(), first, &own);
    if let Some(elements) = elements {
        elements.tell(&mut answer);
    }
    foresee(&mut answer, prospect);
    answer.accuracy = match (&pool, answer.expected_start) {
        (Some(pool), Some(_)) => accuracy::of_pool(app, pool).await?,
        _ => None,
    };
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    answer.cost_per_hour = match answer.verdict {
        DryRunVerdict::Refused => None,
        _ if wanted.no_gpus() => usage::nothing(&mut tx).await?,
        _ if answer.placement.is_empty() => {
            let costs = price::by_pool(&mut tx, &world, &wanted).await?;
            let expected = pool.as_deref().filter(|_| answer.expected_start.is_some());
            let there = |cost: &&CostThere| expected.is_none_or(|pool| cost.pool == pool);
            let common = price::common(costs.iter().filter(there));
            answer.costs_per_hour = costs;
            common
        }
        _ => price::there(&mut tx, &world, &answer.placement).await?,
    };
    if let Some(array) = &mut answer.array {
        array.price(&mut tx, &world).await?;
    }
    tx.commit().await?;
    Ok(answer)
}

/// The answer, and the pool that an expected start is of.
fn answer(
    world: &World,
    team: &str,
    outcome: engine::DryRun,
    own_teams: &[String],
) -> (DryRun, Option<String>) {
    let mut answer = DryRun {
        verdict: DryRunVerdict::Waits,
        message: String::new(),
        placement: Vec::new(),
        slices: Vec::new(),
        expected_start: None,
        expected_nodes: Vec::new(),
        accuracy: None,
        cost_per_hour: None,
        costs_per_hour: Vec::new(),
        displaces: Displaced::default(),
        waiting: None,
        beyond_quota: None,
        refusal: None,
        array: None,
    };
    let waiting = match outcome {
        engine::DryRun::Starts { start, slices } => {
            answer.verdict = DryRunVerdict::Starts;
            answer.message = "it would start at once".to_owned();
            answer.placement = places(&start.placement);
            answer.slices = changes(slices);
            return (answer, None);
        }
        engine::DryRun::Displaces {
            nomination,
            slices,
            victims,
            movers,
            waiting,
        } => {
            answer.verdict = DryRunVerdict::WaitsForVictims;
            answer.displaces = displaced(world, &victims, own_teams);
            answer.displaces.moved_jobs = u32::try_from(movers.len()).unwrap_or(u32::MAX);
            answer.message = format!("it would start {}", answer.displaces.made_room());
            answer.placement = places(&nomination.placement);
            answer.slices = changes(slices);
            waiting
        }
        engine::DryRun::Waits {
            waiting,
            reservation,
        } => {
            answer.message = discreet::verdict(world, team, &waiting).message.to_string();
            answer.expected_nodes = reservation.map_or_else(Vec::new, |kept| kept.nodes);
            waiting
        }
    };
    answer.expected_start = waiting.expected_start;
    answer.waiting = Some(public(world, team, &waiting));
    let estimated = waiting.code != Code::NotYet;
    let pool = waiting.pool.filter(|_| estimated);
    (answer, pool.as_deref().map(str::to_owned))
}

fn changes(slices: Vec<SliceChange>) -> Vec<DryRunSlices> {
    let told = |change: SliceChange| DryRunSlices {
        node: change.node,
        index: change.index,
        mode: change.mode,
        create: change.create.into_iter().map(Into::into).collect(),
        destroy: change.destroy.into_iter().map(Into::into).collect(),
    };
    slices.into_iter().map(told).collect()
}

/// Adds what would be said of the job whatever else runs.
fn foresee(answer: &mut DryRun, prospect: Prospect) {
    match prospect {
        Prospect::Open => {}
        Prospect::BeyondQuota(beyond, _) => {
            answer.message = beyond.to_string();
            if let Some(waiting) = &mut answer.waiting {
                beyond.mend(waiting);
            }
            answer.beyond_quota = Some(beyond);
        }
        Prospect::Closed { code, field } => {
            answer.verdict = DryRunVerdict::Refused;
            answer.message = field.to_string();
            answer.placement = Vec::new();
            answer.slices = Vec::new();
            answer.expected_start = None;
            answer.expected_nodes = Vec::new();
            answer.displaces = Displaced::default();
            answer.array = None;
            answer.refusal = Some(Refusal {
                code: code.as_str().to_owned(),
                field: field.field,
                value: field.value,
                remedy: field.remedy,
            });
        }
    }
}

/// A verdict as its team may read it.
fn public(world: &World, team: &str, waiting: &Waiting) -> Value {
    serde_json::to_value(discreet::verdict(world, team, waiting)).unwrap_or_default()
}

fn places(placement: &[WorkerPlace]) -> Vec<DryRunWorker> {
    (0..)
        .zip(placement)
        .map(|(worker, place)| DryRunWorker {
            worker,
            node: place.node.clone(),
            devices: place
                .devices
                .iter()
                .map(|d| DryRunDevice {
                    index: d.index,
                    mode: d.mode,
                    gpus: d.gpus,
                    mig: d.mig.clone(),
                    start: d.start,
                    memory_mib: d.memory_mib,
                })
                .collect(),
        })
        .collect()
}

fn displaced(world: &World, victims: &[Preemption], own_teams: &[String]) -> Displaced {
    let mut sum = Displaced::default();
    for preemption in victims {
        let Some(victim) = world.workload(&preemption.workload) else {
            continue;
        };
        sum.jobs += 1;
        sum.own_jobs += u32::from(own_teams.contains(&victim.team));
        sum.gpus += given_up(victim, preemption);
        sum.lost_gpu_seconds = sum
            .lost_gpu_seconds
            .saturating_add(preemption.lost_gpu_seconds);
    }
    sum
}

/// What a victim gives up: all of it, or of a gang that shrinks the ranks that go.
fn given_up(work: &Workload, preemption: &Preemption) -> MilliGpu {
    let goes = |rank: usize| {
        let of = |released: &u32| usize::try_from(*released) == Ok(rank);
        preemption.to_workers == 0 || preemption.released.iter().any(of)
    };
    let ranks = work
        .placed
        .iter()
        .enumerate()
        .filter(|(rank, _)| goes(*rank));
    ranks
        .flat_map(|(_, place)| &place.devices)
        .map(|device| device.gpus)
        .sum()
}
