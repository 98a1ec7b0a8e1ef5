//! Sees to it that devices are cut by the static layout: at the start, after a restart of the machine
//! that took all instances, and once those have left who were on a device that is cut otherwise.

use std::sync::Arc;

use domain::state::DeviceHealth;
use protocol::mig::MigSlice;
use protocol::wire;

use super::Node;
use crate::gpus::cut::CutError;

/// Looks as often as at the devices themselves, and when they change, until the agent ends.
pub async fn keep(node: Arc<Node>) {
    if !node.cutter.has_layout() {
        return;
    }
    let mut tick = tokio::time::interval(node.config.inventory_pace());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut gpus = node.gpus.clone();
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            changed = gpus.changed() => if changed.is_err() { return },
        }
        let healthy: Vec<(String, u32)> = {
            let gpus = node.gpus.borrow();
            let healthy = gpus
                .devices
                .iter()
                .filter(|d| d.health == DeviceHealth::Healthy.as_str());
            healthy.map(|d| (d.uuid.clone(), d.index)).collect()
        };
        for (uuid, index) in healthy {
            let free = {
                let (node, uuid) = (Arc::clone(&node), uuid.clone());
                move || !node.claims().hold(&uuid)
            };
            let done = node.cutter.lay_out(&uuid, index, free).await;
            if note(&node, &uuid, done) {
                // How it is cut now is told at once.
                node.health.look();
            }
        }
    }
}

/// Why a device is not cut by the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// In words.
    pub words: String,
    /// Whether that stays so: the device is used as it is then.
    pub lasts: bool,
}

/// Keeps what is in the way for the node's page, and logs it when it is new; whether the device was changed.
fn note(node: &Node, uuid: &str, done: Result<bool, CutError>) -> bool {
    let (changed, misfit) = match done {
        Ok(changed) => (changed, None),
        Err(error) => {
            let misfit = Misfit {
                words: error.to_string(),
                lasts: error.lasts(),
            };
            (false, Some(misfit))
        }
    };
    node.misfits.send_if_modified(|misfits| {
        let before = misfits.get(uuid);
        if before == misfit.as_ref() {
            return false;
        }
        match &misfit {
            Some(misfit) => {
                tracing::warn!(device.uuid = uuid, "{}", misfit.words);
                misfits.insert(uuid.to_owned(), misfit.clone());
            }
            None => drop(misfits.remove(uuid)),
        }
        true
    });
    changed
}

/// Says of each device how it is about to be cut, where it is cut otherwise and that can be changed: until then
/// nobody should be given a part of it.
pub fn tell(node: &Node, devices: &mut [wire::Device]) {
    if !node.cutter.has_layout() {
        return;
    }
    let gpus = node.gpus.borrow();
    let misfits = node.misfits.borrow();
    for device in devices {
        let refused = misfits.get(&device.uuid).is_some_and(|m| m.lasts);
        let kind = gpus.pci_devices.get(&device.uuid);
        let wish = kind.and_then(|kind| node.cutter.wish(device.index, *kind));
        let Some(wish) = wish.filter(|_| !refused) else {
            continue;
        };
        let able = gpus.cuttable.contains(&device.uuid);
        if able && !wish.met_by(instances(device).as_deref()) {
            device.layout = Some(wire::Layout {
                mig: wish.on,
                profiles: wish.profiles,
            });
        }
    }
}

/// The instances that a device is said to have; none while it is whole.
fn instances(device: &wire::Device) -> Option<Vec<MigSlice>> {
    let told = device.mig.as_ref()?.instances.iter().cloned();
    // What is no instance is none that a layout asks for.
    Some(told.filter_map(|slice| slice.try_into().ok()).collect())
}
