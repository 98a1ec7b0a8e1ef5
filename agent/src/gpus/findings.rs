//! What was found of devices, kept in a file over restarts of the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use domain::ids::TeamId;
use domain::state::DeviceHealth;
use protocol::{report, wire};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::files::{self, Durability};

/// Findings that are kept of one device: enough to see what began it, however often it errs.
pub const FINDINGS_MAX: usize = 16;
/// Errors of applications that are kept of one device.
pub const FAULTS_MAX: usize = 64;

/// Something that happened to a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Rises with each of a node.
    pub number: u64,
    /// What the device is for it.
    pub health: DeviceHealth,
    /// In words.
    pub reason: String,
    /// When, by the wall clock: evidence for people.
    pub at_micros: i64,
    /// When, by the clock of the boot that the file names; nothing where it was another.
    #[serde(default)]
    pub boot_micros: Option<i64>,
    /// What the last probe that did not pass said.
    #[serde(default)]
    pub probe: Option<String>,
}

impl Finding {
    /// In words, with what a probe said since.
    pub fn words(&self) -> String {
        match &self.probe {
            None => self.reason.clone(),
            Some(probe) => format!("{}; {probe}", self.reason),
        }
    }
}

impl From<&Finding> for wire::Finding {
    fn from(finding: &Finding) -> Self {
        Self {
            number: finding.number,
            health: finding.health.to_string(),
            reason: finding.words(),
        }
    }
}

/// An error of an application while one team alone was on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Fault {
    code: u64,
    team: TeamId,
    boot_micros: i64,
}

/// What the file holds.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    last: u64,
    /// The kernel's boot that times are measured in.
    #[serde(default)]
    boot_id: String,
    /// Up to when Xid errors of this boot are known.
    #[serde(default)]
    xids_until_micros: i64,
    devices: BTreeMap<String, KeptDevice>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct KeptDevice {
    #[serde(default)]
    findings: Vec<Finding>,
    /// The highest number of a finding of it that was ever known here.
    #[serde(default)]
    known: u64,
    /// The memory errors that are known.
    #[serde(default)]
    ecc_uncorrected: Option<u64>,
    #[serde(default)]
    faults: Vec<Fault>,
}

/// The findings of all devices, with their file.
#[derive(Debug)]
pub struct Findings {
    file: PathBuf,
    kept: Kept,
}

impl Findings {
    /// Reads what is kept; a file that cannot be read is as if there were none.
    pub fn load(file: PathBuf, boot_id: &str) -> Self {
        let kept = files::read_json(&file).unwrap_or_else(|error| {
            tracing::warn!(%error, file = %file.display(), "what was found of devices cannot be read");
            None
        });
        let mut kept: Kept = kept.unwrap_or_default();
        if kept.boot_id != boot_id {
            // Its moments were measured by a clock that began anew.
            boot_id.clone_into(&mut kept.boot_id);
            kept.xids_until_micros = 0;
            for device in kept.devices.values_mut() {
                device.faults.clear();
                for finding in &mut device.findings {
                    finding.boot_micros = None;
                }
            }
        }
        Self { file, kept }
    }

    /// Those of a device.
    pub fn of(&self, uuid: &str) -> &[Finding] {
        let device = self.kept.devices.get(uuid);
        device.map_or(&[], |device| device.findings.as_slice())
    }

    /// The highest number that was ever known of a device.
    pub fn known(&self, uuid: &str) -> u64 {
        self.kept.devices.get(uuid).map_or(0, |device| device.known)
    }

    /// Up to when Xid errors of this boot are known.
    pub fn xids_until_micros(&self) -> i64 {
        self.kept.xids_until_micros
    }

    /// Notes that Xid errors of this boot are known up to a moment.
    pub fn note_xids_until(&mut self, boot_micros: i64) {
        self.kept.xids_until_micros = boot_micros;
        self.save();
    }

    /// Adds one of this moment.
    pub fn add(&mut self, uuid: &str, health: DeviceHealth, reason: String) {
        self.add_at(uuid, health, reason, clock::boot_micros());
    }

    /// Adds one of a moment of this boot.
    pub fn add_at(&mut self, uuid: &str, health: DeviceHealth, reason: String, boot_micros: i64) {
        // By the clock, so that an agent which lost its state gives out no number that was cleared.
        let now = clock::wall_micros();
        let by_clock = u64::try_from(now).unwrap_or(0);
        self.kept.last = by_clock.max(self.kept.last + 1);
        self.kept.xids_until_micros = clock::boot_micros();
        let number = self.kept.last;
        self.device(uuid).put(Finding {
            number,
            health,
            reason,
            at_micros: now - (clock::boot_micros() - boot_micros),
            boot_micros: Some(boot_micros),
            probe: None,
        });
        self.save();
    }

    /// Takes in what the server knows and we have forgotten: what is newer than all that we know of a
    /// device. Whether that was anything.
    pub fn take(&mut self, uuid: &str, found: &[report::Finding]) -> bool {
        let known = self.known(uuid);
        let number = |finding: &report::Finding| finding.number.unsigned_abs();
        let newer: Vec<Finding> = found
            .iter()
            .filter(|finding| number(finding) > known)
            .map(|finding| Finding {
                number: number(finding),
                health: finding.health,
                reason: finding.reason.clone(),
                at_micros: finding.number,
                boot_micros: None,
                probe: None,
            })
            .collect();
        if newer.is_empty() {
            return false;
        }
        for finding in newer {
            self.kept.last = self.kept.last.max(finding.number);
            self.device(uuid).put(finding);
        }
        self.save();
        true
    }

    /// Clears those of a device up to a number: they are dealt with. Whether that was news.
    pub fn clear(&mut self, uuid: &str, up_to: u64) -> bool {
        let device = self.device(uuid);
        let before = (device.findings.len(), device.known);
        device.findings.retain(|finding| finding.number > up_to);
        device.known = device.known.max(up_to);
        if before == (device.findings.len(), device.known) {
            return false;
        }
        device.faults.clear();
        self.kept.xids_until_micros = clock::boot_micros();
        self.save();
        true
    }

    /// Notes with the newest finding of a device what a probe said that did not pass.
    pub fn note_probe(&mut self, uuid: &str, words: &str) {
        if let Some(newest) = self
            .device(uuid)
            .findings
            .iter_mut()
            .max_by_key(|f| f.number)
        {
            newest.probe = Some(words.to_owned());
            self.save();
        }
    }

    /// Takes in a count of memory errors; by how many it has become more than was known.
    pub fn count_errors(&mut self, uuid: &str, errors: u64) -> Option<u64> {
        let device = self.device(uuid);
        let known = device.ecc_uncorrected.replace(errors);
        if known == Some(errors) {
            return None;
        }
        self.save();
        // The first reading of a device, or another board's count, says nothing.
        known.and_then(|known| errors.checked_sub(known))
    }

    /// Takes in an error of an application in a team's job; in jobs of how many teams it came within a time.
    pub fn count_fault(&mut self, uuid: &str, code: u64, team: TeamId, within: Duration) -> usize {
        let now = clock::boot_micros();
        let oldest = now.saturating_sub(i64::try_from(within.as_micros()).unwrap_or(i64::MAX));
        let faults = &mut self.device(uuid).faults;
        faults.retain(|fault| fault.boot_micros >= oldest);
        // Of each team one of a code: what it errs again says nothing more.
        faults.retain(|fault| (fault.code, fault.team) != (code, team));
        if faults.len() == FAULTS_MAX {
            faults.remove(0);
        }
        faults.push(Fault {
            code,
            team,
            boot_micros: now,
        });
        let teams: BTreeSet<TeamId> = faults
            .iter()
            .filter(|fault| fault.code == code)
            .map(|fault| fault.team)
            .collect();
        self.save();
        teams.len()
    }

    fn device(&mut self, uuid: &str) -> &mut KeptDevice {
        self.kept.devices.entry(uuid.to_owned()).or_default()
    }

    fn save(&self) {
        if let Err(error) = files::write_json(&self.file, &self.kept, Durability::Synced) {
            tracing::error!(%error, "what was found of devices cannot be kept; it is known until the agent ends");
        }
    }
}

impl KeptDevice {
    fn put(&mut self, finding: Finding) {
        self.known = self.known.max(finding.number);
        let findings = &mut self.findings;
        // The same again takes the place of the one before: who clears that has not seen this.
        let before = findings.iter().position(|f| f.reason == finding.reason);
        let mut finding = finding;
        if let Some(before) = before {
            // It has been so since then.
            let before = findings.remove(before);
            finding.boot_micros = before.boot_micros.or(finding.boot_micros);
        }
        if findings.len() == FINDINGS_MAX {
            // What keeps it out for good is kept before what does not.
            let lighter = findings
                .iter()
                .position(|f| f.health != DeviceHealth::Failed);
            findings.remove(lighter.unwrap_or(0));
        }
        findings.push(finding);
    }
}
