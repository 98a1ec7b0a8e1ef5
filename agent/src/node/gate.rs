//! The gate before a device is offered: nobody is on it who was not given it, and who had it has let go
//! of its memory. What keeps one out is told as the reason for which it is suspect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::ids::AssignmentId;
use domain::state::DeviceHealth;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use protocol::wire;
use tokio::sync::watch;

use super::Node;
use crate::gpus::alone::Alone;
use crate::gpus::uses::{self, Use};
use crate::gpus::{SILENT, nvml};
use crate::proc;

/// How long a device may take to be free after its job's last process has gone, before it is released
/// unfree: a driver takes seconds to give memory back.
const FREE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often that is looked at.
const FREE_CHECK: Duration = Duration::from_millis(100);
/// Longest wait for what is on a device.
const LOOK_TIMEOUT: Duration = Duration::from_secs(3);
/// Processes that are named of a device; more help nobody.
const NAMED_MAX: usize = 4;
/// How the programs of MPS begin, as the kernel cuts names.
const MPS_PROGRAMS: &str = "nvidia-cuda-mps";

/// What is on a device at one moment.
#[derive(Debug, Clone)]
struct Occupied {
    uses: Vec<Use>,
    /// The memory in use, but for what the driver keeps; nothing of a device that is cut.
    used_mib: Option<i64>,
}

/// The devices that are kept out, and who looks.
pub struct Gate {
    held: watch::Sender<BTreeMap<String, String>>,
    nvml: Mutex<Option<Arc<Nvml>>>,
    alone: Alone,
    /// One look at a time: a call that has not come back then is one that hangs.
    turn: Mutex<()>,
    /// One judgement at a time, with what follows from it: an older one undoes no newer one.
    judging: tokio::sync::Mutex<()>,
    /// Processes that no list of the kernel's has, as seen last: NVML tells of a dead one for a moment.
    unseen: Mutex<BTreeSet<(String, u32)>>,
    /// Processes of ours that are no job's.
    probes: Mutex<BTreeSet<i32>>,
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
        self.held.borrow().get(uuid).cloned()
    }

    /// Sees each change of what is kept out.
    pub fn changes(&self) -> watch::Receiver<BTreeMap<String, String>> {
        self.held.subscribe()
    }

    /// Tells in an inventory what is kept out.
    pub fn tell(&self, devices: &mut [wire::Device]) {
        let held = self.held.borrow();
        for device in devices {
            if let Some(reason) = held.get(&device.uuid)
                && device.health == DeviceHealth::Healthy.as_str()
            {
                device.health = DeviceHealth::Suspect.to_string();
                device.health_reason.clone_from(reason);
            }
        }
    }

    /// Lets a process of ours be on devices, until it is taken back.
    pub fn admit_probe(&self, pid: i32) {
        lock(&self.probes).insert(pid);
    }

    /// Takes that back.
    pub fn dismiss_probe(&self, pid: i32) {
        lock(&self.probes).remove(&pid);
    }

    fn keep(&self, found: BTreeMap<String, Option<String>>) {
        self.held.send_if_modified(|held| {
            let before = held.clone();
            for (uuid, reason) in found {
                match reason {
                    Some(reason) => {
                        if held.get(&uuid) != Some(&reason) {
                            tracing::warn!(device.uuid = uuid, reason, "a device is not offered");
                        }
                        held.insert(uuid, reason)
                    }
                    None => held.remove(&uuid),
                };
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
        uuids: &[String],
    ) -> BTreeMap<String, Option<Occupied>> {
        let _turn = lock(&self.turn);
        let Some(nvml) = self.open(library) else {
            return BTreeMap::new();
        };
        let begun: Vec<_> = uuids
            .iter()
            .map(|uuid| {
                let (nvml, about) = (Arc::clone(&nvml), uuid.clone());
                (
                    uuid,
                    self.alone.begin(uuid, move || occupied(&nvml, &about)),
                )
            })
            .collect();
        let deadline = Instant::now() + LOOK_TIMEOUT;
        let mut seen = BTreeMap::new();
        for (uuid, answer) in begun {
            let left = deadline.saturating_duration_since(Instant::now());
            match answer.map(|answer| answer.recv_timeout(left)) {
                Some(Ok(Ok(occupied))) => {
                    seen.insert(uuid.clone(), Some(occupied));
                }
                // What the readings tell of as well; a handle of before the driver was restarted is dead.
                Some(Ok(Err(_))) => *lock(&self.nvml) = None,
                Some(Err(_)) | None => {
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

fn occupied(nvml: &Nvml, uuid: &str) -> Result<Occupied, NvmlError> {
    const BYTES_PER_MIB: u64 = 1024 * 1024;
    let device = nvml.device_by_uuid(uuid)?;
    let cut = device.mig_mode().is_ok_and(|mode| mode.current != 0);
    let used = device.memory_info()?.used / BYTES_PER_MIB;
    Ok(Occupied {
        uses: uses::of_device(nvml, uuid)?,
        used_mib: (!cut).then(|| i64::try_from(used).unwrap_or(i64::MAX)),
    })
}

/// Looks after all devices until the agent ends.
pub async fn watch(node: Arc<Node>) {
    let mut tick = tokio::time::interval(node.config.inventory_pace());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let uuids: Vec<String> = {
            let gpus = node.gpus.borrow();
            let failed = DeviceHealth::Failed.as_str();
            let there = gpus
                .devices
                .iter()
                .filter(|d| gpus.listed && d.health != failed);
            there.map(|device| device.uuid.clone()).collect()
        };
        if !uuids.is_empty() {
            let _turn = node.gate.judging.lock().await;
            let found = judge_all(&node, uuids, None).await;
            node.gate.keep(found);
        }
    }
}

/// What each process holds of devices, of those that answer.
pub async fn uses(node: &Arc<Node>, uuids: Vec<String>) -> BTreeMap<String, Vec<Use>> {
    let looking = Arc::clone(node);
    let looked = tokio::task::spawn_blocking(move || {
        let library = looking.config.nvml_library.as_deref();
        looking.gate.look(library, &uuids)
    });
    let seen = looked.await.unwrap_or_default();
    let told = |(uuid, seen): (String, Option<Occupied>)| Some((uuid, seen?.uses));
    seen.into_iter().filter_map(told).collect()
}

/// Waits until the devices of an assignment whose processes have left are free, or keeps them out.
pub async fn pass(node: &Arc<Node>, id: AssignmentId) {
    let uuids: Vec<String> = {
        let mut claims = node.claims();
        claims.leave(id);
        let own = claims.of(id).into_iter().map(|share| share.uuid);
        own.filter(|uuid| !claims.in_use(uuid)).collect()
    };
    if uuids.is_empty() || !node.gpus.borrow().listed {
        return;
    }
    let deadline = Instant::now() + FREE_TIMEOUT;
    loop {
        let turn = node.gate.judging.lock().await;
        let found = judge_all(node, uuids.clone(), Some(id)).await;
        let free = found.values().all(Option::is_none);
        if free || Instant::now() >= deadline {
            node.gate.keep(found);
            return;
        }
        drop(turn);
        tokio::time::sleep(FREE_CHECK).await;
    }
}

/// Why each device is to be kept out, if it is. `leaving` has it no more.
async fn judge_all(
    node: &Arc<Node>,
    uuids: Vec<String>,
    leaving: Option<AssignmentId>,
) -> BTreeMap<String, Option<String>> {
    let judging = Arc::clone(node);
    let judged = tokio::task::spawn_blocking(move || {
        let node = judging;
        let idle = |uuid: &String| !node.claims().in_use(uuid);
        // Free before and after the look: else what was seen may be a job's that has left or come since.
        let idle_before: BTreeSet<String> = uuids.iter().filter(|u| idle(u)).cloned().collect();
        let seen = node.gate.look(node.config.nvml_library.as_deref(), &uuids);
        let used =
            |seen: &Option<Occupied>| seen.as_ref().is_some_and(|seen| !seen.uses.is_empty());
        let owners = match seen.values().any(used) {
            true => Owners::of(&node),
            false => Owners::default(),
        };
        let mut unseen = BTreeSet::new();
        let found: BTreeMap<String, Option<String>> = seen
            .into_iter()
            .map(|(uuid, seen)| {
                let reason = match seen {
                    None => Some(SILENT.to_owned()),
                    Some(seen) => {
                        let idle = idle_before.contains(&uuid) && idle(&uuid);
                        judge(&node, &owners, (&uuid, &seen), (idle, leaving), &mut unseen)
                    }
                };
                (uuid, reason)
            })
            .collect();
        let mut kept = lock(&node.gate.unseen);
        kept.retain(|(uuid, _)| !found.contains_key(uuid));
        kept.extend(unseen);
        found
    });
    judged.await.unwrap_or_default()
}

fn judge(
    node: &Node,
    owners: &Owners,
    (uuid, seen): (&str, &Occupied),
    (idle, leaving): (bool, Option<AssignmentId>),
    unseen: &mut BTreeSet<(String, u32)>,
) -> Option<String> {
    let mut named = Vec::new();
    for used in &seen.uses {
        let pid = i32::try_from(used.pid).unwrap_or(i32::MAX);
        let holds = format!("{} MiB", used.memory_mib);
        let Some(program) = proc::name(pid) else {
            let key = (uuid.to_owned(), used.pid);
            if lock(&node.gate.unseen).contains(&key) || leaving.is_some() {
                named.push(format!(
                    "process {pid}, which cannot be seen, holds {holds} of it"
                ));
            }
            unseen.insert(key);
            continue;
        };
        match owners.of_process(pid) {
            Owner::Agent => {}
            Owner::Assignment(id) if node.claims().holds(id, uuid) => {
                if idle {
                    named.push(format!("process {pid} ({program}) of a job that has left holds {holds} of it"));
                }
            }
            Owner::Assignment(id) => named.push(format!(
                "process {pid} ({program}) of assignment {id}, which was not given it, holds {holds} of it"
            )),
            Owner::Nobody if allowed(node, uuid, pid, &program) => {}
            Owner::Nobody => named.push(format!("process {pid} ({program}), which is no job's, holds {holds} of it")),
        }
    }
    if !named.is_empty() {
        let more = named.len().saturating_sub(NAMED_MAX);
        named.truncate(NAMED_MAX);
        let rest = if more > 0 {
            format!(", and {more} more")
        } else {
            String::new()
        };
        return Some(format!("{}{rest}", named.join(", ")));
    }
    let used = seen.used_mib.filter(|_| idle && seen.uses.is_empty())?;
    (used > node.config.health.idle_memory_mib_max)
        .then(|| format!("{used} MiB of its memory are in use, by no process that is known"))
}

/// Whether a program of the machine's may be on a device beside jobs. Its name is its own to choose, so
/// that it must be root's; MPS's run as the team that shares the device.
fn allowed(node: &Node, uuid: &str, pid: i32, program: &str) -> bool {
    let listed = node.config.health.allowed_programs.iter();
    let roots = proc::user(pid) == Some(0) && listed.clone().any(|allowed| allowed == program);
    let shares = node.claims().shared_by_mps(uuid)
        || node.mps.places().iter().any(|place| place.uuid == uuid);
    roots || (program.starts_with(MPS_PROGRAMS) && shares)
}

/// Whose a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Assignment(AssignmentId),
    /// A probe's, or ours.
    Agent,
    Nobody,
}

/// By what a process is known: the supervisor that it descends from, or the mark that it bears.
#[derive(Debug, Default)]
struct Owners {
    roots: BTreeMap<i32, Owner>,
    marks: BTreeMap<u32, AssignmentId>,
}

impl Owners {
    fn of(node: &Node) -> Self {
        let mut owners = Self::default();
        for id in node.claims().holders() {
            let run = node.folders.run(id);
            if let Ok(Some(claim)) = run.claim() {
                owners.roots.insert(claim.pid, Owner::Assignment(id));
            }
            if let Ok(Some(orders)) = run.orders()
                && let Some(mark) = orders.mark
            {
                owners.marks.insert(mark, id);
            }
        }
        for pid in lock(&node.gate.probes).iter() {
            owners.roots.insert(*pid, Owner::Agent);
        }
        owners
    }

    fn of_process(&self, pid: i32) -> Owner {
        let mark = proc::groups_of(pid)
            .into_iter()
            .find_map(|group| self.marks.get(&group));
        if let Some(id) = mark {
            return Owner::Assignment(*id);
        }
        let line = proc::ancestors(pid);
        let found = line.iter().find_map(|above| self.roots.get(above));
        found.copied().unwrap_or(Owner::Nobody)
    }
}
