//! The machine file: what it says of devices, links, load and faults.

mod checks;
mod vgpu;

use serde::{Deserialize, Serialize};

pub use checks::Invalid;
pub(crate) use checks::NVLINKS_MAX;
pub use vgpu::{ActiveVgpu, Vgpu};

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
    pub xids: Vec<Xid>,
    /// What the driver of a host for virtual GPUs tells; absent with the ordinary driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<Vgpu>,
}

/// An Xid error: of the whole device, as its code alone, or of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Xid {
    /// The code.
    Device(u64),
    /// With the numbers of the instances that it happened on.
    Instance {
        /// The code.
        xid: u64,
        /// The GPU instance.
        gpu_instance: u32,
        /// The compute instance.
        compute_instance: u32,
    },
}

impl Xid {
    /// The code, and the numbers of the instances where it is of one.
    pub(crate) fn parts(self) -> (u64, Option<(u32, u32)>) {
        match self {
            Self::Device(xid) => (xid, None),
            Self::Instance {
                xid,
                gpu_instance,
                compute_instance,
            } => (xid, Some((gpu_instance, compute_instance))),
        }
    }
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

impl Device {
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
