//! Waits for Xid errors, on a thread of its own: a wait blocks, and may hang.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use domain::quantity::DEVICES_PER_NODE_MAX;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper_sys::bindings::{nvmlEventSet_t, nvmlReturn_enum_NVML_SUCCESS};
use tokio::sync::watch;

use super::alone::Alone;
use super::health::Health;
use super::{Snapshot, nvml};

/// Longest wait for one event: in between it is looked whether the devices have changed.
const WAIT: Duration = Duration::from_secs(5);
/// Wait before NVML is tried again that could not be opened, or whose wait failed.
const AGAIN: Duration = Duration::from_secs(5);
/// Longest wait until a device lets itself be watched.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(5);
/// Waits that may fail in a row before NVML is opened anew: a lost device fails one, a lost driver all.
const FAILURES_MAX: u32 = 3;
/// The code of an error that NVML could not read.
const UNKNOWN_XID: u64 = 999;

/// Starts waiting; it ends with the readings. Something comes when the first devices are watched.
pub fn watch(
    library: Option<PathBuf>,
    health: Arc<Health>,
    gpus: watch::Receiver<Snapshot>,
) -> std::sync::mpsc::Receiver<()> {
    let (sender, receiver) = sync_channel(1);
    let watcher = Watcher {
        library,
        health,
        gpus,
        first: sender,
        alone: Alone::default(),
    };
    let thread = std::thread::Builder::new().name("xid".to_owned());
    if let Err(error) = thread.spawn(move || watcher.run()) {
        tracing::error!(%error, "Xid errors cannot be waited for: no thread");
    }
    receiver
}

struct Watcher {
    library: Option<PathBuf>,
    health: Arc<Health>,
    gpus: watch::Receiver<Snapshot>,
    first: SyncSender<()>,
    alone: Alone,
}

/// An event set that a registration's thread may use while its owner waits for that.
#[derive(Clone, Copy)]
struct Set(nvmlEventSet_t);

// SAFETY: NVML's calls may be made from any thread; the set is freed after the process's last wait, or
// after its registrations have come back.
#[allow(unsafe_code)]
unsafe impl Send for Set {}

/// Whose errors come by a set.
#[derive(Debug, Default)]
struct Watched {
    /// UUIDs by the address of the handle. A device that fell off the bus does not tell its UUID any more.
    names: BTreeMap<usize, String>,
    /// Those that need not be registered: they are, or have refused.
    settled: BTreeSet<String>,
    /// Whether a registration has not come back.
    hangs: bool,
}

impl Watcher {
    fn run(self) {
        // Closed when nobody reads devices any more.
        while self.gpus.has_changed().is_ok() {
            if let Ok(nvml) = nvml::open(self.library.as_deref()) {
                self.wait_with(&Arc::new(nvml));
            }
            let _ = self.first.try_send(());
            std::thread::sleep(AGAIN);
        }
    }

    /// Waits until waits fail. One set serves for as long: what happens while there is none is not told.
    fn wait_with(&self, nvml: &Arc<Nvml>) {
        let Ok(set) = nvml.create_event_set() else {
            return;
        };
        // SAFETY: `set` outlives what is done with the copy, or is leaked below.
        #[allow(unsafe_code)]
        let raw = Set(unsafe { set.handle() });
        let mut watched = Watched::default();
        self.register_all(nvml, raw, &mut watched);
        let _ = self.first.try_send(());
        let mut failures = 0;
        while failures < FAILURES_MAX && self.gpus.has_changed().is_ok() {
            match set.wait(u32::try_from(WAIT.as_millis()).unwrap_or(u32::MAX)) {
                Ok(event) => {
                    failures = 0;
                    self.take(&event, &watched);
                }
                Err(NvmlError::Timeout) => failures = 0,
                // Also where one device is lost: the others' errors still come.
                Err(error) => {
                    failures += 1;
                    tracing::debug!(%error, "a wait for Xid errors failed");
                    self.health.look();
                }
            }
            if self.unsettled(&mut watched) {
                self.register_all(nvml, raw, &mut watched);
            }
        }
        if watched.hangs {
            // A registration that hangs may use it yet.
            std::mem::forget(set);
        }
    }

    fn take(&self, event: &EventData<'_>, watched: &Watched) {
        let code = match event.event_data {
            Some(XidError::Value(code)) => code,
            Some(XidError::Unknown) => UNKNOWN_XID,
            None => return,
        };
        // SAFETY: the address is compared alone.
        #[allow(unsafe_code)]
        let handle = unsafe { event.device.handle() }.addr();
        match watched.names.get(&handle) {
            Some(uuid) => self.health.note_xid(uuid, code),
            // Nobody knows whose it is: it is everybody's.
            None => {
                let all: BTreeSet<&String> = watched.names.values().collect();
                all.into_iter()
                    .for_each(|uuid| self.health.note_xid(uuid, code));
            }
        }
    }

    /// Watches the devices that are not watched yet.
    fn register_all(&self, nvml: &Arc<Nvml>, set: Set, watched: &mut Watched) {
        let count = nvml.device_count().unwrap_or(0).min(DEVICES_PER_NODE_MAX);
        let begun: Vec<_> = (0..count)
            .map(|index| {
                let (nvml, settled) = (Arc::clone(nvml), watched.settled.clone());
                let register = move || register(&nvml, index, set, &settled);
                self.alone
                    .ask(&index.to_string(), REGISTER_TIMEOUT, register)
            })
            .collect();
        watched.hangs = false;
        for asked in begun {
            match asked.answer() {
                Some(Registered { uuid, handle }) => {
                    if let Some(handle) = handle {
                        watched.names.insert(handle, uuid.clone());
                    }
                    watched.settled.insert(uuid);
                }
                None => watched.hangs = true,
            }
        }
    }

    /// Whether a device answers that is not watched. One that does not answer is to be watched anew.
    fn unsettled(&self, watched: &mut Watched) -> bool {
        let answering = self.gpus.borrow().answering.clone();
        if answering.is_empty() {
            return false;
        }
        watched.settled.retain(|uuid| answering.contains(uuid));
        answering.iter().any(|uuid| !watched.settled.contains(uuid))
    }
}

/// A device as it was registered; without a handle where it has no such errors, or cannot tell them.
struct Registered {
    uuid: String,
    handle: Option<usize>,
}

fn register(nvml: &Nvml, index: u32, set: Set, settled: &BTreeSet<String>) -> Registered {
    let mut uuid = String::new();
    let registered = try_register(nvml, index, set, settled, &mut uuid);
    if let Err(error) = &registered {
        tracing::warn!(%error, index, "a device's Xid errors cannot be waited for");
    }
    let handle = registered.ok().flatten();
    Registered { uuid, handle }
}

fn try_register(
    nvml: &Nvml,
    index: u32,
    set: Set,
    settled: &BTreeSet<String>,
    uuid: &mut String,
) -> Result<Option<usize>, NvmlError> {
    let Set(set) = set;
    let device = nvml.device_by_index(index)?;
    *uuid = device.uuid()?;
    if settled.contains(uuid) {
        return Ok(None);
    }
    let types = device.supported_event_types()?;
    if !types.contains(EventTypes::CRITICAL_XID_ERROR) {
        return Err(NvmlError::NotSupported);
    }
    let call = nvml.lib().nvmlDeviceRegisterEvents.as_ref();
    let call = call.map_err(|_| NvmlError::NotSupported)?;
    // The wrapper's own function ends the whole set where one device refuses.
    // SAFETY: the device is of this NVML, and the set lives until all registrations have come back.
    #[allow(unsafe_code)]
    let (answer, handle) = unsafe {
        let handle = device.handle();
        (
            call(handle, EventTypes::CRITICAL_XID_ERROR.bits(), set),
            handle.addr(),
        )
    };
    if answer == nvmlReturn_enum_NVML_SUCCESS {
        Ok(Some(handle))
    } else {
        Err(NvmlError::UnexpectedVariant(answer))
    }
}
