//! What is free on a node, and what stands on its devices.

use super::Load;
use crate::index::NodeFacts;

/// A node in both views.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Space {
    pub cpus: [i64; 2],
    pub memory: [i64; 2],
    pub loads: [Vec<Load>; 2],
    /// Thousandths of devices that are given out.
    pub given: [i64; 2],
    /// Whole devices that nothing stands on, as bits.
    pub free: [u64; 2],
}

impl Space {
    /// A node without work; a bare one whatever its devices have been made into.
    pub(super) fn of(node: &NodeFacts<'_>, bare: bool) -> Self {
        let devices = node.row.gpus as usize;
        let all = if devices >= 64 {
            u64::MAX
        } else {
            (1 << devices) - 1
        };
        let out = node.shut(bare);
        Self {
            cpus: [node.row.cpus.milli(); 2],
            memory: [node.row.memory_mib; 2],
            loads: [
                vec![Load::default(); devices],
                vec![Load::default(); devices],
            ],
            given: [0; 2],
            free: [all & !out; 2],
        }
    }
}
