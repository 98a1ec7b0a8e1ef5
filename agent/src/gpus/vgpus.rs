//! The virtual GPUs that a device can be given out as, and those that are there: for people who look.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::vgpu::VgpuType;

const BYTES_PER_MIB: u64 = 1024 * 1024;

/// A type of virtual GPU of a device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Type {
    /// The driver's number of it.
    pub id: u32,
    /// Its name, such as `NVIDIA L40S-12Q`.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Its memory.
    pub memory_mib: u64,
    /// How many the device has room for.
    pub instances_max: u32,
    /// Whether one more can be made now.
    pub creatable: bool,
    /// How many there are.
    pub active: u32,
}

/// The types of a device; none with a driver that is not a host's.
pub fn of_device(device: &Device<'_>) -> Result<Vec<Type>, NvmlError> {
    let creatable = device.vgpu_creatable_types()?;
    let creatable: Vec<u32> = creatable.iter().map(VgpuType::id).collect();
    let active = device.active_vgpus()?;
    let active = active.iter().map(|one| Ok(one.instance_type()?.id()));
    let active = active.collect::<Result<Vec<u32>, NvmlError>>()?;
    let supported = device.vgpu_supported_types()?;
    let shown = supported.iter().map(|kind| {
        Ok(Type {
            id: kind.id(),
            name: kind.name()?,
            class: kind.class_name()?,
            memory_mib: kind.framebuffer_size()? / BYTES_PER_MIB,
            instances_max: kind.max_instances()?,
            creatable: creatable.contains(&kind.id()),
            active: active.iter().map(|id| u32::from(*id == kind.id())).sum(),
        })
    });
    shown.collect()
}
