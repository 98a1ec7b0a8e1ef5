//! How the devices are cut: the mode, the instances and what may be done to them. Kept in a file
//! beside the machine's, since a driver's cuts outlive the programs that made them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::border::{Answer, Refusal};
use crate::machine::{Device, Machine};
use crate::profiles::{self, Engines, Model, Profile};

/// All cuts of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cuts {
    /// The machine's start that they are of.
    boot: u64,
    /// Instances made so far, so that no handle or UUID comes twice.
    made: u64,
    #[serde(default)]
    devices: BTreeMap<String, Cut>,
}

/// How one device is cut.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cut {
    pub on: bool,
    pub pending: bool,
    #[serde(default)]
    pub instances: Vec<Instance>,
    /// Which programs may compute on it at once, as NVML counts the modes. It is no cut, and kept
    /// here since it is, like them, for all programs and gone with a restart of the machine.
    #[serde(default)]
    pub compute_mode: u32,
    /// Whether the driver keeps account of processes on it; kept here for the same reason.
    #[serde(default)]
    pub accounting: bool,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Instance {
    pub serial: u64,
    pub id: u32,
    pub profile: u32,
    pub start: u32,
    pub size: u32,
    /// Compute slices that its compute instances may take.
    pub slices: u32,
    #[serde(default)]
    pub compute: Vec<Compute>,
}

/// A compute instance, which is a MIG device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Compute {
    pub serial: u64,
    pub id: u32,
    pub profile: u32,
    pub start: u32,
    pub size: u32,
    /// Its place among the device's MIG devices.
    pub index: u32,
    pub uuid: String,
}

/// Compute slices of the profiles of compute instances, by their number.
pub(crate) const COMPUTE_SLICES: [u32; 7] = [1, 2, 3, 4, 7, 8, 6];

impl Cuts {
    /// How a device is cut.
    pub fn of(&self, uuid: &str) -> &Cut {
        static UNCUT: Cut = Cut {
            on: false,
            pending: false,
            instances: Vec::new(),
            compute_mode: 0,
            accounting: false,
        };
        self.devices.get(uuid).unwrap_or(&UNCUT)
    }

    /// All GPU instances with the UUIDs of their devices.
    pub fn instances(&self) -> impl Iterator<Item = (&str, &Instance)> {
        self.devices.iter().flat_map(|(uuid, cut)| {
            let instances = cut.instances.iter();
            instances.map(move |instance| (uuid.as_str(), instance))
        })
    }

    /// All compute instances with those that they are in.
    pub fn computes(&self) -> impl Iterator<Item = (&str, &Instance, &Compute)> {
        self.instances().flat_map(|(uuid, instance)| {
            let compute = instance.compute.iter();
            compute.map(move |compute| (uuid, instance, compute))
        })
    }

    /// Takes a restart of the machine in: no instance survives it, and a change of the mode that
    /// waited for it is done.
    pub fn start_with(&mut self, machine: &Machine) {
        if self.boot == machine.boot {
            return;
        }
        self.boot = machine.boot;
        for (uuid, cut) in &mut self.devices {
            let device = machine.devices.iter().find(|d| d.uuid == *uuid);
            let model = device.and_then(|device| profiles::of_product(&device.name));
            let kept = model.is_some_and(|model| model.mode_kept);
            cut.instances.clear();
            cut.on = kept && cut.pending;
            cut.pending = cut.on;
            cut.compute_mode = 0;
            cut.accounting = false;
        }
    }

    /// Sets which programs may compute on a device at once; one that is cut takes no other mode.
    pub fn set_compute_mode(&mut self, device: &Device, mode: u32) -> Answer<()> {
        let cut = self.devices.entry(device.uuid.clone()).or_default();
        if cut.on {
            return Err(Refusal::NotSupported);
        }
        cut.compute_mode = mode;
        Ok(())
    }

    /// Sets whether account is kept of the processes on a device; of one that is cut it is not.
    pub fn set_accounting(&mut self, device: &Device, on: bool) -> Answer<()> {
        let cut = self.devices.entry(device.uuid.clone()).or_default();
        if cut.on {
            return Err(Refusal::NotSupported);
        }
        cut.accounting = on;
        Ok(())
    }

    /// Asks for a mode. What it answers is what the driver calls the activation's status.
    pub fn set_mode(&mut self, device: &Device, on: bool, clients: bool) -> Result<(), Refusal> {
        let cut = self.devices.entry(device.uuid.clone()).or_default();
        cut.pending = on;
        if cut.on == on {
            return Ok(());
        }
        if clients || !cut.instances.is_empty() {
            return Err(Refusal::InUse);
        }
        if device.mig_needs_reset {
            return Err(Refusal::ResetRequired);
        }
        cut.on = on;
        Ok(())
    }

    /// Makes a GPU instance, at a start or where the driver likes; its serial number.
    pub fn create(&mut self, device: &Device, profile: u32, at: Option<(u32, u32)>) -> Answer<u64> {
        let model = model(device)?;
        let cut = self.devices.entry(device.uuid.clone()).or_default();
        cut.check_changes()?;
        let profile = model.profile(profile).ok_or(Refusal::InvalidArgument)?;
        let start = match at {
            Some((start, size)) => {
                if size != profile.size() || !profile.starts().contains(&start) {
                    return Err(Refusal::InvalidArgument);
                }
                cut.admits(model, profile, start).then_some(start)
            }
            // From behind, as drivers do: three small ones can keep a large one out for good.
            None => {
                let mut starts = profile.starts().iter().rev().copied();
                starts.find(|start| cut.admits(model, profile, *start))
            }
        };
        let start = start.ok_or(Refusal::InsufficientResources)?;
        self.made += 1;
        let instance = Instance {
            serial: self.made,
            id: model.memory_slices / profile.size() - 1 + start / profile.size(),
            profile: profile.id,
            start,
            size: profile.size(),
            slices: profile.compute_slices,
            compute: Vec::new(),
        };
        cut.instances.push(instance);
        cut.instances.sort_by_key(|instance| instance.start);
        Ok(self.made)
    }

    /// Unmakes a GPU instance, once nothing is in it.
    pub fn destroy(&mut self, serial: u64) -> Answer<()> {
        for cut in self.devices.values_mut() {
            if let Some(place) = cut.instances.iter().position(|i| i.serial == serial) {
                if !cut.instances[place].compute.is_empty() {
                    return Err(Refusal::InUse);
                }
                cut.instances.remove(place);
                return Ok(());
            }
        }
        Err(Refusal::InvalidArgument)
    }

    /// Makes a compute instance; its serial number.
    pub fn create_compute(&mut self, serial: u64, profile: u32, at: Option<u32>) -> Answer<u64> {
        let made = self.made + 1;
        let whole = |cut: &&mut Cut| cut.instances.iter().any(|i| i.serial == serial);
        let (uuid, cut) = self
            .devices
            .iter_mut()
            .find(|(_, cut)| whole(cut))
            .ok_or(Refusal::InvalidArgument)?;
        let index = (0..)
            .find(|index| cut.computes().all(|compute| compute.index != *index))
            .ok_or(Refusal::Unknown)?;
        let slices = compute_slices(profile).ok_or(Refusal::InvalidArgument)?;
        let instance = cut.instances.iter_mut().find(|i| i.serial == serial);
        let instance = instance.ok_or(Refusal::InvalidArgument)?;
        let of_all = instance.slices;
        let free = |start: u32| {
            let clear = |other: &Compute| {
                start + slices <= other.start || other.start + other.size <= start
            };
            start + slices <= of_all && instance.compute.iter().all(clear)
        };
        let start = match at {
            Some(start) => Some(start).filter(|start| free(*start)),
            None => (0..of_all).find(|start| free(*start)),
        };
        let start = start.ok_or(Refusal::InsufficientResources)?;
        let id = (0..)
            .find(|id| instance.compute.iter().all(|other| other.id != *id))
            .ok_or(Refusal::Unknown)?;
        instance.compute.push(Compute {
            serial: made,
            id,
            profile,
            start,
            size: slices,
            index,
            // Another one with each making, as callers must expect.
            uuid: crate::models::uuid("MIG", &format!("{uuid}/{made}")),
        });
        self.made = made;
        Ok(made)
    }

    /// Unmakes a compute instance that no process is on.
    pub fn destroy_compute(&mut self, serial: u64, used: impl Fn(&str) -> bool) -> Answer<()> {
        let instances = self.devices.values_mut().flat_map(|c| &mut c.instances);
        for instance in instances {
            if let Some(place) = instance.compute.iter().position(|c| c.serial == serial) {
                if used(&instance.compute[place].uuid) {
                    return Err(Refusal::InUse);
                }
                instance.compute.remove(place);
                return Ok(());
            }
        }
        Err(Refusal::InvalidArgument)
    }
}

impl Cut {
    /// All compute instances of the device.
    pub fn computes(&self) -> impl Iterator<Item = &Compute> {
        self.instances.iter().flat_map(|instance| &instance.compute)
    }

    /// Whether instances may be made at all now.
    pub fn check_changes(&self) -> Answer<()> {
        match (self.on, self.pending) {
            (true, true) => Ok(()),
            (true, false) => Err(Refusal::ResetRequired),
            (false, _) => Err(Refusal::NotSupported),
        }
    }

    /// Whether an instance can be there beside those that are.
    fn admits(&self, model: &Model, profile: &Profile, start: u32) -> bool {
        let engines = |engines: &[Engines]| {
            let others = self.instances.iter();
            let mut others = others.filter_map(|i| model.profile(i.profile));
            others.any(|other| engines.contains(&other.engines()))
        };
        let clash = match profile.engines() {
            Engines::Without => false,
            Engines::Plain => engines(&[Engines::All]),
            Engines::Extra => engines(&[Engines::Extra, Engines::All]),
            Engines::All => engines(&[Engines::Plain, Engines::Extra, Engines::All]),
        };
        let clear = |other: &Instance| {
            start + profile.size() <= other.start || other.start + other.size <= start
        };
        !clash && self.instances.iter().all(clear)
    }

    /// How many more instances of a profile fit.
    pub fn remaining(&self, model: &Model, profile: &Profile) -> u32 {
        let mut tried = self.clone();
        let mut count = 0;
        for &start in profile.starts() {
            if tried.admits(model, profile, start) {
                count += 1;
                tried.instances.push(Instance {
                    serial: 0,
                    id: 0,
                    profile: profile.id,
                    start,
                    size: profile.size(),
                    slices: profile.compute_slices,
                    compute: Vec::new(),
                });
            }
        }
        count
    }
}

/// The model of a device that can be cut.
pub(crate) fn model(device: &Device) -> Answer<&'static Model> {
    if device.mig_instances_max == 0 {
        return Err(Refusal::NotSupported);
    }
    profiles::of_product(&device.name).ok_or(Refusal::NotSupported)
}

/// Compute slices of a profile of compute instances.
pub(crate) fn compute_slices(profile: u32) -> Option<u32> {
    COMPUTE_SLICES.get(profile as usize).copied()
}

/// The file of a machine's cuts.
pub(crate) fn file_of(machine: &Path) -> PathBuf {
    beside(machine, ".cuts")
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

/// Reads the cuts; where there is no file nothing is cut.
pub(crate) fn read(file: &Path) -> io::Result<Cuts> {
    match std::fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Cuts::default()),
        Err(error) => Err(error),
    }
}

/// Writes the cuts, whole or not at all.
pub(crate) fn write(file: &Path, cuts: &Cuts) -> io::Result<()> {
    let aside = beside(file, ".new");
    std::fs::write(&aside, serde_json::to_vec_pretty(cuts)?)?;
    std::fs::rename(aside, file)
}

/// Lets one program at a time change the cuts, until the file is dropped.
pub(crate) fn lock(file: &Path) -> io::Result<File> {
    let lock = File::create(beside(file, ".lock"))?;
    // SAFETY: the descriptor is open for the call.
    if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a100() -> Device {
        let machine = crate::models::machine("dgx-a100", "cuts").expect("a named model");
        machine.devices.into_iter().next().expect("it has devices")
    }

    fn cut(device: &Device) -> Cuts {
        let mut cuts = Cuts::default();
        cuts.set_mode(device, true, false).expect("idle");
        cuts
    }

    #[test]
    fn seven_small_ones_fit_and_an_eighth_does_not() {
        let device = a100();
        let mut cuts = cut(&device);
        for _ in 0..7 {
            cuts.create(&device, 19, None).expect("free");
        }
        let eighth = cuts.create(&device, 19, None);
        assert_eq!(eighth, Err(Refusal::InsufficientResources));
        let ids: Vec<u32> = cuts
            .of(&device.uuid)
            .instances
            .iter()
            .map(|i| i.id)
            .collect();
        assert_eq!(ids, [7, 8, 9, 10, 11, 12, 13]);
    }

    #[test]
    fn three_beside_four_fit_and_the_drivers_own_order_can_spoil_a_device() {
        let device = a100();
        let mut cuts = cut(&device);
        cuts.create(&device, 5, Some((0, 4))).expect("4g");
        cuts.create(&device, 9, Some((4, 4))).expect("3g");
        assert_eq!(
            cuts.create(&device, 9, Some((0, 4))),
            Err(Refusal::InsufficientResources)
        );
        let mut cuts = cut(&device);
        for profile in [19, 19, 14] {
            cuts.create(&device, profile, None).expect("free");
        }
        assert_eq!(
            cuts.create(&device, 9, None),
            Err(Refusal::InsufficientResources)
        );
    }

    #[test]
    fn what_is_used_is_not_unmade() {
        let device = a100();
        let mut cuts = cut(&device);
        let instance = cuts.create(&device, 9, Some((4, 4))).expect("3g");
        let compute = cuts.create_compute(instance, 2, None).expect("3 slices");
        assert_eq!(
            cuts.create_compute(instance, 0, None),
            Err(Refusal::InsufficientResources)
        );
        assert_eq!(cuts.destroy(instance), Err(Refusal::InUse));
        assert_eq!(cuts.destroy_compute(compute, |_| true), Err(Refusal::InUse));
        assert_eq!(cuts.set_mode(&device, false, false), Err(Refusal::InUse));
        cuts.destroy_compute(compute, |_| false).expect("idle");
        cuts.destroy(instance).expect("empty");
        cuts.set_mode(&device, false, false).expect("idle");
        assert_eq!(cuts.destroy(instance), Err(Refusal::InvalidArgument));
    }

    #[test]
    fn a_restart_takes_all_instances_and_on_newer_cards_the_mode() {
        for (model, kept) in [("dgx-a100", true), ("dgx-h100", false)] {
            let mut machine = crate::models::machine(model, "cuts").expect("a named model");
            let device = machine.devices[0].clone();
            let mut cuts = cut(&device);
            cuts.create(&device, 19, None).expect("free");
            machine.boot += 1;
            cuts.start_with(&machine);
            let after = cuts.of(&device.uuid);
            assert_eq!((after.on, after.instances.len()), (kept, 0), "{model}");
        }
    }
}
