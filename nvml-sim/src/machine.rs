//! The machine file: what it says of devices, links, load and faults, and the checks on it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::notation::{ComputeCapability, CpuList, PciAddress};

/// A simulated machine, as written in its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What the machine is, for people: the name it was generated from.
    #[serde(default)]
    pub model: String,
    /// The driver's version as NVML prints it.
    #[serde(default = "default_driver_version")]
    pub driver_version: String,
    /// CUDA's version as 1000 × major + 10 × minor.
    #[serde(default = "default_cuda_version")]
    pub cuda_version: i32,
    /// Which start of the machine this is; a new number is a restart, and takes all instances.
    #[serde(default, skip_serializing_if = "nothing")]
    pub boot: u64,
    /// Whether the caller may cut devices.
    #[serde(default = "permitted")]
    pub mig_permitted: bool,
    /// The change during which whoever asks for it is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kills_caller: Option<Kill>,
    /// The devices in NVML's order of index; one that is gone from here is lost.
    pub devices: Vec<Device>,
    /// The processes that NVML shall list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
}

/// One GPU of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// `GPU-` and 36 characters; the device's identity over rewrites of the file.
    pub uuid: String,
    /// The product's name as NVML prints it.
    pub name: String,
    /// The board's serial number; none is answered when it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Memory in MiB, as NVML's total.
    pub memory_mib: u64,
    /// Memory in MiB that the driver keeps for itself.
    #[serde(default)]
    pub memory_reserved_mib: u64,
    /// N of `/dev/nvidiaN`; not the index.
    pub minor: u32,
    /// The address on the PCI bus.
    pub pci: PciAddress,
    /// The PCI device id in hexadecimal, without NVIDIA's 10DE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_device_id: Option<String>,
    /// The memory node (NUMA) that the device hangs on.
    #[serde(default)]
    pub numa: u32,
    /// The processors near the device, as `0-55,112-167`.
    #[serde(default)]
    pub cpus: CpuList,
    /// The name of the host bridge; devices with the same one share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bridge: Option<String>,
    /// The PCIe switches from the host bridge down to the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pcie_switches: Vec<String>,
    /// The generation of the chip.
    pub architecture: Architecture,
    /// CUDA's compute capability, as `9.0`.
    pub compute_capability: ComputeCapability,
    /// How many MIG instances the card can be cut into; 0 where it has no MIG.
    #[serde(default)]
    pub mig_instances_max: u32,
    /// Whether a change of the MIG mode waits for a restart of the machine, as where the device is
    /// passed through to a guest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mig_needs_reset: bool,
    /// The power limit in milliwatts.
    pub power_limit_mw: u32,
    /// The highest clocks in MHz.
    pub clocks_max_mhz: Clocks,
    /// NVLink's generation; absent where the card has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_version: Option<u32>,
    /// The links, in their order of number, those to one end together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<NvlinkGroup>,
    /// The NVLink fabric that the device has joined, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// What the sensors show.
    #[serde(default)]
    pub telemetry: Telemetry,
    /// The fault that every call on the device answers with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// The Xid errors so far; a code appended here is an event to those who wait for one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<u64>,
}

/// A generation of chips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Architecture {
    Volta,
    Turing,
    Ampere,
    Ada,
    Hopper,
    Blackwell,
}

/// Links of one device to the same far end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvlinkGroup {
    /// What the links lead to.
    pub to: NvlinkEnd,
    /// The far end's address on the PCI bus.
    pub pci: PciAddress,
    /// How many links lead there.
    pub count: u32,
}

/// What an NVLink leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NvlinkEnd {
    /// Another GPU of the machine.
    Gpu,
    /// An NVSwitch.
    Switch,
}

/// Membership of an NVLink fabric, all of it joined and healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// 32 hexadecimal digits, hyphens allowed; all zero within a single machine.
    pub cluster_uuid: String,
    /// The clique in the cluster.
    #[serde(default)]
    pub clique: u32,
}

/// Clocks of the two domains that matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// The streaming multiprocessors' clock.
    pub graphics: u32,
    /// The memory's clock.
    pub memory: u32,
}

/// What the sensors of a device show; what is absent follows from the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// Share of time with a kernel running, in percent.
    pub utilization_gpu_percent: u32,
    /// Share of time with memory read or written, in percent.
    pub utilization_memory_percent: u32,
    /// Degrees Celsius; an idle card's when absent.
    pub temperature_c: Option<u32>,
    /// Milliwatts; a tenth of the limit when absent.
    pub power_mw: Option<u32>,
    /// Memory in use in MiB; the sum of the listed processes when absent.
    pub memory_used_mib: Option<u64>,
    /// Errors of the memory.
    pub ecc: EccCounts,
    /// Rows of memory taken out of use.
    pub remapped_rows: RemappedRows,
    /// What must be done to recover the device: 0 nothing, 1 reset, 2 reboot, 3 and 4 drain.
    pub recovery_action: u32,
    /// Energy in millijoules that was used before the library was loaded.
    pub energy_mj: u64,
    /// Why the clocks are as they are, as NVML's mask; idle or nothing, by the load, when absent.
    pub clocks_event_reasons: Option<u64>,
    /// The PCIe generation in use; the chip's own when absent.
    pub pcie_generation: Option<u32>,
    /// The PCIe lanes in use; all of them when absent.
    pub pcie_width: Option<u32>,
}

/// Memory errors, since the driver was loaded and ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct EccCounts {
    pub corrected_volatile: u64,
    pub uncorrected_volatile: u64,
    pub corrected_aggregate: u64,
    pub uncorrected_aggregate: u64,
}

/// Rows that were remapped, and whether one waits for a reset or failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct RemappedRows {
    pub correctable: u32,
    pub uncorrectable: u32,
    pub pending: bool,
    pub failed: bool,
}

/// A fault that a device answers every call with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Fallen off the bus, yet counted.
    GpuIsLost,
    /// A reset is needed before anything else.
    ResetRequired,
    /// Its interrupts don't arrive.
    IrqIssue,
    /// No reason known.
    Unknown,
    /// A call does not return before the fault is gone.
    Hangs,
}

/// A death of the calling program at a chosen moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kill {
    /// The call, by its name.
    pub call: String,
    /// Whether the change is made before.
    pub when: When,
}

/// On which side of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum When {
    Before,
    After,
}

/// A process that holds memory of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// The process id on the host.
    pub pid: u32,
    /// The device, or the MIG device.
    pub uuid: String,
    /// Which of NVML's lists shows it.
    #[serde(default)]
    pub kind: ProcessKind,
    /// The memory it holds in MiB.
    #[serde(default)]
    pub memory_used_mib: u64,
    /// The share of time in which a kernel of it runs, in percent.
    #[serde(default, skip_serializing_if = "idle")]
    pub load_percent: u32,
}

/// Which of NVML's lists shows a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum ProcessKind {
    #[default]
    Compute,
    Graphics,
    Mps,
}

/// Why a machine file was refused.
#[derive(Debug)]
pub enum Invalid {
    /// It is not JSON of this format.
    Format(serde_json::Error),
    /// A value contradicts another or is out of range.
    Value(String),
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(error) => write!(f, "not a machine file: {error}"),
            Self::Value(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for Invalid {}

/// NVML's buffers for a UUID end at this length with the final NUL.
const UUID_LENGTH_MAX: usize = 79;
/// NVML's buffers for a name end at this length with the final NUL.
const NAME_LENGTH_MAX: usize = 95;
/// NVML numbers links from 0 to 17 in the headers that callers are built with.
pub(crate) const NVLINKS_MAX: u32 = 18;
/// More devices than any machine has, so that a wrong file can't grow without end.
const DEVICES_MAX: usize = 64;

impl Machine {
    /// Reads a machine file's text and checks it.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let machine: Self = serde_json::from_str(text).map_err(Invalid::Format)?;
        machine.check().map_err(Invalid::Value)?;
        Ok(machine)
    }

    /// The machine as the text of a file.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self)
            .expect("a machine has no keys but texts, and no floats");
        text.push('\n');
        text
    }

    fn check(&self) -> Result<(), String> {
        if self.devices.len() > DEVICES_MAX {
            return Err(format!(
                "devices: {} are too many; a machine has at most {DEVICES_MAX}",
                self.devices.len()
            ));
        }
        let mut uuids = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        let mut minors = BTreeSet::new();
        for device in &self.devices {
            device.check()?;
            let uuid = &device.uuid;
            if !uuids.insert(uuid) {
                return Err(format!(
                    "uuid {uuid}: named twice; give each device its own"
                ));
            }
            if !addresses.insert(device.pci) {
                return Err(format!(
                    "device {uuid}: pci {} is another's too",
                    device.pci
                ));
            }
            if !minors.insert(device.minor) {
                return Err(format!(
                    "device {uuid}: minor {} is another's too",
                    device.minor
                ));
            }
        }
        Ok(())
    }
}

impl Device {
    fn check(&self) -> Result<(), String> {
        let uuid = &self.uuid;
        if !uuid.starts_with("GPU-") || uuid.len() > UUID_LENGTH_MAX || !printable(uuid) {
            return Err(format!(
                "uuid {uuid:?}: must be GPU- and at most {UUID_LENGTH_MAX} printable characters in all"
            ));
        }
        if self.name.is_empty() || self.name.len() > NAME_LENGTH_MAX || !printable(&self.name) {
            return Err(format!(
                "device {uuid}: name {:?} must have 1 to {NAME_LENGTH_MAX} printable characters",
                self.name
            ));
        }
        if self.memory_reserved_mib > self.memory_mib {
            return Err(format!(
                "device {uuid}: memory_reserved_mib {} is more than memory_mib {}",
                self.memory_reserved_mib, self.memory_mib
            ));
        }
        let links: u64 = self
            .nvlinks
            .iter()
            .map(|group| u64::from(group.count))
            .sum();
        if links > u64::from(NVLINKS_MAX) {
            return Err(format!(
                "device {uuid}: {links} nvlinks; NVML numbers at most {NVLINKS_MAX}"
            ));
        }
        if links > 0 && self.nvlink_version.is_none() {
            return Err(format!(
                "device {uuid}: has nvlinks, so nvlink_version must be given"
            ));
        }
        let telemetry = &self.telemetry;
        for (field, percent) in [
            ("utilization_gpu_percent", telemetry.utilization_gpu_percent),
            (
                "utilization_memory_percent",
                telemetry.utilization_memory_percent,
            ),
        ] {
            if percent > 100 {
                return Err(format!(
                    "device {uuid}: telemetry.{field} {percent} is over 100"
                ));
            }
        }
        if let Some(id) = &self.pci_device_id {
            u16::from_str_radix(id, 16).map_err(|_| {
                format!("device {uuid}: pci_device_id {id:?} must be four hexadecimal digits")
            })?;
        }
        if let Some(fabric) = &self.fabric {
            fabric.cluster_bytes().ok_or_else(|| {
                format!(
                    "device {uuid}: fabric.cluster_uuid {:?} must be 32 hexadecimal digits",
                    fabric.cluster_uuid
                )
            })?;
        }
        Ok(())
    }

    /// The PCI device and vendor id in one word, as NVML gives it.
    pub(crate) fn pci_word(&self) -> u32 {
        /// NVIDIA's vendor id on the PCI bus.
        const VENDOR: u32 = 0x10DE;
        let id = self
            .pci_device_id
            .as_deref()
            .and_then(|id| u32::from_str_radix(id, 16).ok());
        id.unwrap_or_default() << 16 | VENDOR
    }
}

impl Fabric {
    /// The cluster's 16 bytes; none when the text is no UUID.
    pub(crate) fn cluster_bytes(&self) -> Option<[u8; 16]> {
        let digits: String = self.cluster_uuid.chars().filter(|c| *c != '-').collect();
        if digits.len() != 32 || !digits.is_ascii() {
            return None;
        }
        u128::from_str_radix(&digits, 16)
            .ok()
            .map(u128::to_be_bytes)
    }
}

fn printable(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn nothing(number: &u64) -> bool {
    *number == 0
}

fn idle(percent: &u32) -> bool {
    *percent == 0
}

fn permitted() -> bool {
    true
}

fn default_driver_version() -> String {
    crate::models::DRIVER_VERSION.to_owned()
}

fn default_cuda_version() -> i32 {
    crate::models::CUDA_VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_contradicts_itself_is_refused_with_the_field() {
        let good = crate::models::machine("l40s-4", "m").expect("a known model");
        let refuse = |change: &dyn Fn(&mut Machine)| {
            let mut machine = good.clone();
            change(&mut machine);
            Machine::parse(&machine.to_json())
                .expect_err("it contradicts itself")
                .to_string()
        };
        assert!(refuse(&|m| m.devices[1].uuid = m.devices[0].uuid.clone()).contains("named twice"));
        assert!(refuse(&|m| m.devices[1].minor = 0).contains("minor 0"));
        assert!(
            refuse(&|m| m.devices[0].telemetry.utilization_gpu_percent = 101).contains("over 100")
        );
        assert!(refuse(&|m| m.devices[0].uuid = "7".to_owned()).contains("GPU-"));
        assert!(refuse(&|m| m.devices[0].name = "a\nb".to_owned()).contains("printable"));
        let unknown = good.to_json().replacen("\"minor\"", "\"miner\"", 1);
        assert!(
            Machine::parse(&unknown)
                .expect_err("no such key")
                .to_string()
                .contains("miner")
        );
    }
}
