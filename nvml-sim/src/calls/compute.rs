//! MIG: the compute instances, and the MIG devices that they are.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlComputeInstance_t, nvmlComputeInstancePlacement_t, nvmlDevice_t, nvmlGpuInstance_t};

use super::mig;
use crate::border::{Answer, Refusal, put, put_all, read_version, text_array, version_word};
use crate::cuts::{self, Compute, Instance};
use crate::library::{Library, Target, current};
use crate::profiles::Profile;

/// Handles of compute instances are numbers dressed as addresses, apart from all others.
const FIRST_COMPUTE: usize = 0x4349_0000_0000;
/// Profiles are asked for by numbers below this.
const NUMBERS_MAX: c_uint = sys::NVML_COMPUTE_INSTANCE_PROFILE_COUNT;
/// The one profile of engines: all share them.
const SHARED: c_uint = 0;

/// A compute instance, the instance that it is in, and their device's UUID.
fn compute(
    library: &Library,
    handle: nvmlComputeInstance_t,
) -> Answer<(&str, &Instance, &Compute)> {
    let serial = mig::serial(FIRST_COMPUTE, handle)?;
    let mut all = library.cuts()?.computes();
    all.find(|(_, _, compute)| compute.serial == serial)
        .ok_or(Refusal::InvalidArgument)
}

fn handle_of(compute: &Compute) -> nvmlComputeInstance_t {
    mig::handle(FIRST_COMPUTE, compute.serial)
}

/// The slices of a profile that an instance can have, and the profile of the instance.
fn offered(
    library: &Library,
    handle: nvmlGpuInstance_t,
    number: c_uint,
) -> Answer<(c_uint, &'static Profile, u64)> {
    let (uuid, instance) = mig::instance(library, handle)?;
    if number >= NUMBERS_MAX {
        return Err(Refusal::InvalidArgument);
    }
    let slices = cuts::compute_slices(number).filter(|slices| *slices <= instance.slices);
    let devices = &library.machine()?.devices;
    let device = devices.iter().find(|device| device.uuid == uuid);
    let device = device.ok_or(Refusal::GpuIsLost)?;
    let model = cuts::model(device)?;
    let profile = model.profile(instance.profile).ok_or(Refusal::Unknown)?;
    let memory = profile.memory_mib(device.memory_mib, model.memory_slices);
    Ok((slices.ok_or(Refusal::NotSupported)?, profile, memory))
}

/// Multiprocessors of so many of an instance's compute slices.
fn sm(profile: &Profile, slices: c_uint) -> c_uint {
    mig::engines(profile)[0] * slices / profile.compute_slices.max(1)
}

/// How a compute instance is called: with its own slices where those are fewer than the instance's.
fn name(profile: &Profile, slices: c_uint) -> String {
    if slices == profile.compute_slices {
        profile.name.clone()
    } else {
        format!("{slices}c.{}", profile.name)
    }
}

fn create(
    handle: nvmlGpuInstance_t,
    number: c_uint,
    at: Option<u32>,
    call: &str,
) -> Answer<nvmlComputeInstance_t> {
    let mut library = current()?;
    let serial = mig::instance(&library, handle)?.1.serial;
    let made = library.change(call, |_, cuts| cuts.create_compute(serial, number, at))?;
    Ok(mig::handle(FIRST_COMPUTE, made))
}

/// The ids of a MIG device's instances.
fn ids(device: nvmlDevice_t) -> Answer<(c_uint, c_uint)> {
    match current()?.target(device)? {
        Target::Mig(_, instance, compute) => Ok((instance.id, compute.id)),
        Target::Device(_) => Err(Refusal::NotSupported),
    }
}

nvml_calls! {
    /// A profile of compute instances by its number.
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        handle: nvmlGpuInstance_t,
        number: c_uint,
        engines: c_uint,
        to: *mut sys::nvmlComputeInstanceProfileInfo_t,
    ) {
        let library = current()?;
        let (slices, profile, _) = offered(&library, handle, number)?;
        if engines != SHARED {
            return Err(Refusal::NotSupported);
        }
        let [_, copies, decoders, encoders, jpeg, ofa] = mig::engines(profile);
        put(to, sys::nvmlComputeInstanceProfileInfo_t {
            id: number,
            sliceCount: slices,
            instanceCount: profile.compute_slices / slices,
            multiprocessorCount: sm(profile, slices),
            sharedCopyEngineCount: copies,
            sharedDecoderCount: decoders,
            sharedEncoderCount: encoders,
            sharedJpegCount: jpeg,
            sharedOfaCount: ofa,
        })
    }

    /// The same, with its name.
    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        handle: nvmlGpuInstance_t,
        number: c_uint,
        engines: c_uint,
        to: *mut sys::nvmlComputeInstanceProfileInfo_v2_t,
    ) {
        let library = current()?;
        let (slices, profile, _) = offered(&library, handle, number)?;
        if engines != SHARED {
            return Err(Refusal::NotSupported);
        }
        let version = read_version(to)?;
        if version != version_word::<sys::nvmlComputeInstanceProfileInfo_v2_t>(2) {
            return Err(Refusal::VersionMismatch);
        }
        let [_, copies, decoders, encoders, jpeg, ofa] = mig::engines(profile);
        put(to, sys::nvmlComputeInstanceProfileInfo_v2_t {
            version,
            id: number,
            sliceCount: slices,
            instanceCount: profile.compute_slices / slices,
            multiprocessorCount: sm(profile, slices),
            sharedCopyEngineCount: copies,
            sharedDecoderCount: decoders,
            sharedEncoderCount: encoders,
            sharedJpegCount: jpeg,
            sharedOfaCount: ofa,
            name: text_array(&format!("MIG {}", name(profile, slices))),
        })
    }

    /// How many more compute instances of a profile fit.
    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        handle: nvmlGpuInstance_t,
        number: c_uint,
        to: *mut c_uint,
    ) {
        let library = current()?;
        let (slices, profile, _) = offered(&library, handle, number)?;
        let held: c_uint = mig::instance(&library, handle)?.1.compute.iter().map(|c| c.size).sum();
        put(to, profile.compute_slices.saturating_sub(held) / slices)
    }

    /// All places where compute instances of a profile may begin.
    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        handle: nvmlGpuInstance_t,
        number: c_uint,
        to: *mut nvmlComputeInstancePlacement_t,
        count: *mut c_uint,
    ) {
        let library = current()?;
        let (size, profile, _) = offered(&library, handle, number)?;
        let starts = 0..=profile.compute_slices - size;
        let places = starts.map(|start| nvmlComputeInstancePlacement_t { start, size });
        put_all(to, count, places.collect())
    }

    /// Makes a compute instance where the driver likes.
    fn nvmlGpuInstanceCreateComputeInstance(
        handle: nvmlGpuInstance_t,
        number: c_uint,
        to: *mut nvmlComputeInstance_t,
    ) {
        put(to, create(handle, number, None, "nvmlGpuInstanceCreateComputeInstance")?)
    }

    /// Makes a compute instance at a place.
    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        handle: nvmlGpuInstance_t,
        number: c_uint,
        place: *const nvmlComputeInstancePlacement_t,
        to: *mut nvmlComputeInstance_t,
    ) {
        if place.is_null() {
            return Err(Refusal::InvalidArgument);
        }
        // SAFETY: not null, and valid by the call's contract.
        let start = unsafe { place.read_unaligned() }.start;
        let call = "nvmlGpuInstanceCreateComputeInstanceWithPlacement";
        put(to, create(handle, number, Some(start), call)?)
    }

    /// Unmakes a compute instance that no process is on.
    fn nvmlComputeInstanceDestroy(handle: nvmlComputeInstance_t) {
        let mut library = current()?;
        let serial = compute(&library, handle)?.2.serial;
        let processes = library.processes()?;
        library.change("nvmlComputeInstanceDestroy", |_, cuts| {
            cuts.destroy_compute(serial, |uuid| processes.iter().any(|p| p.uuid == uuid))
        })
    }

    /// The compute instances of a profile.
    fn nvmlGpuInstanceGetComputeInstances(
        handle: nvmlGpuInstance_t,
        number: c_uint,
        to: *mut nvmlComputeInstance_t,
        count: *mut c_uint,
    ) {
        let library = current()?;
        let all = mig::instance(&library, handle)?.1.compute.iter();
        put_all(to, count, all.filter(|c| c.profile == number).map(handle_of).collect())
    }

    /// The compute instance with an id.
    fn nvmlGpuInstanceGetComputeInstanceById(
        handle: nvmlGpuInstance_t,
        id: c_uint,
        to: *mut nvmlComputeInstance_t,
    ) {
        let library = current()?;
        let mut all = mig::instance(&library, handle)?.1.compute.iter();
        put(to, handle_of(all.find(|c| c.id == id).ok_or(Refusal::NotFound)?))
    }

    /// What a compute instance is; its device is the MIG device.
    fn nvmlComputeInstanceGetInfo_v2(handle: nvmlComputeInstance_t, to: *mut sys::nvmlComputeInstanceInfo_t) {
        let mut library = current()?;
        let (_, instance, found) = compute(&library, handle)?;
        let (of, found) = (mig::handle_of(instance), found.clone());
        put(to, sys::nvmlComputeInstanceInfo_t {
            device: library.handle(&found.uuid),
            gpuInstance: of,
            id: found.id,
            profileId: found.profile,
            placement: nvmlComputeInstancePlacement_t { start: found.start, size: found.size },
        })
    }

    /// Whether a handle is a MIG device's.
    fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, match current()?.target(device)? {
            Target::Device(_) => 0,
            Target::Mig(..) => 1,
        })
    }

    /// The id of the GPU instance that a MIG device is in.
    fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, ids(device)?.0)
    }

    /// The id of the compute instance that a MIG device is.
    fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, to: *mut c_uint) {
        put(to, ids(device)?.1)
    }

    /// How many MIG devices there can be at most: none while MIG is off.
    fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, to: *mut c_uint) {
        let library = current()?;
        let device = library.device(device)?;
        let on = library.cuts()?.of(&device.uuid).on;
        put(to, if on { device.mig_instances_max } else { 0 })
    }

    /// A MIG device by its place, which may be a hole.
    fn nvmlDeviceGetMigDeviceHandleByIndex(device: nvmlDevice_t, index: c_uint, to: *mut nvmlDevice_t) {
        let mut library = current()?;
        let device = library.device(device)?;
        let cut = library.cuts()?.of(&device.uuid);
        if !cut.on {
            return Err(Refusal::NotSupported);
        }
        let found = cut.computes().find(|compute| compute.index == index);
        let uuid = found.ok_or(Refusal::NotFound)?.uuid.clone();
        put(to, library.handle(&uuid))
    }

    /// The device that a MIG device is a part of.
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: nvmlDevice_t, to: *mut nvmlDevice_t) {
        let mut library = current()?;
        let uuid = match library.target(device)? {
            Target::Mig(parent, ..) => parent.uuid.clone(),
            Target::Device(_) => return Err(Refusal::InvalidArgument),
        };
        put(to, library.handle(&uuid))
    }

    /// What a MIG device has.
    fn nvmlDeviceGetAttributes_v2(device: nvmlDevice_t, to: *mut sys::nvmlDeviceAttributes_t) {
        let library = current()?;
        let Target::Mig(_, instance, compute) = library.target(device)? else {
            return Err(Refusal::NotSupported);
        };
        let (slices, profile, memory) = offered(&library, mig::handle_of(instance), compute.profile)?;
        let [_, copies, decoders, encoders, jpeg, ofa] = mig::engines(profile);
        put(to, sys::nvmlDeviceAttributes_t {
            multiprocessorCount: sm(profile, slices),
            sharedCopyEngineCount: copies,
            sharedDecoderCount: decoders,
            sharedEncoderCount: encoders,
            sharedJpegCount: jpeg,
            sharedOfaCount: ofa,
            gpuInstanceSliceCount: profile.compute_slices,
            computeInstanceSliceCount: slices,
            memorySizeMB: memory,
        })
    }
}

/// Memory of a MIG device in MiB.
pub(super) fn memory_mib(library: &Library, instance: &Instance) -> Answer<u64> {
    offered(library, mig::handle_of(instance), 0).map(|(_, _, memory)| memory)
}

/// How a MIG device is called after its device's name.
pub(super) fn called(library: &Library, instance: &Instance, compute: &Compute) -> Answer<String> {
    let (slices, profile, _) = offered(library, mig::handle_of(instance), compute.profile)?;
    Ok(name(profile, slices))
}
