//! Samples of devices and of work on them, and what minutes, hours and days of them come to.

use chrono::NaiveDate;
use domain::Timestamp;
use domain::ids::{AssignmentId, DeviceId, JobId, NodeId, TeamId};
use protocol::samples::Readings;

use super::Tx;

/// How long after its end a minute is reckoned up: what comes later has it reckoned up anew.
const MINUTE_GRACE_SECONDS: i64 = 30;
/// Most minutes reckoned up at once, so that a server that was away for long does not lock out who writes.
const MINUTES_AT_ONCE: i64 = 30;
/// Partitions are cut by days of UTC.
const PARTITION: &str = "%Y%m%d";
/// The head of PostgreSQL's binary format of COPY: signature, flags and extension.
const COPY_HEAD: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const COPY_END: [u8; 2] = (-1_i16).to_be_bytes();
const COLUMNS: i16 = 14;
/// PostgreSQL counts from 2000, in microseconds.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// A sample of a device, or of an assignment on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// When it was taken.
    pub at: Timestamp,
    /// Of which device.
    pub device: DeviceId,
    /// Whose doing it is; absent of the device as a whole.
    pub work: Option<Work>,
    /// What it showed.
    pub readings: Readings,
}

/// Whose a sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The assignment.
    pub assignment: AssignmentId,
    /// Its job.
    pub job: JobId,
    /// The job's team.
    pub team: TeamId,
}

/// A device as its node calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The node.
    pub node: NodeId,
    /// NVML's UUID.
    pub uuid: String,
    /// Its row.
    pub device: DeviceId,
}

/// The rows of devices that nodes name.
pub async fn devices(
    tx: &mut Tx,
    nodes: &[NodeId],
    uuids: &[String],
) -> Result<Vec<Named>, sqlx::Error> {
    sqlx::query_as!(
        Named,
        r#"SELECT d.node_id AS "node: NodeId", d.uuid, d.id AS "device: DeviceId"
           FROM unnest($1::uuid[], $2::text[]) AS asked (node_id, uuid)
           JOIN devices AS d ON d.node_id = asked.node_id AND d.uuid = asked.uuid"#,
        nodes as &[NodeId],
        uuids,
    )
    .fetch_all(&mut **tx)
    .await
}

/// Whose assignments are, and on which node.
pub async fn work(
    tx: &mut Tx,
    assignments: &[AssignmentId],
) -> Result<Vec<(NodeId, Work)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT id AS "id: AssignmentId", node_id AS "node: NodeId", job_id AS "job: JobId", team_id AS "team: TeamId"
           FROM assignments WHERE id = ANY ($1)"#,
        assignments as &[AssignmentId],
    )
    .fetch_all(&mut **tx)
    .await?;
    let of = |id, job, team| Work {
        assignment: id,
        job,
        team,
    };
    Ok(rows
        .into_iter()
        .map(|row| (row.node, of(row.id, row.job, row.team)))
        .collect())
}

/// Makes the partitions of the days around now, and drops those of days that are kept no longer.
pub async fn tend(
    tx: &mut Tx,
    samples_from: Timestamp,
    minutes_from: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "SELECT allotment.tend_samples($1, $2)",
        samples_from,
        minutes_from
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// Removes what hours and days came to before these moments.
pub async fn forget(
    tx: &mut Tx,
    hours_from: Timestamp,
    days_from: Timestamp,
) -> Result<(), sqlx::Error> {
    sqlx::query!("DELETE FROM sample_hours WHERE at < $1", hours_from)
        .execute(&mut **tx)
        .await?;
    sqlx::query!("DELETE FROM sample_days WHERE at < $1", days_from)
        .execute(&mut **tx)
        .await?;
    Ok(())
}

/// Writes samples, by COPY, and reckons up anew what minutes that were reckoned up come to with them.
pub async fn write(tx: &mut Tx, samples: &[Sample]) -> Result<(), sqlx::Error> {
    // Nobody reckons up while samples of before that may still come.
    let until =
        sqlx::query_scalar!("SELECT until FROM samples_reckoned WHERE level = 'minute' FOR SHARE")
            .fetch_one(&mut **tx)
            .await?;
    let mut days: Vec<NaiveDate> = samples
        .iter()
        .map(|sample| sample.at.date_naive())
        .collect();
    days.sort_unstable();
    days.dedup();
    for day in days {
        let of_day = samples
            .iter()
            .filter(|sample| sample.at.date_naive() == day);
        copy(tx, day, of_day).await?;
    }
    let late = samples.iter().filter(|sample| sample.at < until);
    let Some(first) = late.clone().map(|sample| sample.at).min() else {
        return Ok(());
    };
    let mut devices: Vec<DeviceId> = late.map(|sample| sample.device).collect();
    devices.sort_unstable();
    devices.dedup();
    reckon_late(tx, first, until, &devices).await
}

async fn copy<'a>(
    tx: &mut Tx,
    day: NaiveDate,
    samples: impl Iterator<Item = &'a Sample>,
) -> Result<(), sqlx::Error> {
    let mut bytes = COPY_HEAD.to_vec();
    for sample in samples {
        encode(sample, &mut bytes);
    }
    bytes.extend(COPY_END);
    // The name is made of a date alone.
    let statement = format!(
        "COPY samples_{} FROM STDIN (FORMAT binary)",
        day.format(PARTITION)
    );
    let mut copy = tx.copy_in_raw(&statement).await?;
    if let Err(error) = copy.send(bytes).await {
        copy.abort("its rows could not be sent").await?;
        return Err(error);
    }
    copy.finish().await?;
    Ok(())
}

fn encode(sample: &Sample, to: &mut Vec<u8>) {
    let readings = &sample.readings;
    let work = sample.work;
    to.extend(COLUMNS.to_be_bytes());
    put(
        to,
        Some((sample.at.timestamp_micros() - EPOCH_MICROS).to_be_bytes()),
    );
    put(to, Some(*sample.device.as_bytes()));
    put(to, work.map(|work| *work.assignment.as_bytes()));
    put(to, work.map(|work| *work.job.as_bytes()));
    put(to, work.map(|work| *work.team.as_bytes()));
    for share in [readings.busy, readings.sm, readings.tensor, readings.dram] {
        put(to, share.map(i16::to_be_bytes));
    }
    put(to, readings.memory_mib.map(i64::to_be_bytes));
    put(to, readings.temperature_c.map(i16::to_be_bytes));
    put(to, readings.power_mw.map(i32::to_be_bytes));
    put(to, readings.energy_mj.map(i64::to_be_bytes));
    put(to, readings.processes.map(i32::to_be_bytes));
}

/// A field of a row: its length and bytes, or the length −1 for NULL.
fn put<const N: usize>(to: &mut Vec<u8>, field: Option<[u8; N]>) {
    match field {
        None => to.extend((-1_i32).to_be_bytes()),
        Some(bytes) => {
            to.extend(i32::try_from(N).unwrap_or(0).to_be_bytes());
            to.extend(bytes);
        }
    }
}

async fn reckon_late(
    tx: &mut Tx,
    first: Timestamp,
    until: Timestamp,
    devices: &[DeviceId],
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "SELECT allotment.reckon_minutes(date_trunc('minute', $1::timestamptz, 'UTC'), $2, $3)",
        first,
        until,
        devices as &[DeviceId],
    )
    .execute(&mut **tx)
    .await?;
    for level in ["hour", "day"] {
        sqlx::query!(
            "SELECT allotment.reckon_hours($1, date_trunc($1, $2::timestamptz, 'UTC'), r.until, $3)
             FROM samples_reckoned AS r WHERE r.level = $1 AND r.until > date_trunc($1, $2::timestamptz, 'UTC')",
            level,
            first,
            devices as &[DeviceId],
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// Reckons up the minutes, hours and days that are over; whether there are more to do.
pub async fn reckon(tx: &mut Tx) -> Result<bool, sqlx::Error> {
    let minutes = sqlx::query!(
        r#"SELECT until, date_trunc('minute', allotment.clock() - make_interval(secs => $1), 'UTC') AS "due!"
           FROM samples_reckoned WHERE level = 'minute' FOR UPDATE"#,
        f64::from(i32::try_from(MINUTE_GRACE_SECONDS).unwrap_or(i32::MAX)),
    )
    .fetch_one(&mut **tx)
    .await?;
    if minutes.due <= minutes.until {
        return Ok(false);
    }
    let until = minutes
        .due
        .min(minutes.until + chrono::TimeDelta::minutes(MINUTES_AT_ONCE));
    let any = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM samples WHERE at >= $1 AND at < $2) AS "any!""#,
        minutes.until,
        minutes.due,
    )
    .fetch_one(&mut **tx)
    .await?;
    // A time without samples is passed over at once, however long it was.
    let until = if any { until } else { minutes.due };
    sqlx::query!(
        "SELECT allotment.reckon_minutes($1, $2, NULL)",
        minutes.until,
        until
    )
    .execute(&mut **tx)
    .await?;
    settle(tx, "minute", until).await?;
    let mut finer = until;
    for level in ["hour", "day"] {
        let row = sqlx::query!(
            r#"SELECT until, date_trunc($1, $2::timestamptz, 'UTC') AS "due!" FROM samples_reckoned WHERE level = $1 FOR UPDATE"#,
            level,
            finer,
        )
        .fetch_one(&mut **tx)
        .await?;
        if row.due > row.until {
            sqlx::query!(
                "SELECT allotment.reckon_hours($1, $2, $3, NULL)",
                level,
                row.until,
                row.due
            )
            .execute(&mut **tx)
            .await?;
            settle(tx, level, row.due).await?;
        }
        finer = row.due.max(row.until);
    }
    Ok(until < minutes.due)
}

async fn settle(tx: &mut Tx, level: &str, until: Timestamp) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "UPDATE samples_reckoned SET until = $2 WHERE level = $1",
        level,
        until
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}
