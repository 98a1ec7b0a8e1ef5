//! Who is on a device, and how much of its memory each holds.

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

const BYTES_PER_MIB: u64 = 1024 * 1024;

/// What one process holds of one device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Use {
    /// The device.
    pub uuid: String,
    /// The process.
    pub pid: u32,
    /// Its memory there.
    pub memory_mib: i64,
    /// The instance that it is on, by the driver's number, where the device is cut and that tells.
    pub instance: Option<u32>,
}

/// What each process holds of a device. One that several lists name counts once, with the most.
pub fn of_device(nvml: &Nvml, uuid: &str) -> Result<Vec<Use>, NvmlError> {
    let mut uses: Vec<Use> = Vec::new();
    for process in processes(&nvml.device_by_uuid(uuid)?)? {
        let memory_mib = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => i64::try_from(bytes / BYTES_PER_MIB).unwrap_or(i64::MAX),
            UsedGpuMemory::Unavailable => 0,
        };
        match uses.iter_mut().find(|used| used.pid == process.pid) {
            Some(seen) => seen.memory_mib = seen.memory_mib.max(memory_mib),
            None => uses.push(Use {
                uuid: uuid.to_owned(),
                pid: process.pid,
                memory_mib,
                instance: process.gpu_instance_id,
            }),
        }
    }
    Ok(uses)
}

/// The process ids on a device, whatever part of it they are on.
pub fn pids(device: &Device<'_>) -> Result<Vec<u32>, NvmlError> {
    let mut pids: Vec<u32> = processes(device)?
        .iter()
        .map(|process| process.pid)
        .collect();
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// The processes on a device as its driver lists them; one may be in several lists.
pub(crate) fn processes(device: &Device<'_>) -> Result<Vec<ProcessInfo>, NvmlError> {
    let lists = [
        device.running_compute_processes(),
        device.running_graphics_processes(),
        device.mps_running_compute_processes(),
    ];
    let mut all = Vec::new();
    for list in lists {
        match list {
            Ok(list) => all.extend(list),
            // An older driver knows fewer lists.
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}
