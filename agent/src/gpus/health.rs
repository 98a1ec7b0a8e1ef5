//! How devices do: what was seen of each, kept over restarts, and what follows from it.
//!
//! There are two kinds. A *finding* happened (an Xid error, a memory error, a fall off the bus): it stays, and its device
//! is out of use until a check has passed or a person has returned the device. A *state* is there for
//! as long as readings show it (a row that waits for a reset, heat, silence): once it is over, its
//! device is healthy after some readings in a row that show nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use domain::ids::TeamId;
use domain::state::DeviceHealth;
use protocol::report;

use super::findings::{Finding, Findings};
use super::policy::HealthPolicy;
use super::signs::{self, Signs, State};
use super::xid::{self, Class};
use super::{Reading, Snapshot};
use crate::clock;

/// Xid errors that are kept for the jobs that ran meanwhile, of all devices.
const RECENT_MAX: usize = 64;

/// What is known of a device's states in this life of the agent.
#[derive(Debug, Default)]
struct Watched {
    throttled_since: Option<Instant>,
    /// The state that it was last in, and how many readings have shown none since.
    ill: Option<State>,
    well: u32,
    /// Since when it has failed, by the boot's clock.
    failed_at: Option<i64>,
}

#[derive(Debug)]
struct Inner {
    findings: Findings,
    watched: BTreeMap<String, Watched>,
    recent: Vec<(String, u64, i64)>,
    /// Something happened that a reading should follow at once.
    due: bool,
    /// How many readings have been judged.
    judged: u64,
}

/// Tells whose jobs are on a device that nobody has begun to end.
type Teams = Box<dyn Fn(&str) -> Vec<TeamId> + Send + Sync>;

/// How the devices of a node do.
pub struct Health {
    policy: HealthPolicy,
    teams: OnceLock<Teams>,
    inner: Mutex<Inner>,
    news: Condvar,
}

impl Health {
    /// Reads what is kept; moments are measured in this boot.
    pub fn load(policy: HealthPolicy, file: PathBuf, boot_id: &str) -> Self {
        Self {
            policy,
            teams: OnceLock::new(),
            inner: Mutex::new(Inner {
                findings: Findings::load(file, boot_id),
                watched: BTreeMap::new(),
                recent: Vec::new(),
                due: false,
                judged: 0,
            }),
            news: Condvar::new(),
        }
    }

    /// What a site makes of what is seen.
    pub fn policy(&self) -> &HealthPolicy {
        &self.policy
    }

    /// Says who knows whose jobs are on a device; once.
    pub fn ask_teams(&self, teams: impl Fn(&str) -> Vec<TeamId> + Send + Sync + 'static) {
        // A second one would say the same.
        let _ = self.teams.set(Box::new(teams));
    }

    /// Takes an Xid error in.
    pub fn note_xid(&self, uuid: &str, code: u64) {
        let class = self.policy.class_of(code);
        let words = xid::words(code);
        tracing::warn!(device.uuid = uuid, xid = code, ?class, "Xid error: {words}");
        // Before our own lock: who knows has locks too.
        let teams = self.teams.get().map(|teams| teams(uuid));
        let mut inner = self.inner();
        if inner.recent.len() == RECENT_MAX {
            inner.recent.remove(0);
        }
        inner
            .recent
            .push((uuid.to_owned(), code, clock::wall_micros()));
        if let Some(health) = class.health() {
            let reason = xid::reason(code);
            inner.findings.add(uuid, health, reason);
        }
        // Where several share a device, nobody knows whose error it is.
        if class == Class::Job
            && let Some([team]) = teams.as_deref()
        {
            self.count_fault(&mut inner, uuid, code, *team);
        }
        inner.due = true;
        self.news.notify_all();
    }

    /// Makes a finding of an error of applications that jobs of several teams have had.
    fn count_fault(&self, inner: &mut Inner, uuid: &str, code: u64, team: TeamId) {
        let window = self.policy.xid_window();
        let teams = inner.findings.count_fault(uuid, code, team, window);
        if teams >= self.policy.xid_teams {
            let what = xid::reason(code);
            let reason = format!(
                "{what}, in jobs of {teams} teams within {} s",
                window.as_secs()
            );
            inner.findings.add(uuid, DeviceHealth::Suspect, reason);
        }
    }

    /// Takes in an Xid error from before the agent began, at a moment of this boot.
    pub fn note_past_xid(&self, uuid: &str, code: u64, boot_micros: i64) {
        if let Some(health) = self.policy.class_of(code).health() {
            let mut inner = self.inner();
            let reason = xid::reason(code);
            inner.findings.add_at(uuid, health, reason, boot_micros);
        }
    }

    /// Up to when Xid errors of this boot are known.
    pub fn xids_until_micros(&self) -> i64 {
        self.inner().findings.xids_until_micros()
    }

    /// Notes that they are up to a moment.
    pub fn note_xids_until(&self, boot_micros: i64) {
        self.inner().findings.note_xids_until(boot_micros);
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

    /// Clears the findings of a device up to a number: they are dealt with. Whether that was news.
    pub fn clear(&self, uuid: &str, up_to: u64) -> bool {
        let mut inner = self.inner();
        let news = inner.findings.clear(uuid, up_to);
        if news {
            tracing::info!(
                device.uuid = uuid,
                up_to,
                "what was found of a device is cleared"
            );
            inner.due = true;
            self.news.notify_all();
        }
        news
    }

    /// Takes in what the server knows of a device and we have forgotten.
    pub fn take_found(&self, uuid: &str, found: &[report::Finding]) {
        let mut inner = self.inner();
        if inner.findings.take(uuid, found) {
            tracing::warn!(
                device.uuid = uuid,
                "what was found of a device was not known here any more: it is as the server knows it"
            );
            inner.due = true;
            self.news.notify_all();
        }
    }

    /// Notes what a probe of a device said that did not pass.
    pub fn note_probe(&self, uuid: &str, words: &str) {
        let mut inner = self.inner();
        inner.findings.note_probe(uuid, words);
        inner.due = true;
        self.news.notify_all();
    }

    /// The findings of a device.
    pub fn findings(&self, uuid: &str) -> Vec<Finding> {
        self.inner().findings.of(uuid).to_vec()
    }

    /// What a look at a device shows that keeps it out, beside what lasts to be seen: what was found of it,
    /// memory errors that have become more, and the states of this moment. A reading follows that tells of it.
    pub fn error_of(&self, uuid: &str, signs: &Signs) -> Option<String> {
        let mut inner = self.inner();
        self.count_errors(&mut inner, uuid, signs);
        let mut all = signs.states(&self.policy);
        let found = inner.findings.of(uuid).iter();
        all.extend(found.map(|finding| (finding.health, finding.words())));
        let (_, reason) = worst(all)?;
        inner.due = true;
        self.news.notify_all();
        Some(reason)
    }

    /// How many readings have been judged.
    pub fn judged(&self) -> u64 {
        self.inner().judged
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
        // Who waits for readings waits for those of all devices.
        inner.judged += u64::from(reading.is_some_and(|reading| reading.late.is_empty()));
        snapshot.unfit.clear();
        snapshot.failed_at.clear();
        let late = |uuid: &String| reading.is_some_and(|reading| reading.late.contains(uuid));
        let answering = reading.iter().flat_map(|reading| reading.signs.keys());
        snapshot.answering = answering.filter(|uuid| !late(uuid)).cloned().collect();
        for device in &mut snapshot.devices {
            let told = (
                device.health.parse().unwrap_or(DeviceHealth::Suspect),
                device.health_reason.clone(),
            );
            let mut all: Vec<State> = Vec::new();
            match reading {
                // Its reading is yet to come: it is as it was.
                Some(_) if late(&device.uuid) => {
                    let watched = inner.watched.get(&device.uuid);
                    all.extend(watched.and_then(|watched| watched.ill.clone()));
                }
                Some(reading) => {
                    let signs = reading.signs.get(&device.uuid);
                    if let Some(signs) = signs {
                        self.count_errors(&mut inner, &device.uuid, signs);
                    }
                    if told.0 == DeviceHealth::Failed {
                        note_gone(&mut inner, &device.uuid, &told.1);
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
            let findings = inner.findings.of(&device.uuid);
            device.findings = findings.iter().map(Into::into).collect();
            device.findings_known = inner.findings.known(&device.uuid);
            all.extend(findings.iter().map(|f| (f.health, f.words())));
            let found = !findings.is_empty();
            let verdict = worst(all);
            let failed = matches!(verdict, Some((DeviceHealth::Failed, _)));
            if let Some(at) = since_failed(&mut inner, &device.uuid, failed) {
                snapshot.failed_at.insert(device.uuid.clone(), at);
            }
            let Some((health, reason)) = verdict else {
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
        if let Some(more) = inner.findings.count_errors(uuid, errors)
            && let Some(health) = self.policy.ecc_uncorrected.health()
        {
            let reason = signs::more_errors(more, errors);
            inner.findings.add(uuid, health, reason);
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a finding of a device that is gone: it may come back, and has gone all the same.
fn note_gone(inner: &mut Inner, uuid: &str, reason: &str) {
    let words = format!("it was gone: {reason}");
    let known = inner.findings.of(uuid).iter().any(|f| f.reason == words);
    if !known {
        inner.findings.add(uuid, DeviceHealth::Failed, words);
    }
}

/// The worst that a device's signs show at one look. What shows only over time is not seen.
pub fn shown(policy: &HealthPolicy, signs: &Signs) -> Option<(DeviceHealth, String)> {
    worst(signs.states(policy))
}

/// Since when a device that has failed has: since the first finding that failed it in this boot, or since we
/// saw it so.
fn since_failed(inner: &mut Inner, uuid: &str, failed: bool) -> Option<i64> {
    let found = inner.findings.of(uuid).iter();
    let found = found.filter(|finding| finding.health == DeviceHealth::Failed);
    let first = found.filter_map(|finding| finding.boot_micros).min();
    let watched = inner.watched.entry(uuid.to_owned()).or_default();
    watched.failed_at = match (failed, watched.failed_at) {
        (false, _) => None,
        (true, Some(before)) => Some(before),
        (true, None) => Some(first.unwrap_or_else(clock::boot_micros)),
    };
    watched.failed_at
}

/// The states that a device's signs show, and that it has been slowed down for long.
fn states(policy: &HealthPolicy, watched: &mut Watched, signs: &Signs, now: Instant) -> Vec<State> {
    let mut states = signs.states(policy);
    match signs.slowed_by() {
        None => watched.throttled_since = None,
        Some(by) => {
            let since = *watched.throttled_since.get_or_insert(now);
            let limit = Duration::from_secs(policy.throttle_seconds);
            if policy.throttle_seconds > 0 && now.saturating_duration_since(since) >= limit {
                let secs = policy.throttle_seconds;
                states.push((
                    DeviceHealth::Suspect,
                    format!("{by} has slowed it down for more than {secs} s"),
                ));
            }
        }
    }
    states
}

/// The state to tell of: the present one, or the one before until enough readings have shown none.
fn settle(policy: &HealthPolicy, watched: &mut Watched, present: Option<State>) -> Option<State> {
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
fn worst(states: Vec<State>) -> Option<State> {
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
