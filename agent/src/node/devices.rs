//! The devices of assignments: brought into the mode in which they were given out, and out of it.

use std::sync::Arc;
use std::time::Duration;

use domain::ids::AssignmentId;
use domain::sharing::SharingMode;
use protocol::mig::MigSlice;

use super::Node;
use crate::gpus::Snapshot;
use crate::gpus::cut::MigPolicy;
use crate::journal::{Kept, KeptDevice};
use crate::runs::Refusal;

/// Tries to unmake an instance before its slice is released with it still there: a process that was
/// killed may be in the driver for a moment yet.
const LEAVE_TRIES: u32 = 20;
/// Wait between two such tries.
const LEAVE_WAIT: Duration = Duration::from_millis(250);

/// The modes that this node can drive now.
pub fn sharing(policy: MigPolicy, gpus: &Snapshot) -> Vec<SharingMode> {
    let cut = policy != MigPolicy::Never && !gpus.cuttable.is_empty();
    [SharingMode::Exclusive, SharingMode::TimeSlice]
        .into_iter()
        .chain(cut.then_some(SharingMode::Mig))
        .collect()
}

/// Brings what an assignment was given into its mode; the names by which its job sees it, in the
/// order of the shares. Done again it gives the same.
pub async fn take(
    node: &Node,
    id: AssignmentId,
    devices: &[KeptDevice],
) -> Result<Vec<String>, Refusal> {
    let mut names = Vec::with_capacity(devices.len());
    for share in devices {
        let name = match &share.mig {
            Some(slice) => {
                let others = node.claims().slices_beside(id, &share.uuid, slice);
                node.cutter.have(&share.uuid, slice, others).await
            }
            None if cuttable(node, &share.uuid) => {
                let whole = node.cutter.whole(&share.uuid).await;
                whole.map(|()| share.uuid.clone())
            }
            None => Ok(share.uuid.clone()),
        };
        names.push(name.map_err(|error| Refusal::here(error.to_string()))?);
    }
    Ok(names)
}

/// Takes away what was made for an assignment, which runs no more.
pub async fn leave(node: &Node, id: AssignmentId) {
    let devices = node.claims().of(id);
    for (uuid, slice) in devices
        .iter()
        .filter_map(|d| Some((&d.uuid, d.mig.as_ref()?)))
    {
        for attempt in 1..=LEAVE_TRIES {
            let Err(error) = node.cutter.give_up(uuid, slice).await else {
                break;
            };
            if attempt == LEAVE_TRIES {
                tracing::error!(
                    assignment.id = %id,
                    error = &error as &dyn std::error::Error,
                    "an instance is left behind; it goes when its place is needed, or at the next start"
                );
                break;
            }
            tokio::time::sleep(LEAVE_WAIT).await;
        }
    }
}

/// Unmakes what an earlier life of the agent made and nobody holds any more.
pub async fn tidy(node: Arc<Node>, adopted: Vec<Kept>) {
    let adopted: Vec<KeptDevice> = adopted.into_iter().flat_map(|kept| kept.devices).collect();
    for uuid in node.cutter.cut_devices() {
        let of_adopted = adopted.iter().filter(|d| d.uuid == uuid);
        let mut held: Vec<MigSlice> = of_adopted.filter_map(|d| d.mig.clone()).collect();
        held.extend(node.claims().slices(&uuid));
        if let Err(error) = node.cutter.tidy(&uuid, &held).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "an instance of an earlier life of the agent is left behind"
            );
        }
    }
}

fn cuttable(node: &Node, uuid: &str) -> bool {
    node.gpus.borrow().cuttable.contains(uuid)
}
