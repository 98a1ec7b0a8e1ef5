//! The library's state: the machine as last read, the handles given out, the event sets.

mod load;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::border::{Answer, Refusal};
use crate::cuts::{self, Compute, Cuts, Instance};
use crate::machine::{Device, Fault, Machine, Process, When};
use crate::workers::Workers;

pub(crate) use load::memory_percent;

/// What the library holds between calls.
pub(crate) struct Library {
    /// How many `nvmlInit` calls wait for their `nvmlShutdown`.
    users: u32,
    loaded: Option<Loaded>,
    /// The UUIDs for which handles were given out, by the handle's number. A handle
    /// stays good over `nvmlShutdown` and over its device's absence.
    known: Vec<String>,
    pub(crate) event_sets: BTreeMap<usize, crate::calls::events::EventSet>,
    /// Samples of load that were asked for, by the number of their handle.
    pub(crate) samples: BTreeMap<usize, crate::calls::gpm::Sample>,
    energy: BTreeMap<String, Energy>,
    /// What is known of processes that account is kept of, by device and pid.
    pub(crate) accounts: BTreeMap<(String, u32), crate::calls::accounting::Account>,
    workers: Workers,
}

struct Loaded {
    path: PathBuf,
    stamp: Stamp,
    machine: Machine,
    cuts_stamp: Option<Stamp>,
    cuts: Cuts,
}

/// What a handle of a device stands for.
pub(crate) enum Target<'l> {
    /// A whole device.
    Device(&'l Device),
    /// A MIG device.
    Mig(&'l Device, &'l Instance, &'l Compute),
}

/// What changes when a file is replaced or rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    modified: (i64, i64),
    size: u64,
}

/// Energy used up to a moment, in microjoules.
struct Energy {
    used_uj: u128,
    until: Instant,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library {
    users: 0,
    loaded: None,
    known: Vec::new(),
    event_sets: BTreeMap::new(),
    samples: BTreeMap::new(),
    energy: BTreeMap::new(),
    accounts: BTreeMap::new(),
    workers: Workers::new(),
});

/// Handles are numbers dressed as addresses, never followed by anybody: the first is
/// here, far from the pages that a null pointer with an offset would hit.
const FIRST_HANDLE: usize = 0x4E56_0000;
/// Real handles are addresses of structures; these keep their alignment.
const HANDLE_STEP: usize = 16;
/// How the UUIDs of MIG devices begin.
pub(crate) const MIG: &str = "MIG-";

/// The library, locked; a call that failed in the middle must not block those after it.
pub(crate) fn lock() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The library with the machine file's newest content, when it is initialised.
pub(crate) fn current() -> Answer<MutexGuard<'static, Library>> {
    let mut library = lock();
    if library.users == 0 {
        return Err(Refusal::Uninitialized);
    }
    library.reload_if_changed();
    Ok(library)
}

/// A process, and the ids of the GPU and the compute instance that it is on, if on one.
pub(crate) type On = (Process, Option<(u32, u32)>);

impl Library {
    /// Counts one more user, and reads the machine for the first.
    pub(crate) fn open(&mut self) -> Answer<()> {
        if self.users == 0 {
            let path = std::env::var_os(crate::MACHINE_FILE_VARIABLE)
                .map(PathBuf::from)
                .ok_or_else(|| {
                    complain(&format!(
                        "{} is not set; name the machine's file in it",
                        crate::MACHINE_FILE_VARIABLE
                    ));
                    Refusal::DriverNotLoaded
                })?;
            let stamp = stamp(&path);
            let machine = read(&path).map_err(|sentence| {
                complain(&sentence);
                Refusal::DriverNotLoaded
            })?;
            // A file replaced between the two steps has another stamp at the next call.
            let stamp = stamp.unwrap_or(Stamp {
                inode: 0,
                modified: (0, 0),
                size: 0,
            });
            self.settle_energy();
            self.energy.clear();
            self.loaded = Some(Loaded {
                path,
                stamp,
                machine,
                cuts_stamp: None,
                cuts: Cuts::default(),
            });
            self.reload_cuts();
            self.settle_energy();
        }
        self.users = self.users.saturating_add(1);
        Ok(())
    }

    /// Counts one user less.
    pub(crate) fn close(&mut self) -> Answer<()> {
        self.users = self.users.checked_sub(1).ok_or(Refusal::Uninitialized)?;
        if self.users == 0 {
            self.event_sets.clear();
            self.samples.clear();
        }
        Ok(())
    }

    fn reload_if_changed(&mut self) {
        let Some(loaded) = &self.loaded else { return };
        // A file that is away for a moment, or half written by an editor, must not take
        // running work with it: the last good machine stays until there is a better one.
        let Some(now) = stamp(&loaded.path) else {
            return;
        };
        if now == loaded.stamp {
            self.reload_cuts();
            return;
        }
        match read(&loaded.path) {
            Ok(machine) => {
                self.settle_energy();
                if let Some(loaded) = &mut self.loaded {
                    loaded.machine = machine;
                    loaded.stamp = now;
                    // Another start of the machine takes instances.
                    loaded.cuts_stamp = None;
                }
                self.settle_energy();
            }
            Err(sentence) => {
                complain(&format!("{sentence}; the machine stays as it was"));
                if let Some(loaded) = &mut self.loaded {
                    loaded.stamp = now;
                }
            }
        }
        self.reload_cuts();
    }

    fn reload_cuts(&mut self) {
        let Some(loaded) = &mut self.loaded else {
            return;
        };
        let file = cuts::file_of(&loaded.path);
        let now = stamp(&file);
        if now.is_some() && now == loaded.cuts_stamp {
            return;
        }
        match cuts::read(&file) {
            Ok(mut cuts) => {
                cuts.start_with(&loaded.machine);
                loaded.cuts = cuts;
                loaded.cuts_stamp = now;
            }
            Err(error) => complain(&format!(
                "{}: {error}; cuts stay as they were",
                file.display()
            )),
        }
    }

    /// How the devices are cut.
    pub(crate) fn cuts(&self) -> Answer<&Cuts> {
        self.loaded
            .as_ref()
            .map(|loaded| &loaded.cuts)
            .ok_or(Refusal::Uninitialized)
    }

    /// Changes how devices are cut, for all programs that share the machine.
    pub(crate) fn change<T>(
        &mut self,
        call: &str,
        body: impl FnOnce(&Machine, &mut Cuts) -> Answer<T>,
    ) -> Answer<T> {
        let loaded = self.loaded.as_mut().ok_or(Refusal::Uninitialized)?;
        if !loaded.machine.mig_permitted {
            return Err(Refusal::NoPermission);
        }
        let file = cuts::file_of(&loaded.path);
        let failed = |error: std::io::Error| {
            complain(&format!("{}: {error}", file.display()));
            Refusal::Unknown
        };
        let _lock = cuts::lock(&file).map_err(failed)?;
        let mut cuts = cuts::read(&file).map_err(failed)?;
        cuts.start_with(&loaded.machine);
        let kill = loaded.machine.kills_caller.as_ref();
        let kill = kill.filter(|kill| kill.call == call).map(|kill| kill.when);
        if kill == Some(When::Before) {
            die();
        }
        let done = body(&loaded.machine, &mut cuts);
        // Kept also where it was refused: what is pending may have changed.
        cuts::write(&file, &cuts).map_err(failed)?;
        if kill == Some(When::After) {
            die();
        }
        loaded.cuts = cuts;
        loaded.cuts_stamp = stamp(&file);
        done
    }

    /// The processes on devices: those of the machine file, and those that say themselves what they use.
    pub(crate) fn processes(&mut self) -> Answer<Vec<Process>> {
        let mut all = self.machine()?.processes.clone();
        all.extend(self.workers.look().iter().cloned());
        Ok(all)
    }

    /// The processes on a device, with the instance that they are on.
    pub(crate) fn processes_on(&mut self, uuid: &str) -> Answer<Vec<On>> {
        let all = self.processes()?;
        let cuts = self.cuts()?;
        let found = all.into_iter().filter_map(|process| {
            if process.uuid == uuid {
                return Some((process, None));
            }
            let mut computes = cuts.computes();
            let (_, instance, compute) =
                computes.find(|(of, _, c)| *of == uuid && c.uuid == process.uuid)?;
            let ids = (instance.id, compute.id);
            drop(computes);
            Some((process, Some(ids)))
        });
        Ok(found.collect())
    }

    pub(crate) fn machine(&self) -> Answer<&Machine> {
        self.loaded
            .as_ref()
            .map(|loaded| &loaded.machine)
            .ok_or(Refusal::Uninitialized)
    }

    /// The handle of a device; the same one for the same UUID, always.
    pub(crate) fn handle(&mut self, uuid: &str) -> nvmlDevice_t {
        let number = self
            .known
            .iter()
            .position(|known| known == uuid)
            .unwrap_or_else(|| {
                self.known.push(uuid.to_owned());
                self.known.len() - 1
            });
        std::ptr::without_provenance_mut(FIRST_HANDLE + number * HANDLE_STEP)
    }

    /// The number of a virtual GPU; the same one for the same UUID, always.
    pub(crate) fn number(&mut self, uuid: &str) -> Answer<u32> {
        let place = (self.handle(uuid).addr() - FIRST_HANDLE) / HANDLE_STEP;
        u32::try_from(place).map_err(|_| Refusal::Unknown)
    }

    /// The UUID that such a number stands for.
    pub(crate) fn known(&self, number: u32) -> Answer<&str> {
        let known = self.known.get(number as usize);
        known.map(String::as_str).ok_or(Refusal::InvalidArgument)
    }

    /// The UUID that a handle stands for, whether or not its device is still there.
    pub(crate) fn uuid(&self, handle: nvmlDevice_t) -> Answer<&str> {
        let offset = handle
            .addr()
            .checked_sub(FIRST_HANDLE)
            .ok_or(Refusal::InvalidArgument)?;
        if offset % HANDLE_STEP != 0 {
            return Err(Refusal::InvalidArgument);
        }
        self.known
            .get(offset / HANDLE_STEP)
            .map(String::as_str)
            .ok_or(Refusal::InvalidArgument)
    }

    /// The device of a handle, with its index.
    pub(crate) fn device_with_index(&self, handle: nvmlDevice_t) -> Answer<(u32, &Device)> {
        let uuid = self.uuid(handle)?;
        if uuid.starts_with(MIG) {
            // Most calls know whole devices alone; a handle that is dead is none.
            self.mig_device(uuid)?;
            return Err(Refusal::NotSupported);
        }
        self.whole(uuid)
    }

    fn whole(&self, uuid: &str) -> Answer<(u32, &Device)> {
        let (index, device) = (0..)
            .zip(&self.machine()?.devices)
            .find(|(_, device)| device.uuid == uuid)
            .ok_or(Refusal::GpuIsLost)?;
        check_fault(device)?;
        Ok((index, device))
    }

    /// The device of a handle.
    pub(crate) fn device(&self, handle: nvmlDevice_t) -> Answer<&Device> {
        self.device_with_index(handle).map(|(_, device)| device)
    }

    /// What a handle stands for.
    pub(crate) fn target(&self, handle: nvmlDevice_t) -> Answer<Target<'_>> {
        let uuid = self.uuid(handle)?;
        if uuid.starts_with(MIG) {
            let (device, instance, compute) = self.mig_device(uuid)?;
            return Ok(Target::Mig(device, instance, compute));
        }
        self.whole(uuid).map(|(_, device)| Target::Device(device))
    }

    /// A MIG device by its UUID.
    fn mig_device(&self, uuid: &str) -> Answer<(&Device, &Instance, &Compute)> {
        let mut computes = self.cuts()?.computes();
        let (device, instance, compute) = computes
            .find(|(_, _, compute)| compute.uuid == uuid)
            .ok_or(Refusal::InvalidArgument)?;
        Ok((self.whole(device)?.1, instance, compute))
    }

    /// The handle of a MIG device by its UUID.
    pub(crate) fn find_mig(&mut self, uuid: &str) -> Answer<nvmlDevice_t> {
        self.mig_device(uuid).map_err(|_| Refusal::NotFound)?;
        Ok(self.handle(uuid))
    }

    /// The handle of the first device that answers a description.
    pub(crate) fn find(&mut self, wanted: impl Fn(usize, &Device) -> bool) -> Answer<nvmlDevice_t> {
        let uuid = self
            .machine()?
            .devices
            .iter()
            .enumerate()
            .find(|(index, device)| wanted(*index, device))
            .ok_or(Refusal::NotFound)
            .and_then(|(_, device)| check_fault(device).map(|()| device.uuid.clone()))?;
        Ok(self.handle(&uuid))
    }
}

fn check_fault(device: &Device) -> Answer<()> {
    match device.fault {
        None => Ok(()),
        Some(Fault::GpuIsLost) => Err(Refusal::GpuIsLost),
        Some(Fault::ResetRequired) => Err(Refusal::ResetRequired),
        Some(Fault::IrqIssue) => Err(Refusal::IrqIssue),
        Some(Fault::Unknown) => Err(Refusal::Unknown),
        Some(Fault::Hangs) => Err(Refusal::Hangs),
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let facts = fs::metadata(path).ok()?;
    Some(Stamp {
        inode: facts.ino(),
        modified: (facts.mtime(), facts.mtime_nsec()),
        size: facts.size(),
    })
}

fn read(path: &Path) -> Result<Machine, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("machine file {}: can't be read: {error}", path.display()))?;
    Machine::parse(&text).map_err(|error| format!("machine file {}: {error}", path.display()))
}

/// Ends this program as no program can prevent.
fn die() {
    // SAFETY: a signal to ourselves; no memory is passed.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // The signal is on its way to this thread, too.
    loop {
        std::thread::park();
    }
}

/// Says on standard error what an error number can't.
fn complain(sentence: &str) {
    eprintln!("nvml-sim: {sentence}");
}
