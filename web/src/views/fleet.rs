//! The fleet: every device as a cell, by pool and node.

use askama::Template;
use domain::state::DeviceHealth;

use crate::draw::{self, Device, Holder, Html};
use crate::parts::{State, Team};
use crate::shell::{Section, Shell};

/// The fleet as the reader may see it.
#[derive(Debug, Clone, Template)]
#[template(path = "fleet.html")]
pub struct FleetView {
    /// What surrounds the page.
    pub shell: Shell,
    /// The pools, each with its nodes.
    pub pools: Vec<FleetPool>,
    /// Whether the reader may add a node: then an empty fleet says how.
    pub adds_nodes: bool,
}

/// A pool of nodes that can stand in for one another.
#[derive(Debug, Clone)]
pub struct FleetPool {
    /// The pool's name.
    pub name: String,
    /// The model of its devices, when it has any.
    pub gpu_model: Option<String>,
    /// The sharing modes that it offers.
    pub modes: Vec<ModeOffer>,
    /// Its nodes.
    pub nodes: Vec<FleetNode>,
    /// How many nodes it had that are retired.
    pub retired: usize,
    /// Guarantees given in it, when they exceed the devices that are there: (guaranteed, there), in thousandths.
    pub overpromised: Option<(i64, i64)>,
}

/// A sharing mode that a pool offers.
#[derive(Debug, Clone)]
pub struct ModeOffer {
    /// The mode's code.
    pub mode: String,
    /// Whether some registered node can drive it.
    pub available: bool,
}

/// A node as the map shows it.
#[derive(Debug, Clone)]
pub struct FleetNode {
    /// The node's name.
    pub name: String,
    /// Its state.
    pub state: State,
    /// Its devices.
    pub devices: Vec<Device>,
}

/// What a team holds in all of the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The team; `None` for those that the reader may not know.
    pub team: Option<Team>,
    /// How much, in thousandths.
    pub milli: i64,
}

/// Thousandths of a whole device.
const WHOLE: i64 = domain::quantity::MILLI;

impl FleetNode {
    fn held_milli(&self) -> i64 {
        self.devices.iter().map(Device::held_milli).sum()
    }

    fn free_milli(&self) -> i64 {
        self.devices
            .iter()
            .filter(|device| device.usable())
            .map(|device| WHOLE - device.held_milli())
            .sum()
    }

    /// Whole devices that are free.
    fn free_devices(&self) -> usize {
        self.devices
            .iter()
            .filter(|device| device.usable() && device.shares.is_empty())
            .count()
    }

    fn out_milli(&self) -> i64 {
        self.devices
            .iter()
            .filter(|device| !device.usable())
            .map(|device| WHOLE - device.held_milli())
            .sum()
    }

    /// How its devices do, and how many of them do so, the worst first.
    fn healths(&self) -> Vec<(DeviceHealth, usize)> {
        use DeviceHealth::{Failed, Healthy, ModeChange, Suspect};
        let count = |health| {
            let alike = self.devices.iter().filter(|device| device.health == health);
            (health, alike.count())
        };
        let counts = [Failed, Suspect, ModeChange, Healthy].map(count);
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    fn cells(&self, shell: &Shell) -> Html {
        draw::devices(&shell.t, &self.devices)
    }

    fn holders(&self) -> Vec<Held> {
        held_by(self.devices.iter())
    }
}

impl FleetPool {
    fn devices(&self) -> usize {
        self.nodes.iter().map(|node| node.devices.len()).sum()
    }

    fn free_milli(&self) -> i64 {
        self.nodes.iter().map(FleetNode::free_milli).sum()
    }

    fn held_milli(&self) -> i64 {
        self.nodes.iter().map(FleetNode::held_milli).sum()
    }

    fn out_milli(&self) -> i64 {
        self.nodes.iter().map(FleetNode::out_milli).sum()
    }

    fn largest_gap(&self) -> usize {
        self.nodes
            .iter()
            .map(FleetNode::free_devices)
            .max()
            .unwrap_or(0)
    }
}

/// The call that makes a join token, as the page of an empty fleet shows it.
const JOIN_CALL: &str = "POST /api/v1/nodes/join-tokens {\"pool\": \"…\"}";

/// Nodes of one pool up to which the cells are drawn large, and pools stand side by side.
const SMALL_POOL_NODES: usize = 4;

impl FleetView {
    fn small(&self) -> bool {
        self.pools
            .iter()
            .all(|pool| pool.nodes.len() <= SMALL_POOL_NODES)
    }

    fn join_call(&self) -> &'static str {
        JOIN_CALL
    }

    fn free_milli(&self) -> i64 {
        self.pools.iter().map(FleetPool::free_milli).sum()
    }

    fn free_nodes(&self) -> usize {
        self.pools
            .iter()
            .flat_map(|pool| &pool.nodes)
            .filter(|node| node.free_milli() > 0)
            .count()
    }

    fn out_milli(&self) -> i64 {
        self.pools.iter().map(FleetPool::out_milli).sum()
    }

    fn node_count(&self) -> usize {
        self.pools.iter().map(|pool| pool.nodes.len()).sum()
    }

    fn device_count(&self) -> usize {
        self.pools.iter().map(FleetPool::devices).sum()
    }

    fn held_milli(&self) -> i64 {
        self.pools.iter().map(FleetPool::held_milli).sum()
    }

    fn holders(&self) -> Vec<Held> {
        held_by(
            self.pools
                .iter()
                .flat_map(|pool| &pool.nodes)
                .flat_map(|node| &node.devices),
        )
    }
}

/// What each team holds of some devices, most first; those that the reader may not know last, as one.
fn held_by<'a>(devices: impl Iterator<Item = &'a Device>) -> Vec<Held> {
    let mut held: Vec<Held> = Vec::new();
    for share in devices.flat_map(|device| &device.shares) {
        let team = match &share.holder {
            Holder::Known { team, .. } => Some(team.clone()),
            Holder::Other => None,
        };
        match held.iter_mut().find(|known| known.team == team) {
            Some(known) => known.milli += i64::from(share.milli),
            None => held.push(Held {
                team,
                milli: i64::from(share.milli),
            }),
        }
    }
    held.sort_by(|a, b| {
        (a.team.is_none(), -a.milli, &a.team).cmp(&(b.team.is_none(), -b.milli, &b.team))
    });
    held
}
