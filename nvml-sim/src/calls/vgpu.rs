//! Virtual GPUs: the types that a device can be given out as, and what is on it. As with a driver they are
//! listed here and made elsewhere: what is active is written in the machine file.

use std::ffi::{c_char, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlDevice_t, nvmlVgpuInstance_t, nvmlVgpuTypeId_t};

use crate::border::{Answer, Refusal, check_version, put, put_list, put_text, version_word};
use crate::library::{Library, current};
use crate::machine::{ActiveVgpu, Device, Vgpu};
use crate::models::vgpus::{self, VgpuType};

const MIB: u64 = 1024 * 1024;
/// Virtual GPUs of one guest at most.
const PER_VM_MAX: c_uint = 16;
/// What stands for no profile of a GPU instance: all types are time-sliced.
const NO_PROFILE: c_uint = c_uint::MAX;

/// The device with what its host's driver tells; the ordinary driver tells nothing.
fn host(library: &Library, device: nvmlDevice_t) -> Answer<(&Device, &Vgpu)> {
    let device = library.device(device)?;
    if library.cuts()?.of(&device.uuid).on {
        return Err(Refusal::NotSupported);
    }
    Ok((device, device.vgpu.as_ref().ok_or(Refusal::NotSupported)?))
}

/// The types that may be made on a device beside those that are there: of their size alone, unless several
/// sizes may be mixed.
fn creatable(device: &Device, vgpu: &Vgpu) -> Vec<VgpuType> {
    let all = vgpus::of_product(&device.name);
    let active: Vec<&VgpuType> = vgpu
        .active
        .iter()
        .filter_map(|active| all.iter().find(|kind| kind.name == active.kind))
        .collect();
    let whole = all.iter().map(|kind| kind.memory_mib).max().unwrap_or(0);
    let used: u64 = active.iter().map(|kind| kind.memory_mib).sum();
    let there = active.len();
    let fits = |kind: &&VgpuType| {
        let sized = vgpu.heterogeneous || active.iter().all(|a| a.memory_mib == kind.memory_mib);
        sized && used + kind.memory_mib <= whole && there < kind.instances_max as usize
    };
    all.iter().filter(fits).cloned().collect()
}

fn ids(types: Vec<VgpuType>) -> Vec<nvmlVgpuTypeId_t> {
    types.into_iter().map(|kind| kind.id).collect()
}

fn kind(id: nvmlVgpuTypeId_t) -> Answer<VgpuType> {
    drop(current()?);
    vgpus::of_id(id).ok_or(Refusal::InvalidArgument)
}

/// A virtual GPU by its number, with its device.
fn active(library: &Library, number: nvmlVgpuInstance_t) -> Answer<(&Device, &ActiveVgpu)> {
    let uuid = library.known(number)?;
    let on = |device: &'_ Device| device.vgpu.as_ref().map_or(0, |vgpu| vgpu.active.len()) > 0;
    let devices = library.machine()?.devices.iter().filter(|d| on(d));
    devices
        .flat_map(|device| device.vgpu.iter().map(move |vgpu| (device, vgpu)))
        .flat_map(|(device, vgpu)| vgpu.active.iter().map(move |active| (device, active)))
        .find(|(_, active)| active.uuid == uuid)
        .ok_or(Refusal::NotFound)
}

/// Writes a text whose buffer's length comes in and whose own goes out.
///
/// # Safety
///
/// `size` is null or valid, and `to` null or valid for so many bytes.
unsafe fn put_sized(to: *mut c_char, size: *mut c_uint, text: &str) -> Answer<()> {
    if size.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    // SAFETY: not null, and valid by this function's contract.
    let room = unsafe { size.read_unaligned() };
    let need = c_uint::try_from(text.len() + 1).map_err(|_| Refusal::Unknown)?;
    // SAFETY: as above.
    unsafe { size.write_unaligned(need) };
    // SAFETY: the caller vouches for `room` bytes.
    unsafe { put_text(to, room, text) }
}

nvml_calls! {
    /// The types that a device can be given out as.
    fn nvmlDeviceGetSupportedVgpus(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlVgpuTypeId_t) {
        let library = current()?;
        let (device, _) = host(&library, device)?;
        put_list(to, count, ids(vgpus::of_product(&device.name)))
    }

    /// The types of which one more can be made now.
    fn nvmlDeviceGetCreatableVgpus(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlVgpuTypeId_t) {
        let library = current()?;
        let (device, vgpu) = host(&library, device)?;
        put_list(to, count, ids(creatable(device, vgpu)))
    }

    /// The virtual GPUs on a device.
    fn nvmlDeviceGetActiveVgpus(device: nvmlDevice_t, count: *mut c_uint, to: *mut nvmlVgpuInstance_t) {
        let mut library = current()?;
        let (_, vgpu) = host(&library, device)?;
        let uuids: Vec<String> = vgpu.active.iter().map(|active| active.uuid.clone()).collect();
        let numbers = uuids.iter().map(|uuid| library.number(uuid));
        let numbers = numbers.collect::<Answer<Vec<_>>>()?;
        put_list(to, count, numbers)
    }

    /// The name of a type.
    fn nvmlVgpuTypeGetName(id: nvmlVgpuTypeId_t, to: *mut c_char, size: *mut c_uint) {
        put_sized(to, size, &kind(id)?.name)
    }

    /// The class of a type.
    fn nvmlVgpuTypeGetClass(id: nvmlVgpuTypeId_t, to: *mut c_char, size: *mut c_uint) {
        put_sized(to, size, kind(id)?.class)
    }

    /// The licence that a type needs.
    fn nvmlVgpuTypeGetLicense(id: nvmlVgpuTypeId_t, to: *mut c_char, size: c_uint) {
        put_text(to, size, kind(id)?.license)
    }

    /// The memory of a type, in bytes.
    fn nvmlVgpuTypeGetFramebufferSize(id: nvmlVgpuTypeId_t, to: *mut c_ulonglong) {
        put(to, kind(id)?.memory_mib * MIB)
    }

    /// How many of a type a device has room for.
    fn nvmlVgpuTypeGetMaxInstances(device: nvmlDevice_t, id: nvmlVgpuTypeId_t, to: *mut c_uint) {
        let library = current()?;
        let (device, _) = host(&library, device)?;
        let all = vgpus::of_product(&device.name);
        let found = all.iter().find(|kind| kind.id == id);
        put(to, found.ok_or(Refusal::InvalidArgument)?.instances_max)
    }

    /// How many of a type one guest may have.
    fn nvmlVgpuTypeGetMaxInstancesPerVm(id: nvmlVgpuTypeId_t, to: *mut c_uint) {
        kind(id)?;
        put(to, PER_VM_MAX)
    }

    /// The profile of the GPU instance that a type needs: none.
    fn nvmlVgpuTypeGetGpuInstanceProfileId(id: nvmlVgpuTypeId_t, to: *mut c_uint) {
        kind(id)?;
        put(to, NO_PROFILE)
    }

    /// The type of a virtual GPU.
    fn nvmlVgpuInstanceGetType(number: nvmlVgpuInstance_t, to: *mut nvmlVgpuTypeId_t) {
        let library = current()?;
        let (device, active) = active(&library, number)?;
        let all = vgpus::of_product(&device.name);
        let found = all.iter().find(|kind| kind.name == active.kind);
        put(to, found.ok_or(Refusal::Unknown)?.id)
    }

    /// The UUID of a virtual GPU.
    fn nvmlVgpuInstanceGetUUID(number: nvmlVgpuInstance_t, to: *mut c_char, size: c_uint) {
        let library = current()?;
        put_text(to, size, &active(&library, number)?.1.uuid)
    }

    /// The guest of a virtual GPU, by its UUID.
    fn nvmlVgpuInstanceGetVmID(
        number: nvmlVgpuInstance_t,
        to: *mut c_char,
        size: c_uint,
        form: *mut sys::nvmlVgpuVmIdType_t,
    ) {
        let library = current()?;
        put_text(to, size, &active(&library, number)?.1.vm)?;
        put(form, sys::nvmlVgpuVmIdType_NVML_VGPU_VM_ID_UUID)
    }

    /// The memory that a virtual GPU uses, in bytes.
    fn nvmlVgpuInstanceGetFbUsage(number: nvmlVgpuInstance_t, to: *mut c_ulonglong) {
        let library = current()?;
        put(to, active(&library, number)?.1.memory_used_mib * MIB)
    }

    /// Whether several sizes may be mixed on a device.
    fn nvmlDeviceGetVgpuHeterogeneousMode(device: nvmlDevice_t, to: *mut sys::nvmlVgpuHeterogeneousMode_t) {
        let library = current()?;
        let (_, vgpu) = host(&library, device)?;
        check_version(to, 1)?;
        put(to, sys::nvmlVgpuHeterogeneousMode_t {
            version: version_word::<sys::nvmlVgpuHeterogeneousMode_t>(1),
            mode: c_uint::from(vgpu.heterogeneous),
        })
    }
}
