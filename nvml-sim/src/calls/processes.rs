//! The processes on a device, as the machine file lists them.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;
use sys::nvmlDevice_t;

use crate::border::{Answer, put_list};
use crate::library::current;
use crate::machine::{Process, ProcessKind};

/// The instance number of a process that runs on a whole device.
const NO_INSTANCE: c_uint = c_uint::MAX;
const MIB: u64 = 1024 * 1024;

fn list<T>(
    device: nvmlDevice_t,
    kind: ProcessKind,
    entry: impl Fn(&Process) -> T,
) -> Answer<Vec<T>> {
    let library = current()?;
    let uuid = &library.device(device)?.uuid;
    Ok(library
        .machine()?
        .processes
        .iter()
        .filter(|process| process.kind == kind && process.uuid == *uuid)
        .map(entry)
        .collect())
}

fn first(process: &Process) -> sys::nvmlProcessInfo_v1_t {
    sys::nvmlProcessInfo_v1_t {
        pid: process.pid,
        usedGpuMemory: process.memory_used_mib.saturating_mul(MIB),
    }
}

fn second(process: &Process) -> sys::nvmlProcessInfo_v2_t {
    sys::nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: process.memory_used_mib.saturating_mul(MIB),
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
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

process_lists! {
    Compute: nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetComputeRunningProcesses_v2,
        nvmlDeviceGetComputeRunningProcesses_v3;
    Graphics: nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses_v2,
        nvmlDeviceGetGraphicsRunningProcesses_v3;
    Mps: nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses_v2,
        nvmlDeviceGetMPSComputeRunningProcesses_v3;
}
