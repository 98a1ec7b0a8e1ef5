//! The devices that this machine is known to have, kept over restarts: one that is gone is
//! reported as failed, not left out as if it had never been.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use domain::state::DeviceHealth;
use protocol::wire;

use super::mig::Mig;
use super::{Gpu, Reading, SILENT, Snapshot};
use crate::files::{self, Durability};

/// The devices seen so far, by UUID.
pub struct Known {
    file: PathBuf,
    gpus: BTreeMap<String, Gpu>,
    /// Groups by NVLink as last read in full.
    nvlink: Vec<Vec<String>>,
    driver_version: String,
    /// How devices are cut, as last read.
    mig: BTreeMap<String, Mig>,
    /// Whether NVML has listed devices since this began.
    listed: bool,
}

impl Known {
    /// Reads what was kept; a file that cannot be read is as if there were none.
    pub fn load(file: &Path) -> Self {
        let gpus = files::read_json::<Vec<Gpu>>(file).unwrap_or_else(|error| {
            tracing::warn!(%error, file = %file.display(), "known devices cannot be read");
            None
        });
        Self {
            file: file.to_owned(),
            gpus: by_uuid(gpus.unwrap_or_default()),
            nvlink: Vec::new(),
            driver_version: String::new(),
            mig: BTreeMap::new(),
            listed: false,
        }
    }

    /// Forgets a device for good; false where it was not known.
    pub fn forget(&mut self, uuid: &str) -> std::io::Result<bool> {
        let forgotten = self.gpus.remove(uuid).is_some();
        self.save()?;
        Ok(forgotten)
    }

    /// Takes a reading in, and tells of all devices, also those that it lacks.
    pub fn merge(&mut self, reading: Reading) -> Snapshot {
        self.listed = true;
        let fresh = by_uuid(reading.gpus.clone());
        let missing: Vec<Gpu> = self
            .gpus
            .values()
            .filter(|gpu| !fresh.contains_key(&gpu.uuid))
            // Another device in the same slot has replaced it.
            .filter(|gpu| !fresh.values().any(|new| new.pci_bus_id == gpu.pci_bus_id))
            .cloned()
            .collect();
        let mut all = fresh;
        if !missing.is_empty() {
            self.keep_places(&mut all, &missing);
        }
        all.extend(missing.iter().map(|gpu| (gpu.uuid.clone(), gpu.clone())));
        if all != self.gpus {
            self.gpus = all;
            if let Err(error) = self.save() {
                tracing::warn!(%error, "known devices cannot be kept");
            }
        }
        if missing.is_empty() || self.nvlink.is_empty() {
            self.nvlink = reading.nvlink;
        }
        self.driver_version = reading.driver_version;
        self.mig = reading.mig;
        let places = reading
            .gpus
            .iter()
            .filter(|gpu| reading.silent.contains(&gpu.index));
        let silent: Vec<&String> = places.map(|gpu| &gpu.uuid).collect();
        let mut snapshot = self.snapshot(|gpu| {
            let gone = missing.iter().any(|gone| gone.uuid == gpu.uuid);
            // One that has not answered in this life of the agent is told by its place.
            if silent.contains(&&gpu.uuid) || (gone && reading.silent.contains(&gpu.index)) {
                return (DeviceHealth::Suspect, SILENT.to_owned());
            }
            if !gone {
                return (DeviceHealth::Healthy, String::new());
            }
            let said = reading
                .failures
                .iter()
                .find(|(index, _)| *index == gpu.index);
            let reason = said.map_or_else(
                || "NVML no longer lists it".to_owned(),
                |(_, words)| format!("NVML says: {words}"),
            );
            (DeviceHealth::Failed, reason)
        });
        // A device that has failed since before we first saw it has no UUID to report it by.
        snapshot.warnings = reading
            .failures
            .iter()
            .filter(|(index, _)| missing.iter().all(|gone| gone.index != *index))
            .map(|(index, words)| format!("device {index} cannot be read: {words}"))
            .collect();
        snapshot
    }

    /// Tells of the known devices before NVML has answered for the first time.
    pub fn unread(&self) -> Snapshot {
        let words = "NVML has not answered since the agent started";
        Snapshot {
            read: false,
            ..self.snapshot(|_| (DeviceHealth::Suspect, words.to_owned()))
        }
    }

    /// Tells of the known devices while NVML as a whole cannot be read: nobody knows how
    /// they are.
    pub fn unreadable(&self, error: &super::nvml::ReadError) -> Snapshot {
        let mut snapshot = self.snapshot(|_| (DeviceHealth::Suspect, error.to_string()));
        snapshot.warnings = vec![format!("no GPU can be read: {error}")];
        snapshot
    }

    /// Present devices keep the places that they had while another is missing, since NVML
    /// counts only those that are there.
    fn keep_places(&self, present: &mut BTreeMap<String, Gpu>, missing: &[Gpu]) {
        let mut taken: Vec<u32> = missing.iter().map(|gpu| gpu.index).collect();
        for (uuid, gpu) in present.iter_mut() {
            if let Some(before) = self.gpus.get(uuid) {
                gpu.index = before.index;
                taken.push(before.index);
            }
        }
        for (uuid, gpu) in present.iter_mut() {
            if !self.gpus.contains_key(uuid) {
                gpu.index = (0..)
                    .find(|index| !taken.contains(index))
                    .unwrap_or(gpu.index);
                taken.push(gpu.index);
            }
        }
    }

    fn snapshot(&self, health: impl Fn(&Gpu) -> (DeviceHealth, String)) -> Snapshot {
        let mut gpus: Vec<&Gpu> = self.gpus.values().collect();
        gpus.sort_by_key(|gpu| gpu.index);
        let index_of = |uuid: &String| self.gpus.get(uuid).map(|gpu| gpu.index);
        let mut numa: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for gpu in &gpus {
            if let Some(node) = gpu.numa {
                numa.entry(node).or_default().push(gpu.index);
            }
        }
        Snapshot {
            devices: gpus
                .iter()
                .map(|gpu| {
                    let (health, health_reason) = health(gpu);
                    wire::Device {
                        uuid: gpu.uuid.clone(),
                        index: gpu.index,
                        product_name: gpu.product_name.clone(),
                        memory_mib: gpu.memory_mib,
                        pci_bus_id: gpu.pci_bus_id.clone(),
                        health: health.to_string(),
                        health_reason,
                        mig: self.mig.get(&gpu.uuid).and_then(wire_of),
                        ..wire::Device::default()
                    }
                })
                .collect(),
            cuttable: self.mig.keys().cloned().collect(),
            pci_devices: gpus
                .iter()
                .filter(|gpu| gpu.pci_device != 0)
                .map(|gpu| (gpu.uuid.clone(), gpu.pci_device))
                .collect(),
            answering: BTreeSet::new(),
            unfit: BTreeMap::new(),
            failed_at: BTreeMap::new(),
            nvlink: self
                .nvlink
                .iter()
                .map(|clique| wire::Clique {
                    indices: clique.iter().filter_map(index_of).collect(),
                })
                .collect(),
            numa: numa
                .into_values()
                .map(|indices| wire::Clique { indices })
                .collect(),
            driver_version: self.driver_version.clone(),
            warnings: Vec::new(),
            read: true,
            listed: self.listed,
        }
    }

    fn save(&self) -> std::io::Result<()> {
        let gpus: Vec<&Gpu> = self.gpus.values().collect();
        files::write_json(&self.file, &gpus, Durability::Synced)
    }
}

/// How a device is cut, while it is.
fn wire_of(mig: &Mig) -> Option<wire::Mig> {
    let instances = mig.instances.iter();
    mig.on.then(|| wire::Mig {
        instances: instances.map(|i| i.slice.clone().into()).collect(),
    })
}

fn by_uuid(gpus: Vec<Gpu>) -> BTreeMap<String, Gpu> {
    gpus.into_iter()
        .map(|gpu| (gpu.uuid.clone(), gpu))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, name: &str) -> Gpu {
        Gpu {
            uuid: format!("GPU-{name}"),
            index,
            product_name: "NVIDIA L40S".to_owned(),
            memory_mib: 46068,
            pci_bus_id: format!("00000000:{name}:00.0"),
            numa: Some(0),
            pci_device: 0x26B9_10DE,
        }
    }

    fn reading(gpus: Vec<Gpu>) -> Reading {
        Reading {
            gpus,
            driver_version: "570".to_owned(),
            ..Reading::default()
        }
    }

    fn health(snapshot: &Snapshot) -> Vec<(u32, &str, &str)> {
        let devices = snapshot.devices.iter();
        devices
            .map(|d| (d.index, d.uuid.as_str(), d.health.as_str()))
            .collect()
    }

    #[test]
    fn a_device_that_vanished_is_failed_also_after_a_restart_and_nobody_takes_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("devices.json");
        Known::load(&file).merge(reading(vec![gpu(0, "a"), gpu(1, "b"), gpu(2, "c")]));

        let mut restarted = Known::load(&file);
        let without = restarted.merge(reading(vec![gpu(0, "a"), gpu(1, "c")]));
        assert_eq!(
            health(&without),
            [
                (0, "GPU-a", "healthy"),
                (1, "GPU-b", "failed"),
                (2, "GPU-c", "healthy")
            ]
        );
        let back = restarted.merge(reading(vec![gpu(0, "a"), gpu(1, "b"), gpu(2, "c")]));
        assert!(
            health(&back)
                .iter()
                .all(|(_, _, health)| *health == "healthy")
        );
    }

    #[test]
    fn what_was_never_read_is_told_as_suspect_and_says_nothing_of_what_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("devices.json");
        Known::load(&file).merge(reading(vec![gpu(0, "a"), gpu(1, "b")]));

        let mut restarted = Known::load(&file);
        let suspect = [(0, "GPU-a", "suspect"), (1, "GPU-b", "suspect")];
        let unread = restarted.unread();
        assert_eq!(health(&unread), suspect);
        assert!(!unread.read && !unread.listed);
        let error = super::super::nvml::ReadError::Listing {
            words: "the driver is being replaced".to_owned(),
        };
        let unreadable = restarted.unreadable(&error);
        assert_eq!(health(&unreadable), suspect);
        assert!(unreadable.read && !unreadable.listed);
        assert!(restarted.merge(reading(vec![gpu(0, "a")])).listed);
        assert!(
            restarted.unreadable(&error).listed,
            "it has been listed once"
        );
    }

    #[test]
    fn a_device_in_the_same_slot_replaces_the_old_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut known = Known::load(&folder.path().join("devices.json"));
        known.merge(reading(vec![gpu(0, "a")]));
        let mut new = gpu(0, "a");
        new.uuid = "GPU-new".to_owned();
        assert_eq!(
            health(&known.merge(reading(vec![new]))),
            [(0, "GPU-new", "healthy")]
        );
    }

    #[test]
    fn a_forgotten_device_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut known = Known::load(&folder.path().join("devices.json"));
        known.merge(reading(vec![gpu(0, "a"), gpu(1, "b")]));
        assert!(known.forget("GPU-b").expect("kept"));
        assert_eq!(
            health(&known.merge(reading(vec![gpu(0, "a")]))),
            [(0, "GPU-a", "healthy")]
        );
    }
}
