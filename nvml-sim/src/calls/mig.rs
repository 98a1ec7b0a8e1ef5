//! MIG: the mode, the profiles and the GPU instances.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstancePlacement_t};

use crate::border::{Answer, Refusal, put, put_all, read_version, text_array, version_word};
use crate::cuts::{self, Instance};
use crate::library::{Library, current};
use crate::machine::Device;
use crate::profiles::{Engines, Model, Profile};

/// Handles of instances are numbers dressed as addresses, apart from those of devices.
const FIRST_INSTANCE: usize = 0x4749_0000_0000;
/// As those of devices are apart from one another.
const STEP: usize = 16;
/// Profiles are asked for by numbers below this.
const NUMBERS_MAX: c_uint = sys::NVML_GPU_INSTANCE_PROFILE_COUNT;

/// The handle of what was made with a serial number.
pub(super) fn handle<T>(first: usize, serial: u64) -> *mut T {
    let offset = usize::try_from(serial).unwrap_or_default() * STEP;
    std::ptr::without_provenance_mut(first + offset)
}

/// The serial number that a handle stands for.
pub(super) fn serial<T>(first: usize, handle: *mut T) -> Answer<u64> {
    let offset = handle.addr().checked_sub(first);
    let offset = offset.filter(|offset| offset % STEP == 0);
    let number = offset.and_then(|offset| u64::try_from(offset / STEP).ok());
    number.ok_or(Refusal::InvalidArgument)
}

/// The instance of a handle, with the UUID of its device; a dead handle is none.
pub(super) fn instance(library: &Library, handle: nvmlGpuInstance_t) -> Answer<(&str, &Instance)> {
    let serial = serial(FIRST_INSTANCE, handle)?;
    let mut all = library.cuts()?.instances();
    all.find(|(_, instance)| instance.serial == serial)
        .ok_or(Refusal::InvalidArgument)
}

/// The handle of an instance.
pub(super) fn handle_of(instance: &Instance) -> nvmlGpuInstance_t {
    handle(FIRST_INSTANCE, instance.serial)
}

/// Adds what a device's profiles tell while it is in MIG mode.
fn model(library: &Library, handle: nvmlDevice_t) -> Answer<(&Device, &'static Model)> {
    let device = library.device(handle)?;
    let model = cuts::model(device)?;
    if !library.cuts()?.of(&device.uuid).on {
        return Err(Refusal::NotSupported);
    }
    Ok((device, model))
}

fn by_number(model: &Model, number: c_uint) -> Answer<&Profile> {
    if number >= NUMBERS_MAX {
        return Err(Refusal::InvalidArgument);
    }
    let mut profiles = model.profiles.iter();
    let usable = |profile: &&Profile| profile.number == number && !profile.starts().is_empty();
    profiles.find(usable).ok_or(Refusal::NotSupported)
}

fn by_id(model: &Model, id: c_uint) -> Answer<&Profile> {
    model.profile(id).ok_or(Refusal::InvalidArgument)
}

/// Writes a profile into whichever of the structures with a version the caller has.
///
/// # Safety
///
/// `to` is null or valid for the structure that its version word names.
unsafe fn put_profile(
    to: *mut sys::nvmlGpuInstanceProfileInfo_v2_t,
    device: &Device,
    model: &Model,
    profile: &Profile,
) -> Answer<()> {
    let name = text_array(&format!("MIG {}", profile.name));
    let memory = profile.memory_mib(device.memory_mib, model.memory_slices);
    let [sm, copies, decoders, encoders, jpeg, ofa] = engines(profile);
    // SAFETY: the version word is the head of both.
    let version = unsafe { read_version(to) }?;
    if version == version_word::<sys::nvmlGpuInstanceProfileInfo_v2_t>(2) {
        let info = sys::nvmlGpuInstanceProfileInfo_v2_t {
            version,
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.compute_slices,
            instanceCount: profile.max_instances,
            multiprocessorCount: sm,
            copyEngineCount: copies,
            decoderCount: decoders,
            encoderCount: encoders,
            jpegCount: jpeg,
            ofaCount: ofa,
            memorySizeMB: memory,
            name,
        };
        // SAFETY: the caller has the second structure.
        return unsafe { put(to, info) };
    }
    if version != version_word::<sys::nvmlGpuInstanceProfileInfo_v3_t>(3) {
        return Err(Refusal::VersionMismatch);
    }
    let info = sys::nvmlGpuInstanceProfileInfo_v3_t {
        version,
        id: profile.id,
        sliceCount: profile.compute_slices,
        instanceCount: profile.max_instances,
        multiprocessorCount: sm,
        copyEngineCount: copies,
        decoderCount: decoders,
        encoderCount: encoders,
        jpegCount: jpeg,
        ofaCount: ofa,
        memorySizeMB: memory,
        name,
        capabilities: 0,
    };
    // SAFETY: the caller has the third structure.
    unsafe { put(to.cast(), info) }
}

/// Multiprocessors, copy engines, decoders, encoders, JPEG and optical-flow engines of a profile.
pub(super) fn engines(profile: &Profile) -> [c_uint; 6] {
    let extra = c_uint::from(matches!(profile.engines(), Engines::Extra | Engines::All));
    [
        profile.sm.unwrap_or(profile.compute_slices * 14),
        profile.copy_engines.unwrap_or(profile.compute_slices),
        profile.decoders.unwrap_or(extra),
        profile.encoders.unwrap_or(0),
        profile.jpeg.unwrap_or(extra),
        profile.ofa.unwrap_or(extra),
    ]
}

fn create(
    device: nvmlDevice_t,
    profile: c_uint,
    at: Option<(u32, u32)>,
    call: &str,
) -> Answer<nvmlGpuInstance_t> {
    let mut library = current()?;
    let device = library.device(device)?.clone();
    let made = library.change(call, |_, cuts| cuts.create(&device, profile, at))?;
    Ok(handle(FIRST_INSTANCE, made))
}

nvml_calls! {
    /// Whether the device is cut by MIG, now and after what is pending.
    fn nvmlDeviceGetMigMode(device: nvmlDevice_t, now: *mut c_uint, later: *mut c_uint) {
        let library = current()?;
        let device = library.device(device)?;
        cuts::model(device)?;
        let cut = library.cuts()?.of(&device.uuid);
        put(now, c_uint::from(cut.on))?;
        put(later, c_uint::from(cut.pending))
    }

    /// Asks for a mode; what keeps it from being in force at once is told beside.
    fn nvmlDeviceSetMigMode(device: nvmlDevice_t, mode: c_uint, status: *mut sys::nvmlReturn_t) {
        let mut library = current()?;
        let device = library.device(device)?.clone();
        cuts::model(&device)?;
        if mode > 1 || status.is_null() {
            return Err(Refusal::InvalidArgument);
        }
        let clients = !library.processes_on(&device.uuid)?.is_empty();
        let set = library.change("nvmlDeviceSetMigMode", |_, cuts| {
            Ok(cuts.set_mode(&device, mode == 1, clients))
        })?;
        put(status, set.map_or_else(|refusal| refusal as sys::nvmlReturn_t, |()| 0))
    }

    /// A profile by its number, in the first structure.
    fn nvmlDeviceGetGpuInstanceProfileInfo(
        device: nvmlDevice_t,
        number: c_uint,
        to: *mut sys::nvmlGpuInstanceProfileInfo_t,
    ) {
        let library = current()?;
        let (device, model) = model(&library, device)?;
        let profile = by_number(model, number)?;
        let [sm, copies, decoders, encoders, jpeg, ofa] = engines(profile);
        put(to, sys::nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.compute_slices,
            instanceCount: profile.max_instances,
            multiprocessorCount: sm,
            copyEngineCount: copies,
            decoderCount: decoders,
            encoderCount: encoders,
            jpegCount: jpeg,
            ofaCount: ofa,
            memorySizeMB: profile.memory_mib(device.memory_mib, model.memory_slices),
        })
    }

    /// A profile by its number, with its name.
    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        device: nvmlDevice_t,
        number: c_uint,
        to: *mut sys::nvmlGpuInstanceProfileInfo_v2_t,
    ) {
        let library = current()?;
        let (device, model) = model(&library, device)?;
        put_profile(to, device, model, by_number(model, number)?)
    }

    /// A profile by its id, with its name.
    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        device: nvmlDevice_t,
        id: c_uint,
        to: *mut sys::nvmlGpuInstanceProfileInfo_v2_t,
    ) {
        let library = current()?;
        let (device, model) = model(&library, device)?;
        put_profile(to, device, model, by_id(model, id)?)
    }

    /// All places where instances of a profile may begin, free or not.
    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: nvmlDevice_t,
        id: c_uint,
        to: *mut nvmlGpuInstancePlacement_t,
        count: *mut c_uint,
    ) {
        let library = current()?;
        let profile = by_id(model(&library, device)?.1, id)?;
        let size = profile.size();
        let places = profile.starts().iter().map(|&start| nvmlGpuInstancePlacement_t { start, size });
        put_all(to, count, places.collect())
    }

    /// How many more instances of a profile fit.
    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: nvmlDevice_t, id: c_uint, to: *mut c_uint) {
        let library = current()?;
        let (device, model) = model(&library, device)?;
        put(to, library.cuts()?.of(&device.uuid).remaining(model, by_id(model, id)?))
    }

    /// Makes an instance where the driver likes.
    fn nvmlDeviceCreateGpuInstance(device: nvmlDevice_t, id: c_uint, to: *mut nvmlGpuInstance_t) {
        put(to, create(device, id, None, "nvmlDeviceCreateGpuInstance")?)
    }

    /// Makes an instance at a place.
    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: nvmlDevice_t,
        id: c_uint,
        place: *const nvmlGpuInstancePlacement_t,
        to: *mut nvmlGpuInstance_t,
    ) {
        if place.is_null() {
            return Err(Refusal::InvalidArgument);
        }
        // SAFETY: not null, and valid by the call's contract.
        let place = unsafe { place.read_unaligned() };
        let call = "nvmlDeviceCreateGpuInstanceWithPlacement";
        put(to, create(device, id, Some((place.start, place.size)), call)?)
    }

    /// Unmakes an instance that nothing is in.
    fn nvmlGpuInstanceDestroy(handle: nvmlGpuInstance_t) {
        let mut library = current()?;
        instance(&library, handle)?;
        let serial = serial(FIRST_INSTANCE, handle)?;
        library.change("nvmlGpuInstanceDestroy", |_, cuts| cuts.destroy(serial))
    }

    /// The instances of a profile.
    fn nvmlDeviceGetGpuInstances(
        device: nvmlDevice_t,
        id: c_uint,
        to: *mut nvmlGpuInstance_t,
        count: *mut c_uint,
    ) {
        let library = current()?;
        let (device, model) = model(&library, device)?;
        by_id(model, id)?;
        let all = library.cuts()?.of(&device.uuid).instances.iter();
        put_all(to, count, all.filter(|i| i.profile == id).map(handle_of).collect())
    }

    /// The instance with an id.
    fn nvmlDeviceGetGpuInstanceById(device: nvmlDevice_t, id: c_uint, to: *mut nvmlGpuInstance_t) {
        let library = current()?;
        let (device, _) = model(&library, device)?;
        let mut all = library.cuts()?.of(&device.uuid).instances.iter();
        put(to, handle_of(all.find(|i| i.id == id).ok_or(Refusal::NotFound)?))
    }

    /// What an instance is and where.
    fn nvmlGpuInstanceGetInfo(handle: nvmlGpuInstance_t, to: *mut sys::nvmlGpuInstanceInfo_t) {
        let mut library = current()?;
        let (uuid, found) = instance(&library, handle)?;
        let (uuid, found) = (uuid.to_owned(), found.clone());
        put(to, sys::nvmlGpuInstanceInfo_t {
            device: library.handle(&uuid),
            id: found.id,
            profileId: found.profile,
            placement: nvmlGpuInstancePlacement_t { start: found.start, size: found.size },
        })
    }
}
