//! What samples tell of a window of time: of devices, and of a job on all of its devices.

use domain::Timestamp;
use domain::ids::{DeviceId, JobId};

use super::Tx;

/// The steps that a window is told by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// What a device did in a step. Means of what was told; absent where nothing was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePoint {
    /// The device.
    pub device: DeviceId,
    /// When the step begins.
    pub at: Timestamp,
    /// Samples in it.
    pub samples: i64,
    /// Thousandths of the time with a kernel.
    pub busy: Option<i64>,
    /// Thousandths of the multiprocessors.
    pub sm: Option<i64>,
    /// The most of what tells more of the two.
    pub load_max: Option<i64>,
    /// Thousandths of the tensor pipes.
    pub tensor: Option<i64>,
    /// Thousandths of the memory's bandwidth.
    pub dram: Option<i64>,
    /// Memory that was held.
    pub memory_mib: Option<i64>,
    /// The most of it.
    pub memory_max_mib: Option<i64>,
    /// The hottest, in degrees Celsius.
    pub temperature_c: Option<i64>,
    /// Power, in milliwatts.
    pub power_mw: Option<i64>,
    /// Energy, in millijoules.
    pub energy_mj: Option<i64>,
}

/// What a job did in a step, on all of its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPoint {
    /// When the step begins.
    pub at: Timestamp,
    /// Parts of devices that it was sampled on.
    pub devices: i64,
    /// Those of them of whose load nothing is known.
    pub unknown: i64,
    /// Thousandths of the time with a kernel, a mean over all.
    pub busy: Option<i64>,
    /// Thousandths of the multiprocessors, likewise.
    pub sm: Option<i64>,
    /// The mean load of the part that did the least, by what tells more of the two.
    pub lowest: Option<i64>,
    /// That of the part that did the most.
    pub highest: Option<i64>,
    /// Memory that was held, of all together.
    pub memory_mib: Option<i64>,
    /// Energy, in millijoules, of all together.
    pub energy_mj: Option<i64>,
    /// The fewest processes that a part had at its best: none where a rank is not there at all.
    pub processes_min: Option<i64>,
}

macro_rules! device_points {
    ($tx:ident, $table:literal, $devices:ident, $from:ident, $until:ident) => {
        sqlx::query_as!(
            DevicePoint,
            r#"SELECT device_id AS "device!: DeviceId", at AS "at!", samples::bigint AS "samples!",
                   round(busy_sum::numeric / NULLIF(busy_counted, 0))::bigint AS busy,
                   round(sm_sum::numeric / NULLIF(sm_counted, 0))::bigint AS sm,
                   load_max::bigint AS load_max,
                   round(tensor_sum::numeric / NULLIF(tensor_counted, 0))::bigint AS tensor,
                   round(dram_sum::numeric / NULLIF(dram_counted, 0))::bigint AS dram,
                   round(memory_sum::numeric / NULLIF(memory_counted, 0))::bigint AS memory_mib,
                   memory_max AS memory_max_mib, temperature_max::bigint AS temperature_c,
                   round(power_sum::numeric / NULLIF(power_counted, 0))::bigint AS power_mw, energy_mj
               FROM "#
                + $table
                + " WHERE device_id = ANY ($1) AND job_id IS NULL AND assignment_id IS NULL AND at >= $2 AND at < $3
                    ORDER BY device_id, at LIMIT $4",
            $devices as &[DeviceId],
            $from,
            $until,
            POINTS_MAX,
        )
        .fetch_all(&mut **$tx)
        .await
    };
}

macro_rules! job_points {
    ($tx:ident, $table:literal, $job:ident, $from:ident, $until:ident) => {
        sqlx::query_as!(
            JobPoint,
            r#"SELECT at AS "at!", count(*) AS "devices!",
                   count(*) FILTER (WHERE busy_counted = 0 AND sm_counted = 0) AS "unknown!",
                   round(sum(busy_sum) / NULLIF(sum(busy_counted), 0))::bigint AS busy,
                   round(sum(sm_sum) / NULLIF(sum(sm_counted), 0))::bigint AS sm,
                   min(round(COALESCE(sm_sum::numeric / NULLIF(sm_counted, 0),
                                      busy_sum::numeric / NULLIF(busy_counted, 0))))::bigint AS lowest,
                   max(round(COALESCE(sm_sum::numeric / NULLIF(sm_counted, 0),
                                      busy_sum::numeric / NULLIF(busy_counted, 0))))::bigint AS highest,
                   sum(round(memory_sum::numeric / NULLIF(memory_counted, 0)))::bigint AS memory_mib,
                   sum(energy_mj)::bigint AS energy_mj, min(processes_max)::bigint AS processes_min
               FROM "#
                + $table
                + " WHERE job_id = $1 AND at >= $2 AND at < $3 GROUP BY at ORDER BY at LIMIT $4",
            $job as JobId,
            $from,
            $until,
            POINTS_MAX,
        )
        .fetch_all(&mut **$tx)
        .await
    };
}

/// Most points that a window is told by; who asks chooses a longer step before that.
pub const POINTS_MAX: i64 = 100_000;

/// What devices did in a window, by device and time.
pub async fn devices(
    tx: &mut Tx,
    devices: &[DeviceId],
    step: Step,
    from: Timestamp,
    until: Timestamp,
) -> Result<Vec<DevicePoint>, sqlx::Error> {
    match step {
        Step::Sample => {
            sqlx::query_as!(
                DevicePoint,
                r#"SELECT device_id AS "device: DeviceId", at, 1::bigint AS "samples!", busy::bigint AS busy,
                       sm::bigint AS sm, COALESCE(sm, busy)::bigint AS load_max, tensor::bigint AS tensor,
                       dram::bigint AS dram, memory_mib, memory_mib AS memory_max_mib,
                       temperature_c::bigint AS temperature_c, power_mw::bigint AS power_mw, energy_mj
                   FROM samples
                   WHERE device_id = ANY ($1) AND job_id IS NULL AND at >= $2 AND at < $3
                   ORDER BY device_id, at LIMIT $4"#,
                devices as &[DeviceId],
                from,
                until,
                POINTS_MAX,
            )
            .fetch_all(&mut **tx)
            .await
        }
        Step::Minute => device_points!(tx, "sample_minutes_now", devices, from, until),
        Step::Hour => device_points!(tx, "sample_hours", devices, from, until),
        Step::Day => device_points!(tx, "sample_days", devices, from, until),
    }
}

/// What a job did in a window, by time; by minutes where samples are asked for, since those of its devices
/// are of different moments.
pub async fn job(
    tx: &mut Tx,
    job: JobId,
    step: Step,
    from: Timestamp,
    until: Timestamp,
) -> Result<Vec<JobPoint>, sqlx::Error> {
    match step {
        Step::Sample | Step::Minute => job_points!(tx, "sample_minutes_now", job, from, until),
        Step::Hour => job_points!(tx, "sample_hours", job, from, until),
        Step::Day => job_points!(tx, "sample_days", job, from, until),
    }
}

/// The mean load of devices in the last minutes, in thousandths, by what tells more: of those of which more than
/// half of that time is known.
pub async fn recent(
    tx: &mut Tx,
    devices: &[DeviceId],
    minutes: i32,
) -> Result<Vec<(DeviceId, i64)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT device_id AS "device!: DeviceId",
               round(COALESCE(sum(sm_sum) / NULLIF(sum(sm_counted), 0), sum(busy_sum) / NULLIF(sum(busy_counted), 0)))::bigint AS load
           FROM sample_minutes_now
           WHERE device_id = ANY ($1) AND job_id IS NULL AND assignment_id IS NULL
             AND at > allotment.clock() - make_interval(mins => $2)
           GROUP BY device_id
           HAVING 2 * sum(GREATEST(sm_counted, busy_counted)) > sum(samples)"#,
        devices as &[DeviceId],
        minutes,
    )
    .fetch_all(&mut **tx)
    .await?;
    Ok(rows
        .into_iter()
        .filter_map(|row| Some((row.device, row.load?)))
        .collect())
}
