//! What a worker can tell of a node, in few words: nodes with the same words are of one class.

use domain::sharing::SharingMode;

use crate::index::{DEVICE, bit};
use crate::ledger::{Ledger, Load};

/// The words of a node.
pub(super) type Look = Box<[u64]>;

/// Writes the words of a node of some make and set of hardware, as it is now. Whose a device is
/// matters only where it is shared within a team.
pub(super) fn write(
    words: &mut Vec<u64>,
    ledger: &Ledger<'_, '_>,
    node: usize,
    make: usize,
    set: usize,
) {
    let space = &ledger.spaces[node];
    let memory = ledger.index.nodes[node].row.gpu_memory_mib;
    words.clear();
    words.extend([make as u64, set as u64]);
    for view in 0..2 {
        if view == 1 && same(space) {
            break;
        }
        words.push(space.cpus[view] as u64);
        words.push(space.memory[view] as u64);
        words.push(space.free[view]);
        let whole = |load: &Load| {
            load.sharers == 1
                && load.mode == Some(SharingMode::Exclusive)
                && load.milli == DEVICE
                && load.memory == memory
        };
        let loads = || space.loads[view].iter().zip(0..);
        let given = loads().filter(|(load, _)| whole(load));
        words.push(given.fold(0, |all, (_, device)| all | bit(device)));
        let told = words.len();
        words.push(0);
        for (load, device) in loads() {
            if load.sharers > 0 && !whole(load) {
                words[told] += 1;
                tell(load, device, words);
            }
        }
    }
}

/// Whether nobody leaves the node, and no room is kept on it.
fn same(space: &crate::ledger::Space) -> bool {
    space.cpus[0] == space.cpus[1]
        && space.memory[0] == space.memory[1]
        && space.free[0] == space.free[1]
        && space.loads[0] == space.loads[1]
}

fn tell(load: &Load, device: u32, words: &mut Vec<u64>) {
    let mode = load.mode.map_or(0, |mode| 1 + mode as u64);
    words.push(u64::from(device) | mode << 8 | u64::from(load.sharers) << 16);
    words.extend([load.milli as u64, load.memory as u64]);
    match load.mode {
        Some(SharingMode::Mps) => words.push(load.team as u64),
        Some(SharingMode::Vgpu) => words.push(load.size as u64),
        Some(SharingMode::Mig) => words.extend(load.cut.words()),
        _ => {}
    }
}
