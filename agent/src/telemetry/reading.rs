//! What one device shows at one moment, and what follows from two moments.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::Receiver;

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::{Device, Nvml};
use protocol::mig::MigSlice;

use super::Ask;
use crate::gpus::nvml::{self, ReadError};
use crate::gpus::{mig, uses};

const BYTES_PER_MIB: u64 = 1024 * 1024;
/// A percent, in thousandths.
const PERCENT: u32 = 10;
/// What is asked of two samples, in the order of [`Load`]'s fields.
const METRICS: [GpmMetricId; 3] = [
    GpmMetricId::SmUtil,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::DramBwUtil,
];

/// Shares of time in thousandths, means since the reading before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Multiprocessors at work.
    pub sm: Option<u32>,
    /// Tensor pipes at work.
    pub tensor: Option<u32>,
    /// Memory's bandwidth in use.
    pub dram: Option<u32>,
}

/// What a device showed; what its driver does not tell is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// Share of time in which any kernel ran, in thousandths.
    pub busy: Option<u32>,
    /// What its counters tell.
    pub load: Load,
    /// Memory that is held, and all of it.
    pub memory_mib: Option<(i64, i64)>,
    /// Degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Power, in milliwatts.
    pub power_mw: Option<u32>,
    /// Energy ever, in millijoules.
    pub energy_total_mj: Option<u64>,
    /// Energy since the reading before, in millijoules.
    pub energy_mj: Option<u64>,
    /// The clocks of multiprocessors and memory, in MHz.
    pub clocks_mhz: (Option<u32>, Option<u32>),
    /// Its MIG instances.
    pub instances: Vec<Instance>,
    /// The processes on it.
    pub processes: Vec<Process>,
}

/// What an instance showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// What it is, and where.
    pub slice: MigSlice,
    /// What its counters tell.
    pub load: Load,
    /// Memory that is held of it.
    pub memory_mib: Option<i64>,
}

/// What a process had of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its pid, in the host's namespace.
    pub pid: u32,
    /// Its memory.
    pub memory_mib: Option<i64>,
    /// Its share of the device's time, in thousandths.
    pub busy: Option<u32>,
}

/// What of a reading the next one needs.
#[derive(Default)]
struct Before<'nvml> {
    energy_mj: Option<u64>,
    /// Up to when what processes did is known, by the driver's clock.
    processes_at: u64,
    device: Option<GpmSample<'nvml>>,
    instances: BTreeMap<u32, GpmSample<'nvml>>,
}

/// Why a device is read no further by this thread.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The driver cannot be used.
    #[error(transparent)]
    Driver(#[from] ReadError),
    /// The device did not answer as it should.
    #[error("the device cannot be read")]
    Device(#[from] NvmlError),
}

/// Answers until nobody asks any more, or the device fails.
pub fn serve(library: Option<&Path>, uuid: &str, asked: &Receiver<Ask>) -> Result<(), Stopped> {
    let nvml = nvml::open(library)?;
    let mut before = Before::default();
    while let Ok(answer) = asked.recv() {
        let device = nvml.device_by_uuid(uuid)?;
        let reading = read(&nvml, &device, &mut before)?;
        // Who asked may not wait any more.
        let _ = answer.send(reading);
    }
    Ok(())
}

fn read<'nvml>(
    nvml: &'nvml Nvml,
    device: &Device<'nvml>,
    before: &mut Before<'nvml>,
) -> Result<Reading, NvmlError> {
    // What needs the device itself: one that is gone has its name still.
    let memory = device.memory_info()?;
    let energy = device.total_energy_consumption().ok();
    let since = energy.zip(before.energy_mj);
    before.energy_mj = energy;
    let instances = match mig::read(nvml, device)? {
        Some(cut) if cut.on => read_instances(nvml, device, &cut.instances, before),
        _ => Vec::new(),
    };
    Ok(Reading {
        busy: device
            .utilization_rates()
            .ok()
            .map(|rates| rates.gpu * PERCENT),
        load: advance(nvml, &mut before.device, device.gpm_sample().ok()),
        memory_mib: Some((mib(memory.used), mib(memory.total))),
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
        power_mw: device.power_usage().ok(),
        energy_total_mj: energy,
        // Counters begin anew with the driver.
        energy_mj: since.and_then(|(now, then)| now.checked_sub(then)),
        clocks_mhz: (
            device.clock_info(Clock::SM).ok(),
            device.clock_info(Clock::Memory).ok(),
        ),
        instances,
        processes: read_processes(device, before)?,
    })
}

fn read_instances<'nvml>(
    nvml: &'nvml Nvml,
    device: &Device<'nvml>,
    cut: &[mig::Instance],
    before: &mut Before<'nvml>,
) -> Vec<Instance> {
    before
        .instances
        .retain(|id, _| cut.iter().any(|instance| instance.id == *id));
    let read = cut.iter().map(|instance| {
        let mut last = before.instances.remove(&instance.id);
        let load = advance(nvml, &mut last, device.gpm_mig_sample(instance.id).ok());
        before
            .instances
            .extend(last.map(|last| (instance.id, last)));
        let uuid = instance.uuids.first();
        let handle = uuid.and_then(|uuid| nvml.device_by_uuid(uuid.as_str()).ok());
        let memory = handle.and_then(|handle| handle.memory_info().ok());
        Instance {
            slice: instance.slice.clone(),
            load,
            memory_mib: memory.map(|memory| mib(memory.used)),
        }
    });
    read.collect()
}

/// What lies between the sample before and this one, which takes its place.
fn advance<'nvml>(
    nvml: &'nvml Nvml,
    last: &mut Option<GpmSample<'nvml>>,
    now: Option<GpmSample<'nvml>>,
) -> Load {
    let between = last.as_ref().zip(now.as_ref());
    let told = between.and_then(|(then, now)| gpm_metrics_get(nvml, then, now, &METRICS).ok());
    *last = now;
    let told = told.unwrap_or_default();
    let metric = |at: usize| {
        let metric = told.get(at)?.as_ref().ok()?;
        permille(metric.value)
    };
    Load {
        sm: metric(0),
        tensor: metric(1),
        dram: metric(2),
    }
}

/// A percentage as the driver tells it, a float, in whole thousandths; nothing where it is none.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn permille(percent: f64) -> Option<u32> {
    let bounded = (0.0..=100.0).contains(&percent);
    // Bounded above, so that nothing is cut off.
    bounded.then(|| (percent * f64::from(PERCENT)).round() as u32)
}

fn read_processes(device: &Device<'_>, before: &mut Before<'_>) -> Result<Vec<Process>, NvmlError> {
    let mut processes: Vec<Process> = Vec::new();
    for listed in uses::processes(device)? {
        let memory_mib = match listed.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(mib(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        match processes.iter_mut().find(|seen| seen.pid == listed.pid) {
            Some(seen) => seen.memory_mib = seen.memory_mib.max(memory_mib),
            None => processes.push(Process {
                pid: listed.pid,
                memory_mib,
                busy: None,
            }),
        }
    }
    // The first time it tells of long ago.
    let first = before.processes_at == 0;
    let told = match device.process_utilization_stats(before.processes_at) {
        Ok(told) => told,
        // Nothing new: nobody computed.
        Err(NvmlError::NotFound) => Vec::new(),
        Err(_) => return Ok(processes),
    };
    let newest = told.iter().map(|sample| sample.timestamp).max();
    before.processes_at = newest.unwrap_or(0).max(before.processes_at).max(1);
    if !first {
        for process in &mut processes {
            let own = told.iter().filter(|sample| sample.pid == process.pid);
            let shares: Vec<u32> = own.map(|sample| sample.sm_util * PERCENT).collect();
            let count = u32::try_from(shares.len()).unwrap_or(u32::MAX).max(1);
            process.busy = Some((shares.iter().sum::<u32>() / count).min(100 * PERCENT));
        }
    }
    Ok(processes)
}

fn mib(bytes: u64) -> i64 {
    i64::try_from(bytes / BYTES_PER_MIB).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_rounded_to_thousandths_and_what_is_none_is_unknown() {
        assert_eq!(permille(0.0), Some(0));
        assert_eq!(permille(33.33), Some(333));
        assert_eq!(permille(99.96), Some(1000));
        assert_eq!(permille(f64::NAN), None);
        assert_eq!(permille(100.1), None);
    }
}
