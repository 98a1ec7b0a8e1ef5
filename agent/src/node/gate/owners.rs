//! Whose a process is that is on a device.

use std::collections::BTreeMap;

use domain::ids::AssignmentId;

use super::super::Node;
use crate::proc;

/// Whose a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Assignment(AssignmentId),
    /// A probe's, or ours.
    Agent,
    Nobody,
}

/// By what a process is known: the supervisor that it descends from, or the mark that it bears.
#[derive(Debug, Default)]
pub(super) struct Owners {
    roots: BTreeMap<i32, Owner>,
    marks: BTreeMap<u32, Owner>,
}

impl Owners {
    /// Those that are known now.
    pub(super) fn of(node: &Node) -> Self {
        let mut owners = Self::default();
        let holders = node.claims().holders().into_iter();
        let holders = holders.map(|id| (id, Owner::Assignment(id)));
        let probes = node.gate.probes().into_iter();
        for (id, owner) in holders.chain(probes.map(|id| (id, Owner::Agent))) {
            let run = node.folders.run(id);
            if let Ok(Some(claim)) = run.claim() {
                owners.roots.insert(claim.pid, owner);
            }
            if let Ok(Some(orders)) = run.orders()
                && let Some(mark) = orders.mark
            {
                owners.marks.insert(mark, owner);
            }
        }
        owners
    }

    /// Whose a process is.
    pub(super) fn of_process(&self, pid: i32) -> Owner {
        let mark = proc::groups_of(pid)
            .into_iter()
            .find_map(|group| self.marks.get(&group));
        if let Some(owner) = mark {
            return *owner;
        }
        let line = proc::ancestors(pid);
        let found = line.iter().find_map(|above| self.roots.get(above));
        found.copied().unwrap_or(Owner::Nobody)
    }
}
