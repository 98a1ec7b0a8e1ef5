//! What the planner would do, asked without doing it: dry runs, explanations, and the live world on paper.

use domain::ids::JobId;
use domain::money::{self, Money, SHOWN_DECIMALS};
use domain::name::Name;
use domain::spec::JobSpec;
use domain::state::JobState;
use domain::{MilliGpu, Timestamp};
use engine::plan::{Preemption, Waiting, WorkerPlace};
use engine::world::{Workload, World};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::questions::{self, live};
use super::{App, AppError, Asker, jobs};
use crate::scheduler::{discreet, translate};
use crate::store::{self, Tx};

/// The name of a workload that is asked about and not submitted; no id looks like it.
const ASKED: &str = "dry-run";

/// What would happen to a job that was submitted now.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DryRun {
    /// `starts`, `waits_for_victims`, `waits` or `refused`.
    pub verdict: DryRunVerdict,
    /// The same as a sentence.
    pub message: String,
    /// Where it would run, by worker; empty while it would wait.
    pub placement: Vec<DryRunWorker>,
    /// What it would cost per hour there; null where no price covers it, or while it would wait.
    pub cost_per_hour: Option<Money>,
    /// Whom it would displace, in aggregate.
    pub displaces: Displaced,
    /// Why it would wait, in the form of an explanation.
    #[schema(value_type = Option<Object>)]
    pub waiting: Option<Value>,
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
    pub mode: domain::sharing::SharingMode,
    /// How much of it.
    pub gpus: MilliGpu,
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
    /// GPU-seconds of work that would be lost.
    pub lost_gpu_seconds: i64,
}

/// Why a job waits, or that it does not.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The job.
    pub job: JobId,
    /// Where it stands.
    pub state: JobState,
    /// Why it waits; null when it does not.
    #[schema(value_type = Option<Object>)]
    pub waiting: Option<Value>,
    /// One sentence for people.
    pub message: String,
    /// Who holds what it could use, in aggregate.
    pub holders: Holders,
    /// When this was so.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

/// Who holds the devices of the pools that a job accepts.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Holders {
    /// Devices of those pools that are well, on nodes that answer.
    pub capacity: MilliGpu,
    /// Held by the job's own team.
    pub own_team: MilliGpu,
    /// Held by other teams together.
    pub other_teams: MilliGpu,
    /// Held by nobody.
    pub free: MilliGpu,
}

/// A spec as a workload that somebody asks about.
pub(super) fn workload(world: &World, team: &str, asker: &Asker, spec: &JobSpec) -> Workload {
    translate::waiting(
        ASKED.to_owned(),
        team,
        asker.user_id.to_string(),
        spec,
        world.now,
    )
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
    let own = store::teams::names_of(&mut tx, &asker.scope().teams).await?;
    tx.commit().await?;
    let asked = workload(&world, team.name.as_str(), asker, &spec);
    let seat = app.questions.sit_down().await?;
    let (world, outcome) = tokio::task::spawn_blocking(move || {
        let outcome = engine::dry_run(&world, asked);
        (world, outcome)
    })
    .await
    .map_err(|error| AppError::Internal(anyhow::Error::new(error).context("plan a dry run")))?;
    drop(seat);
    let mut answer = answer(&world, team.name.as_str(), outcome, &own);
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    answer.cost_per_hour = price(&mut tx, &world, &answer.placement).await?;
    tx.commit().await?;
    Ok(answer)
}

fn answer(world: &World, team: &str, outcome: engine::DryRun, own_teams: &[String]) -> DryRun {
    let mut answer = DryRun {
        verdict: DryRunVerdict::Waits,
        message: String::new(),
        placement: Vec::new(),
        cost_per_hour: None,
        displaces: Displaced::default(),
        waiting: None,
    };
    match outcome {
        engine::DryRun::Starts(start) => {
            answer.verdict = DryRunVerdict::Starts;
            answer.message = "it would start at once".to_owned();
            answer.placement = places(&start.placement);
        }
        engine::DryRun::Displaces {
            nomination,
            victims,
            waiting,
        } => {
            answer.verdict = DryRunVerdict::WaitsForVictims;
            answer.displaces = displaced(world, &victims, own_teams);
            answer.message = format!(
                "it would start when {} running jobs have made room",
                answer.displaces.jobs
            );
            answer.placement = places(&nomination.placement);
            answer.waiting = Some(public(world, team, &waiting));
        }
        engine::DryRun::Waits(waiting) => {
            if jobs::HOPELESS.contains(&waiting.code) {
                answer.verdict = DryRunVerdict::Refused;
            }
            answer.message = discreet::verdict(world, team, &waiting).message;
            answer.waiting = Some(public(world, team, &waiting));
        }
    }
    answer
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
        sum.gpus += held(victim);
        sum.lost_gpu_seconds = sum
            .lost_gpu_seconds
            .saturating_add(preemption.lost_gpu_seconds);
    }
    sum
}

fn held(work: &Workload) -> MilliGpu {
    work.placed
        .iter()
        .flat_map(|p| &p.devices)
        .map(|d| d.gpus)
        .sum()
}

/// What a placement costs per hour by the prices in force; nothing where one is missing.
async fn price(
    tx: &mut Tx,
    world: &World,
    placement: &[DryRunWorker],
) -> Result<Option<Money>, AppError> {
    let mut sum: Option<Money> = None;
    for worker in placement {
        let Some(node) = world.nodes.iter().find(|n| n.name == worker.node) else {
            return Ok(None);
        };
        for device in &worker.devices {
            let Some(price) = store::prices::in_force(tx, &node.pool, device.mode).await? else {
                return Ok(None);
            };
            let part = price.amount * Decimal::new(device.gpus.milli(), 3);
            match &mut sum {
                None => {
                    sum = Some(Money {
                        amount: part,
                        currency: price.currency,
                    })
                }
                Some(sum) if sum.currency == price.currency => sum.amount += part,
                Some(_) => return Ok(None),
            }
        }
    }
    Ok(sum.map(|sum| Money {
        amount: money::round(sum.amount, SHOWN_DECIMALS),
        currency: sum.currency,
    }))
}

/// Why a job waits, from the world as it is now.
pub async fn explain(app: &App, asker: &Asker, id: JobId) -> Result<Explanation, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = jobs::find(&mut tx, asker, Action::ExplainJob, id).await?;
    tx.commit().await?;
    let name = id.to_string();
    let thought = match job.state {
        JobState::Queued | JobState::Suspended => Some(questions::think(app).await?),
        _ => None,
    };
    let asked = thought
        .as_ref()
        .and_then(|thought| Some((thought, thought.world.workload(&name)?)));
    let Some((thought, asked)) = asked else {
        let mut tx = app.db.begin_person(&asker.scope()).await?;
        let at = store::clock(&mut tx).await?;
        tx.commit().await?;
        return Ok(Explanation {
            job: id,
            state: job.state,
            waiting: None,
            message: if job.message.is_empty() {
                format!("the job is {}", job.state)
            } else {
                job.message
            },
            holders: Holders::default(),
            at,
        });
    };
    let waiting = thought
        .plan
        .waiting_for(&name)
        .map(|w| discreet::verdict(&thought.world, &asked.team, w));
    let message = match (&waiting, thought.plan.start_of(&name)) {
        (Some(waiting), _) => waiting.message.clone(),
        (None, Some(_)) => "it starts with the next plan".to_owned(),
        (None, None) => job.message,
    };
    Ok(Explanation {
        job: id,
        state: job.state,
        waiting: waiting.map(|w| serde_json::to_value(w).unwrap_or_default()),
        message,
        holders: holders(&thought.world, asked),
        at: thought.world.now,
    })
}

/// Who holds what a job that waits could use, as it is now; nothing of a job that does not wait.
pub async fn holders_of(app: &App, asker: &Asker, id: JobId) -> Result<Option<Holders>, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = jobs::find(&mut tx, asker, Action::ExplainJob, id).await?;
    tx.commit().await?;
    if !matches!(job.state, JobState::Queued | JobState::Suspended) {
        return Ok(None);
    }
    let world = live(app).await?;
    let work = world.workload(&id.to_string());
    Ok(work.map(|work| holders(&world, work)))
}

/// What the work on a node holds of it, by what a drain does to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// Held by preemptible work, which is placed elsewhere.
    pub moves: MilliGpu,
    /// Held by the rest, which ends by itself.
    pub stays: MilliGpu,
}

/// What a drain of a node would move, and what it would leave.
pub async fn leaving(app: &App, asker: &Asker, node: &Name) -> Result<Leaving, AppError> {
    authorise(asker, Action::DrainNode, Target::Platform)?;
    let world = live(app).await?;
    let mut sum = Leaving {
        moves: MilliGpu::ZERO,
        stays: MilliGpu::ZERO,
    };
    for work in &world.workloads {
        let class = world.classes.iter().find(|class| class.name == work.class);
        let moves = work
            .preemptible
            .unwrap_or_else(|| class.is_some_and(|class| class.preemptible));
        let here = work.placed.iter().filter(|p| p.node == node.as_str());
        let held: MilliGpu = here.flat_map(|p| &p.devices).map(|d| d.gpus).sum();
        *(if moves {
            &mut sum.moves
        } else {
            &mut sum.stays
        }) += held;
    }
    Ok(sum)
}

fn holders(world: &World, work: &Workload) -> Holders {
    let accepted = |pool: &str| work.pools.is_empty() || work.pools.iter().any(|p| p == pool);
    let nodes: Vec<_> = world
        .nodes
        .iter()
        .filter(|n| accepted(&n.pool) && n.state != engine::world::NodeState::Unreachable)
        .collect();
    let well = |n: &&engine::world::Node| {
        i64::from(n.gpus) - i64::try_from(n.failed.len()).unwrap_or(i64::MAX)
    };
    let mut sum = Holders {
        capacity: MilliGpu::whole(nodes.iter().map(well).sum()),
        ..Holders::default()
    };
    for other in &world.workloads {
        let here = other
            .placed
            .iter()
            .filter(|p| nodes.iter().any(|n| n.name == p.node));
        let gpus: MilliGpu = here.flat_map(|p| &p.devices).map(|d| d.gpus).sum();
        if other.team == work.team {
            sum.own_team += gpus;
        } else {
            sum.other_teams += gpus;
        }
    }
    sum.free = sum.capacity.saturating_sub(sum.own_team + sum.other_teams);
    sum
}

/// The live world as a scenario file: teams, pools, classes and nodes by their names, which are
/// unique; workloads and users by their ids.
pub async fn scenario(app: &App, asker: &Asker) -> Result<String, AppError> {
    authorise(asker, Action::GetScenario, Target::Platform)?;
    let world = live(app).await?;
    Ok(engine::scenario::write(&world))
}
