//! A trace of jobs over a scenario: who came when, with what, and how long it truly ran.
//!
//! The trace is a comma-separated table with a header; fields hold no commas. Columns, of
//! which the first four must be there:
//!
//! | column | meaning |
//! | --- | --- |
//! | `name`, `team` | the job, and a team of the scenario |
//! | `submitted` | seconds after the scenario's `now` |
//! | `run_seconds` | how long it truly runs, undisturbed |
//! | `workers` | workers, all or none; 1 |
//! | `gpus` | GPUs of each worker: whole, or a part under 1; 0 |
//! | `cpus`, `memory_mib` | of each worker; 0 |
//! | `gpu_model`, `gpu_memory_mib` | what its devices must be |
//! | `sharing` | modes that it accepts, joined by `\|`; `exclusive` |
//! | `class`, `kind`, `user` | as in a scenario; the first class of the scenario, `batch`, nobody |
//! | `pools` | acceptable pools, best first, joined by `\|`; all |
//! | `time_limit_seconds`, `predicted_seconds` | what the planner is told of its length |
//! | `checkpoint_seconds`, `restart_seconds` | what an interruption costs |

mod measure;
mod page;
mod replay;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::{Context, bail};
use chrono::TimeDelta;
use domain::quantity::MILLI;
use domain::{MilliCpu, MilliGpu, Timestamp};
pub use engine::scenario::amounts::SECONDS_MAX;
use engine::scenario::amounts::{DEVICES_MAX, MEMORY_MIB_MAX, WORKERS_MAX, WORKLOADS_MAX};
use engine::world::{Workload, World};

use super::csv::{Row, Table};
use super::seeds::Random;
pub use measure::Report;

/// The columns of a trace.
const COLUMNS: [&str; 19] = [
    "name",
    "team",
    "submitted",
    "run_seconds",
    "workers",
    "gpus",
    "cpus",
    "memory_mib",
    "gpu_model",
    "gpu_memory_mib",
    "sharing",
    "class",
    "kind",
    "user",
    "pools",
    "time_limit_seconds",
    "predicted_seconds",
    "checkpoint_seconds",
    "restart_seconds",
];

/// A job of the trace.
#[derive(Debug, Clone)]
pub struct Job {
    pub work: Workload,
    pub run_seconds: i64,
}

/// A trace over its scenario.
pub struct Trace {
    pub world: World,
    /// In the order of arrival.
    pub jobs: Vec<Job>,
    /// Whether it is planned as if all teams were one.
    pub one_queue: bool,
}

impl Trace {
    /// Reads both files. Where the trace predicts nothing, `error` says how far predictions
    /// are off, in percent: each is the true run time times or by up to 1 + that, by a seed.
    pub fn read(
        scenario: &Path,
        trace: &Path,
        error: Option<i64>,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(scenario).with_context(|| scenario.display().to_string())?;
        let world =
            engine::scenario::parse(&text).with_context(|| scenario.display().to_string())?;
        let mut jobs = Table::read(trace)?
            .only(&COLUMNS)?
            .rows(|row| job(row, &world))?;
        if jobs.is_empty() || jobs.len() > WORKLOADS_MAX {
            bail!(
                "{}: {} jobs; 1 to {WORKLOADS_MAX} are replayed",
                trace.display(),
                jobs.len()
            );
        }
        jobs.sort_by(|a, b| {
            (a.work.submitted, &a.work.name).cmp(&(b.work.submitted, &b.work.name))
        });
        let mut names: Vec<&str> = jobs.iter().map(|j| j.work.name.as_str()).collect();
        names.extend(world.workloads.iter().map(|w| w.name.as_str()));
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!("{}: job {} is there twice", trace.display(), pair[0]);
        }
        if let Some(error) = error {
            let mut random = Random::of(seed);
            for job in &mut jobs {
                let off = 100 + random.below(error as usize + 1) as i64;
                let longer = random.below(2) == 1;
                let told = if longer {
                    job.run_seconds * off / 100
                } else {
                    job.run_seconds * 100 / off
                };
                job.work.predicted_seconds.get_or_insert(told.max(1));
            }
        }
        Ok(Self {
            world,
            jobs,
            one_queue: false,
        })
    }

    /// Replays it, until all is done or `until` seconds have passed.
    pub fn replay(self, until: Option<i64>) -> Report {
        replay::run(self, until)
    }
}

fn job(row: &Row<'_>, world: &World) -> anyhow::Result<Job> {
    let name = row.required("name")?;
    let team = row.required("team")?;
    if !world.teams.iter().any(|t| t.name == team) {
        bail!("team: {team:?} is not in the scenario");
    }
    let seconds = |column: &str| -> anyhow::Result<Option<i64>> {
        row.text(column)
            .map(|_| row.number(column, 1, SECONDS_MAX))
            .transpose()
    };
    let mut work = Workload::waiting(
        name,
        team,
        0,
        after(world.now, row.number("submitted", 0, SECONDS_MAX)?)?,
    );
    work.class = match row.text("class") {
        Some(class) if world.class(class).is_some() => class.to_owned(),
        Some(class) => bail!("class: {class:?} is not in the scenario"),
        None => world
            .classes
            .first()
            .context("the scenario has no class")?
            .name
            .clone(),
    };
    if let Some(kind) = row.text("kind") {
        work.kind = kind.parse()?;
    }
    work.user = row.text("user").map(str::to_owned);
    work.workers = row
        .text("workers")
        .map_or(Ok(1), |_| row.number("workers", 1, WORKERS_MAX))? as u32;
    let asked = &mut work.per_worker;
    asked.gpus = Some(row.text("gpus").map_or(Ok(MilliGpu::ZERO), str::parse)?);
    asked.cpus = row.text("cpus").map_or(Ok(MilliCpu::ZERO), str::parse)?;
    asked.memory_mib = row
        .text("memory_mib")
        .map_or(Ok(0), |_| row.number("memory_mib", 0, MEMORY_MIB_MAX))?;
    asked.gpu_model = row.text("gpu_model").map(str::to_owned);
    if row.text("gpu_memory_mib").is_some() {
        asked.gpu_memory_mib = Some(row.number("gpu_memory_mib", 0, MEMORY_MIB_MAX)?);
    }
    if let Some(modes) = row.text("sharing") {
        asked.sharing = modes.split('|').map(str::parse).collect::<Result<_, _>>()?;
    }
    let gpus = asked.gpus().milli();
    if gpus < 0 || gpus > MILLI && gpus % MILLI != 0 || gpus > DEVICES_MAX * MILLI {
        bail!(
            "gpus: {} is refused; use whole GPUs up to {DEVICES_MAX}, or a part under 1",
            asked.gpus()
        );
    }
    if let Some(pools) = row.text("pools") {
        work.pools = pools.split('|').map(str::to_owned).collect();
        if let Some(strange) = work
            .pools
            .iter()
            .find(|name| !world.pools.iter().any(|p| p.name == **name))
        {
            bail!("pools: {strange:?} is not in the scenario");
        }
    }
    work.time_limit_seconds = seconds("time_limit_seconds")?;
    work.predicted_seconds = seconds("predicted_seconds")?;
    work.checkpoint_seconds = seconds("checkpoint_seconds")?;
    if row.text("restart_seconds").is_some() {
        work.restart_seconds = row.number("restart_seconds", 0, SECONDS_MAX)?;
    }
    let run_seconds = row.number("run_seconds", 1, SECONDS_MAX)?;
    let limit = work.time_limit_seconds.unwrap_or(SECONDS_MAX);
    Ok(Job {
        work,
        run_seconds: run_seconds.min(limit),
    })
}

fn after(now: Timestamp, seconds: i64) -> anyhow::Result<Timestamp> {
    now.checked_add_signed(TimeDelta::seconds(seconds))
        .context("submitted: later than any calendar")
}
