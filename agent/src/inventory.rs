//! What a node tells of itself: its devices, its size, what it can drive, what is wrong.

use std::net::UdpSocket;
use std::path::Path;

use protocol::wire;

use crate::clock;
use crate::config::Config;
use crate::gpus::Snapshot;
use crate::gpus::cut::MigPolicy;
use crate::mps;
use crate::node::devices::sharing;
use crate::node::{self, Node, RUNNERS, containers};
use crate::supervise::cgroup::Cgroups;

/// Said on the node's page where jobs run as the agent's own user.
pub const NO_ISOLATION: &str = "no isolation between teams on this node";

/// What does not change while an agent lives.
#[derive(Debug, Clone)]
pub struct Machine {
    cpus_milli: i64,
    memory_mib: i64,
    address: String,
    cgroup: String,
    isolated: bool,
    checkpoints_shared: bool,
    warnings: Vec<String>,
    work_roots: Vec<String>,
    mps: bool,
    mps_across_teams: bool,
    mig_static: bool,
}

impl Machine {
    /// Looks at the machine and the settings. `server` is asked for nothing: only the way
    /// to it is looked up, since other nodes come the same way.
    pub fn look(
        config: &Config,
        server: &str,
        isolated: bool,
        cgroups: (&Cgroups, Vec<String>),
    ) -> Self {
        let mps = config
            .mps_control
            .as_deref()
            .unwrap_or(Path::new(mps::PROGRAM))
            .is_file();
        let cpus = config.cpus.map_or_else(
            || std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as i64),
            i64::from,
        );
        let (cgroups, warnings) = cgroups;
        let unisolated = (!isolated).then(|| NO_ISOLATION.to_owned());
        Self {
            cpus_milli: cpus * domain::quantity::MILLI,
            memory_mib: config
                .memory_mib
                .unwrap_or_else(|| config.jobs_memory_mib()),
            address: config
                .address
                .clone()
                .or_else(|| address_towards(server))
                .unwrap_or_else(host_name),
            cgroup: cgroups.as_str().to_owned(),
            isolated,
            checkpoints_shared: config.checkpoints_shared,
            warnings: unisolated.into_iter().chain(warnings).collect(),
            mps,
            mps_across_teams: mps && config.mps_across_teams,
            mig_static: config.mig == MigPolicy::Static,
            // A folder whose name is no text cannot be asked for either.
            work_roots: config
                .work_roots
                .iter()
                .filter_map(|root| root.to_str().map(str::to_owned))
                .collect(),
        }
    }

    /// The inventory with the GPUs as they are now; `mig` tells whether they can be cut.
    pub fn inventory(&self, gpus: &Snapshot, mig: bool) -> wire::Inventory {
        wire::Inventory {
            devices: gpus.devices.clone(),
            nvlink: gpus.nvlink.clone(),
            numa: gpus.numa.clone(),
            driver_version: gpus.driver_version.clone(),
            cpus_milli: self.cpus_milli,
            memory_mib: self.memory_mib,
            address: self.address.clone(),
            sharing: sharing(mig, self.mps, gpus)
                .iter()
                .map(ToString::to_string)
                .collect(),
            runners: RUNNERS.iter().map(ToString::to_string).collect(),
            cgroup: self.cgroup.clone(),
            isolated: self.isolated,
            checkpoints_shared: self.checkpoints_shared,
            warnings: self
                .warnings
                .iter()
                .chain(&gpus.warnings)
                .cloned()
                .collect(),
            work_roots: self.work_roots.clone(),
            devices_unread: !gpus.listed,
            mps_across_teams: self.mps_across_teams,
            mig_static: self.mig_static,
            disk_full: None,
            lacks: Vec::new(),
        }
    }
}

/// The inventory of a node now, to be sent at once: it says for how long devices have failed.
pub fn inventory(node: &Node, machine: &Machine) -> wire::Inventory {
    let mut inventory = machine.inventory(&node.gpus.borrow(), node.cutter.drives());
    inventory.warnings.extend(node.layout_warnings());
    let clock = node.clock_warning.borrow().clone();
    inventory.warnings.extend(clock);
    node.gate.tell(&mut inventory.devices);
    node::layout::tell(node, &mut inventory.devices);
    let lacking = node.walls.lacking(node.isolated);
    inventory.lacks = lacking.iter().map(ToString::to_string).collect();
    inventory.disk_full = node.disk.full();
    let runners = containers::runners(node).into_iter().map(str::to_owned);
    inventory.runners = runners.collect();
    inventory
        .warnings
        .extend(containers::warning(&node.containers));
    let gpus = node.gpus.borrow();
    let now = clock::boot_micros();
    for device in &mut inventory.devices {
        let since = gpus.failed_at.get(&device.uuid);
        device.failed_for_micros = since.map(|since| now.saturating_sub(*since).max(0));
    }
    drop(gpus);
    inventory
}

/// The name of this host.
pub fn host_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "localhost".to_owned())
}

/// Our address on the way to the server. Connecting a datagram socket sends nothing.
fn address_towards(server: &str) -> Option<String> {
    let uri: tonic::transport::Uri = server.parse().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    let any = if host.contains(':') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((host, uri.port_u16().unwrap_or(443))).ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_reached_where_it_reaches_the_server() {
        assert_eq!(
            address_towards("https://127.0.0.1:8443").as_deref(),
            Some("127.0.0.1")
        );
    }

    #[test]
    fn a_machine_offers_what_it_has_unless_told_otherwise() {
        let look = |config: &Config| {
            let none = (&Cgroups::None, Vec::new());
            Machine::look(config, "https://127.0.0.1:1", false, none)
        };
        let own = look(&Config::default());
        assert!(own.memory_mib > 0 && own.cpus_milli >= 1000);
        assert_eq!(own.warnings, [NO_ISOLATION]);
        let told = look(&Config {
            cpus: Some(64),
            memory_mib: Some(1024),
            work_roots: vec!["/data/sets".into()],
            ..Config::default()
        });
        assert_eq!((told.cpus_milli, told.memory_mib), (64_000, 1024));
        let reported = told.inventory(&Snapshot::default(), false);
        assert_eq!(reported.work_roots, ["/data/sets"]);
    }
}
