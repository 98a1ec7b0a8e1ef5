//! Sees to it that devices are cut by the static layout: at the start, after a restart of the machine
//! that took all instances, and once those have left who were on a device that is cut otherwise.

use std::sync::Arc;

use domain::state::DeviceHealth;

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
                // How it is cut now, or why it is not, is told at once.
                node.health.look();
            }
        }
    }
}

/// Keeps what is in the way for the node's page, and logs it when it is new; whether something is to be
/// told.
fn note(node: &Node, uuid: &str, done: Result<bool, CutError>) -> bool {
    let mut misfits = node.misfits();
    let error = match done {
        Ok(changed) => return misfits.remove(uuid).is_some() || changed,
        Err(error) => error,
    };
    let words = error.to_string();
    let before = misfits.insert(uuid.to_owned(), words.clone());
    let new = before.as_ref() != Some(&words);
    if new {
        tracing::warn!(device.uuid = uuid, "{words}");
    }
    new
}
