//! What a device is: its names, addresses, abilities, memory and modes.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlDevice_t, nvmlEnableState_t};

use super::compute;
use crate::border::{Answer, Refusal, check_version, put, put_text, text_array, version_word};
use crate::library::{Library, Target, current};
use crate::machine::{Architecture, Device, PciAddress};

/// The head of the PCI structure that all versions of it have in common.
#[repr(C)]
struct PciHead {
    bus_id: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    ids: c_uint,
}

/// What modes are when they are on; off is 0.
const ENABLED: nvmlEnableState_t = 1;
/// All of these cards' data paths to the board are 16 lanes wide.
const PCIE_LANES: c_uint = 16;
/// The brand that current drivers print for data centre cards.
const BRAND_NVIDIA: sys::nvmlBrandType_t = sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA;
const MIB: c_ulonglong = 1024 * 1024;

/// The 4-digit form of an address, which buffers of 16 bytes hold.
fn short_bus_id(pci: PciAddress) -> [c_char; 16] {
    text_array(&pci.to_string())
}

/// The 8-digit form of an address.
fn long_bus_id(pci: PciAddress) -> [c_char; 32] {
    text_array(&format!(
        "{:08X}:{:02X}:{:02X}.0",
        pci.domain, pci.bus, pci.device
    ))
}

/// The newest PCI structure for an address.
pub(crate) fn pci_info(pci: PciAddress, ids: u32) -> sys::nvmlPciInfo_t {
    sys::nvmlPciInfo_t {
        busIdLegacy: short_bus_id(pci),
        domain: pci.domain,
        bus: c_uint::from(pci.bus),
        device: c_uint::from(pci.device),
        pciDeviceId: ids,
        pciSubSystemId: 0,
        busId: long_bus_id(pci),
    }
}

/// Writes what the older PCI structures have in common, and nothing past it.
///
/// # Safety
///
/// `to` is null or valid for the first version of NVML's PCI structure.
pub(crate) unsafe fn put_pci_head(
    to: *mut sys::nvmlPciInfo_t,
    pci: PciAddress,
    ids: u32,
) -> Answer<()> {
    let head = PciHead {
        bus_id: short_bus_id(pci),
        domain: pci.domain,
        bus: c_uint::from(pci.bus),
        device: c_uint::from(pci.device),
        ids,
    };
    // SAFETY: every version of the structure begins with these fields.
    unsafe { put(to.cast(), head) }
}

/// Memory of a device, whole or not, in MiB: total, reserved, used by processes.
fn memory_mib(library: &mut Library, handle: nvmlDevice_t) -> Answer<(u64, u64, u64)> {
    let (uuid, of, total, reserved, told) = match library.target(handle)? {
        Target::Device(device) => (
            device.uuid.clone(),
            None,
            device.memory_mib,
            device.memory_reserved_mib,
            device.telemetry.memory_used_mib,
        ),
        Target::Mig(device, instance, part) => (
            device.uuid.clone(),
            Some((instance.id, part.id)),
            compute::memory_mib(library, instance)?,
            0,
            None,
        ),
    };
    let used = match told {
        Some(used) => used,
        None => library
            .processes_on(&uuid)?
            .iter()
            .filter(|(_, on)| of.is_none() || *on == of)
            .map(|(process, _)| process.memory_used_mib)
            .sum(),
    };
    Ok((total, reserved, used.min(total - reserved)))
}

fn pcie_generation(device: &Device) -> c_uint {
    match device.architecture {
        Architecture::Volta | Architecture::Turing => 3,
        Architecture::Ampere | Architecture::Ada => 4,
        Architecture::Hopper | Architecture::Blackwell => 5,
    }
}

nvml_calls! {
    /// The product's name.
    fn nvmlDeviceGetName(device: nvmlDevice_t, to: *mut c_char, length: c_uint) {
        let library = current()?;
        match library.target(device)? {
            Target::Device(device) => put_text(to, length, &device.name),
            Target::Mig(device, instance, part) => {
                let called = compute::called(&library, instance, part)?;
                put_text(to, length, &format!("{} MIG {called}", device.name))
            }
        }
    }

    /// The device's UUID.
    fn nvmlDeviceGetUUID(device: nvmlDevice_t, to: *mut c_char, length: c_uint) {
        let library = current()?;
        put_text(to, length, match library.target(device)? {
            Target::Device(device) => &device.uuid,
            Target::Mig(_, _, part) => &part.uuid,
        })
    }

    /// The board's serial number.
    fn nvmlDeviceGetSerial(device: nvmlDevice_t, to: *mut c_char, length: c_uint) {
        let library = current()?;
        put_text(to, length, library.device(device)?.serial.as_deref().ok_or(Refusal::NotSupported)?)
    }

    /// The device's place in the order of the machine.
    fn nvmlDeviceGetIndex(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, current()?.device_with_index(device)?.0)
    }

    /// N of `/dev/nvidiaN`.
    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, current()?.device(device)?.minor)
    }

    /// The brand.
    fn nvmlDeviceGetBrand(device: nvmlDevice_t, to: *mut sys::nvmlBrandType_t) {
        current()?.device(device)?;
        put(to, BRAND_NVIDIA)
    }

    /// The generation of the chip.
    fn nvmlDeviceGetArchitecture(device: nvmlDevice_t, to: *mut sys::nvmlDeviceArchitecture_t) {
        put(to, match current()?.device(device)?.architecture {
            Architecture::Volta => sys::NVML_DEVICE_ARCH_VOLTA,
            Architecture::Turing => sys::NVML_DEVICE_ARCH_TURING,
            Architecture::Ampere => sys::NVML_DEVICE_ARCH_AMPERE,
            Architecture::Ada => sys::NVML_DEVICE_ARCH_ADA,
            Architecture::Hopper => sys::NVML_DEVICE_ARCH_HOPPER,
            Architecture::Blackwell => sys::NVML_DEVICE_ARCH_BLACKWELL,
        })
    }

    /// CUDA's compute capability.
    fn nvmlDeviceGetCudaComputeCapability(device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int) {
        let capability = current()?.device(device)?.compute_capability;
        put(major, capability.major)?;
        put(minor, capability.minor)
    }

    /// A number that devices of one board share: here each board has one.
    fn nvmlDeviceGetBoardId(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, c_uint::from(current()?.device(device)?.pci.bus) << 8)
    }

    /// Whether the board carries several devices.
    fn nvmlDeviceGetMultiGpuBoard(device: nvmlDevice_t, to: *mut c_uint) {
        current()?.device(device)?;
        put(to, 0)
    }

    /// Whether two devices are on one board.
    fn nvmlDeviceOnSameBoard(one: nvmlDevice_t, other: nvmlDevice_t, to: *mut c_int) {
        let library = current()?;
        put(to, c_int::from(library.device(one)?.uuid == library.device(other)?.uuid))
    }

    /// The address on the PCI bus.
    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, to: *mut sys::nvmlPciInfo_t) {
        let library = current()?;
        let device = library.device(device)?;
        put(to, pci_info(device.pci, device.pci_word()))
    }

    /// The address, in the structure before the 8-digit form.
    fn nvmlDeviceGetPciInfo_v2(device: nvmlDevice_t, to: *mut sys::nvmlPciInfo_t) {
        let library = current()?;
        let device = library.device(device)?;
        put_pci_head(to, device.pci, device.pci_word())
    }

    /// The address, in the first structure.
    fn nvmlDeviceGetPciInfo(device: nvmlDevice_t, to: *mut sys::nvmlPciInfo_t) {
        let library = current()?;
        let device = library.device(device)?;
        put_pci_head(to, device.pci, device.pci_word())
    }

    /// The address with the class: a 3D controller.
    fn nvmlDeviceGetPciInfoExt(device: nvmlDevice_t, to: *mut sys::nvmlPciInfoExt_t) {
        let library = current()?;
        let device = library.device(device)?;
        check_version(to, 1)?;
        put(to, sys::nvmlPciInfoExt_t {
            version: version_word::<sys::nvmlPciInfoExt_t>(1),
            domain: device.pci.domain,
            bus: c_uint::from(device.pci.bus),
            device: c_uint::from(device.pci.device),
            pciDeviceId: device.pci_word(),
            pciSubSystemId: 0,
            baseClass: 3,
            subClass: 2,
            busId: long_bus_id(device.pci),
        })
    }

    /// The fastest PCIe generation of card and board.
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, pcie_generation(current()?.device(device)?))
    }

    /// The fastest PCIe generation of the card.
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, pcie_generation(current()?.device(device)?))
    }

    /// The PCIe generation in use.
    fn nvmlDeviceGetCurrPcieLinkGeneration(device: nvmlDevice_t, to: *mut c_uint) {
        let library = current()?;
        let device = library.device(device)?;
        put(to, device.telemetry.pcie_generation.unwrap_or_else(|| pcie_generation(device)))
    }

    /// The greatest number of lanes.
    fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, to: *mut c_uint) {
        current()?.device(device)?;
        put(to, PCIE_LANES)
    }

    /// The lanes in use.
    fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, to: *mut c_uint) {
        let library = current()?;
        put(to, library.device(device)?.telemetry.pcie_width.unwrap_or(PCIE_LANES))
    }

    /// Memory, with what the driver keeps counted as used.
    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, to: *mut sys::nvmlMemory_t) {
        let (total, reserved, used) = memory_mib(&mut *current()?, device)?;
        put(to, sys::nvmlMemory_t {
            total: total * MIB,
            free: (total - reserved - used) * MIB,
            used: (reserved + used) * MIB,
        })
    }

    /// Memory, with what the driver keeps told apart.
    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, to: *mut sys::nvmlMemory_v2_t) {
        let (total, reserved, used) = memory_mib(&mut *current()?, device)?;
        check_version(to, 2)?;
        put(to, sys::nvmlMemory_v2_t {
            version: version_word::<sys::nvmlMemory_v2_t>(2),
            total: total * MIB,
            reserved: reserved * MIB,
            free: (total - reserved - used) * MIB,
            used: used * MIB,
        })
    }

    /// The window through which the processor sees the device's memory: all of it.
    fn nvmlDeviceGetBAR1MemoryInfo(device: nvmlDevice_t, to: *mut sys::nvmlBAR1Memory_t) {
        let total = current()?.device(device)?.memory_mib.next_power_of_two() * MIB;
        put(to, sys::nvmlBAR1Memory_t { bar1Total: total, bar1Free: total, bar1Used: 0 })
    }

    /// Whether processes may share the device: by default they may.
    fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, to: *mut sys::nvmlComputeMode_t) {
        let library = current()?;
        let uuid = &library.device(device)?.uuid;
        put(to, library.cuts()?.of(uuid).compute_mode)
    }

    /// Sets which programs may compute on the device at once.
    fn nvmlDeviceSetComputeMode(device: nvmlDevice_t, mode: sys::nvmlComputeMode_t) {
        if mode > sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS {
            return Err(Refusal::InvalidArgument);
        }
        let mut library = current()?;
        let uuid = library.device(device)?.uuid.clone();
        library.change("nvmlDeviceSetComputeMode", |machine, cuts| {
            let device = machine.devices.iter().find(|d| d.uuid == uuid);
            cuts.set_compute_mode(device.ok_or(Refusal::GpuIsLost)?, mode)
        })
    }

    /// Whether the driver stays loaded without users.
    fn nvmlDeviceGetPersistenceMode(device: nvmlDevice_t, to: *mut nvmlEnableState_t) {
        current()?.device(device)?;
        put(to, ENABLED)
    }

    /// Whether memory errors are corrected, now and after a restart.
    fn nvmlDeviceGetEccMode(device: nvmlDevice_t, now: *mut nvmlEnableState_t, later: *mut nvmlEnableState_t) {
        current()?.device(device)?;
        put(now, ENABLED)?;
        put(later, ENABLED)
    }
}
