//! What the leader tells scrapers of the fleet: how many nodes and devices are how, and what waits.

use std::collections::BTreeMap;

use domain::ids::NodeId;
use domain::state::{DeviceHealth, NodeIntent, Reachability};

use super::world::NodeRecord;

/// Sets the figures of nodes and devices. Retired nodes are gone and count nowhere.
pub fn tell(nodes: &BTreeMap<NodeId, NodeRecord>) {
    let nodes = || {
        let all = nodes.values();
        all.filter(|node| node.row.intent != NodeIntent::Retired)
    };
    for state in Reachability::ALL {
        let count = nodes().filter(|node| node.row.reachability == *state);
        metrics::gauge!("allotment_nodes", "state" => state.as_str()).set(figure(count.count()));
    }
    for health in DeviceHealth::ALL {
        let devices = nodes().flat_map(|node| node.devices.values());
        let count = devices.filter(|device| device.health == *health);
        metrics::gauge!("allotment_devices", "health" => health.as_str())
            .set(figure(count.count()));
    }
}

/// Sets how many jobs wait.
pub fn tell_waiting(jobs: usize) {
    metrics::gauge!("allotment_jobs_waiting").set(figure(jobs));
}

/// Says that another may lead: what is told here counts no more, and is 0 rather than old.
pub fn clear() {
    metrics::gauge!("allotment_scheduler_leads").set(0.0);
    tell(&BTreeMap::new());
    tell_waiting(0);
}

fn figure(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
