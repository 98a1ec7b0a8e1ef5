//! Sees to it that devices are cut by the static layout: at the start, after a restart of the machine
//! that took all instances, and once those have left who were on a device that is cut otherwise.

use std::sync::Arc;

use domain::state::DeviceHealth;

use super::Node;
use crate::gpus::cut::CutError;

/// Looks as often as at the devices themselves, until the agent ends.
pub async fn keep(node: Arc<Node>) {
    if !node.cutter.has_layout() {
        return;
    }
    let mut tick = tokio::time::interval(node.config.inventory_pace());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
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
            note(&node, &uuid, done);
        }
    }
}

/// Keeps what is in the way for the node's page, and logs it when it is new.
fn note(node: &Node, uuid: &str, done: Result<(), CutError>) {
    let mut misfits = node.misfits();
    let Err(error) = done else {
        misfits.remove(uuid);
        return;
    };
    let words = error.to_string();
    let before = misfits.insert(uuid.to_owned(), words.clone());
    if before.as_ref() != Some(&words) {
        tracing::warn!(device.uuid = uuid, "{words}");
    }
}
