//! The devices of assignments: brought into the mode in which they were given out, and out of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::ids::AssignmentId;
use domain::quantity::MILLI;
use domain::sharing::SharingMode;
use protocol::mig::MigSlice;

use super::{Node, launch, walls};
use crate::gpus::Snapshot;
use crate::journal::{Kept, KeptDevice};
use crate::mps::control::Control;
use crate::mps::{self, Place, Sharer, Trouble};
use crate::runs::Refusal;

/// Tries to unmake an instance before its slice is released with it still there: a process that was
/// killed may be in the driver for a moment yet.
const LEAVE_TRIES: u32 = 20;
/// Wait between two such tries.
const LEAVE_WAIT: Duration = Duration::from_millis(250);
/// What unmaking takes where nothing is wrong: a driver needs a second for an instance. Longer is no time of the job's.
const LEAVE_USUAL: Duration = Duration::from_secs(3);
/// Longest wait between tries to end a daemon: what hangs in a driver may hang for days.
const LEAVE_WAIT_MAX: Duration = Duration::from_secs(30);
/// All of a device's threads, as MPS counts them.
const PERCENT: i64 = 100;

/// The modes that this node can drive now.
pub fn sharing(mig: bool, mps: bool, gpus: &Snapshot) -> Vec<SharingMode> {
    let cut = mig && !gpus.cuttable.is_empty();
    [SharingMode::Exclusive, SharingMode::TimeSlice]
        .into_iter()
        .chain(cut.then_some(SharingMode::Mig))
        .chain(mps.then_some(SharingMode::Mps))
        .collect()
}

/// What a job is told of its devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Their names, in the order of its shares.
    pub names: Vec<String>,
    /// What bounds it on a device that it shares with others.
    pub bounds: Vec<(&'static str, String)>,
    /// How the daemon is spoken to by which it shares a device.
    pub control: Option<Control>,
}

/// Brings what an assignment was given into its mode; what its job is told of it. Done again it
/// gives the same.
pub async fn take(
    node: &Node,
    id: AssignmentId,
    team: u32,
    devices: &[KeptDevice],
) -> Result<View, Refusal> {
    let mut view = View::default();
    let cut = devices
        .iter()
        .any(|share| share.mig.is_some() || is_cut(node, &share.uuid));
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
        let name = name.map_err(|error| Refusal::here(error.to_string()))?;
        view.names.push(name);
        if share.mode == SharingMode::Mps {
            if devices.len() > 1 {
                // A client has one daemon, and a daemon one device.
                return Err(Refusal::here(
                    "devices: a worker can share one device by MPS",
                ));
            }
            share_by_mps(node, id, team, share, &mut view).await?;
        }
    }
    if cut {
        // How they are cut is told at once, not with the next reading.
        node.health.look();
    }
    Ok(view)
}

/// Lets a job share a device, or an instance: its daemon runs, and the job is told of it and of its part.
async fn share_by_mps(
    node: &Node,
    id: AssignmentId,
    team: u32,
    share: &KeptDevice,
    view: &mut View,
) -> Result<(), Refusal> {
    let place = Place::of(share);
    let turn = node.mps.turn(&place).await;
    let turn = turn.ok_or_else(|| Refusal::here("this node cannot share devices by MPS"))?;
    let shared = node.claims().sharers_beside(id, &place) > 0;
    let sharer = Sharer {
        team,
        visible: view.names.join(","),
        mark: launch::free_mark(&format!("mps {}", place.name())),
        open: walls::device_files(node, std::slice::from_ref(share), view).await?,
    };
    let had = turn.have(&sharer, shared).await;
    view.control = Some(had.map_err(|error| Refusal::here(error.to_string()))?);
    let pipe = node.mps.pipe(&place).to_string_lossy().into_owned();
    // Of a percentage a small share keeps at least one: none would mean no bound.
    let percent = (share.gpus_milli * PERCENT / MILLI).max(1);
    view.bounds = vec![
        (mps::PIPE_VARIABLE, pipe),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent.to_string()),
    ];
    if share.memory_mib > 0 {
        let limit = format!("0={}M", share.memory_mib);
        view.bounds
            .push(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit));
    }
    Ok(())
}

/// What is to be said of an end by what became of its devices. Where one was shared by MPS and its server
/// has faulted, the job may have been taken down by another one, or have taken others down; where its daemon
/// is gone, another process of the team has ended that; of any its driver may have told of errors while the
/// job ran.
pub async fn fault(node: &Node, id: AssignmentId) -> Option<String> {
    let devices = node.claims().of(id);
    for share in devices.iter().filter(|d| d.mode == SharingMode::Mps) {
        let uuid = &share.uuid;
        match node.mps.turn(&Place::of(share)).await?.trouble().await {
            Some(Trouble::Fault) => {
                return Some(format!(
                    "a fatal fault of one client has ended all that share device {uuid} by MPS, which does not keep faults apart"
                ));
            }
            Some(Trouble::Gone) => {
                return Some(format!(
                    "the MPS daemon of device {uuid} had ended before the job did: its memory was short, or a process of its team has ended it"
                ));
            }
            None => {}
        }
    }
    let started = node.folders.run(id).started().ok()??;
    let uuids: Vec<&str> = devices.iter().map(|share| share.uuid.as_str()).collect();
    node.health.xids_since(&uuids, started.at_micros)
}

/// Ends the daemon of a device that nobody else shares any more. It returns when the daemon and what the
/// team left in its folders are gone, or somebody shares the device again: until then nobody else could.
async fn unshare(node: &Node, id: AssignmentId, place: &Place) {
    let mut wait = LEAVE_WAIT;
    loop {
        let Some(turn) = node.mps.turn(place).await else {
            return;
        };
        if node.claims().sharers_beside(id, place) > 0 {
            return;
        }
        let Err(error) = turn.end().await else {
            return;
        };
        drop(turn);
        tracing::error!(device.uuid = place.uuid, %error, "an MPS daemon or its folder cannot be removed; its device is kept until it is");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LEAVE_WAIT_MAX);
    }
}

/// Takes away what was made for an assignment, which runs no more. For how long that has kept what it had, where it
/// took longer than it should.
pub async fn leave(node: &Node, id: AssignmentId) -> Duration {
    // Before: of two that leave together neither may wait for the other.
    node.claims().leave(id);
    let devices = node.claims().of(id);
    let begun = Instant::now();
    for share in &devices {
        let place = Place::of(share);
        if share.mode == SharingMode::Mps {
            unshare(node, id, &place).await;
        }
        if let Some(slice) = &share.mig
            && node.claims().sharers_beside(id, &place) == 0
        {
            give_up(node, id, &share.uuid, slice).await;
        }
    }
    Some(begun.elapsed())
        .filter(|took| *took > LEAVE_USUAL)
        .unwrap_or_default()
}

async fn give_up(node: &Node, id: AssignmentId, uuid: &str, slice: &MigSlice) {
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
    node.health.look();
}

/// Unmakes what an earlier life of the agent made and nobody holds any more.
pub async fn tidy(node: Arc<Node>, adopted: Vec<Kept>) {
    let adopted: Vec<KeptDevice> = adopted.into_iter().flat_map(|kept| kept.devices).collect();
    for place in node.mps.places() {
        let shares = |d: &KeptDevice| d.mode == SharingMode::Mps && Place::of(d) == place;
        if !adopted.iter().any(shares) {
            unshare(&node, AssignmentId::new(), &place).await;
        }
    }
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

/// Whether a device was in MIG mode when it was last read.
fn is_cut(node: &Node, uuid: &str) -> bool {
    let gpus = node.gpus.borrow();
    gpus.device(uuid).is_some_and(|device| device.mig.is_some())
}
