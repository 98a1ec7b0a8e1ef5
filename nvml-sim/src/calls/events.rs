//! Event sets: who waits for which devices' errors, and how far each has been told.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings as sys;
use sys::{nvmlDevice_t, nvmlEventSet_t};

use crate::border::{Answer, Refusal, put};
use crate::library::{Library, current};
use crate::machine::Xid;

/// The devices that a set watches.
#[derive(Default)]
pub(crate) struct EventSet {
    watched: BTreeMap<String, Watched>,
}

struct Watched {
    /// How many of the device's Xid errors are past; those are not told again.
    told: usize,
    /// The kinds of event asked for.
    mask: c_ulonglong,
}

/// The head of the event structure that all versions of it have in common.
#[repr(C)]
struct EventHead {
    device: nvmlDevice_t,
    kind: c_ulonglong,
    data: c_ulonglong,
}

/// An event with the instances that it happened on, where it is of one.
type Event = (EventHead, Option<(u32, u32)>);

/// The one kind of event that is simulated.
const XID: c_ulonglong = sys::nvmlEventTypeXidCriticalError as c_ulonglong;
/// The numbers of instances in an event that is the whole device's.
const NO_INSTANCE: c_uint = c_uint::MAX;
/// Sets open at once; more than this is a caller that forgets to free them.
const EVENT_SETS_MAX: usize = 1024;
/// Sets are numbers dressed as addresses, apart from the devices' handles.
const FIRST_SET: usize = 0x4556_0000;
/// How often the machine file is looked at for a waiter, short against an error's effects.
const LOOK_EVERY: Duration = Duration::from_millis(20);

fn set_mut(library: &mut Library, set: nvmlEventSet_t) -> Answer<&mut EventSet> {
    library
        .event_sets
        .get_mut(&set.addr())
        .ok_or(Refusal::InvalidArgument)
}

fn create() -> Answer<nvmlEventSet_t> {
    let mut library = current()?;
    if library.event_sets.len() >= EVENT_SETS_MAX {
        return Err(Refusal::Unknown);
    }
    let address = library
        .event_sets
        .last_key_value()
        .map_or(FIRST_SET, |(last, _)| last + 16);
    library.event_sets.insert(address, EventSet::default());
    Ok(std::ptr::without_provenance_mut(address))
}

fn register(device: nvmlDevice_t, mask: c_ulonglong, set: nvmlEventSet_t) -> Answer<()> {
    let mut library = current()?;
    if mask & !XID != 0 {
        return Err(Refusal::NotSupported);
    }
    let device = library.device(device)?;
    let (uuid, told) = (device.uuid.clone(), device.xids.len());
    let watched = &mut set_mut(&mut library, set)?.watched;
    watched
        .entry(uuid)
        .or_insert(Watched { told, mask: 0 })
        .mask |= mask;
    Ok(())
}

/// The next event of a set, when there is one.
fn next(set: nvmlEventSet_t) -> Answer<Option<Event>> {
    let mut library = current()?;
    let machine: BTreeMap<String, Vec<Xid>> = library
        .machine()?
        .devices
        .iter()
        .map(|device| (device.uuid.clone(), device.xids.clone()))
        .collect();
    let watched = &mut set_mut(&mut library, set)?.watched;
    // A device that has left the machine is told once, then forgotten, so that a loop of
    // waits on the others does not spin.
    if let Some(lost) = watched
        .keys()
        .find(|uuid| !machine.contains_key(*uuid))
        .cloned()
    {
        watched.remove(&lost);
        return Err(Refusal::GpuIsLost);
    }
    let mut found = None;
    for (uuid, watched) in watched.iter_mut() {
        let xids = machine.get(uuid).map(Vec::as_slice).unwrap_or_default();
        watched.told = watched.told.min(xids.len());
        if let (Some(&xid), true) = (xids.get(watched.told), watched.mask & XID != 0) {
            watched.told += 1;
            found = Some((uuid.clone(), xid.parts()));
            break;
        }
    }
    Ok(found.map(|(uuid, (xid, instance))| {
        let head = EventHead {
            device: library.handle(&uuid),
            kind: XID,
            data: xid,
        };
        (head, instance)
    }))
}

fn wait(set: nvmlEventSet_t, timeout_ms: c_uint) -> Answer<Event> {
    let started = Instant::now();
    let timeout = Duration::from_millis(u64::from(timeout_ms));
    loop {
        if let Some(event) = next(set)? {
            return Ok(event);
        }
        let left = timeout.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(Refusal::Timeout);
        }
        // The lock is free meanwhile: a waiter blocks nobody.
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

nvml_calls! {
    /// Makes an empty set.
    fn nvmlEventSetCreate(to: *mut nvmlEventSet_t) { put(to, create()?) }

    /// Adds a device's events to a set.
    fn nvmlDeviceRegisterEvents(device: nvmlDevice_t, mask: c_ulonglong, set: nvmlEventSet_t) {
        register(device, mask, set)
    }

    /// The kinds of event that a device can tell: Xid errors.
    fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, to: *mut c_ulonglong) {
        current()?.device(device)?;
        put(to, XID)
    }

    /// Waits for an event, with the numbers of instances.
    fn nvmlEventSetWait_v2(set: nvmlEventSet_t, to: *mut sys::nvmlEventData_t, timeout_ms: c_uint) {
        let (event, instance) = wait(set, timeout_ms)?;
        let (gpu_instance, compute_instance) = instance.unwrap_or((NO_INSTANCE, NO_INSTANCE));
        put(to, sys::nvmlEventData_t {
            device: event.device,
            eventType: event.kind,
            eventData: event.data,
            gpuInstanceId: gpu_instance,
            computeInstanceId: compute_instance,
        })
    }

    /// Waits for an event, in the structure without instances.
    fn nvmlEventSetWait(set: nvmlEventSet_t, to: *mut sys::nvmlEventData_t, timeout_ms: c_uint) {
        put(to.cast(), wait(set, timeout_ms)?.0)
    }

    /// Forgets a set.
    fn nvmlEventSetFree(set: nvmlEventSet_t) {
        current()?.event_sets.remove(&set.addr()).map(drop).ok_or(Refusal::InvalidArgument)
    }
}
