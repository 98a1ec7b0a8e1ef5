//! A job in the shape of the contract.

use std::collections::BTreeMap;

use domain::ids::JobId;
use domain::money::{self, Currency, Money, SHOWN_DECIMALS};
use domain::sharing::SharingMode;
use domain::spec::JobSpec;
use domain::state::JobState;
use domain::{MilliGpu, Timestamp};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::arrays::{ArrayOf, arrays_of};
use crate::accounting::usage::{self, Sum};
use crate::app::AppError;
use crate::app::authorise::Target;
use crate::store::jobs::{JobRow, unreadable_spec};
use crate::store::{Tx, placements, prices};

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Its name; need not be unique.
    pub name: String,
    /// Its team.
    pub team: String,
    /// Who submitted it.
    pub user: String,
    /// What was asked for; null where it cannot be read, which a newer version may have written.
    pub spec: Option<JobSpec>,
    /// Where it stands.
    pub state: JobState,
    /// The end of its last attempt, or the code of why it waits.
    pub reason: Option<String>,
    /// The same as a sentence; empty where there is nothing to say.
    pub message: String,
    /// Attempts begun so far.
    pub attempt: i32,
    /// When it was submitted.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it last began to wait.
    #[schema(value_type = String, format = DateTime)]
    pub queued_at: Timestamp,
    /// When its present or last attempt began to run.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it ended for good.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    /// The exit code of its last attempt, where one decided it.
    pub exit_code: Option<i32>,
    /// The signal that ended its last attempt, where one did.
    pub exit_signal: Option<i32>,
    /// Where it runs or last ran, by worker.
    pub placement: Vec<PlacedWorker>,
    /// GPU-seconds charged so far: up to when its nodes were last heard of. Each job's are rounded by
    /// themselves, as its cost is: a line of a usage report is rounded so that all lines add up to the
    /// total, and may differ from this in the last decimal.
    #[serde(with = "rust_decimal_number")]
    #[schema(value_type = f64, minimum = 0)]
    pub gpu_seconds: Decimal,
    /// What they cost so far, rounded to four decimals; null where no price covers any of it. Each
    /// job's is rounded by itself: their sum may differ in the last decimal from the usage of
    /// the team, which is exact until its total is rounded once.
    pub cost: Option<Money>,
    /// What makes it an array; null of a job by itself, and of an element.
    pub array: Option<ArrayOf>,
    /// Rises with each change; the ETag. An array's rises with changes of the whole.
    pub version: i64,
    /// Why it waits as the scheduler last found, whole; for its page. Who asks by REST asks for
    /// an explanation.
    #[serde(skip)]
    pub waiting: Option<Value>,
    /// On what actions on it are judged; for its page.
    #[serde(skip)]
    pub target: Target,
}

impl Job {
    /// Its GPUs, all workers together: what it holds while it runs, and where its spec cannot be
    /// read; else what it asks for, at the least and at the most.
    pub fn gpus(&self) -> (MilliGpu, MilliGpu) {
        let holds = !self.placement.is_empty() && !self.state.terminal();
        match &self.spec {
            Some(spec) if !holds => {
                let of = |workers: u32| {
                    let each = spec.per_worker.gpus().milli();
                    MilliGpu::from_milli(each * i64::from(workers))
                };
                (
                    of(spec.min_workers.unwrap_or(spec.workers)),
                    of(spec.workers),
                )
            }
            _ => {
                let devices = self.placement.iter().flat_map(|worker| &worker.devices);
                let held = devices.map(|device| device.gpus).sum();
                (held, held)
            }
        }
    }
}

/// Where one worker runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacedWorker {
    /// Its rank.
    pub worker: i32,
    /// Its node.
    pub node: String,
    /// What names the image of its container for good, once that has started: its digest in a registry, or the
    /// id that its node's runtime has of it.
    pub image_digest: Option<String>,
    /// Until when it may stay there, where its node is being emptied by a deadline.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub leaves_by: Option<Timestamp>,
    /// Its devices.
    pub devices: Vec<PlacedDevice>,
}

/// A device, or the part of one, that a worker has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacedDevice {
    /// Its UUID.
    pub uuid: String,
    /// Its place on the node.
    pub index: i32,
    /// How it is given out.
    pub mode: SharingMode,
    /// How much of it.
    pub gpus: MilliGpu,
}

/// Shows one job.
pub(super) async fn show_one(tx: &mut Tx, row: JobRow) -> Result<Job, AppError> {
    let mut shown = show(tx, vec![row]).await?;
    Ok(shown.pop().expect("one row is shown as one job"))
}

/// Shows jobs, with the placements and the use of all of them read at once.
pub(super) async fn show(tx: &mut Tx, rows: Vec<JobRow>) -> Result<Vec<Job>, AppError> {
    let ids: Vec<JobId> = rows.iter().map(|row| row.id).collect();
    let mut places = places(tx, &ids).await?;
    let mut arrays = arrays_of(tx, &rows).await?;
    let mut used = usage::of_jobs(tx, &ids).await?;
    if !arrays.is_empty() {
        let ids: Vec<JobId> = arrays.keys().copied().collect();
        used.extend(usage::of_arrays(tx, &ids).await?);
    }
    let currency = currency(tx).await?;
    let jobs = rows.into_iter().map(|row| {
        let array = arrays.remove(&row.id);
        let placement = places.remove(&row.id).unwrap_or_default();
        let used = used.remove(&row.id).unwrap_or_else(Sum::nothing);
        Job {
            array,
            ..shown(row, placement, used, currency.as_ref())
        }
    });
    Ok(jobs.collect())
}

fn shown(row: JobRow, placement: Vec<PlacedWorker>, used: Sum, currency: Option<&Currency>) -> Job {
    // Shown as far as it can be: one row must not hide the others of its list.
    let (spec, message) = match row.spec() {
        Ok(spec) => (Some(with_gpus(spec)), row.message),
        Err(error) if row.message.is_empty() => (None, unreadable_spec(&error)),
        Err(_) => (None, row.message),
    };
    Job {
        target: Target::Work {
            team: row.team_id,
            user: row.user_id,
        },
        id: row.id,
        name: row.name,
        team: row.team,
        user: row.user,
        spec,
        state: row.state,
        reason: row.reason,
        message,
        attempt: row.attempt,
        created_at: row.created_at,
        queued_at: row.queued_at,
        started_at: row.started_at,
        finished_at: row.finished_at,
        exit_code: row.exit_code,
        exit_signal: row.exit_signal,
        placement,
        gpu_seconds: used.gpu_seconds,
        cost: cost(used, currency),
        array: None,
        version: row.version,
        waiting: row.waiting,
    }
}

/// A spec with the amount that it asks for, where it left that to the default: whoever reads a job
/// need not know how it follows.
fn with_gpus(mut spec: JobSpec) -> JobSpec {
    spec.per_worker.gpus = Some(spec.per_worker.gpus());
    spec
}

/// What use costs; what was not used costs nothing, in the currency in use.
pub(super) fn cost(used: Sum, currency: Option<&Currency>) -> Option<Money> {
    if !used.gpu_seconds.is_zero() {
        return used.cost;
    }
    currency.map(|currency| Money {
        amount: money::round(Decimal::ZERO, SHOWN_DECIMALS),
        currency: currency.clone(),
    })
}

/// The currency in use, where there is one.
pub(super) async fn currency(tx: &mut Tx) -> Result<Option<Currency>, sqlx::Error> {
    let code = prices::currency(tx).await?;
    Ok(code.and_then(|code| code.parse().ok()))
}

async fn places(
    tx: &mut Tx,
    ids: &[JobId],
) -> Result<BTreeMap<JobId, Vec<PlacedWorker>>, AppError> {
    let mut places: BTreeMap<JobId, Vec<PlacedWorker>> = BTreeMap::new();
    for row in placements::of_jobs(tx, ids).await? {
        let workers = places.entry(row.job_id).or_default();
        if workers.last().is_none_or(|last| last.worker != row.worker) {
            workers.push(PlacedWorker {
                worker: row.worker,
                node: row.node,
                image_digest: row.image_digest,
                leaves_by: row.leaves_by,
                devices: Vec::new(),
            });
        }
        if let (Some(uuid), Some(index), Some(mode), Some(gpus)) =
            (row.uuid, row.index, row.mode, row.gpus_milli)
        {
            let gpus = MilliGpu::from_milli(i64::from(gpus));
            let worker = workers.last_mut().expect("one was just pushed or is there");
            worker.devices.push(PlacedDevice {
                uuid,
                index,
                mode,
                gpus,
            });
        }
    }
    Ok(places)
}

/// A decimal as a JSON number, exactly.
pub(crate) mod rust_decimal_number {
    use rust_decimal::Decimal;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &Decimal, serializer: S) -> Result<S::Ok, S::Error> {
        let number: serde_json::Number = value
            .to_string()
            .parse()
            .map_err(serde::ser::Error::custom)?;
        number.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Decimal, D::Error> {
        let number = serde_json::Number::deserialize(deserializer)?;
        number.to_string().parse().map_err(serde::de::Error::custom)
    }
}
