//! What a site makes of what devices show: the table `health` of the settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use domain::FieldError;
use serde::Deserialize;

use super::xid::{self, Class};

/// Longest probe that is waited for: a device is out of use meanwhile.
const PROBE_SECONDS_MAX: u64 = 3_600;
/// Users below are the machine's own; a probe never becomes one.
const PROBE_UID_MIN: u32 = 1_000;

/// The settings, each with a default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthPolicy {
    /// What is done about an Xid error, by its code, in place of the table's class.
    pub xid: BTreeMap<String, Class>,
    /// What is done about a device whose uncorrectable memory errors have become more.
    pub ecc_uncorrected: Class,
    /// What is done about a device that uses fewer PCIe lanes than it and its slot have.
    pub pcie_width: Class,
    /// For how many seconds hardware may slow a device down (heat, power) before it is suspect; 0 is for ever.
    pub throttle_seconds: u64,
    /// How many readings in a row must be well before a device is healthy again of which nothing but a
    /// state had been seen that is over.
    pub well_readings: u32,
    /// Programs of root that may be on a device beside jobs, by the name that the kernel has of them.
    pub allowed_programs: Vec<String>,
    /// How much memory of a device may be in use while nobody is on it, in MiB: what drivers keep.
    pub idle_memory_mib_max: i64,
    /// The program that checks a device of which something was found, with its arguments; without one
    /// a person returns such a device.
    pub probe: Vec<PathBuf>,
    /// Longest wait for it, in seconds.
    pub probe_seconds: u64,
    /// The user that it runs as where the agent is root; by default the kernel's nobody.
    pub probe_uid: u32,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        let programs = ["Xorg", "nv-hostengine", "nvidia-persiste"];
        Self {
            xid: BTreeMap::new(),
            ecc_uncorrected: Class::Suspect,
            pcie_width: Class::Suspect,
            throttle_seconds: 60,
            well_readings: 3,
            allowed_programs: programs.map(str::to_owned).to_vec(),
            idle_memory_mib_max: 1_024,
            probe: Vec::new(),
            probe_seconds: 120,
            probe_uid: 65_534,
        }
    }
}

impl HealthPolicy {
    /// Checks what no type can.
    pub fn check(&self) -> Result<(), FieldError> {
        if let Some(code) = self.xid.keys().find(|code| code.parse::<u64>().is_err()) {
            return Err(FieldError::new(
                "health.xid",
                code,
                "codes, which are numbers",
            ));
        }
        for (field, class) in [
            ("health.ecc_uncorrected", self.ecc_uncorrected),
            ("health.pcie_width", self.pcie_width),
        ] {
            if class == Class::Job {
                return Err(FieldError::new(
                    field,
                    "job",
                    "one of ignore suspect failed",
                ));
            }
        }
        if let Some(program) = self.probe.first().filter(|program| !program.is_absolute()) {
            let value = program.display().to_string();
            return Err(FieldError::new(
                "health.probe",
                value,
                "an absolute path first",
            ));
        }
        if !(1..=PROBE_SECONDS_MAX).contains(&self.probe_seconds) {
            let remedy = format!("1 to {PROBE_SECONDS_MAX}");
            return Err(FieldError::new(
                "health.probe_seconds",
                self.probe_seconds,
                &remedy,
            ));
        }
        if self.probe_uid < PROBE_UID_MIN {
            let remedy = format!("{PROBE_UID_MIN} or above: those below are the machine's own");
            return Err(FieldError::new("health.probe_uid", self.probe_uid, &remedy));
        }
        Ok(())
    }

    /// What is done about an Xid error here.
    pub fn class_of(&self, code: u64) -> Class {
        let own = self.xid.get(&code.to_string()).copied();
        own.unwrap_or_else(|| xid::class_of(code))
    }

    /// Longest wait for a probe.
    pub fn probe_timeout(&self) -> Duration {
        Duration::from_secs(self.probe_seconds)
    }
}
