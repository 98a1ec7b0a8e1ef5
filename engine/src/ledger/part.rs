//! What a worker holds of devices, and what stands on one device.

use domain::sharing::SharingMode;

use crate::index::{Amount, DEVICE, Index, bit};
use crate::mig::{self, Cut, Profile, Slice};
use crate::world::{Placed, PlacedDevice};

/// A device or the part of one that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub index: u32,
    pub mode: SharingMode,
    pub milli: i64,
    /// The memory of a fraction; an instance takes slices in its place.
    pub memory: i64,
    /// The MIG instance.
    pub slice: Option<Slice>,
}

impl Part {
    /// A MIG instance.
    pub fn instance(index: u32, slice: Slice) -> Self {
        Self {
            index,
            mode: SharingMode::Mig,
            milli: slice.profile.milli(),
            memory: 0,
            slice: Some(slice),
        }
    }
}

/// Where one worker is, and what it counts for there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    pub node: usize,
    pub parts: Vec<Part>,
    /// The devices of its parts as bits, and the thousandths of all of them.
    pub devices: u64,
    pub milli: i64,
    /// What it takes of the node's cores and memory, whatever its workload asks for later.
    pub cpus: i64,
    pub memory: i64,
    pub amount: Amount,
}

impl Slot {
    /// A worker of a workload on these devices of a node.
    pub fn of(
        index: &Index<'_>,
        work: usize,
        node: usize,
        parts: Vec<Part>,
        amount: Amount,
    ) -> Self {
        let facts = &index.works[work];
        Self {
            node,
            devices: parts.iter().fold(0, |all, part| all | bit(part.index)),
            milli: parts.iter().map(|part| part.milli).sum(),
            parts,
            cpus: facts.cpus,
            memory: facts.memory,
            amount,
        }
    }
}

/// What stands on one device in one view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    pub sharers: u32,
    pub milli: i64,
    pub memory: i64,
    /// Nothing where nobody stands, and where modes meet: who leaves, and who has the room after that.
    pub mode: Option<SharingMode>,
    /// Sharers by mode.
    modes: [u16; SharingMode::ALL.len()],
    /// The team of the first sharer, in mode MPS: it keeps to one.
    pub team: usize,
    /// The memory of the first sharer where all have the same: in mode vGPU.
    pub size: i64,
    /// The MIG instances that are held.
    pub cut: Cut,
}

impl Load {
    /// The same with a part more.
    pub fn put(&mut self, team: usize, part: &Part) {
        let sharers = &mut self.modes[part.mode as usize];
        if *sharers == 0 {
            if part.mode == SharingMode::Mps {
                self.team = team;
            }
            if part.mode == SharingMode::Vgpu {
                self.size = part.memory;
            }
        }
        *sharers += 1;
        self.mode = if u32::from(*sharers) == self.sharers + 1 {
            Some(part.mode)
        } else {
            None
        };
        self.sharers += 1;
        self.milli += part.milli;
        self.memory += part.memory;
        if let Some(slice) = part.slice {
            self.cut = self.cut.with(slice);
        }
    }

    /// The same with a part less.
    pub fn take(&mut self, part: &Part) {
        let sharers = &mut self.modes[part.mode as usize];
        *sharers = sharers.saturating_sub(1);
        self.sharers = self.sharers.saturating_sub(1);
        if self.mode.is_none() {
            let all = self.sharers;
            let only = |mode: &&SharingMode| u32::from(self.modes[**mode as usize]) == all;
            self.mode = SharingMode::ALL.iter().find(only).copied();
        }
        self.milli -= part.milli;
        self.memory -= part.memory;
        if let Some(slice) = part.slice {
            self.cut = self.cut.without(slice);
        }
        if self.sharers == 0 {
            *self = Self::default();
        }
    }
}

/// A worker of the world as a slot.
pub(crate) fn slot(index: &Index<'_>, work: usize, placed: &Placed, node: usize) -> Slot {
    let machine = index.nodes[node].row;
    let asked = &index.works[work].row.per_worker;
    let parts = placed.devices.iter().map(|device| {
        let share = machine.gpu_memory_mib * device.gpus.milli() / DEVICE;
        let slice = instance(index, node, device);
        let (milli, memory) = match (device.mode, slice) {
            (SharingMode::Exclusive, _) => (DEVICE, machine.gpu_memory_mib),
            (_, Some(slice)) => (slice.profile.milli(), 0),
            _ => (
                device.gpus.milli(),
                device.memory_mib.or(asked.gpu_memory_mib).unwrap_or(share),
            ),
        };
        Part {
            index: device.index,
            mode: device.mode,
            milli,
            memory,
            slice,
        }
    });
    let amount = index.charge_placed(work, placed, node);
    Slot::of(index, work, node, parts.collect(), amount)
}

/// The instance that a row of the world speaks of. A reader has given it its start.
fn instance(index: &Index<'_>, node: usize, device: &PlacedDevice) -> Option<Slice> {
    let model = index.nodes[node].row.gpu_model.as_deref()?;
    let profile: &'static Profile = mig::profile(model, device.mig.as_deref()?)?;
    Some(profile.at(device.start.unwrap_or(profile.starts[0])))
}
