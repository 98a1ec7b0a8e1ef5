//! What a node reports, checked on receipt by the server.

mod facts;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use domain::ids::{AssignmentId, AttemptId, IncarnationId, JournalId};
use domain::sharing::SharingMode;
use domain::spec::Runner;
use domain::state::{AssignmentPhase, DeviceHealth};
use domain::wall::Wall;
use serde::{Deserialize, Serialize};

use crate::fields::{amount, bounded, count, known, parsed, text, uuid};
use crate::mig::{self, Layout, MigSlice};
use crate::samples::{self, DeviceSample};
use crate::{Malformed, wire};

pub use crate::fields::{TEXT_CHARS_MAX, kept_whole};
pub use facts::{Exited, FACTS_MAX, Fact, FactKind, Lost};

/// Most devices of a node; the largest machines sold have 16, and a MIG-cut one is still one.
pub const DEVICES_MAX: usize = 1024;
/// Most assignments that a node may say it holds: every share of every device, many times over.
pub const HELD_MAX: usize = 16_384;
/// Most findings of one device: an agent keeps fewer.
const FINDINGS_MAX: usize = 64;
/// Most warnings of a node, each a sentence on its page.
const WARNINGS_MAX: usize = 32;
/// Most folders below which a node lets jobs work: each is a mount or a project's folder.
pub const WORK_ROOTS_MAX: usize = 32;

/// A message of a node's stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// First, once.
    Hello(Box<Hello>),
    /// A heartbeat.
    Heartbeat(Heartbeat),
    /// The machine changed.
    Inventory(Box<Inventory>),
    /// Things that happened, in order.
    Facts(Vec<Fact>),
    /// A piece of a log.
    LogChunk(LogChunk),
    /// What devices did.
    Samples(Vec<DeviceSample>),
}

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// Its number in its connection.
    pub number: u64,
    /// When it was sent by the node's wall clock; nothing where that is not told.
    pub at_micros: Option<i64>,
}

/// What a node says when its stream begins.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    /// The agent's version, for people.
    pub agent_version: String,
    /// This life of the agent process.
    pub incarnation: IncarnationId,
    /// The kernel's boot.
    pub boot_id: String,
    /// The journal within which facts are numbered.
    pub journal_id: JournalId,
    /// The highest epoch that it has seen.
    pub epoch: Option<Epoch>,
    /// The machine.
    pub inventory: Inventory,
    /// What it holds.
    pub held: Vec<Held>,
    /// The first fact that it has yet to see acknowledged; none before it is sent again.
    pub first_fact: u64,
    /// The number that its next fact will have.
    pub next_fact: u64,
}

/// The pair that fences out a past leader; ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch {
    /// The database's timeline.
    pub timeline: i64,
    /// Rises with each leader.
    pub number: i64,
}

/// What a node holds of one assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The assignment.
    pub assignment: AssignmentId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// Where it stands there.
    pub phase: AssignmentPhase,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inventory {
    /// Its devices, by index.
    pub devices: Vec<Device>,
    /// Groups of device indices that are linked by NVLink.
    pub nvlink: Vec<Vec<u32>>,
    /// Groups of device indices by NUMA node.
    pub numa: Vec<Vec<u32>>,
    /// The driver's version.
    pub driver_version: String,
    /// CPU, in thousandths of a core.
    pub cpus_milli: i64,
    /// Memory of the host.
    pub memory_mib: i64,
    /// Where other workers reach it.
    pub address: String,
    /// The sharing modes that its agent can drive.
    pub sharing: Vec<SharingMode>,
    /// The runners that its agent can drive.
    pub runners: Vec<Runner>,
    /// How CPU and memory limits are enforced: v2, v1 or none.
    pub cgroup: String,
    /// Whether jobs run as their team's own user.
    pub isolated: bool,
    /// Whether checkpoints lie on storage that all nodes share.
    pub checkpoints_shared: bool,
    /// Sentences for the node's page.
    pub warnings: Vec<String>,
    /// Absolute folders below which a job's working directory may lie.
    pub work_roots: Vec<String>,
    /// Whether nothing could list its devices since its agent began: what is not among `devices`
    /// is not gone for that.
    pub devices_unread: bool,
    /// Whether several teams may share a device by MPS where their pool lets them.
    pub mps_across_teams: bool,
    /// Whether devices stay cut as they are: no instance is made there for work.
    pub mig_static: bool,
    /// That its disk is full.
    pub disk_full: Option<DiskFull>,
    /// The walls between jobs that it lacks, each once.
    pub lacks: Vec<Wall>,
}

/// What is free on a disk that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskFull {
    /// What was free when it was found to be full.
    pub free_mib: i64,
    /// What a job needs to start.
    pub needed_mib: i64,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// NVML's UUID.
    pub uuid: String,
    /// Its index on the node.
    pub index: u32,
    /// NVML's name.
    pub product_name: String,
    /// Its memory.
    pub memory_mib: i64,
    /// Where it sits.
    pub pci_bus_id: String,
    /// How it does.
    pub health: DeviceHealth,
    /// Why.
    pub health_reason: String,
    /// What of the reason is for those alone who run the platform.
    pub health_detail: String,
    /// What was found of it and is not cleared.
    pub findings: Vec<Finding>,
    /// The highest number of a finding of it that its node has ever known.
    pub findings_known: i64,
    /// For how long it has failed, where its node can say.
    pub failed_for_micros: Option<i64>,
    /// Its instances by start, while it is in MIG mode.
    pub mig: Option<Vec<MigSlice>>,
    /// How its node is about to cut it by a layout, until it has.
    pub layout: Option<Layout>,
}

/// Something that happened to a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Rises with each of its node.
    pub number: i64,
    /// What its device is for it.
    pub health: DeviceHealth,
    /// In words.
    pub reason: String,
}

impl Finding {
    /// Checks one that was received.
    pub(crate) fn check(finding: wire::Finding) -> Result<Self, Malformed> {
        let number = count("finding.number", finding.number)?;
        if number == 0 {
            return Err(Malformed::invalid("finding.number", number));
        }
        Ok(Self {
            number,
            health: parsed("finding.health", &finding.health)?,
            reason: text(finding.reason),
        })
    }
}

impl From<&Finding> for wire::Finding {
    fn from(finding: &Finding) -> Self {
        Self {
            number: finding.number.unsigned_abs(),
            health: finding.health.to_string(),
            reason: finding.reason.clone(),
        }
    }
}

/// A piece of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChunk {
    /// Which request it answers.
    pub request: u64,
    /// Where it begins.
    pub offset: i64,
    /// The bytes.
    pub data: Vec<u8>,
    /// Nothing follows.
    pub end: bool,
    /// Why nothing follows, when it is not the log's end.
    pub error: String,
}

impl Message {
    /// Checks a received message.
    pub fn check(received: wire::FromAgent) -> Result<Self, Malformed> {
        use wire::from_agent::Message as Wire;
        Ok(
            match received.message.ok_or(Malformed::Missing("message"))? {
                Wire::Hello(hello) => Self::Hello(Box::new(Hello::check(hello)?)),
                Wire::Heartbeat(heartbeat) => Self::Heartbeat(Heartbeat {
                    number: heartbeat.number,
                    at_micros: Some(heartbeat.at_micros).filter(|at| *at > 0),
                }),
                Wire::Inventory(inventory) => {
                    Self::Inventory(Box::new(Inventory::check(inventory)?))
                }
                Wire::Facts(facts) => Self::Facts(facts::check(facts.facts)?),
                Wire::LogChunk(chunk) => Self::LogChunk(LogChunk {
                    request: chunk.request,
                    offset: chunk.offset,
                    data: chunk.data,
                    end: chunk.end,
                    error: text(chunk.error),
                }),
                Wire::Samples(samples) => Self::Samples(samples::check(samples)?),
            },
        )
    }
}

impl Hello {
    fn check(hello: wire::Hello) -> Result<Self, Malformed> {
        bounded("hello.held", hello.held.len(), HELD_MAX)?;
        let boot_id = text(hello.boot_id);
        if boot_id.is_empty() {
            return Err(Malformed::Missing("hello.boot_id"));
        }
        if hello.first_fact == 0 || hello.first_fact > hello.next_fact {
            return Err(Malformed::invalid("hello.first_fact", hello.first_fact));
        }
        if i64::try_from(hello.next_fact).is_err() {
            return Err(Malformed::invalid("hello.next_fact", hello.next_fact));
        }
        Ok(Self {
            agent_version: text(hello.agent_version),
            incarnation: parsed("hello.incarnation", &hello.incarnation)?,
            boot_id,
            journal_id: parsed("hello.journal_id", &hello.journal_id)?,
            epoch: hello.epoch.map(|epoch| Epoch {
                timeline: epoch.timeline,
                number: epoch.number,
            }),
            inventory: Inventory::check(
                hello
                    .inventory
                    .ok_or(Malformed::Missing("hello.inventory"))?,
            )?,
            held: hello
                .held
                .into_iter()
                .map(|held| {
                    Ok(Held {
                        assignment: parsed("held.assignment_id", &held.assignment_id)?,
                        attempt: parsed("held.attempt_id", &held.attempt_id)?,
                        phase: parsed("held.phase", &held.phase)?,
                    })
                })
                .collect::<Result<_, Malformed>>()?,
            first_fact: hello.first_fact,
            next_fact: hello.next_fact,
        })
    }
}

impl Inventory {
    /// Checks a received inventory.
    pub fn check(inventory: wire::Inventory) -> Result<Self, Malformed> {
        bounded("inventory.devices", inventory.devices.len(), DEVICES_MAX)?;
        let mut devices = inventory
            .devices
            .into_iter()
            .map(Device::check)
            .collect::<Result<Vec<_>, _>>()?;
        devices.sort_by_key(|device| device.index);
        for pair in devices.windows(2) {
            if pair[0].index == pair[1].index {
                return Err(Malformed::invalid("device.index", pair[0].index));
            }
        }
        let uuids: BTreeSet<&str> = devices.iter().map(|device| device.uuid.as_str()).collect();
        if uuids.len() != devices.len() {
            return Err(Malformed::invalid("device.uuid", "the same uuid twice"));
        }
        if !matches!(inventory.cgroup.as_str(), "v2" | "v1" | "none") {
            return Err(Malformed::invalid("inventory.cgroup", inventory.cgroup));
        }
        Ok(Self {
            nvlink: check_cliques("inventory.nvlink", inventory.nvlink, &devices)?,
            numa: check_cliques("inventory.numa", inventory.numa, &devices)?,
            devices,
            driver_version: text(inventory.driver_version),
            cpus_milli: amount("inventory.cpus_milli", inventory.cpus_milli)?,
            memory_mib: amount("inventory.memory_mib", inventory.memory_mib)?,
            address: text(inventory.address),
            // A newer agent may know words that this server does not: it plans only what it knows.
            sharing: known(&inventory.sharing),
            runners: known(&inventory.runners),
            cgroup: inventory.cgroup,
            isolated: inventory.isolated,
            checkpoints_shared: inventory.checkpoints_shared,
            warnings: inventory
                .warnings
                .into_iter()
                .take(WARNINGS_MAX)
                .map(text)
                .collect(),
            work_roots: check_roots(inventory.work_roots)?,
            devices_unread: inventory.devices_unread,
            mps_across_teams: inventory.mps_across_teams,
            mig_static: inventory.mig_static,
            disk_full: inventory.disk_full.map(DiskFull::check).transpose()?,
            lacks: known(&inventory.lacks),
        })
    }
}

impl DiskFull {
    fn check(full: wire::DiskFull) -> Result<Self, Malformed> {
        Ok(Self {
            free_mib: amount("disk_full.free_mib", full.free_mib)?,
            needed_mib: amount("disk_full.needed_mib", full.needed_mib)?,
        })
    }
}

impl Device {
    fn check(device: wire::Device) -> Result<Self, Malformed> {
        if device.index as usize >= DEVICES_MAX {
            return Err(Malformed::invalid("device.index", device.index));
        }
        let memory_mib = amount("device.memory_mib", device.memory_mib)?;
        if memory_mib == 0 {
            return Err(Malformed::invalid("device.memory_mib", memory_mib));
        }
        Ok(Self {
            uuid: uuid(device.uuid)?,
            index: device.index,
            product_name: text(device.product_name),
            memory_mib,
            pci_bus_id: text(device.pci_bus_id),
            health: parsed("device.health", &device.health)?,
            health_reason: text(device.health_reason),
            health_detail: text(device.health_detail),
            findings: check_findings(device.findings)?,
            findings_known: count("device.findings_known", device.findings_known)?,
            failed_for_micros: match device.failed_for_micros {
                Some(micros) if micros < 0 => {
                    return Err(Malformed::invalid("device.failed_for_micros", micros));
                }
                micros => micros,
            },
            mig: device.mig.map(mig::check).transpose()?,
            layout: device.layout.map(Layout::check).transpose()?,
        })
    }
}

fn check_findings(findings: Vec<wire::Finding>) -> Result<Vec<Finding>, Malformed> {
    bounded("device.findings", findings.len(), FINDINGS_MAX)?;
    let findings = findings.into_iter().map(Finding::check);
    let mut findings = findings.collect::<Result<Vec<_>, _>>()?;
    findings.sort_by_key(|finding| finding.number);
    Ok(findings)
}

fn check_cliques(
    field: &'static str,
    cliques: Vec<wire::Clique>,
    devices: &[Device],
) -> Result<Vec<Vec<u32>>, Malformed> {
    bounded(field, cliques.len(), DEVICES_MAX)?;
    let present: BTreeSet<u32> = devices.iter().map(|device| device.index).collect();
    let mut seen = BTreeSet::new();
    let mut checked = Vec::with_capacity(cliques.len());
    for clique in cliques {
        for index in &clique.indices {
            if !present.contains(index) || !seen.insert(*index) {
                return Err(Malformed::invalid(field, index));
            }
        }
        checked.push(clique.indices);
    }
    Ok(checked)
}

/// Folders as they are compared: absolute, without needless separators.
fn check_roots(roots: Vec<String>) -> Result<Vec<String>, Malformed> {
    const FIELD: &str = "inventory.work_roots";
    bounded(FIELD, roots.len(), WORK_ROOTS_MAX)?;
    let checked = roots.into_iter().map(|root| {
        let plain: PathBuf = Path::new(&root).components().collect();
        match plain.into_os_string().into_string() {
            Ok(plain) if plain.starts_with('/') && kept_whole(&plain) => Ok(plain),
            _ => Err(Malformed::invalid(FIELD, root)),
        }
    });
    checked.collect()
}

#[cfg(test)]
mod tests;
