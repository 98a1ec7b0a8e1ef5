//! A node with what decisions ask of its devices.

use domain::sharing::SharingMode;

use crate::mig::{self, Model, Slice};
use crate::world::{Laid, MigMode, Node, NodeState, Pool};

/// A node with its pool.
pub(crate) struct NodeFacts<'w> {
    pub row: &'w Node,
    pub pool: usize,
    pub failed: u64,
    /// Devices in MIG mode when the cycle begins.
    pub mig: u64,
    /// Devices in MIG mode that are not switched: other work cannot have them.
    pub fixed: u64,
    /// Whether instances are made and unmade, and devices switched, as work needs it.
    pub recut: bool,
    /// The model's table, where it can be cut.
    pub model: Option<&'static Model>,
    /// Devices that are about to be cut, or made whole, by a layout: nothing new is on them until then.
    pub pending: u64,
    /// Those of them that will not be whole.
    pending_cut: u64,
    /// The instances by device when the cycle begins; empty where no device has any.
    layout: Vec<Vec<Slice>>,
    /// The instances that pending devices will have, likewise.
    laid: Vec<Vec<Slice>>,
}

impl<'w> NodeFacts<'w> {
    pub fn of(row: &'w Node, pool: usize, policy: &Pool) -> Self {
        let bits =
            |indices: &mut dyn Iterator<Item = u32>| indices.fold(0_u64, |all, i| all | bit(i));
        let mig = bits(&mut row.mig.keys().copied());
        let driven = row
            .drives
            .as_ref()
            .is_none_or(|modes| modes.contains(&SharingMode::Mig));
        let recut = policy.mig_mode == MigMode::Dynamic && driven && !row.mig_static;
        let model = row.gpu_model.as_deref().unwrap_or("");
        let mut layout = Vec::new();
        if !row.mig.is_empty() {
            layout.resize(row.gpus as usize, Vec::new());
            for (&device, instances) in &row.mig {
                if let Some(place) = layout.get_mut(device as usize) {
                    *place = mig::lay_out(model, instances).unwrap_or_default();
                }
            }
        }
        let mut laid = Vec::new();
        let mut pending_cut = 0;
        for (&device, will) in &row.mig_layout {
            let Laid::Into(profiles) = will else {
                continue;
            };
            pending_cut |= bit(device);
            laid.resize(row.gpus as usize, Vec::new());
            if let Some(place) = laid.get_mut(device as usize) {
                *place = mig::arrange(model, profiles).unwrap_or_default();
            }
        }
        Self {
            row,
            pool,
            failed: bits(&mut row.failed.iter().copied()),
            mig,
            fixed: if recut { 0 } else { mig },
            recut,
            model: mig::model(model),
            pending: bits(&mut row.mig_layout.keys().copied()),
            pending_cut,
            layout,
            laid,
        }
    }

    /// Whether the node counts as capacity.
    pub fn counts(&self) -> bool {
        self.row.state != NodeState::Unreachable
    }

    /// Whether it has devices that do not count as capacity.
    pub fn lost(&self) -> bool {
        !self.counts() || self.failed != 0
    }

    /// Whether the node is being emptied.
    pub fn drains(&self) -> bool {
        self.row.state == NodeState::Draining
    }

    /// Devices, cores and memory that count as capacity.
    pub fn capacity(&self) -> [i128; 3] {
        if !self.counts() {
            return [0; 3];
        }
        let devices = self.row.gpus - self.failed.count_ones();
        let cpus = self.row.cpus.milli();
        [devices.into(), cpus.into(), self.row.memory_mib.into()]
    }

    /// Whether its agent can drive a mode.
    pub fn drives(&self, mode: SharingMode) -> bool {
        self.row
            .drives
            .as_ref()
            .is_none_or(|modes| modes.contains(&mode))
    }

    /// Devices that are not given out but as MIG instances, and those that are not given out at all. On a
    /// `bare` node all that is out is back, and each device is cut as its layout asks.
    pub fn shut(&self, bare: bool) -> u64 {
        if bare {
            self.fixed & !self.pending | self.pending_cut
        } else {
            self.failed | self.fixed | self.pending
        }
    }

    /// The instances of a device when the cycle begins, used or idle.
    pub fn instances(&self, device: u32) -> &[Slice] {
        self.layout.get(device as usize).map_or(&[], Vec::as_slice)
    }

    /// The instances that a device will have once it is cut as its layout asks.
    pub fn laid(&self, device: u32) -> &[Slice] {
        self.laid.get(device as usize).map_or(&[], Vec::as_slice)
    }

    /// Whether an instance is on a device when the cycle begins, or may be made; on a `bare` node
    /// whether it will be once its layout is made.
    pub fn can_have(&self, device: u32, slice: Slice, bare: bool) -> bool {
        let instances = match self.pending & bit(device) != 0 {
            false => self.instances(device),
            true if bare => self.laid(device),
            true => return false,
        };
        self.recut || instances.contains(&slice)
    }
}

/// One device as a bit; the contract allows 64 on a node.
pub(crate) fn bit(index: u32) -> u64 {
    1_u64.checked_shl(index).unwrap_or(0)
}
