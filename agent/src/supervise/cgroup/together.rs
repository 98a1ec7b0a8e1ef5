//! What the jobs of a machine may have together, of the numbers for processes and of memory: memory that one job handed to another counts
//! against the group above all of them when it has ended, and that of jobs without a limit counts there too.

use std::fs;
use std::io;
use std::path::Path;

use super::{Cgroups, bytes, set};

/// The part of its memory that a machine keeps for its own processes: a thirty-second, 2 GiB of 64.
const KEPT_PART: i64 = 32;
/// What it keeps at least, in MiB: an agent, a driver's daemons and a log-in.
const KEPT_MIB_MIN: i64 = 256;

/// All jobs together have at most one such part of the numbers for processes: the other half is the machine's own.
const PIDS_PART: u32 = 2;

/// Most processes and threads of all jobs.
pub(super) fn pids_max(of_kernel: u32) -> u32 {
    (of_kernel / PIDS_PART).max(1)
}

/// What jobs may have of so much memory where nobody says otherwise.
pub fn share_mib(machine_mib: i64) -> i64 {
    let kept = (machine_mib / KEPT_PART).max(KEPT_MIB_MIN);
    (machine_mib - kept).max(machine_mib / 2)
}

impl Cgroups {
    /// Bounds what the jobs have together; a sentence for the node's page where that cannot be done. None is
    /// of a machine that does not say how much it has.
    pub fn bound_together(&self, memory_mib: i64) -> Option<String> {
        if memory_mib == 0 {
            return None;
        }
        let bounded = match self {
            Self::V2 { parent, .. } => set(parent, "memory.max", bytes(memory_mib)),
            Self::V1 { parents } => {
                let mut memory = parents.iter().filter(|p| p.controller == "memory");
                memory.try_for_each(|p| bound_v1(&p.folder, memory_mib))
            }
            Self::None => Ok(()),
        };
        bounded.err().map(|error| {
            format!(
                "the jobs of this node together may use all of its memory: jobs_memory_mib_max = {memory_mib} cannot be set ({error})"
            )
        })
    }
}

fn bound_v1(folder: &Path, memory_mib: i64) -> io::Result<()> {
    // Otherwise a group counts nothing of those below it. Newer kernels know no other way.
    let counts_below = folder.join("memory.use_hierarchy");
    if fs::read_to_string(&counts_below).is_ok_and(|told| told.trim() == "0") {
        fs::write(&counts_below, "1")?;
    }
    set(folder, "memory.limit_in_bytes", bytes(memory_mib))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_keeps_a_part_of_its_memory() {
        assert_eq!(share_mib(65_536), 63_488);
        assert_eq!(share_mib(4096), 3840);
        assert_eq!(share_mib(300), 150);
    }
}
