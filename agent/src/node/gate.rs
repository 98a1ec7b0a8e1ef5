//! The gate before a device is offered: nobody is on it who was not given it, who had it has let go
//! of its memory, and it has not erred meanwhile. What keeps one out is told as the reason for which it is suspect.

mod judge;
mod owners;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::ids::AssignmentId;
use domain::state::DeviceHealth;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use protocol::mig::MigSlice;
use protocol::wire;
use tokio::sync::watch;

use super::Node;
use crate::gpus::alone::Alone;
use crate::gpus::mig::{self, Instance};
use crate::gpus::signs::{self, Signs};
use crate::gpus::uses::{self, Use};
use crate::gpus::{SILENT, nvml};
use judge::{Left, judge};
use owners::Owners;

/// How long a device may take to be free after its job's last process has gone, before it is released
/// unfree: a driver takes seconds to give memory back.
const FREE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often that is looked at.
const FREE_CHECK: Duration = Duration::from_millis(100);
/// Longest wait for what is on a device.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);
/// The same for both of a device that MIG cuts: among many callers a driver takes ten seconds to find one.
const CUT_TIMEOUT: Duration = Duration::from_secs(10);

/// What is on a device at one moment.
#[derive(Debug, Clone)]
struct Occupied {
    uses: Vec<Use>,
    /// The memory in use, but for what the driver keeps; nothing of a device that is cut.
    used_mib: Option<i64>,
    /// The instances of one that is cut.
    instances: Vec<Instance>,
    /// How it does.
    signs: Signs,
}

/// Why a device is kept out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reason {
    /// In words for everybody.
    words: String,
    /// The same with the processes that it is about, for those who run the platform; empty where there are none.
    detail: String,
    /// Up to how many readings it stands, where a reading will tell of it then.
    until_reading: Option<u64>,
}

impl Reason {
    fn plain(words: impl Into<String>) -> Self {
        Self {
            words: words.into(),
            detail: String::new(),
            until_reading: None,
        }
    }
}

/// What of a device is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// All of it.
    Whole,
    /// Instances that have been left; others are in use.
    Instances(Vec<MigSlice>),
}

/// The devices that are kept out, and who looks.
pub struct Gate {
    held: watch::Sender<BTreeMap<String, Reason>>,
    nvml: Mutex<Option<Arc<Nvml>>>,
    alone: Alone,
    /// One look at a time: a call that has not come back then is one that hangs.
    turn: Mutex<()>,
    /// One judgement at a time, with what follows from it: an older one undoes no newer one.
    judging: tokio::sync::Mutex<()>,
    /// Processes that no list of the kernel's has, as seen last: NVML tells of a dead one for a moment.
    unseen: Mutex<BTreeSet<(String, u32)>>,
    /// Runs of ours that are no job's.
    probes: Mutex<BTreeSet<AssignmentId>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            held: watch::channel(BTreeMap::new()).0,
            nvml: Mutex::default(),
            alone: Alone::default(),
            turn: Mutex::default(),
            judging: tokio::sync::Mutex::default(),
            unseen: Mutex::default(),
            probes: Mutex::default(),
        }
    }
}

impl Gate {
    /// Why a device is kept out, if it is.
    pub fn reason(&self, uuid: &str) -> Option<String> {
        let held = self.held.borrow();
        held.get(uuid).map(|reason| reason.words.clone())
    }

    /// Sees each change of what is kept out.
    pub fn changes(&self) -> Changes {
        Changes(self.held.subscribe())
    }

    /// Tells in an inventory what is kept out.
    pub fn tell(&self, devices: &mut [wire::Device]) {
        let held = self.held.borrow();
        for device in devices {
            if let Some(reason) = held.get(&device.uuid)
                && device.health == DeviceHealth::Healthy.as_str()
            {
                device.health = DeviceHealth::Suspect.to_string();
                device.health_reason.clone_from(&reason.words);
                device.health_detail.clone_from(&reason.detail);
            }
        }
    }

    /// Lets a run of ours be on devices, until it is taken back.
    pub fn admit_probe(&self, id: AssignmentId) {
        lock(&self.probes).insert(id);
    }

    /// Takes that back.
    pub fn dismiss_probe(&self, id: AssignmentId) {
        lock(&self.probes).remove(&id);
    }

    fn probes(&self) -> Vec<AssignmentId> {
        lock(&self.probes).iter().copied().collect()
    }

    /// Keeps out what there is a reason for, and lets go the rest of what was looked at as a whole: `judged`
    /// readings after an error it is theirs to tell of it.
    fn keep(&self, found: BTreeMap<String, (Part, Option<Reason>)>, judged: u64) {
        self.held.send_if_modified(|held| {
            let before = held.clone();
            for (uuid, (part, reason)) in found {
                let standing = held.get(&uuid).and_then(|reason| reason.until_reading);
                match reason {
                    Some(reason) => {
                        if held.get(&uuid) != Some(&reason) {
                            let words = [&reason.detail, &reason.words];
                            let words = words.into_iter().find(|words| !words.is_empty());
                            tracing::warn!(
                                device.uuid = uuid,
                                reason = words,
                                "a device is not offered"
                            );
                        }
                        held.insert(uuid, reason);
                    }
                    None if standing.is_some_and(|until| judged < until) => {}
                    None if part == Part::Whole => {
                        held.remove(&uuid);
                    }
                    // Of the rest of the device it says nothing.
                    None => {}
                }
            }
            *held != before
        });
    }

    fn open(&self, library: Option<&std::path::Path>) -> Option<Arc<Nvml>> {
        let mut open = lock(&self.nvml);
        if open.is_none() {
            *open = nvml::open(library).ok().map(Arc::new);
        }
        open.clone()
    }

    /// What is on devices; of one that does not answer, nothing, and of one that cannot be asked none.
    fn look(
        &self,
        library: Option<&std::path::Path>,
        devices: &[(String, Duration)],
    ) -> BTreeMap<String, Option<Occupied>> {
        let _turn = lock(&self.turn);
        let Some(nvml) = self.open(library) else {
            return BTreeMap::new();
        };
        let begun: Vec<_> = devices
            .iter()
            .map(|(uuid, limit)| {
                let (nvml, about) = (Arc::clone(&nvml), uuid.clone());
                let asked = self
                    .alone
                    .ask(uuid, *limit, move || occupied(&nvml, &about));
                (uuid, asked)
            })
            .collect();
        let mut seen = BTreeMap::new();
        for (uuid, asked) in begun {
            match asked.answer() {
                Some(Ok(occupied)) => {
                    seen.insert(uuid.clone(), Some(occupied));
                }
                // What the readings tell of as well; a handle of before the driver was restarted is dead.
                Some(Err(_)) => *lock(&self.nvml) = None,
                None => {
                    seen.insert(uuid.clone(), None);
                }
            }
        }
        seen
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sees each change of what is kept out.
pub struct Changes(watch::Receiver<BTreeMap<String, Reason>>);

impl Changes {
    /// Waits for one; an error where nobody looks after devices any more.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.changed().await
    }

    /// Whether there was one that nobody waited for, which counts as seen now.
    pub fn take(&mut self) -> bool {
        let changed = self.0.has_changed().unwrap_or(false);
        if changed {
            self.0.borrow_and_update();
        }
        changed
    }
}

fn occupied(nvml: &Nvml, uuid: &str) -> Result<Occupied, NvmlError> {
    const BYTES_PER_MIB: u64 = 1024 * 1024;
    let device = nvml.device_by_uuid(uuid)?;
    let cut = mig::read(nvml, &device)?.filter(|cut| cut.on);
    let used = device.memory_info()?.used / BYTES_PER_MIB;
    Ok(Occupied {
        uses: uses::of_device(nvml, uuid)?,
        used_mib: cut
            .is_none()
            .then(|| i64::try_from(used).unwrap_or(i64::MAX)),
        instances: cut.map_or_else(Vec::new, |cut| cut.instances),
        signs: signs::read(&device),
    })
}

/// Longest wait for one look at a device.
fn look_timeout(node: &Node, uuid: &str) -> Duration {
    match cut(node, uuid) {
        true => CUT_TIMEOUT,
        false => LOOK_TIMEOUT,
    }
}

fn cut(node: &Node, uuid: &str) -> bool {
    let gpus = node.gpus.borrow();
    gpus.device(uuid).is_some_and(|device| device.mig.is_some())
}

/// Looks after all devices until the agent ends.
pub async fn watch(node: Arc<Node>) {
    let mut tick = tokio::time::interval(node.config.inventory_pace());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let parts: BTreeMap<String, Part> = {
            let gpus = node.gpus.borrow();
            let failed = DeviceHealth::Failed.as_str();
            let there = gpus
                .devices
                .iter()
                .filter(|d| gpus.listed && d.health != failed);
            there
                .map(|device| (device.uuid.clone(), Part::Whole))
                .collect()
        };
        if !parts.is_empty() {
            let _turn = node.gate.judging.lock().await;
            let judged = node.health.judged();
            let found = judge_all(&node, parts, None).await;
            node.gate.keep(found, judged);
        }
    }
}

/// What each process holds of devices, of those that answer.
pub async fn uses(node: &Arc<Node>, uuids: Vec<String>) -> BTreeMap<String, Vec<Use>> {
    let looking = Arc::clone(node);
    let looked = tokio::task::spawn_blocking(move || {
        let library = looking.config.nvml_library.as_deref();
        looking.gate.look(library, &with_limits(&looking, uuids))
    });
    let seen = looked.await.unwrap_or_default();
    let told = |(uuid, seen): (String, Option<Occupied>)| Some((uuid, seen?.uses));
    seen.into_iter().filter_map(told).collect()
}

fn with_limits(node: &Node, uuids: impl IntoIterator<Item = String>) -> Vec<(String, Duration)> {
    let limited = uuids.into_iter().map(|uuid| {
        let limit = look_timeout(node, &uuid);
        (uuid, limit)
    });
    limited.collect()
}

/// Waits until what an assignment had, whose processes have left, is free and has not erred, or keeps its
/// devices out.
pub async fn pass(node: &Arc<Node>, id: AssignmentId) {
    let parts = left_by(node, id);
    if parts.is_empty() || !node.gpus.borrow().listed {
        return;
    }
    let wait = match parts.keys().any(|uuid| cut(node, uuid)) {
        true => CUT_TIMEOUT,
        false => FREE_TIMEOUT,
    };
    let deadline = Instant::now() + wait;
    loop {
        let turn = node.gate.judging.lock().await;
        let judged = node.health.judged();
        let found = judge_all(node, parts.clone(), Some(id)).await;
        // An error does not pass by waiting.
        let settled = found.values().all(|(_, reason)| {
            let reason = reason.as_ref();
            reason.is_none_or(|reason| reason.until_reading.is_some())
        });
        if settled || Instant::now() >= deadline {
            node.gate.keep(found, judged);
            return;
        }
        drop(turn);
        tokio::time::sleep(FREE_CHECK).await;
    }
}

/// What an assignment has left, with nobody else on it.
fn left_by(node: &Node, id: AssignmentId) -> BTreeMap<String, Part> {
    let mut claims = node.claims();
    claims.leave(id);
    let mut parts = BTreeMap::new();
    for share in claims.of(id) {
        let whole = !claims.in_use(&share.uuid);
        match (share.mig, parts.entry(share.uuid)) {
            (_, entry) if whole => *entry.or_insert(Part::Whole) = Part::Whole,
            (None, _) => {}
            (Some(slice), entry) => {
                if let Part::Instances(slices) = entry.or_insert(Part::Instances(Vec::new())) {
                    slices.push(slice);
                }
            }
        }
    }
    parts
}

/// Why each device is to be kept out, if it is. `leaving` has it no more.
async fn judge_all(
    node: &Arc<Node>,
    parts: BTreeMap<String, Part>,
    leaving: Option<AssignmentId>,
) -> BTreeMap<String, (Part, Option<Reason>)> {
    let judging = Arc::clone(node);
    let judged = tokio::task::spawn_blocking(move || {
        let node = judging;
        let idle = |uuid: &String| !node.claims().in_use(uuid);
        // Free before and after the look: else what was seen may be a job's that has left or come since.
        let idle_before: BTreeSet<String> = parts.keys().filter(|u| idle(u)).cloned().collect();
        let devices = with_limits(&node, parts.keys().cloned());
        let seen = node
            .gate
            .look(node.config.nvml_library.as_deref(), &devices);
        let used =
            |seen: &Option<Occupied>| seen.as_ref().is_some_and(|seen| !seen.uses.is_empty());
        let owners = match seen.values().any(used) {
            true => Owners::of(&node),
            false => Owners::default(),
        };
        let mut unseen = BTreeSet::new();
        let mut found = BTreeMap::new();
        for (uuid, part) in parts {
            // Of what could not be asked nothing is known.
            let Some(seen) = seen.get(&uuid) else {
                continue;
            };
            let reason = match seen {
                None => Some(Reason::plain(SILENT)),
                Some(seen) => {
                    let left = Left {
                        part: &part,
                        idle: idle_before.contains(&uuid) && idle(&uuid),
                        leaving: leaving.is_some(),
                    };
                    judge(&node, &owners, (&uuid, seen), &left, &mut unseen)
                }
            };
            found.insert(uuid, (part, reason));
        }
        let mut kept = lock(&node.gate.unseen);
        kept.retain(|(uuid, _)| !found.contains_key(uuid));
        kept.extend(unseen);
        found
    });
    judged.await.unwrap_or_default()
}
