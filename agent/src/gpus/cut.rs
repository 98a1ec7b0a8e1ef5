//! Cuts devices as assignments ask: the MIG mode, an instance at its place, and away with it.
//!
//! Every step begins with a whole reading of the device, so that a step that was left half done
//! is gone on with: an instance without its compute instance gets it, one that is there already is
//! taken as it is. What we make is written down before it is made: after a death in between,
//! nothing is on a device that nobody knows. One change goes on at a time on a device, on a thread
//! of its own, since calls into the driver may hang.

mod laying;
mod made;
mod refusal;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as NO_ROOM;
use protocol::mig::MigSlice;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::files::{Numbers, numbers};
use super::layout::{Layout, Wish};
use super::mig::{self, Instance, Mig};
use super::{nvml, uses};
use made::Made;
pub use refusal::CutError;

/// Longest wait for one change: a mode that needs the device to be reset takes some seconds, and
/// the server gives a gang 60 s until all of it was taken.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(45);

/// How far the agent may go when an assignment asks for an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigPolicy {
    /// It changes modes of idle devices, makes instances, and unmakes those that nobody has.
    #[default]
    Dynamic,
    /// It uses the instances that are there.
    Static,
    /// It does not drive MIG.
    Never,
}

impl MigPolicy {
    /// The word of the settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dynamic => "dynamic",
            Self::Static => "static",
            Self::Never => "never",
        }
    }
}

/// How a node's devices may be cut.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// How far the agent may go.
    pub policy: MigPolicy,
    /// Whether instances outlive their work.
    pub keep: bool,
    /// Whether the driver lets us, as far as can be told without trying.
    pub permitted: bool,
    /// How devices are cut whatever jobs ask.
    pub layout: Option<Layout>,
}

/// Cuts the devices of one node.
pub struct Cutter {
    library: Option<PathBuf>,
    policy: MigPolicy,
    keep: bool,
    /// False from the moment on that the driver refuses us.
    permitted: Arc<AtomicBool>,
    layout: Option<Layout>,
    made: Arc<Made>,
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Cutter {
    /// A cutter that keeps what it makes in a file.
    pub fn new(library: Option<PathBuf>, rules: Rules, file: PathBuf) -> Self {
        Self {
            library,
            policy: rules.policy,
            keep: rules.keep,
            permitted: Arc::new(AtomicBool::new(rules.permitted)),
            layout: rules.layout,
            made: Arc::new(Made::load(file)),
            locks: Mutex::default(),
        }
    }

    /// Whether devices can be cut here: the settings let us, and so does the driver.
    pub fn drives(&self) -> bool {
        self.policy != MigPolicy::Never && self.permitted.load(Ordering::Relaxed)
    }

    /// How the layout wants the device at a place, by its identity on the bus.
    pub fn wish(&self, index: u32, pci_device: u32) -> Option<Wish> {
        self.layout.as_ref()?.wish(index, pci_device)
    }

    /// The devices that the layout names by their places and that are not among these.
    pub fn absent(&self, places: &[u32]) -> Vec<u32> {
        let layout = self.layout.as_ref();
        layout.map_or_else(Vec::new, |layout| layout.absent(places))
    }

    /// Whether devices are cut by a layout.
    pub fn has_layout(&self) -> bool {
        self.layout.is_some()
    }

    /// Sees to it that the device at a place is cut by the layout. What would have to be changed is
    /// changed while `free` says that nobody has a part of the device, and no process is on it; what
    /// is there and as the layout asks stays. Whoever is given a part meanwhile waits for this. Whether
    /// something was changed.
    pub async fn lay_out(
        &self,
        uuid: &str,
        index: u32,
        free: impl Fn() -> bool + Send + 'static,
    ) -> Result<bool, CutError> {
        let Some(layout) = self.layout.clone() else {
            return Ok(false);
        };
        let made = Arc::clone(&self.made);
        self.on(uuid, move |desk| {
            let pci = desk.device()?.pci_info();
            let pci = pci.map_err(|error| desk.refused("to ask for its address", &error))?;
            match layout.wish(index, pci.pci_device_id) {
                Some(wish) => desk.lay_out(&wish, &made, &free),
                None => Ok(false),
            }
        })
        .await
    }

    /// Sees to it that an instance is there, beside those that others have; the UUID to run on.
    pub async fn have(
        &self,
        uuid: &str,
        slice: &MigSlice,
        others: Vec<MigSlice>,
    ) -> Result<String, CutError> {
        let (slice, policy, made) = (slice.clone(), self.policy, Arc::clone(&self.made));
        self.on(uuid, move |desk| desk.have(&slice, &others, policy, &made))
            .await
    }

    /// Unmakes an instance of ours, unless it is to be kept. What is gone is no fault.
    pub async fn give_up(&self, uuid: &str, slice: &MigSlice) -> Result<(), CutError> {
        if self.keep || !self.made.has(uuid, slice) {
            return Ok(());
        }
        let (slice, made) = (slice.clone(), Arc::clone(&self.made));
        self.on(uuid, move |desk| desk.give_up(&slice, &made)).await
    }

    /// Sees to it that a device which nobody has a part of is whole.
    pub async fn whole(&self, uuid: &str) -> Result<(), CutError> {
        let (policy, made) = (self.policy, Arc::clone(&self.made));
        self.on(uuid, move |desk| desk.whole(policy, &made)).await
    }

    /// The numbers of the device files of what work runs on: a device by its UUID, or an instance on
    /// it by its own.
    pub async fn numbers(&self, uuid: &str, name: String) -> Result<Numbers, CutError> {
        self.on(uuid, move |desk| {
            let read = numbers(desk.nvml, &name);
            read.map_err(|error| desk.refused("its device files", &error))
        })
        .await
    }

    /// Unmakes the instances of ours that nobody holds: those of an earlier life of the agent.
    pub async fn tidy(&self, uuid: &str, held: &[MigSlice]) -> Result<(), CutError> {
        for slice in self.made.of(uuid) {
            if !held.iter().any(|held| held.overlaps(&slice)) {
                self.give_up(uuid, &slice).await?;
            }
        }
        Ok(())
    }

    /// The devices on which we have made something.
    pub fn cut_devices(&self) -> Vec<String> {
        self.made.slices().keys().cloned().collect()
    }

    /// Does one thing on a device, alone and where it can hang alone.
    async fn on<T: Send + 'static>(
        &self,
        uuid: &str,
        what: impl FnOnce(&Desk<'_>) -> Result<T, CutError> + Send + 'static,
    ) -> Result<T, CutError> {
        let hangs = || CutError::Hangs(uuid.to_owned());
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(locks.entry(uuid.to_owned()).or_default())
        };
        // Whoever hangs has the lock for as long: one thread hangs for a device, not one for each try.
        let turn = tokio::time::timeout(CHANGE_TIMEOUT, lock.lock_owned())
            .await
            .map_err(|_| hangs())?;
        let (sender, receiver) = oneshot::channel();
        let (library, uuid) = (self.library.clone(), uuid.to_owned());
        let permitted = Arc::clone(&self.permitted);
        let spawned = std::thread::Builder::new().name("mig".to_owned()).spawn({
            let uuid = uuid.clone();
            move || {
                // Nobody may listen any more; what was done is found by the next reading.
                let _ = sender.send(at_desk(library.as_deref(), (&uuid, &permitted), what));
                drop(turn);
            }
        });
        if let Err(error) = spawned {
            return Err(CutError::Refused {
                uuid,
                change: "a thread".to_owned(),
                words: error.to_string(),
            });
        }
        match tokio::time::timeout(CHANGE_TIMEOUT, receiver).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) | Err(_) => Err(CutError::Hangs(uuid)),
        }
    }
}

/// One device with NVML open on it.
struct Desk<'n> {
    nvml: &'n Nvml,
    uuid: &'n str,
    permitted: &'n AtomicBool,
}

fn at_desk<T>(
    library: Option<&Path>,
    (uuid, permitted): (&str, &AtomicBool),
    what: impl FnOnce(&Desk<'_>) -> Result<T, CutError>,
) -> Result<T, CutError> {
    let nvml = nvml::open(library).map_err(|error| CutError::Refused {
        uuid: uuid.to_owned(),
        change: "to open NVML".to_owned(),
        words: error.to_string(),
    })?;
    what(&Desk {
        nvml: &nvml,
        uuid,
        permitted,
    })
}

impl<'n> Desk<'n> {
    fn have(
        &self,
        slice: &MigSlice,
        others: &[MigSlice],
        policy: MigPolicy,
        made: &Made,
    ) -> Result<String, CutError> {
        let allowed = |change: String| match policy {
            MigPolicy::Dynamic => Ok(()),
            MigPolicy::Static | MigPolicy::Never => Err(CutError::NotAllowed {
                uuid: self.uuid.to_owned(),
                change,
            }),
        };
        if !self.read()?.on {
            allowed("its MIG mode switched on".to_owned())?;
            self.switch(true)?;
        }
        let there = self.read()?.instances;
        let same = |instance: &&Instance| {
            (instance.slice.start, instance.slice.size) == (slice.start, slice.size)
                && mig::alike(&instance.slice.profile, &slice.profile)
        };
        let change = format!("an instance {slice}");
        if let Some(found) = there.iter().find(same) {
            match found.uuids.as_slice() {
                [one] => return Ok(one.clone()),
                [] => return self.create_compute(found.id, &change),
                // Cut further than any assignment asks for.
                _ => {}
            }
        }
        allowed(change.clone())?;
        let clear = |instance: &Instance| !others.iter().any(|o| o.overlaps(&instance.slice));
        let in_the_way = there.iter().filter(|i| i.slice.overlaps(slice));
        for instance in in_the_way {
            if !clear(instance) {
                return Err(self.used("another job's instance".to_owned(), &change));
            }
            self.destroy(instance, made)?;
        }
        made.add(self.uuid, slice)?;
        let device = self.device()?;
        let id = match mig::create(self.nvml, &device, slice) {
            // Engines that an idle instance has taken: all that nobody holds goes.
            Err(NvmlError::UnexpectedVariant(NO_ROOM)) => {
                for instance in self.read()?.instances.iter().filter(|i| clear(i)) {
                    self.destroy(instance, made)?;
                }
                made.add(self.uuid, slice)?;
                mig::create(self.nvml, &device, slice)
            }
            made => made,
        };
        let id = id.map_err(|error| self.refused(&change, &error))?;
        self.create_compute(id, &change)
    }

    fn give_up(&self, slice: &MigSlice, made: &Made) -> Result<(), CutError> {
        let there = self.read()?.instances;
        let same = |i: &&Instance| (i.slice.start, i.slice.size) == (slice.start, slice.size);
        match there.iter().find(same) {
            Some(instance) => self.destroy(instance, made),
            None => made.remove(self.uuid, slice),
        }
    }

    fn whole(&self, policy: MigPolicy, made: &Made) -> Result<(), CutError> {
        let there = match self.read() {
            Ok(there) => there,
            Err(CutError::NotCapable(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !there.on {
            return Ok(());
        }
        if policy != MigPolicy::Dynamic {
            return Err(CutError::NotAllowed {
                uuid: self.uuid.to_owned(),
                change: "its MIG mode switched off".to_owned(),
            });
        }
        for instance in &there.instances {
            self.destroy(instance, made)?;
        }
        self.switch(false)
    }

    /// Refuses a change while a process is on the device.
    fn alone(&self, change: &str) -> Result<(), CutError> {
        let device = self.device()?;
        let pids =
            uses::pids(&device).map_err(|error| self.refused("to list processes", &error))?;
        if pids.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = pids.iter().map(u32::to_string).collect();
        Err(self.used(format!("processes {}", named.join(", ")), change))
    }

    /// Changes the mode of a device that nobody is on.
    fn switch(&self, on: bool) -> Result<(), CutError> {
        let change = format!("its MIG mode switched {}", if on { "on" } else { "off" });
        self.alone(&change)?;
        let device = self.device()?;
        match mig::set_mode(&device, on) {
            Ok(()) => {}
            Err(NvmlError::InUse) => {
                // The wish stays with the driver, and would come true at a time of its own.
                let _ = mig::set_mode(&device, !on);
                return Err(self.used("another client of the driver".to_owned(), &change));
            }
            Err(NvmlError::ResetRequired) => return Err(CutError::Pending(self.uuid.to_owned())),
            Err(error) => return Err(self.refused(&change, &error)),
        }
        // The driver may have taken the device away and back: it is asked for anew.
        if self.read()?.on == on {
            Ok(())
        } else {
            Err(CutError::Pending(self.uuid.to_owned()))
        }
    }

    fn create_compute(&self, id: u32, change: &str) -> Result<String, CutError> {
        mig::create_compute(self.nvml, &self.device()?, id)
            .map_err(|error| self.refused(change, &error))
    }

    fn destroy(&self, instance: &Instance, made: &Made) -> Result<(), CutError> {
        let change = format!("an end of instance {}", instance.slice);
        match mig::destroy(self.nvml, &self.device()?, instance.id) {
            Ok(()) => made.remove(self.uuid, &instance.slice),
            Err(NvmlError::InUse) => Err(self.used("a process on an instance".to_owned(), &change)),
            Err(error) => Err(self.refused(&change, &error)),
        }
    }

    fn read(&self) -> Result<Mig, CutError> {
        let read = mig::read(self.nvml, &self.device()?);
        read.map_err(|error| self.refused("to read its instances", &error))?
            .ok_or_else(|| CutError::NotCapable(self.uuid.to_owned()))
    }

    fn device(&self) -> Result<Device<'n>, CutError> {
        let found = self.nvml.device_by_uuid(self.uuid);
        found.map_err(|error| self.refused("to find it", &error))
    }

    fn used(&self, by: String, change: &str) -> CutError {
        CutError::Used {
            uuid: self.uuid.to_owned(),
            by,
            change: change.to_owned(),
        }
    }

    fn refused(&self, change: &str, error: &NvmlError) -> CutError {
        if matches!(error, NvmlError::NoPermission) && self.permitted.swap(false, Ordering::Relaxed)
        {
            tracing::warn!(
                device.uuid = self.uuid,
                "the driver does not let this agent cut devices: MIG is offered no more before it is started again"
            );
        }
        CutError::Refused {
            uuid: self.uuid.to_owned(),
            change: change.to_owned(),
            words: error.to_string(),
        }
    }
}
