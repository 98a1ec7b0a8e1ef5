//! The reading of a machine file, and the checks on what it says.

use std::collections::BTreeSet;
use std::fmt;

use super::{Device, Machine};

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
}

fn printable(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
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
