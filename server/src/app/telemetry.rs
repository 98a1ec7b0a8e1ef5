//! What devices and jobs did: utilisation, memory and power, by steps of a window of time.

use chrono::TimeDelta;
use domain::Timestamp;
use domain::ids::JobId;
use domain::name::Name;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::authorise::{Action, Target, authorise};
use super::{App, AppError, Asker, jobs, nodes};
use crate::store::jobs::JobRow;
use crate::store::sampled::{self, DevicePoint, JobPoint};
use crate::store::{self, Tx, devices, samples};

/// The window of a node where nobody says from when: an hour.
const WINDOW: TimeDelta = TimeDelta::hours(1);
/// Most steps of a window: a chart shows no more, and who wants finer ones asks for less time.
const STEPS_MAX: i64 = 1_500;
/// Where nobody says which, steps are as fine as so many allow.
const STEPS: i64 = 750;

/// The steps that a window is told by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Each sample.
    Sample,
    /// Minutes, also the one that is not over.
    Minute,
    /// Hours that are over.
    Hour,
    /// Days of UTC that are over.
    Day,
}

impl Step {
    /// How long one is; of samples as agents take them unless they are told otherwise.
    pub fn length(self) -> TimeDelta {
        match self {
            Self::Sample => TimeDelta::seconds(15),
            Self::Minute => TimeDelta::minutes(1),
            Self::Hour => TimeDelta::hours(1),
            Self::Day => TimeDelta::days(1),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Sample => "sample",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    fn stored(self) -> sampled::Step {
        match self {
            Self::Sample => sampled::Step::Sample,
            Self::Minute => sampled::Step::Minute,
            Self::Hour => sampled::Step::Hour,
            Self::Day => sampled::Step::Day,
        }
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct TelemetryAsk {
    /// From then on; absent: for a node an hour before the end, for a job from its first start.
    pub from: Option<Timestamp>,
    /// Up to before then; absent: until now, for a job that is over until its end.
    pub to: Option<Timestamp>,
    /// The steps; absent: those that the window allows.
    pub step: Option<Step>,
}

/// What the devices of a node did.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NodeTelemetry {
    /// From then on.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Up to before then.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// The steps.
    pub step: Step,
    /// Its devices, by index.
    pub devices: Vec<DeviceTelemetry>,
}

/// What a device did.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeviceTelemetry {
    /// NVML's UUID.
    pub uuid: String,
    /// Its index on the node.
    pub index: i32,
    /// All of its memory.
    pub memory_mib: i64,
    /// The steps of which there are samples; one that is missing is unknown.
    pub points: Vec<DeviceSampled>,
}

/// What a device did in a step: means, where it does not say otherwise. Shares of time are thousandths; null is
/// unknown, which is not 0.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeviceSampled {
    /// When the step begins.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Samples in it.
    pub samples: i64,
    /// Time in which any kernel ran: one thread is enough.
    pub busy_permille: Option<i64>,
    /// Multiprocessors at work, where the device counts that.
    pub sm_permille: Option<i64>,
    /// The most of what tells more of the two.
    pub most_permille: Option<i64>,
    /// Tensor pipes at work.
    pub tensor_permille: Option<i64>,
    /// Memory's bandwidth in use.
    pub dram_permille: Option<i64>,
    /// Memory that was held.
    pub memory_mib: Option<i64>,
    /// The most of it.
    pub memory_most_mib: Option<i64>,
    /// The hottest, in degrees Celsius.
    pub temperature_c: Option<i64>,
    /// Power, in milliwatts.
    pub power_mw: Option<i64>,
    /// Energy, in millijoules, of the whole step.
    pub energy_mj: Option<i64>,
}

/// What a job did, on all of its devices.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct JobTelemetry {
    /// From then on.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Up to before then.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// The steps; minutes where samples were asked for.
    pub step: Step,
    /// The steps of which there are samples; one that is missing is unknown.
    pub points: Vec<JobSampled>,
}

/// What a job did in a step. Shares of time are thousandths; null is unknown, which is not 0.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct JobSampled {
    /// When the step begins.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Parts of devices that it was sampled on.
    pub devices: i64,
    /// Those of them of whose load nothing is known.
    pub unknown: i64,
    /// Time in which any kernel ran, a mean over all parts.
    pub busy_permille: Option<i64>,
    /// Multiprocessors at work, likewise.
    pub sm_permille: Option<i64>,
    /// The mean load of the part that did the least.
    pub lowest_permille: Option<i64>,
    /// That of the part that did the most.
    pub highest_permille: Option<i64>,
    /// Memory that was held, by all together.
    pub memory_mib: Option<i64>,
    /// Energy of the whole step, of all together, in millijoules.
    pub energy_mj: Option<i64>,
    /// The fewest processes that a part had: 0 where one of them had none on its device.
    pub processes_least: Option<i64>,
}

/// Tells what the devices of a node did.
pub async fn of_node(
    app: &App,
    asker: &Asker,
    name: &Name,
    ask: TelemetryAsk,
) -> Result<NodeTelemetry, AppError> {
    authorise(asker, Action::GetNodeTelemetry, Target::Platform)?;
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let node = nodes::find(&mut tx, name).await?;
    let now = store::clock(&mut tx).await?;
    let to = ask.to.unwrap_or(now);
    let window = Window::of(ask, ask.from.unwrap_or(to - WINDOW), to)?;
    let rows = devices::of_nodes(&mut tx, &[node.id]).await?;
    let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
    let from = window.first_step();
    let points = sampled::devices(&mut tx, &ids, window.step.stored(), from, to).await?;
    tx.commit().await?;
    let devices = rows.into_iter().map(|row| DeviceTelemetry {
        points: points
            .iter()
            .filter(|point| point.device == row.id)
            .map(Into::into)
            .collect(),
        uuid: row.uuid,
        index: row.index,
        memory_mib: row.memory_mib,
    });
    let mut devices: Vec<_> = devices.collect();
    devices.sort_by_key(|device| device.index);
    Ok(NodeTelemetry {
        from: window.from,
        to,
        step: window.step,
        devices,
    })
}

/// Tells what a job did.
pub async fn of_job(
    app: &App,
    asker: &Asker,
    id: JobId,
    ask: TelemetryAsk,
) -> Result<JobTelemetry, AppError> {
    let mut tx = app.db.begin_person(&asker.scope()).await?;
    let job = jobs::find(&mut tx, asker, Action::GetJobTelemetry, id).await?;
    let now = store::clock(&mut tx).await?;
    let to = ask.to.or(job.finished_at).unwrap_or(now);
    let begun = first_start(&mut tx, &job).await?;
    let from = ask.from.or(begun.map(|begun| begun.min(to)));
    let mut window = Window::of(ask, from.unwrap_or(to - WINDOW), to)?;
    if window.step == Step::Sample {
        // Samples of different devices are of different moments.
        window.step = Step::Minute;
    }
    let from = window.first_step();
    let points = sampled::job(&mut tx, id, window.step.stored(), from, to).await?;
    tx.commit().await?;
    Ok(JobTelemetry {
        from: window.from,
        to,
        step: window.step,
        points: points.iter().map(Into::into).collect(),
    })
}

async fn first_start(tx: &mut Tx, job: &JobRow) -> Result<Option<Timestamp>, AppError> {
    let attempts = store::attempts::of_job(tx, job.team_id, job.id).await?;
    Ok(attempts
        .iter()
        .filter_map(|attempt| attempt.started_at)
        .min())
}

/// Makes room for samples to come, and removes those that are kept no longer.
pub async fn tend(tx: &mut Tx, app: &App, now: Timestamp) -> Result<(), sqlx::Error> {
    let kept = &app.config.retention;
    let from = |days| now - chrono::TimeDelta::days(days);
    samples::tend(tx, from(kept.samples_days), from(kept.sample_minutes_days)).await?;
    samples::forget(
        tx,
        from(kept.sample_hours_days),
        from(kept.sample_days_days),
    )
    .await
}

/// A window with its steps.
struct Window {
    from: Timestamp,
    step: Step,
}

impl Window {
    fn of(ask: TelemetryAsk, from: Timestamp, to: Timestamp) -> Result<Self, AppError> {
        if from > to || (from == to && ask.from.is_some()) {
            let remedy = format!("a time before {}", domain::time::format(to));
            return Err(AppError::invalid(
                "from",
                domain::time::format(from),
                remedy,
            ));
        }
        let steps = |step: Step| (to - from).num_seconds() / step.length().num_seconds();
        let step = ask.step.unwrap_or_else(|| {
            let mut finest = [Step::Minute, Step::Hour].into_iter();
            finest
                .find(|step| steps(*step) <= STEPS)
                .unwrap_or(Step::Day)
        });
        if steps(step) > STEPS_MAX {
            let remedy = format!("a longer step, or a window of at most {STEPS_MAX} of them");
            return Err(AppError::invalid("step", step.as_str(), remedy));
        }
        Ok(Self { from, step })
    }

    /// When the step begins in which the window does: that step belongs to it.
    fn first_step(&self) -> Timestamp {
        let length = match self.step {
            Step::Sample => return self.from,
            step => step.length().num_microseconds().unwrap_or(1),
        };
        let into = self.from.timestamp_micros().rem_euclid(length);
        self.from - TimeDelta::microseconds(into)
    }
}

impl From<&DevicePoint> for DeviceSampled {
    fn from(point: &DevicePoint) -> Self {
        Self {
            at: point.at,
            samples: point.samples,
            busy_permille: point.busy,
            sm_permille: point.sm,
            most_permille: point.load_max,
            tensor_permille: point.tensor,
            dram_permille: point.dram,
            memory_mib: point.memory_mib,
            memory_most_mib: point.memory_max_mib,
            temperature_c: point.temperature_c,
            power_mw: point.power_mw,
            energy_mj: point.energy_mj,
        }
    }
}

impl From<&JobPoint> for JobSampled {
    fn from(point: &JobPoint) -> Self {
        Self {
            at: point.at,
            devices: point.devices,
            unknown: point.unknown,
            busy_permille: point.busy,
            sm_permille: point.sm,
            lowest_permille: point.lowest,
            highest_permille: point.highest,
            memory_mib: point.memory_mib,
            energy_mj: point.energy_mj,
            processes_least: point.processes_min,
        }
    }
}
