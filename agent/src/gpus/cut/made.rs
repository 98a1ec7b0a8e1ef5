//! What we made on devices, kept on disk: it is written down before it is made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::mig::MigSlice;

use super::CutError;
use crate::files::{self, Durability};

/// The instances that we made, or were about to, by device.
pub(super) struct Made {
    file: PathBuf,
    slices: Mutex<BTreeMap<String, Vec<MigSlice>>>,
}

impl Made {
    pub(super) fn load(file: PathBuf) -> Self {
        let slices = files::read_json(&file).unwrap_or_else(|error| {
            tracing::warn!(%error, file = %file.display(), "which instances are ours cannot be read; those that are there stay");
            None
        });
        Self {
            file,
            slices: Mutex::new(slices.unwrap_or_default()),
        }
    }

    pub(super) fn of(&self, uuid: &str) -> Vec<MigSlice> {
        self.slices().get(uuid).cloned().unwrap_or_default()
    }

    pub(super) fn has(&self, uuid: &str, slice: &MigSlice) -> bool {
        let slices = self.slices();
        let mut ours = slices.get(uuid).into_iter().flatten();
        ours.any(|ours| ours.overlaps(slice))
    }

    pub(super) fn add(&self, uuid: &str, slice: &MigSlice) -> Result<(), CutError> {
        self.change(uuid, |ours| {
            ours.retain(|other| !other.overlaps(slice));
            ours.push(slice.clone());
        })
    }

    pub(super) fn remove(&self, uuid: &str, slice: &MigSlice) -> Result<(), CutError> {
        self.change(uuid, |ours| ours.retain(|other| !other.overlaps(slice)))
    }

    fn change(&self, uuid: &str, how: impl FnOnce(&mut Vec<MigSlice>)) -> Result<(), CutError> {
        let mut slices = self.slices();
        let ours = slices.entry(uuid.to_owned()).or_default();
        let before = ours.clone();
        how(ours);
        if *ours == before {
            return Ok(());
        }
        if ours.is_empty() {
            slices.remove(uuid);
        }
        // No file is older than the driver's own state by a loss of power: that ends all instances.
        files::write_json(&self.file, &*slices, Durability::Buffered).map_err(|error| {
            CutError::Unkept {
                uuid: uuid.to_owned(),
                words: error.to_string(),
            }
        })
    }

    pub(super) fn slices(&self) -> MutexGuard<'_, BTreeMap<String, Vec<MigSlice>>> {
        self.slices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
