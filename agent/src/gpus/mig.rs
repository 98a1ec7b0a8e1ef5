//! MIG through NVML: how a device is cut, and the steps by which that is changed. Each is one call
//! with its refusal; what to do in which order is `cut`'s.
//!
//! The wrapper lacks most of these calls, and its list of placements is always empty: they are
//! made by the library's own symbols.

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as sys;
use protocol::mig::MigSlice;
use serde::Serialize;

use super::layout::Places;

/// Profiles are asked for by numbers below this; a driver that knows fewer says so.
const PROFILES_MAX: u32 = 32;
/// Instances of one profile on one device, and placements: no model has more than eight slices.
const SLICES_MAX: usize = 8;
/// Profiles of compute instances are asked for by numbers below this.
const COMPUTE_PROFILES_MAX: u32 = 8;
/// A compute instance with engines of its own of a kind that no service asks for.
const COMPUTE_REV1: u32 = 7;
/// All compute instances share the engines.
const SHARED: u32 = 0;
/// The version word of the profile's structure that has a name: size, and version 2.
const PROFILE_VERSION: u32 = size_of::<sys::nvmlGpuInstanceProfileInfo_v2_t>() as u32 | (2 << 24);

/// How a device is cut.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Mig {
    /// Whether the mode is on.
    pub on: bool,
    /// Whether it will be after what is pending.
    pub pending: bool,
    /// Its instances, by start.
    pub instances: Vec<Instance>,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Instance {
    /// The driver's number of it.
    pub id: u32,
    /// What it is, and where.
    #[serde(flatten)]
    pub slice: MigSlice,
    /// The UUIDs of its compute instances, which are what work runs on; one that was left half
    /// made has none.
    pub uuids: Vec<String>,
}

/// A way of cutting a device, as its driver knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) compute: u32,
    /// Most instances of it on one device.
    pub(super) most: u32,
    pub(super) memory_mib: u64,
}

/// What tells profiles of a device from one another, whatever a driver calls them: GB200 boards
/// print two names for one.
#[derive(Debug, PartialEq, Eq)]
struct Shape<'a> {
    compute: u32,
    engines: &'a str,
}

impl<'a> Shape<'a> {
    /// Reads a profile's name, such as `1g.10gb+me`.
    fn of(name: &'a str) -> Option<Self> {
        let compute = name.split('g').next()?.parse().ok()?;
        let engines = name.find(['+', '-']).map_or("", |at| &name[at..]);
        Some(Self { compute, engines })
    }
}

/// Whether two names mean one way of cutting, on a device with these memory slices for both.
pub fn alike(one: &str, other: &str) -> bool {
    let shape = Shape::of(one);
    shape.is_some() && shape == Shape::of(other)
}

/// Whether a text is the name of a profile of whole instances.
pub fn named(profile: &str) -> bool {
    let numbered = |part: &str| part.bytes().all(|b| b.is_ascii_digit()) && !part.is_empty();
    let plain = profile.split(['+', '-']).next().unwrap_or_default();
    let parts = plain
        .split_once("g.")
        .and_then(|(g, gb)| Some((g, gb.strip_suffix("gb")?)));
    parts.is_some_and(|(compute, memory)| numbered(compute) && numbered(memory))
}

/// The profile of a device that is alike to a name, with the places that it may be at; none where the
/// device has no such profile. Asked while the mode is on.
pub fn places(nvml: &Nvml, device: &Device<'_>, name: &str) -> Result<Option<Places>, NvmlError> {
    let all = profiles(nvml, device)?;
    // The very name wins over one that only cuts alike.
    let found = all.iter().find(|profile| profile.name == name);
    let found = found.or_else(|| all.iter().find(|profile| alike(&profile.name, name)));
    let Some(profile) = found else {
        return Ok(None);
    };
    Ok(Some(Places {
        profile: profile.name.clone(),
        at: placements(nvml, device, profile.id)?,
    }))
}

/// How the device is cut; none where it cannot be.
pub fn read(nvml: &Nvml, device: &Device<'_>) -> Result<Option<Mig>, NvmlError> {
    let mode = match device.mig_mode() {
        Ok(mode) => mode,
        Err(NvmlError::NotSupported) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut mig = Mig {
        on: mode.current == 1,
        pending: mode.pending == 1,
        instances: Vec::new(),
    };
    if mig.on {
        for profile in profiles(nvml, device)? {
            for handle in handles(nvml, device, profile.id)? {
                mig.instances.push(instance(nvml, handle, &profile)?);
            }
        }
        mig.instances.sort_by_key(|instance| instance.slice.start);
    }
    Ok(Some(mig))
}

/// Asks for a mode. The driver may take the wish and not fulfil it: then it says why not, as a
/// refusal here.
pub fn set_mode(device: &Device<'_>, on: bool) -> Result<(), NvmlError> {
    match device.set_mig_mode(on) {
        Ok(status) => nvml_try(status),
        Err(error) => Err(error),
    }
}

/// Makes an instance at its place; the driver's number of it.
pub fn create(nvml: &Nvml, device: &Device<'_>, slice: &MigSlice) -> Result<u32, NvmlError> {
    let all = profiles(nvml, device)?;
    let alike = |profile: &&Profile| alike(&profile.name, &slice.profile);
    for profile in all.iter().filter(alike) {
        let places = placements(nvml, device, profile.id)?;
        if !places.contains(&(slice.start, slice.size)) {
            continue;
        }
        let create = nvml_sym(nvml.lib().nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
        let place = sys::nvmlGpuInstancePlacement_t {
            start: slice.start,
            size: slice.size,
        };
        let mut made = std::ptr::null_mut();
        // SAFETY: the device is live, and the structures outlive the call.
        #[allow(unsafe_code)]
        nvml_try(unsafe { create(device.handle(), profile.id, &raw const place, &raw mut made) })?;
        return Ok(info(nvml, made)?.id);
    }
    Err(NvmlError::InvalidArg)
}

/// Makes the one compute instance that takes all of an instance; its UUID.
pub fn create_compute(nvml: &Nvml, device: &Device<'_>, id: u32) -> Result<String, NvmlError> {
    let instance = by_id(nvml, device, id)?;
    let profile = info(nvml, instance)?.profileId;
    let all = profiles(nvml, device)?;
    let whole = all.iter().find(|known| known.id == profile);
    let whole = whole.ok_or(NvmlError::Unknown)?.compute;
    let number = compute_profiles(nvml, instance)?
        .into_iter()
        .find(|(_, slices)| *slices == whole);
    let (number, _) = number.ok_or(NvmlError::NotSupported)?;
    let create = nvml_sym(nvml.lib().nvmlGpuInstanceCreateComputeInstance.as_ref())?;
    let mut made = std::ptr::null_mut();
    // SAFETY: the instance was just given, and `made` outlives the call.
    #[allow(unsafe_code)]
    nvml_try(unsafe { create(instance, number, &raw mut made) })?;
    uuid(nvml, made)
}

/// Unmakes an instance with all that is in it. What is gone already is no fault.
pub fn destroy(nvml: &Nvml, device: &Device<'_>, id: u32) -> Result<(), NvmlError> {
    let instance = match by_id(nvml, device, id) {
        Ok(instance) => instance,
        Err(NvmlError::NotFound | NvmlError::NotSupported) => return Ok(()),
        Err(error) => return Err(error),
    };
    let destroy_compute = nvml_sym(nvml.lib().nvmlComputeInstanceDestroy.as_ref())?;
    for (number, _) in compute_profiles(nvml, instance)? {
        for compute in computes(nvml, instance, number)? {
            // SAFETY: the handle was just given.
            #[allow(unsafe_code)]
            nvml_try(unsafe { destroy_compute(compute) })?;
        }
    }
    let destroy = nvml_sym(nvml.lib().nvmlGpuInstanceDestroy.as_ref())?;
    // SAFETY: as above.
    #[allow(unsafe_code)]
    nvml_try(unsafe { destroy(instance) })
}

pub(super) fn profiles(nvml: &Nvml, device: &Device<'_>) -> Result<Vec<Profile>, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
    let mut found = Vec::new();
    for number in 0..PROFILES_MAX {
        // SAFETY: a structure of numbers and letters, all of which may be zero; the device is live
        // and the structure outlives the call.
        #[allow(unsafe_code)]
        let (answer, info) = unsafe {
            let mut info: sys::nvmlGpuInstanceProfileInfo_v2_t = std::mem::zeroed();
            info.version = PROFILE_VERSION;
            (ask(device.handle(), number, &raw mut info), info)
        };
        match nvml_try(answer) {
            Ok(()) => found.push(Profile {
                most: info.instanceCount,
                memory_mib: info.memorySizeMB,
                id: info.id,
                name: words(&info.name).trim_start_matches("MIG ").to_owned(),
                compute: info.sliceCount,
            }),
            // No such profile on this model.
            Err(NvmlError::NotSupported) => {}
            // Past the last number that the driver knows.
            Err(NvmlError::InvalidArg) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn placements(
    nvml: &Nvml,
    device: &Device<'_>,
    profile: u32,
) -> Result<Vec<(u32, u32)>, NvmlError> {
    let ask = nvml_sym(
        nvml.lib()
            .nvmlDeviceGetGpuInstancePossiblePlacements_v2
            .as_ref(),
    )?;
    let none = sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 };
    let mut places = [none; SLICES_MAX];
    let mut count = SLICES_MAX as u32;
    // SAFETY: the device is live, and the array has room for as many as a model can have.
    #[allow(unsafe_code)]
    nvml_try(unsafe {
        ask(
            device.handle(),
            profile,
            places.as_mut_ptr(),
            &raw mut count,
        )
    })?;
    let told = places.iter().take(count as usize);
    Ok(told.map(|place| (place.start, place.size)).collect())
}

fn handles(
    nvml: &Nvml,
    device: &Device<'_>,
    profile: u32,
) -> Result<Vec<sys::nvmlGpuInstance_t>, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstances.as_ref())?;
    let mut all = [std::ptr::null_mut(); SLICES_MAX];
    let mut count = SLICES_MAX as u32;
    // SAFETY: the device is live, and the array has room for as many as a model can have.
    #[allow(unsafe_code)]
    let answer = unsafe { ask(device.handle(), profile, all.as_mut_ptr(), &raw mut count) };
    match nvml_try(answer) {
        Ok(()) => Ok(all.into_iter().take(count as usize).collect()),
        Err(NvmlError::NotSupported) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn by_id(nvml: &Nvml, device: &Device<'_>, id: u32) -> Result<sys::nvmlGpuInstance_t, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceById.as_ref())?;
    let mut found = std::ptr::null_mut();
    // SAFETY: the device is live, and `found` outlives the call.
    #[allow(unsafe_code)]
    nvml_try(unsafe { ask(device.handle(), id, &raw mut found) })?;
    Ok(found)
}

fn info(
    nvml: &Nvml,
    instance: sys::nvmlGpuInstance_t,
) -> Result<sys::nvmlGpuInstanceInfo_t, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlGpuInstanceGetInfo.as_ref())?;
    // SAFETY: a structure of numbers and addresses, all of which may be zero; the handle was just
    // given, and the structure outlives the call.
    #[allow(unsafe_code)]
    unsafe {
        let mut info: sys::nvmlGpuInstanceInfo_t = std::mem::zeroed();
        nvml_try(ask(instance, &raw mut info))?;
        Ok(info)
    }
}

fn instance(
    nvml: &Nvml,
    handle: sys::nvmlGpuInstance_t,
    profile: &Profile,
) -> Result<Instance, NvmlError> {
    let info = info(nvml, handle)?;
    let mut uuids = Vec::new();
    for (number, _) in compute_profiles(nvml, handle)? {
        for compute in computes(nvml, handle, number)? {
            uuids.push(uuid(nvml, compute)?);
        }
    }
    Ok(Instance {
        id: info.id,
        slice: MigSlice {
            profile: profile.name.clone(),
            start: info.placement.start,
            size: info.placement.size,
        },
        uuids,
    })
}

/// The numbers of an instance's compute profiles, with the slices of each.
fn compute_profiles(
    nvml: &Nvml,
    instance: sys::nvmlGpuInstance_t,
) -> Result<Vec<(u32, u32)>, NvmlError> {
    let ask = nvml_sym(
        nvml.lib()
            .nvmlGpuInstanceGetComputeInstanceProfileInfo
            .as_ref(),
    )?;
    let mut found = Vec::new();
    for number in (0..COMPUTE_PROFILES_MAX).filter(|number| *number != COMPUTE_REV1) {
        // SAFETY: as for `info`.
        #[allow(unsafe_code)]
        let (answer, info) = unsafe {
            let mut info: sys::nvmlComputeInstanceProfileInfo_t = std::mem::zeroed();
            (ask(instance, number, SHARED, &raw mut info), info)
        };
        match nvml_try(answer) {
            Ok(()) => found.push((info.id, info.sliceCount)),
            Err(NvmlError::NotSupported) => {}
            Err(NvmlError::InvalidArg) if number > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn computes(
    nvml: &Nvml,
    instance: sys::nvmlGpuInstance_t,
    profile: u32,
) -> Result<Vec<sys::nvmlComputeInstance_t>, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlGpuInstanceGetComputeInstances.as_ref())?;
    let mut all = [std::ptr::null_mut(); SLICES_MAX];
    let mut count = SLICES_MAX as u32;
    // SAFETY: the handle was just given, and the array has room for as many as a model can have.
    #[allow(unsafe_code)]
    nvml_try(unsafe { ask(instance, profile, all.as_mut_ptr(), &raw mut count) })?;
    Ok(all.into_iter().take(count as usize).collect())
}

/// The UUID of the MIG device that a compute instance is.
fn uuid(nvml: &Nvml, compute: sys::nvmlComputeInstance_t) -> Result<String, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlComputeInstanceGetInfo_v2.as_ref())?;
    // SAFETY: as for `info`; the device's handle is used at once.
    #[allow(unsafe_code)]
    unsafe {
        let mut info: sys::nvmlComputeInstanceInfo_t = std::mem::zeroed();
        nvml_try(ask(compute, &raw mut info))?;
        Device::new(info.device, nvml).uuid()
    }
}

/// A C text that may lack its end.
fn words(text: &[std::ffi::c_char]) -> String {
    let bytes = text.iter().take_while(|c| **c != 0);
    bytes.map(|c| char::from(c.to_ne_bytes()[0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_alike_by_slices_and_engines_not_by_their_memory() {
        assert!(alike("1g.23gb", "1g.24gb"));
        assert!(alike("1g.10gb+me", "1g.12gb+me"));
        assert!(!alike("1g.10gb", "1g.10gb+me"));
        assert!(!alike("3g.40gb", "4g.40gb"));
        assert!(!alike("whole", "whole"));
    }

    #[test]
    fn a_profile_is_known_by_slices_and_memory_and_parts_of_instances_are_none() {
        for name in [
            "1g.10gb",
            "7g.80gb",
            "1g.10gb+me",
            "1g.12gb-me",
            "1g.24gb+me.all",
        ] {
            assert!(named(name), "{name}");
        }
        for name in ["1c.3g.40gb", "3g", "g.10gb", "all", "1g.gb", ""] {
            assert!(!named(name), "{name}");
        }
    }
}
