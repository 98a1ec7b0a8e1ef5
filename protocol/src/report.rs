//! What a node reports, checked on receipt by the server.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use domain::error::printable;
use domain::ids::{AssignmentId, AttemptId, IncarnationId, JournalId};
use domain::sharing::SharingMode;
use domain::spec::Runner;
use domain::state::{AssignmentPhase, DeviceHealth};
use serde::{Deserialize, Serialize};

use crate::mig::{self, MigSlice};
use crate::samples::{self, DeviceSample};
use crate::{Malformed, wire};

/// Most devices of a node; the largest machines sold have 16, and a MIG-cut one is still one.
pub const DEVICES_MAX: usize = 1024;
/// Most assignments that a node may say it holds: every share of every device, many times over.
pub const HELD_MAX: usize = 16_384;
/// Most facts in one message; an agent that was away for long sends several.
pub const FACTS_MAX: usize = 4_096;
/// Most findings of one device: an agent keeps fewer.
const FINDINGS_MAX: usize = 64;
/// Longest free text that is kept of a node, in characters; a sentence or two.
pub const TEXT_CHARS_MAX: usize = 512;
/// Most warnings of a node, each a sentence on its page.
const WARNINGS_MAX: usize = 32;
/// Most folders below which a node lets jobs work: each is a mount or a project's folder.
pub const WORK_ROOTS_MAX: usize = 32;
/// Largest amount of memory, in MiB, or of CPU, in thousandths, that is believed.
const AMOUNT_MAX: i64 = 1 << 40;

/// A message of a node's stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// First, once.
    Hello(Box<Hello>),
    /// A heartbeat with its number.
    Heartbeat(u64),
    /// The machine changed.
    Inventory(Box<Inventory>),
    /// Things that happened, in order.
    Facts(Vec<Fact>),
    /// A piece of a log.
    LogChunk(LogChunk),
    /// What devices did.
    Samples(Vec<DeviceSample>),
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

/// Something that happened to an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Its number in the journal.
    pub number: u64,
    /// The assignment.
    pub assignment: AssignmentId,
    /// Its attempt.
    pub attempt: AttemptId,
    /// When, by the node's clock; evidence only.
    pub at_micros: i64,
    /// For how long the node itself had kept what is released now, nothing of its job being left.
    pub kept_micros: i64,
    /// What.
    pub kind: FactKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactKind {
    /// The node took it.
    Accepted,
    /// The node would not take it, or could not run it.
    Refused {
        /// Whether it could run nowhere.
        invalid: bool,
        /// Why, in words.
        message: String,
        /// The exit code that a shell would have ended with, where its command is what is wrong.
        exit_code: Option<i32>,
    },
    /// Its process runs.
    Started {
        /// The process.
        pid: i64,
    },
    /// Its process ended.
    Exited(Exited),
    /// What it held is clean.
    Released,
}

/// How a node lost a process that it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The machine or the device went away under it, or its lease ended.
    Seen,
    /// It ended at some time while no agent ran, and nothing says when or how.
    Unseen,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exited {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it had used more memory than it had asked for.
    pub out_of_memory: bool,
    /// Whether the agent had begun to stop it.
    pub asked: bool,
    /// Where the node lost it, whether its agent was there.
    pub lost: Option<Lost>,
    /// In words.
    pub message: String,
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
                Wire::Heartbeat(heartbeat) => Self::Heartbeat(heartbeat.number),
                Wire::Inventory(inventory) => {
                    Self::Inventory(Box::new(Inventory::check(inventory)?))
                }
                Wire::Facts(facts) => Self::Facts(check_facts(facts.facts)?),
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

/// A device's UUID as NVML writes them.
pub(crate) fn uuid(uuid: String) -> Result<String, Malformed> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if uuid.is_empty() || uuid.len() > 96 || !uuid.bytes().all(plain) {
        return Err(Malformed::invalid("device.uuid", uuid));
    }
    Ok(uuid)
}

fn check_facts(facts: Vec<wire::Fact>) -> Result<Vec<Fact>, Malformed> {
    bounded("facts", facts.len(), FACTS_MAX)?;
    facts.into_iter().map(check_fact).collect()
}

fn check_fact(fact: wire::Fact) -> Result<Fact, Malformed> {
    use wire::fact::Kind;
    if fact.number == 0 || i64::try_from(fact.number).is_err() {
        return Err(Malformed::invalid("fact.number", fact.number));
    }
    let kept_micros = match &fact.kind {
        Some(Kind::Released(released)) => released.kept_micros.max(0),
        _ => 0,
    };
    let kind = match fact.kind.ok_or(Malformed::Missing("fact.kind"))? {
        Kind::Accepted(_) => FactKind::Accepted,
        Kind::Refused(refused) => FactKind::Refused {
            invalid: refused.code == "invalid",
            message: text(refused.message),
            exit_code: refused.exit_code,
        },
        Kind::Started(started) => FactKind::Started { pid: started.pid },
        Kind::Exited(exited) => FactKind::Exited(Exited {
            code: exited.code,
            signal: exited.signal,
            out_of_memory: exited.out_of_memory,
            asked: exited.asked,
            lost: match exited.reason.as_str() {
                "node_lost" | "lease_over" => Some(Lost::Seen),
                "unseen" => Some(Lost::Unseen),
                _ => None,
            },
            message: text(exited.message),
        }),
        Kind::Released(_) => FactKind::Released,
    };
    Ok(Fact {
        number: fact.number,
        assignment: parsed("fact.assignment_id", &fact.assignment_id)?,
        attempt: parsed("fact.attempt_id", &fact.attempt_id)?,
        at_micros: fact.at_micros,
        kept_micros,
        kind,
    })
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

pub(crate) fn bounded(field: &'static str, count: usize, max: usize) -> Result<(), Malformed> {
    if count > max {
        return Err(Malformed::invalid(
            field,
            format!("{count} entries, at most {max}"),
        ));
    }
    Ok(())
}

pub(crate) fn amount(field: &'static str, value: i64) -> Result<i64, Malformed> {
    if (0..=AMOUNT_MAX).contains(&value) {
        Ok(value)
    } else {
        Err(Malformed::invalid(field, value))
    }
}

fn count(field: &'static str, value: u64) -> Result<i64, Malformed> {
    i64::try_from(value).map_err(|_| Malformed::invalid(field, value))
}

pub(crate) fn parsed<T: FromStr>(field: &'static str, value: &str) -> Result<T, Malformed> {
    if value.is_empty() {
        return Err(Malformed::Missing(field));
    }
    value
        .parse()
        .ok()
        .ok_or_else(|| Malformed::invalid(field, value))
}

fn known<T: FromStr + Ord>(words: &[String]) -> Vec<T> {
    let known: BTreeSet<T> = words.iter().filter_map(|word| word.parse().ok()).collect();
    known.into_iter().collect()
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

/// Whether a text is short and printable as it is.
pub fn kept_whole(text: &str) -> bool {
    text.chars().count() <= TEXT_CHARS_MAX && text.chars().all(printable)
}

/// A foreign text as it is kept: short, without control or direction characters.
fn text(text: String) -> String {
    text.chars()
        .map(|c| if printable(c) { c } else { '\u{fffd}' })
        .take(TEXT_CHARS_MAX)
        .collect()
}

#[cfg(test)]
mod tests;
