//! What devices did, sample by sample, checked on receipt by the server.

use domain::ids::AssignmentId;

use crate::fields::{amount, bounded, parsed, uuid};
use crate::report::DEVICES_MAX;
use crate::{Malformed, wire};

/// Most device samples in one message; an agent that was cut off for minutes sends several.
pub const SAMPLES_MAX: usize = 2_048;
/// Samples older than this are not taken: the minutes that they were of have been reckoned up long since.
pub const AGE_MAX_MS: u64 = 10 * 60 * 1000;
/// All of the time, in thousandths.
const ALL: u32 = 1000;
/// More than any sensor of a device shows: degrees, and milliwatts.
const HOTTEST_C: u32 = 1_000;
const STRONGEST_MW: u32 = 100_000_000;

/// What one device did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSample {
    /// The device.
    pub uuid: String,
    /// How long ago the sample was taken.
    pub age_ms: u64,
    /// What it showed.
    pub readings: Readings,
    /// What those who hold a part of it did there.
    pub work: Vec<WorkSample>,
}

/// What one assignment did on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkSample {
    /// The assignment.
    pub assignment: AssignmentId,
    /// What it showed.
    pub readings: Readings,
}

/// What a device, or an assignment on one, showed. What is absent is not known. Shares of time are thousandths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Readings {
    /// Time in which any kernel ran.
    pub busy: Option<i16>,
    /// Multiprocessors at work.
    pub sm: Option<i16>,
    /// Tensor pipes at work.
    pub tensor: Option<i16>,
    /// Memory's bandwidth in use.
    pub dram: Option<i16>,
    /// Memory that is held.
    pub memory_mib: Option<i64>,
    /// Degrees Celsius.
    pub temperature_c: Option<i16>,
    /// Power in milliwatts.
    pub power_mw: Option<i32>,
    /// Energy since the sample before, in millijoules.
    pub energy_mj: Option<i64>,
    /// Processes that are on the device.
    pub processes: Option<i32>,
}

/// Checks the samples of a message.
pub fn check(samples: wire::Samples) -> Result<Vec<DeviceSample>, Malformed> {
    bounded("samples.devices", samples.devices.len(), SAMPLES_MAX)?;
    samples.devices.into_iter().map(check_device).collect()
}

fn check_device(sample: wire::DeviceSample) -> Result<DeviceSample, Malformed> {
    bounded("sample.work", sample.work.len(), DEVICES_MAX)?;
    if sample.age_ms > AGE_MAX_MS {
        return Err(Malformed::invalid("sample.age_ms", sample.age_ms));
    }
    let readings = Readings {
        busy: permille("sample.busy_permille", sample.busy_permille)?,
        sm: permille("sample.sm_permille", sample.sm_permille)?,
        tensor: permille("sample.tensor_permille", sample.tensor_permille)?,
        dram: permille("sample.dram_permille", sample.dram_permille)?,
        memory_mib: optional_amount("sample.memory_mib", sample.memory_mib)?,
        temperature_c: at_most("sample.temperature_c", sample.temperature_c, HOTTEST_C)?,
        power_mw: at_most("sample.power_mw", sample.power_mw, STRONGEST_MW)?,
        energy_mj: energy("sample.energy_mj", sample.energy_mj)?,
        processes: None,
    };
    let work = sample.work.into_iter().map(check_work);
    Ok(DeviceSample {
        work: work.collect::<Result<_, _>>()?,
        uuid: uuid(sample.uuid)?,
        age_ms: sample.age_ms,
        readings,
    })
}

fn check_work(work: wire::WorkSample) -> Result<WorkSample, Malformed> {
    let processes = u32::try_from(i32::MAX).unwrap_or(u32::MAX);
    Ok(WorkSample {
        assignment: parsed("work.assignment_id", &work.assignment_id)?,
        readings: Readings {
            busy: permille("work.busy_permille", work.busy_permille)?,
            sm: permille("work.sm_permille", work.sm_permille)?,
            memory_mib: optional_amount("work.memory_mib", work.memory_mib)?,
            energy_mj: energy("work.energy_mj", work.energy_mj)?,
            processes: at_most("work.processes", work.processes, processes)?,
            ..Readings::default()
        },
    })
}

fn permille(field: &'static str, value: Option<u32>) -> Result<Option<i16>, Malformed> {
    at_most(field, value, ALL)
}

fn at_most<T: TryFrom<u32>>(
    field: &'static str,
    value: Option<u32>,
    most: u32,
) -> Result<Option<T>, Malformed> {
    let Some(value) = value else { return Ok(None) };
    let kept = T::try_from(value).ok().filter(|_| value <= most);
    kept.map(Some)
        .ok_or_else(|| Malformed::invalid(field, value))
}

fn optional_amount(field: &'static str, value: Option<i64>) -> Result<Option<i64>, Malformed> {
    value.map(|value| amount(field, value)).transpose()
}

fn energy(field: &'static str, value: Option<u64>) -> Result<Option<i64>, Malformed> {
    let value = value.map(|mj| i64::try_from(mj).map_err(|_| Malformed::invalid(field, mj)));
    optional_amount(field, value.transpose()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> wire::DeviceSample {
        wire::DeviceSample {
            uuid: "GPU-1".to_owned(),
            age_ms: 20,
            busy_permille: Some(1000),
            memory_mib: Some(0),
            ..wire::DeviceSample::default()
        }
    }

    fn checked(sample: wire::DeviceSample) -> Result<Vec<DeviceSample>, Malformed> {
        let devices = vec![sample];
        check(wire::Samples { devices })
    }

    #[test]
    fn what_is_absent_stays_unknown_and_nothing_is_not_absent() {
        let checked = checked(sample()).expect("taken");
        let readings = checked[0].readings;
        assert_eq!(readings.busy, Some(1000));
        assert_eq!(readings.memory_mib, Some(0));
        assert_eq!(readings.sm, None);
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_field() {
        let id = AssignmentId::new().to_string();
        let work = |work| wire::DeviceSample {
            work: vec![work],
            ..sample()
        };
        let cases = [
            (
                "sample.busy_permille",
                wire::DeviceSample {
                    busy_permille: Some(1001),
                    ..sample()
                },
            ),
            (
                "sample.memory_mib",
                wire::DeviceSample {
                    memory_mib: Some(-1),
                    ..sample()
                },
            ),
            (
                "sample.energy_mj",
                wire::DeviceSample {
                    energy_mj: Some(u64::MAX),
                    ..sample()
                },
            ),
            (
                "sample.temperature_c",
                wire::DeviceSample {
                    temperature_c: Some(1001),
                    ..sample()
                },
            ),
            (
                "sample.age_ms",
                wire::DeviceSample {
                    age_ms: AGE_MAX_MS + 1,
                    ..sample()
                },
            ),
            (
                "device.uuid",
                wire::DeviceSample {
                    uuid: "GPU 1".to_owned(),
                    ..sample()
                },
            ),
            ("work.assignment_id", work(wire::WorkSample::default())),
            (
                "work.processes",
                work(wire::WorkSample {
                    assignment_id: id,
                    processes: Some(u32::MAX),
                    ..Default::default()
                }),
            ),
        ];
        for (field, sample) in cases {
            let refused = checked(sample).expect_err(field).to_string();
            assert!(refused.contains(field), "{refused}");
        }
    }
}
