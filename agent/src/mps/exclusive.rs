//! Keeps programs off a device that go past the server of MPS, while a device is shared by one.

use std::io;
use std::path::PathBuf;

use super::Turn;
use crate::gpus::compute_mode::{self, Change};

impl Turn<'_> {
    /// Lets nobody compute on the device but the server. That is advised and not needed: a driver that
    /// refuses it keeps no job from starting. An instance has no such mode.
    pub(super) async fn keep_others_off(&self) -> io::Result<()> {
        if self.place.slice.is_some() {
            return Ok(());
        }
        // Written down before: after a death in between it is set back all the same.
        std::fs::write(self.exclusive(), "")?;
        match self.set_exclusive(true).await {
            Ok(Change::Made) => {}
            // Whoever set it before keeps it.
            Ok(Change::Had) => std::fs::remove_file(self.exclusive())?,
            Err(words) => tracing::warn!(
                device.uuid = self.place.uuid,
                words,
                "processes that go past MPS are not kept off the device"
            ),
        }
        Ok(())
    }

    /// Lets as many processes as like compute on the device again, where we kept them off.
    pub(super) async fn let_others_compute(&self) {
        if !self.exclusive().exists() {
            return;
        }
        if let Err(words) = self.set_exclusive(false).await {
            tracing::error!(
                device.uuid = self.place.uuid,
                words,
                "one process alone may compute on the device: `nvidia-smi -c DEFAULT` sets that back"
            );
        }
    }

    async fn set_exclusive(&self, exclusive: bool) -> Result<Change, String> {
        let library = self.mps.library.clone();
        compute_mode::set_exclusive(library, &self.place.uuid, exclusive).await
    }

    /// Says that the mode of the device is ours.
    fn exclusive(&self) -> PathBuf {
        self.folder().join("exclusive")
    }
}
