//! Decides whether this node takes an assignment on at all.

use domain::state::DeviceHealth;
use protocol::desired::Assignment;

use super::devices::sharing;
use super::{Node, containers};
use crate::runs::Refusal;

/// Users below are the machine's own; a job never becomes one, whatever a server says.
const UID_MIN: u32 = 1000;

/// Checks an assignment against what the node is and has.
pub fn check(node: &Node, assignment: &Assignment) -> Result<(), Refusal> {
    let runners = containers::runners(node);
    if !runners.contains(&assignment.runner.as_str()) {
        return Err(Refusal::here(format!(
            "runner: this node cannot run {}; it can run {}",
            domain::error::quote(&assignment.runner),
            runners.join(", ")
        )));
    }
    if node.isolated && assignment.uid < UID_MIN {
        return Err(Refusal::here(format!(
            "uid: {} is refused: the team's user must be {UID_MIN} or above",
            assignment.uid
        )));
    }
    check_devices(node, assignment)?;
    if assignment.runner == containers::CONTAINER {
        containers::check(assignment)?;
    }
    match node.disk.look() {
        Ok(None) => Ok(()),
        Ok(Some(full)) => Err(Refusal::here(format!(
            "the node's disk is full: {} MiB were free, {} are needed to start a job",
            full.free_mib, full.needed_mib
        ))),
        Err(error) => Err(Refusal::here(format!(
            "the node's disk cannot be asked: {error}"
        ))),
    }
}

fn check_devices(node: &Node, assignment: &Assignment) -> Result<(), Refusal> {
    let gpus = node.gpus.borrow();
    let driven = sharing(node.cutter.drives(), node.mps.drives(), &gpus);
    for share in &assignment.devices {
        if !driven.contains(&share.mode) {
            return Err(Refusal::here(format!(
                "sharing: this node cannot drive {} on {}",
                share.mode, share.uuid
            )));
        }
        match gpus.device(&share.uuid) {
            None if !gpus.listed => {
                return Err(Refusal::here(format!(
                    "device {} is not on this node, as far as is known: its devices could not be read yet",
                    share.uuid
                )));
            }
            None => {
                return Err(Refusal::here(format!(
                    "device {} is not on this node",
                    share.uuid
                )));
            }
            Some(device) if device.health == DeviceHealth::Failed.as_str() => {
                return Err(Refusal::here(format!(
                    "device {} has failed: {}",
                    share.uuid, device.health_reason
                )));
            }
            Some(_) => {}
        }
        let unfit = gpus.unfit.get(&share.uuid).cloned();
        if let Some(reason) = unfit.or_else(|| node.gate.reason(&share.uuid)) {
            return Err(Refusal::here(format!(
                "device {} is not offered: {reason}",
                share.uuid
            )));
        }
    }
    Ok(())
}
