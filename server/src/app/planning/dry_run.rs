//! What would happen to a job that was submitted now.

use domain::MilliGpu;
use domain::money::{self, Money, SHOWN_DECIMALS};
use domain::name::Name;
use domain::sharing::SharingMode;
use domain::spec::JobSpec;
use engine::plan::{Preemption, Waiting, WorkerPlace};
use engine::world::{Workload, World};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::workload;
use crate::app::authorise::Action;
use crate::app::jobs::{self, BeyondQuota, Prospect};
use crate::app::questions::{self, live};
use crate::app::{App, AppError, Asker};
use crate::scheduler::discreet;
use crate::store::prices::PriceInForce;
use crate::store::{self, Tx};

/// What would happen to a job that was submitted now.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DryRun {
    /// `starts`, `waits_for_victims`, `waits` or `refused`.
    pub verdict: DryRunVerdict,
    /// The same as a sentence.
    pub message: String,
    /// Where it would run, by worker; empty while it would wait.
    pub placement: Vec<DryRunWorker>,
    /// What it would cost per hour there; where it would wait, what it costs wherever it may start, if
    /// that is the same everywhere. Null where no price covers it.
    pub cost_per_hour: Option<Money>,
    /// Whom it would displace, in aggregate.
    pub displaces: Displaced,
    /// Why it would wait, in the form of an explanation.
    #[schema(value_type = Option<Object>)]
    pub waiting: Option<Value>,
    /// What of a quota can never admit it; null where no quota is in its way for good.
    pub beyond_quota: Option<BeyondQuota>,
    /// What a submission would be refused for; null where it would be taken.
    pub refusal: Option<Refusal>,
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
    let fleet = questions::fleet(app).await?;
    let asked = workload(&world, team.name.as_str(), asker.user_id, &spec);
    let wanted = Wanted::of(&spec);
    let tried = move || {
        let prospect = jobs::prospect(&fleet, &spec, asked.clone());
        let outcome = engine::dry_run(&world, asked);
        (world, outcome, prospect)
    };
    let (world, outcome, prospect) = app.questions.ask("plan a dry run", tried).await?;
    let mut answer = answer(&world, team.name.as_str(), outcome, &own);
    foresee(&mut answer, prospect);
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    answer.cost_per_hour = match answer.verdict {
        DryRunVerdict::Refused => None,
        _ if answer.placement.is_empty() => price_anywhere(&mut tx, &world, &wanted).await?,
        _ => price(&mut tx, &world, &answer.placement).await?,
    };
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
        beyond_quota: None,
        refusal: None,
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
            answer.message = discreet::verdict(world, team, &waiting).message;
            answer.waiting = Some(public(world, team, &waiting));
        }
    }
    answer
}

/// Adds what would be said of the job whatever else runs.
fn foresee(answer: &mut DryRun, prospect: Prospect) {
    match prospect {
        Prospect::Open => {}
        Prospect::BeyondQuota(beyond, _) => {
            answer.message = beyond.to_string();
            answer.beyond_quota = Some(beyond);
        }
        Prospect::Closed { code, field } => {
            answer.verdict = DryRunVerdict::Refused;
            answer.message = field.to_string();
            answer.placement = Vec::new();
            answer.displaces = Displaced::default();
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

/// What decides the price of work that has no place yet.
struct Wanted {
    /// The pools that it names; empty is any.
    pools: Vec<Name>,
    modes: Vec<SharingMode>,
    gpus: MilliGpu,
    /// Whether it asks for instances, whose part of a device its place decides.
    instances: bool,
}

impl Wanted {
    fn of(spec: &JobSpec) -> Self {
        let each = spec.per_worker.gpus().milli();
        Self {
            pools: spec.pools.clone(),
            modes: spec.per_worker.sharing.clone(),
            gpus: MilliGpu::from_milli(each * i64::from(spec.workers)),
            instances: spec.per_worker.mig_profile.is_some(),
        }
    }

    fn accepts(&self, pool: &str) -> bool {
        self.pools.is_empty() || self.pools.iter().any(|name| name.as_str() == pool)
    }
}

/// What work costs per hour wherever it may start; nothing where that differs or a price is missing.
async fn price_anywhere(
    tx: &mut Tx,
    world: &World,
    wanted: &Wanted,
) -> Result<Option<Money>, AppError> {
    let mut common: Option<PriceInForce> = None;
    if wanted.instances {
        return Ok(None);
    }
    for pool in world.pools.iter().filter(|pool| wanted.accepts(&pool.name)) {
        let offered = |mode: &&SharingMode| pool.sharing.contains(mode);
        for mode in wanted.modes.iter().filter(offered) {
            let price = store::prices::in_force(tx, &pool.name, *mode).await?;
            match (price, &common) {
                (Some(price), None) => common = Some(price),
                (Some(price), Some(known))
                    if (price.amount, &price.currency) == (known.amount, &known.currency) => {}
                _ => return Ok(None),
            }
        }
    }
    Ok(common.map(|price| Money {
        amount: money::round(
            price.amount * Decimal::new(wanted.gpus.milli(), 3),
            SHOWN_DECIMALS,
        ),
        currency: price.currency,
    }))
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
