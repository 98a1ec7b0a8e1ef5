//! Load in samples (GPM), as cards from Hopper on tell it, also of their MIG instances.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlDevice_t, nvmlGpmSample_t};

use crate::border::{Answer, Refusal, put};
use crate::library::{Library, current, memory_percent};
use crate::machine::{Architecture, Device};

/// A sample of a load; one that was made and not yet taken has none.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    load_percent: Option<u32>,
}

/// The version word of the structures of these calls is the plain number.
const VERSION: c_uint = 1;
/// Samples open at once; more than this is a caller that forgets to free them.
const SAMPLES_MAX: usize = 1024;
/// Samples are numbers dressed as addresses, apart from other handles.
const FIRST_SAMPLE: usize = 0x5350_0000;
const SAMPLE_STEP: usize = 16;

fn tells(device: &Device) -> bool {
    matches!(
        device.architecture,
        Architecture::Hopper | Architecture::Blackwell
    )
}

fn alloc() -> Answer<nvmlGpmSample_t> {
    let mut library = current()?;
    if library.samples.len() >= SAMPLES_MAX {
        return Err(Refusal::Unknown);
    }
    let last = library.samples.last_key_value();
    let address = last.map_or(FIRST_SAMPLE, |(last, _)| last + SAMPLE_STEP);
    library.samples.insert(address, Sample::default());
    Ok(std::ptr::without_provenance_mut(address))
}

/// Takes a sample of a device, or of one of its instances.
fn take(device: nvmlDevice_t, instance: Option<c_uint>, to: nvmlGpmSample_t) -> Answer<()> {
    let mut library = current()?;
    let device = library.device(device)?;
    if !tells(device) {
        return Err(Refusal::NotSupported);
    }
    let uuid = device.uuid.clone();
    let load = match instance {
        None => library.load_percent(&uuid)?,
        Some(id) => of_instance(&mut library, &uuid, id)?,
    };
    let sample = library.samples.get_mut(&to.addr());
    sample.ok_or(Refusal::InvalidArgument)?.load_percent = Some(load);
    Ok(())
}

fn of_instance(library: &mut Library, uuid: &str, id: c_uint) -> Answer<u32> {
    if !library
        .cuts()?
        .of(uuid)
        .instances
        .iter()
        .any(|i| i.id == id)
    {
        return Err(Refusal::NotFound);
    }
    let on = library.processes_on(uuid)?;
    let here = on
        .iter()
        .filter(|(_, on)| on.is_some_and(|(instance, _)| instance == id));
    let load: u32 = here.map(|(process, _)| process.load_percent).sum();
    Ok(load.min(100))
}

/// What a metric is between two samples, in percent; none where it is not simulated.
fn metric(id: sys::nvmlGpmMetricId_t, load_percent: u32) -> Option<u32> {
    match id {
        sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL
        | sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL => Some(load_percent),
        sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL => Some(memory_percent(load_percent)),
        _ => None,
    }
}

fn load_of(library: &Library, sample: nvmlGpmSample_t) -> Answer<u32> {
    let sample = library.samples.get(&sample.addr());
    sample
        .and_then(|sample| sample.load_percent)
        .ok_or(Refusal::InvalidArgument)
}

/// Fills the metrics that the caller lists.
///
/// # Safety
///
/// `to` is null or valid.
unsafe fn fill(to: *mut sys::nvmlGpmMetricsGet_t) -> Answer<()> {
    if to.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    // SAFETY: not null, and valid by this function's contract.
    let asked = unsafe { &mut *to };
    if asked.version != VERSION {
        return Err(Refusal::VersionMismatch);
    }
    let library = current()?;
    let loads = load_of(&library, asked.sample1)? + load_of(&library, asked.sample2)?;
    let count = asked.numMetrics as usize;
    let metrics = asked
        .metrics
        .get_mut(..count)
        .ok_or(Refusal::InvalidArgument)?;
    for entry in metrics {
        match metric(entry.metricId, loads / 2) {
            Some(percent) => {
                entry.nvmlReturn = 0;
                entry.value = f64::from(percent);
            }
            None => entry.nvmlReturn = Refusal::NotSupported as sys::nvmlReturn_t,
        }
    }
    Ok(())
}

nvml_calls! {
    /// Whether a device tells its load so.
    fn nvmlGpmQueryDeviceSupport(device: nvmlDevice_t, to: *mut sys::nvmlGpmSupport_t) {
        let library = current()?;
        let supported = tells(library.device(device)?);
        put(to, sys::nvmlGpmSupport_t {
            version: VERSION,
            isSupportedDevice: c_uint::from(supported),
        })
    }

    /// Makes room for a sample.
    fn nvmlGpmSampleAlloc(to: *mut nvmlGpmSample_t) {
        put(to, alloc()?)
    }

    /// Gives a sample's room back.
    fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) {
        let freed = current()?.samples.remove(&sample.addr());
        freed.map(drop).ok_or(Refusal::InvalidArgument)
    }

    /// Takes a sample of a device.
    fn nvmlGpmSampleGet(device: nvmlDevice_t, sample: nvmlGpmSample_t) {
        take(device, None, sample)
    }

    /// Takes a sample of an instance of a device.
    fn nvmlGpmMigSampleGet(device: nvmlDevice_t, instance: c_uint, sample: nvmlGpmSample_t) {
        take(device, Some(instance), sample)
    }

    /// What happened between two samples.
    fn nvmlGpmMetricsGet(to: *mut sys::nvmlGpmMetricsGet_t) {
        fill(to)
    }
}
