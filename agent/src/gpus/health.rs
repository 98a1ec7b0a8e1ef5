//! How devices do: what was seen of each, kept over restarts, and what follows from it.
//!
//! There are two kinds. A *finding* happened (an Xid error, a memory error, a fall off the bus): it stays, and its device
//! is out of use until a check has passed or a person has returned the device. A *state* is there for
//! as long as readings show it (a row that waits for a reset, heat, silence): once it is over, its
//! device is healthy after some readings in a row that show nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::state::DeviceHealth;
use serde::{Deserialize, Serialize};

use super::policy::HealthPolicy;
use super::signs::Signs;
use super::xid::{self, Class};
use super::{Reading, Snapshot};
use crate::clock;
use crate::files::{self, Durability};

/// Findings that are kept of one device: enough to see what began it, however often it errs.
const FINDINGS_MAX: usize = 16;
/// Xid errors that are kept for the jobs that ran meanwhile, of all devices.
const RECENT_MAX: usize = 64;
/// Hardware slows the clocks: slowdown, heat, power brake. What software does for power is normal.
const THROTTLED: [(u64, &str); 3] = [
    (0x40, "heat"),
    (0x80, "the power brake"),
    (0x08, "a hardware slowdown"),
];

/// Something that happened to a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Rises with each of a node.
    pub number: u64,
    /// What the device is for it.
    pub health: DeviceHealth,
    /// In words.
    pub reason: String,
    /// When, by our clock.
    pub at_micros: i64,
}

/// What is kept over restarts.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    last: u64,
    devices: BTreeMap<String, KeptDevice>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct KeptDevice {
    #[serde(default)]
    findings: Vec<Finding>,
    /// The memory errors that are known.
    #[serde(default)]
    ecc_uncorrected: Option<u64>,
}

/// What is known of a device's states in this life of the agent.
#[derive(Debug, Default)]
struct Watched {
    throttled_since: Option<Instant>,
    /// The state that it was last in, and how many readings have shown none since.
    ill: Option<(DeviceHealth, String)>,
    well: u32,
}

#[derive(Debug, Default)]
struct Inner {
    kept: Kept,
    watched: BTreeMap<String, Watched>,
    recent: Vec<(String, u64, i64)>,
    /// Something happened that a reading should follow at once.
    due: bool,
}

/// How the devices of a node do.
pub struct Health {
    policy: HealthPolicy,
    file: PathBuf,
    inner: Mutex<Inner>,
    news: Condvar,
}

impl Health {
    /// Reads what is kept; a file that cannot be read is as if there were none.
    pub fn load(policy: HealthPolicy, file: PathBuf) -> Self {
        let kept = files::read_json(&file).unwrap_or_else(|error| {
            tracing::warn!(%error, file = %file.display(), "what was found of devices cannot be read");
            None
        });
        Self {
            policy,
            file,
            inner: Mutex::new(Inner {
                kept: kept.unwrap_or_default(),
                ..Inner::default()
            }),
            news: Condvar::new(),
        }
    }

    /// Takes an Xid error in.
    pub fn note_xid(&self, uuid: &str, code: u64) {
        let class = self.policy.class_of(code);
        let words = xid::words(code);
        tracing::warn!(device.uuid = uuid, xid = code, ?class, "Xid error: {words}");
        let mut inner = self.inner();
        if inner.recent.len() == RECENT_MAX {
            inner.recent.remove(0);
        }
        inner
            .recent
            .push((uuid.to_owned(), code, clock::wall_micros()));
        if let Some(health) = health_of(class) {
            self.add(&mut inner, uuid, health, format!("Xid {code}: {words}"));
        }
        inner.due = true;
        self.news.notify_all();
    }

    /// The Xid errors of devices since a moment, in words for a job that ran meanwhile.
    pub fn xids_since(&self, uuids: &[&str], since_micros: i64) -> Option<String> {
        let inner = self.inner();
        let recent = inner.recent.iter();
        let told: Vec<String> = recent
            .filter(|(uuid, _, at)| uuids.contains(&uuid.as_str()) && *at >= since_micros)
            .map(|(uuid, code, _)| format!("Xid {code} ({}) of device {uuid}", xid::words(*code)))
            .collect();
        (!told.is_empty()).then(|| format!("while it ran: {}", told.join(", ")))
    }

    /// Clears the findings of a device up to a number: they are dealt with. Whether there were any.
    pub fn clear(&self, uuid: &str, up_to: u64) -> bool {
        let mut inner = self.inner();
        let Some(device) = inner.kept.devices.get_mut(uuid) else {
            return false;
        };
        let before = device.findings.len();
        device.findings.retain(|finding| finding.number > up_to);
        if device.findings.len() == before {
            return false;
        }
        tracing::info!(
            device.uuid = uuid,
            up_to,
            "what was found of a device is cleared"
        );
        self.save(&inner.kept);
        inner.due = true;
        self.news.notify_all();
        true
    }

    /// The findings of a device.
    pub fn findings(&self, uuid: &str) -> Vec<Finding> {
        let inner = self.inner();
        let device = inner.kept.devices.get(uuid);
        device.map(|kept| kept.findings.clone()).unwrap_or_default()
    }

    /// Asks for a reading at once.
    pub fn look(&self) {
        self.inner().due = true;
        self.news.notify_all();
    }

    /// Waits until the next reading is due: after a pace, or at once when something happened.
    pub fn wait(&self, pace: Duration) {
        let inner = self.inner();
        let waited = self
            .news
            .wait_timeout_while(inner, pace, |inner| !inner.due);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inner.due = false;
    }

    /// Brings a snapshot's devices to the health that follows from all that is known of them. `reading`
    /// is what the snapshot was made of; without one nothing is known but what was found.
    pub fn judge(&self, snapshot: &mut Snapshot, reading: Option<&Reading>, now: Instant) {
        let mut inner = self.inner();
        snapshot.unfit.clear();
        let answering = reading.iter().flat_map(|reading| reading.signs.keys());
        snapshot.answering = answering.cloned().collect();
        for device in &mut snapshot.devices {
            let told = (
                device.health.parse().unwrap_or(DeviceHealth::Suspect),
                device.health_reason.clone(),
            );
            let mut all: Vec<(DeviceHealth, String)> = Vec::new();
            match reading {
                Some(reading) => {
                    let signs = reading.signs.get(&device.uuid);
                    if let Some(signs) = signs {
                        self.count_errors(&mut inner, &device.uuid, signs);
                    }
                    if told.0 == DeviceHealth::Failed {
                        self.note_gone(&mut inner, &device.uuid, &told.1);
                    }
                    let policy = &self.policy;
                    let watched = inner.watched.entry(device.uuid.clone()).or_default();
                    let mut states =
                        signs.map_or_else(Vec::new, |signs| states(policy, watched, signs, now));
                    states.push(told);
                    all.extend(settle(policy, watched, worst(states)));
                }
                None => all.push(told),
            }
            let findings = inner.kept.devices.get(&device.uuid);
            let findings = findings
                .map(|kept| kept.findings.as_slice())
                .unwrap_or_default();
            device.finding = findings
                .iter()
                .map(|finding| finding.number)
                .max()
                .unwrap_or(0);
            all.extend(findings.iter().map(|f| (f.health, f.reason.clone())));
            let found = device.finding > 0;
            let Some((health, reason)) = worst(all) else {
                continue;
            };
            device.health = health.to_string();
            device.health_reason = reason.clone();
            if reading.is_some() || found {
                snapshot.unfit.insert(device.uuid.clone(), reason);
            }
        }
    }

    /// Makes a finding of memory errors that have become more.
    fn count_errors(&self, inner: &mut Inner, uuid: &str, signs: &Signs) {
        let Some(errors) = signs.ecc_uncorrected else {
            return;
        };
        let kept = inner.kept.devices.entry(uuid.to_owned()).or_default();
        let known = kept.ecc_uncorrected.replace(errors);
        match known {
            Some(known) if known == errors => return,
            Some(known) if known < errors => {
                if let Some(health) = health_of(self.policy.ecc_uncorrected) {
                    let more = errors - known;
                    let reason =
                        format!("uncorrectable memory errors: {more} more, {errors} in all");
                    self.add(inner, uuid, health, reason);
                    return;
                }
            }
            // The first reading of a device, or another board's count.
            _ => {}
        }
        self.save(&inner.kept);
    }

    /// Makes a finding of a device that is gone: it may come back, and has gone all the same.
    fn note_gone(&self, inner: &mut Inner, uuid: &str, reason: &str) {
        let words = format!("it was gone: {reason}");
        let kept = inner.kept.devices.get(uuid);
        let known = kept.is_some_and(|kept| kept.findings.iter().any(|f| f.reason == words));
        if !known {
            self.add(inner, uuid, DeviceHealth::Failed, words);
        }
    }

    fn add(&self, inner: &mut Inner, uuid: &str, health: DeviceHealth, reason: String) {
        // By the clock, so that an agent which lost its state gives out no number that was cleared.
        let by_clock = u64::try_from(clock::wall_micros()).unwrap_or(0);
        inner.kept.last = by_clock.max(inner.kept.last + 1);
        let number = inner.kept.last;
        let findings = &mut inner
            .kept
            .devices
            .entry(uuid.to_owned())
            .or_default()
            .findings;
        // The same again takes the place of the one before: who clears that has not seen this.
        findings.retain(|finding| finding.reason != reason);
        if findings.len() == FINDINGS_MAX {
            // What keeps it out for good is kept before what does not.
            let lighter = findings
                .iter()
                .position(|f| f.health != DeviceHealth::Failed);
            findings.remove(lighter.unwrap_or(0));
        }
        findings.push(Finding {
            number,
            health,
            reason,
            at_micros: clock::wall_micros(),
        });
        self.save(&inner.kept);
    }

    fn save(&self, kept: &Kept) {
        if let Err(error) = files::write_json(&self.file, kept, Durability::Synced) {
            tracing::error!(%error, "what was found of devices cannot be kept; it is known until the agent ends");
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn health_of(class: Class) -> Option<DeviceHealth> {
    match class {
        Class::Ignore | Class::Job => None,
        Class::Suspect => Some(DeviceHealth::Suspect),
        Class::Failed => Some(DeviceHealth::Failed),
    }
}

/// The worst that a device's signs show at one look. What shows only over time is not seen.
pub fn shown(policy: &HealthPolicy, signs: &Signs) -> Option<(DeviceHealth, String)> {
    let mut first = Watched::default();
    worst(states(policy, &mut first, signs, Instant::now()))
}

/// The states that a device's signs show.
fn states(
    policy: &HealthPolicy,
    watched: &mut Watched,
    signs: &Signs,
    now: Instant,
) -> Vec<(DeviceHealth, String)> {
    use DeviceHealth::{Failed, Suspect};
    let mut states = Vec::new();
    if signs.rows_failed {
        states.push((
            Failed,
            "a row of its memory could not be remapped".to_owned(),
        ));
    }
    if signs.rows_pending {
        states.push((
            Suspect,
            "a row of its memory waits for a reset to be remapped".to_owned(),
        ));
    }
    match signs.recovery_action {
        0 => {}
        1 => states.push((
            Failed,
            "its driver asks for a reset of the device".to_owned(),
        )),
        2 => states.push((
            Failed,
            "its driver asks for a restart of the node".to_owned(),
        )),
        4 => states.push((
            Suspect,
            "its driver asks for a reset once it is idle".to_owned(),
        )),
        other => states.push((
            Suspect,
            format!("its driver asks for recovery action {other}"),
        )),
    }
    let throttled = THROTTLED
        .iter()
        .find(|(bit, _)| signs.clocks_event_reasons & bit != 0);
    match throttled {
        None => watched.throttled_since = None,
        Some((_, by)) => {
            let since = *watched.throttled_since.get_or_insert(now);
            let limit = Duration::from_secs(policy.throttle_seconds);
            if policy.throttle_seconds > 0 && now.saturating_duration_since(since) >= limit {
                let secs = policy.throttle_seconds;
                states.push((
                    Suspect,
                    format!("{by} has slowed it down for more than {secs} s"),
                ));
            }
        }
    }
    if let Some((width, most)) = signs.pcie_width
        && width < most
        && let Some(health) = health_of(policy.pcie_width)
    {
        states.push((health, format!("it uses {width} of {most} PCIe lanes")));
    }
    states
}

/// The state to tell of: the present one, or the one before until enough readings have shown none.
fn settle(
    policy: &HealthPolicy,
    watched: &mut Watched,
    present: Option<(DeviceHealth, String)>,
) -> Option<(DeviceHealth, String)> {
    if present.is_some() {
        watched.well = 0;
        watched.ill.clone_from(&present);
        return present;
    }
    let (health, reason) = watched.ill.clone()?;
    watched.well += 1;
    if watched.well >= policy.well_readings {
        watched.ill = None;
        return None;
    }
    Some((health, reason))
}

/// The worst of states; nothing where all is well.
fn worst(states: Vec<(DeviceHealth, String)>) -> Option<(DeviceHealth, String)> {
    let rank = |health: DeviceHealth| match health {
        DeviceHealth::Healthy => 0,
        DeviceHealth::Suspect | DeviceHealth::ModeChange => 1,
        DeviceHealth::Failed => 2,
    };
    let ill = states.into_iter().filter(|(health, _)| rank(*health) > 0);
    // The first of those that are as bad: a state that is there is told before what was found.
    ill.reduce(|one, other| {
        if rank(other.0) > rank(one.0) {
            other
        } else {
            one
        }
    })
}

#[cfg(test)]
mod tests;
