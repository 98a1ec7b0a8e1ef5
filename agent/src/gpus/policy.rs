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

/// Longest span of a setting, in seconds: thirty days. Of a longer one the agent would have to keep too much.
const SECONDS_MAX: u64 = 30 * 24 * 3_600;
/// Most readings that must be well in a row: at the default pace an hour and a half.
const WELL_READINGS_MAX: u64 = 1_000;
/// Most memory that may be in use on an idle device: no device has as much.
const IDLE_MEMORY_MIB_MAX: i64 = 1 << 20;
/// Most teams that an error may be asked for: as many errors of a device are kept.
const XID_TEAMS_MAX: u64 = super::findings::FAULTS_MAX as u64;
/// Longest name that the kernel keeps of a program, in bytes.
const NAME_BYTES_MAX: usize = 15;

/// The settings, each with a default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthPolicy {
    /// What is done about an Xid error, by its code, in place of the table's class.
    pub xid: BTreeMap<String, Class>,
    /// In jobs of how many teams the same error of an application makes a device suspect: one team's may be its own.
    pub xid_teams: usize,
    /// Within how many seconds.
    pub xid_window_seconds: u64,
    /// Where the kernel's log is, for the Xid errors from before the agent began.
    pub kernel_log: PathBuf,
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
            xid_teams: 2,
            xid_window_seconds: 24 * 3_600,
            kernel_log: PathBuf::from("/dev/kmsg"),
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
        self.check_xids()?;
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
        within(
            "health.throttle_seconds",
            self.throttle_seconds,
            0..=SECONDS_MAX,
        )?;
        let readings = u64::from(self.well_readings);
        within("health.well_readings", readings, 1..=WELL_READINGS_MAX)?;
        if !(0..=IDLE_MEMORY_MIB_MAX).contains(&self.idle_memory_mib_max) {
            let remedy = format!("0 to {IDLE_MEMORY_MIB_MAX}");
            let value = self.idle_memory_mib_max;
            return Err(FieldError::new("health.idle_memory_mib_max", value, remedy));
        }
        let nameless = |name: &&String| !(1..=NAME_BYTES_MAX).contains(&name.len());
        if let Some(name) = self.allowed_programs.iter().find(nameless) {
            let remedy = format!(
                "names of 1 to {NAME_BYTES_MAX} bytes, which is all that the kernel keeps of one (`ps -eo comm`)"
            );
            return Err(FieldError::new("health.allowed_programs", name, remedy));
        }
        for (field, path) in [
            ("health.probe", self.probe.first()),
            ("health.kernel_log", Some(&self.kernel_log)),
        ] {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                let value = path.display().to_string();
                return Err(FieldError::new(field, value, "an absolute path"));
            }
        }
        within(
            "health.probe_seconds",
            self.probe_seconds,
            1..=PROBE_SECONDS_MAX,
        )?;
        if self.probe_uid < PROBE_UID_MIN || self.probe_uid == u32::MAX {
            let remedy = format!("{PROBE_UID_MIN} or above: those below are the machine's own");
            return Err(FieldError::new("health.probe_uid", self.probe_uid, remedy));
        }
        Ok(())
    }

    fn check_xids(&self) -> Result<(), FieldError> {
        // As they are looked up: of `079` nothing would ever be found.
        let code = |text: &&String| {
            text.parse()
                .is_ok_and(|code: u64| code.to_string() == **text)
        };
        if let Some(other) = self.xid.keys().find(|text| !code(text)) {
            let remedy = "codes, which are numbers without zeros before them";
            return Err(FieldError::new("health.xid", other, remedy));
        }
        let teams = u64::try_from(self.xid_teams).unwrap_or(u64::MAX);
        within("health.xid_teams", teams, 2..=XID_TEAMS_MAX)?;
        within(
            "health.xid_window_seconds",
            self.xid_window_seconds,
            1..=SECONDS_MAX,
        )
    }

    /// Checks against the machine what it is to have.
    pub fn check_machine(&self) -> Result<(), FieldError> {
        let Some(program) = self.probe.first() else {
            return Ok(());
        };
        let found = std::fs::metadata(program);
        let executable = found.is_ok_and(|found| {
            let bits = std::os::unix::fs::PermissionsExt::mode(&found.permissions());
            found.is_file() && bits & 0o111 != 0
        });
        if executable {
            return Ok(());
        }
        let value = program.display().to_string();
        let remedy = "a program that is there and may be executed, or no probe";
        Err(FieldError::new("health.probe", value, remedy))
    }

    /// What is done about an Xid error here.
    pub fn class_of(&self, code: u64) -> Class {
        let own = self.xid.get(&code.to_string()).copied();
        own.unwrap_or_else(|| xid::class_of(code))
    }

    /// Within which errors of an application count together.
    pub fn xid_window(&self) -> Duration {
        Duration::from_secs(self.xid_window_seconds)
    }

    /// Longest wait for a probe.
    pub fn probe_timeout(&self) -> Duration {
        Duration::from_secs(self.probe_seconds)
    }
}

fn within(
    field: &'static str,
    value: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<(), FieldError> {
    if range.contains(&value) {
        return Ok(());
    }
    let remedy = format!("{} to {}", range.start(), range.end());
    Err(FieldError::new(field, value, remedy))
}
