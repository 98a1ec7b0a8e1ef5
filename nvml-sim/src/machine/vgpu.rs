//! What the machine file says of virtual GPUs.

use serde::{Deserialize, Serialize};

/// A device on a host for virtual GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Vgpu {
    /// Whether virtual GPUs of several sizes may be on the device.
    pub heterogeneous: bool,
    /// Those that are on it.
    pub active: Vec<ActiveVgpu>,
}

/// A virtual GPU of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActiveVgpu {
    /// Its type's name, such as `NVIDIA L40S-12Q`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its UUID.
    pub uuid: String,
    /// Its guest.
    #[serde(default)]
    pub vm: String,
    /// The memory that it uses, in MiB.
    #[serde(default)]
    pub memory_used_mib: u64,
}
