//! The processes on a device: those that the machine file lists, and those that say so themselves.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_wrapper_sys::bindings as sys;
use sys::nvmlDevice_t;

use crate::border::{Answer, Refusal, put_list};
use crate::library::{On, Target, current, memory_percent};
use crate::machine::ProcessKind;

/// The instance number of a process that runs on a whole device.
const NO_INSTANCE: c_uint = c_uint::MAX;
const MIB: u64 = 1024 * 1024;

fn list<T>(device: nvmlDevice_t, kind: ProcessKind, entry: impl Fn(&On) -> T) -> Answer<Vec<T>> {
    let mut library = current()?;
    let (uuid, of) = match library.target(device)? {
        Target::Device(device) => (device.uuid.clone(), None),
        Target::Mig(device, instance, part) => (device.uuid.clone(), Some((instance.id, part.id))),
    };
    let all = library.processes_on(&uuid)?;
    let shown = |(process, on): &&On| process.kind == kind && (of.is_none() || *on == of);
    Ok(all.iter().filter(shown).map(entry).collect())
}

fn first((process, _): &On) -> sys::nvmlProcessInfo_v1_t {
    sys::nvmlProcessInfo_v1_t {
        pid: process.pid,
        usedGpuMemory: process.memory_used_mib.saturating_mul(MIB),
    }
}

fn second((process, on): &On) -> sys::nvmlProcessInfo_v2_t {
    let (gpu_instance, compute_instance) = on.unwrap_or((NO_INSTANCE, NO_INSTANCE));
    sys::nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: process.memory_used_mib.saturating_mul(MIB),
        gpuInstanceId: gpu_instance,
        computeInstanceId: compute_instance,
    }
}

macro_rules! process_lists {
    ($($kind:ident: $plain:ident, $v2:ident, $v3:ident;)*) => {
        nvml_calls! {$(
            /// The processes of one kind, in entries of 16 bytes.
            fn $plain(device: nvmlDevice_t, count: *mut c_uint, to: *mut sys::nvmlProcessInfo_v1_t) {
                put_list(to, count, list(device, ProcessKind::$kind, first)?)
            }

            /// The processes of one kind, in entries of 24 bytes.
            fn $v2(device: nvmlDevice_t, count: *mut c_uint, to: *mut sys::nvmlProcessInfo_v2_t) {
                put_list(to, count, list(device, ProcessKind::$kind, second)?)
            }

            /// The processes of one kind, in entries of 24 bytes.
            fn $v3(device: nvmlDevice_t, count: *mut c_uint, to: *mut sys::nvmlProcessInfo_v2_t) {
                put_list(to, count, list(device, ProcessKind::$kind, second)?)
            }
        )*}
    };
}

/// The processes that compute, each with its share of the device's time. No samples are kept: what is
/// told is as it is now.
fn utilization(device: nvmlDevice_t) -> Answer<Vec<sys::nvmlProcessUtilizationSample_t>> {
    let mut library = current()?;
    let uuid = library.device(device)?.uuid.clone();
    if library.cuts()?.of(&uuid).on {
        return Err(Refusal::NotSupported);
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    let all = library.processes_on(&uuid)?;
    let busy = all.iter().filter(|(process, _)| process.load_percent > 0);
    let sample = |(process, _): &On| sys::nvmlProcessUtilizationSample_t {
        pid: process.pid,
        timeStamp: now,
        smUtil: process.load_percent.min(100),
        memUtil: memory_percent(process.load_percent.min(100)),
        encUtil: 0,
        decUtil: 0,
    };
    let samples: Vec<_> = busy.map(sample).collect();
    if samples.is_empty() {
        return Err(Refusal::NotFound);
    }
    Ok(samples)
}

nvml_calls! {
    /// How much of the device's time each process takes.
    fn nvmlDeviceGetProcessUtilization(
        device: nvmlDevice_t,
        to: *mut sys::nvmlProcessUtilizationSample_t,
        count: *mut c_uint,
        _since: c_ulonglong,
    ) {
        put_list(to, count, utilization(device)?)
    }
}

process_lists! {
    Compute: nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetComputeRunningProcesses_v2,
        nvmlDeviceGetComputeRunningProcesses_v3;
    Graphics: nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses_v2,
        nvmlDeviceGetGraphicsRunningProcesses_v3;
    Mps: nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses_v2,
        nvmlDeviceGetMPSComputeRunningProcesses_v3;
}
