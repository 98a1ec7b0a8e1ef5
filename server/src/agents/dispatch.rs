//! The sender of desired sets: woken by a hint and by a timer, it hands each connection what its node is to hold.

use std::collections::BTreeMap;
use std::time::Instant;

use domain::ids::NodeId;

use super::Shared;
use super::desired::{Want, Wanted};
use crate::store::{desired, devices, epochs};

/// Runs until the server stops.
pub async fn run(shared: Shared) {
    let tick = shared.app.config.timers.tick;
    loop {
        tokio::select! {
            () = shared.over.cancelled() => return,
            () = shared.app.wake.agents.notified() => {}
            () = tokio::time::sleep(tick) => {}
        }
        let begun = Instant::now();
        if let Err(error) = dispatch(&shared).await {
            tracing::warn!(%error, "desired sets could not be read");
        }
        // Half of the time at the most: where much changes each look finds more.
        tokio::time::sleep(begun.elapsed()).await;
    }
}

async fn dispatch(shared: &Shared) -> Result<(), sqlx::Error> {
    // Before anything is read: what is read then was so after these connections were opened.
    let connections = shared.connections.open_nodes();
    if connections.is_empty() {
        return Ok(());
    }
    let nodes: Vec<NodeId> = connections.iter().map(|(node, _)| *node).collect();
    let mut tx = shared.app.db.begin_system().await?;
    let epoch = epochs::current(&mut tx).await?;
    let marks = desired::marks(&mut tx, &nodes).await?;
    let found = devices::found(&mut tx, &nodes).await?;
    tx.commit().await?;
    let mut wanted: BTreeMap<NodeId, Wanted> = nodes
        .into_iter()
        .map(|node| {
            let wanted = Wanted {
                epoch,
                wants: BTreeMap::new(),
                cleared: BTreeMap::new(),
                found: BTreeMap::new(),
            };
            (node, wanted)
        })
        .collect();
    for device in found {
        if let Some(wanted) = wanted.get_mut(&device.node_id) {
            wanted.take_found(device);
        }
    }
    for mark in &marks {
        if let Some(wanted) = wanted.get_mut(&mark.node_id) {
            wanted.wants.insert(mark.id, Want::of(mark));
        }
    }
    for (node, number) in connections {
        if let Some(wanted) = wanted.remove(&node) {
            shared.connections.want(node, number, wanted);
        }
    }
    Ok(())
}
