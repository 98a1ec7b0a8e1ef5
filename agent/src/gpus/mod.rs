//! The GPUs of this machine: read through NVML on a thread of its own, so that a call that
//! hangs in the driver delays nothing else.

pub mod alone;
pub mod compute_mode;
pub mod cut;
mod events;
pub mod files;
pub mod findings;
pub mod fit;
pub mod health;
mod kernel_log;
pub mod known;
pub mod layout;
pub mod mig;
pub mod nvml;
pub mod permission;
pub mod policy;
pub mod signs;
pub mod topology;
pub mod uses;
pub mod vgpus;
pub mod xid;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use protocol::wire;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use health::Health;
use known::Known;
pub use nvml::read_once;

/// A reading that is older means that NVML hangs: six missed readings at the default pace.
const READING_AGE_MAX: Duration = Duration::from_secs(30);
/// Longest wait for the first watch over Xid errors, so that none of them is missed that follows the
/// first reading.
const WATCH_TIMEOUT: Duration = Duration::from_secs(3);
/// Said of a device that a call hangs on.
pub const SILENT: &str = "NVML does not answer";
/// How often the age of the reading is looked at.
const AGE_CHECK: Duration = Duration::from_secs(5);

/// A GPU as NVML tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its identity.
    pub uuid: String,
    /// Its place in NVML's order.
    pub index: u32,
    /// NVML's name of the product.
    pub product_name: String,
    /// All of its memory.
    pub memory_mib: i64,
    /// Its address.
    pub pci_bus_id: String,
    /// The memory node of the host that it hangs on.
    pub numa: Option<u32>,
    /// Its identity on the bus, device and vendor in one word, by which layouts tell models apart.
    #[serde(default)]
    pub pci_device: u32,
}

/// Everything read from NVML at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// The GPUs that answered.
    pub gpus: Vec<Gpu>,
    /// Those that did not, by index, with NVML's words.
    pub failures: Vec<(u32, String)>,
    /// Those on which a call hangs, by index.
    pub silent: Vec<u32>,
    /// The UUIDs of those that had not answered yet and may still: they are told as they were.
    #[serde(skip)]
    pub late: BTreeSet<String>,
    /// What those that answered show of how they do, by UUID.
    pub signs: BTreeMap<String, signs::Signs>,
    /// What processes hold of them; read for people who look, and not with each reading.
    pub uses: Vec<uses::Use>,
    /// The types of virtual GPUs that they can be given out as, by UUID; read likewise.
    pub vgpu: BTreeMap<String, Vec<vgpus::Type>>,
    /// How those are cut that can be, by UUID.
    pub mig: BTreeMap<String, mig::Mig>,
    /// Groups of GPUs that reach each other by NVLink, as UUIDs.
    pub nvlink: Vec<Vec<String>>,
    /// The driver's version.
    pub driver_version: String,
}

/// The GPUs as the rest of the agent sees them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// All devices, also those that are gone and not yet forgotten.
    pub devices: Vec<wire::Device>,
    /// The UUIDs of those that MIG can cut.
    pub cuttable: BTreeSet<String>,
    /// The identities on the bus of those that have been read, by UUID.
    pub pci_devices: BTreeMap<String, u32>,
    /// The UUIDs of those that have answered the last reading.
    pub answering: BTreeSet<String>,
    /// Those that get no work for what was seen of them, with the reason.
    pub unfit: BTreeMap<String, String>,
    /// Since when those have failed that have, by the boot's clock in microseconds.
    pub failed_at: BTreeMap<String, i64>,
    /// Groups by NVLink, as indices of `devices`.
    pub nvlink: Vec<wire::Clique>,
    /// Groups by memory node, likewise.
    pub numa: Vec<wire::Clique>,
    /// The driver's version.
    pub driver_version: String,
    /// Sentences for the node's page.
    pub warnings: Vec<String>,
    /// Whether NVML has answered in this life of the agent, be it that it cannot be used.
    pub read: bool,
    /// Whether it has listed devices in this life: before that one that is not here is not gone.
    pub listed: bool,
}

impl Snapshot {
    /// The device of a UUID.
    pub fn device(&self, uuid: &str) -> Option<&wire::Device> {
        self.devices.iter().find(|device| device.uuid == uuid)
    }
}

/// Starts reading; the receiver sees each change. It begins with what is known from before, as
/// suspect: a driver that does not answer takes no device away.
pub fn watch(
    library: Option<PathBuf>,
    known_file: PathBuf,
    pace: Duration,
    health: Arc<Health>,
) -> watch::Receiver<Snapshot> {
    let known = Known::load(&known_file);
    let mut unread = known.unread();
    health.judge(&mut unread, None, Instant::now());
    let (sender, receiver) = watch::channel(unread);
    let sender = Arc::new(sender);
    let read_at = Arc::new(Mutex::new(Instant::now()));
    let for_age = (Arc::clone(&sender), Arc::clone(&read_at));
    let watched = events::watch(library.clone(), Arc::clone(&health), receiver.clone());
    let spawned = std::thread::Builder::new()
        .name("nvml".to_owned())
        .spawn(move || {
            let _ = watched.recv_timeout(WATCH_TIMEOUT);
            read_for_ever(
                library.as_deref(),
                known,
                (pace, &health),
                &sender,
                &read_at,
            );
        });
    if let Err(error) = spawned {
        tracing::error!(%error, "gpus cannot be read: no thread");
    }
    tokio::spawn(async move { doubt_old_readings(&for_age.0, &for_age.1).await });
    receiver
}

fn read_for_ever(
    library: Option<&Path>,
    mut known: Known,
    (pace, health): (Duration, &Health),
    sender: &watch::Sender<Snapshot>,
    read_at: &Mutex<Instant>,
) {
    let mut reader = nvml::Reader::new(library);
    // What keeps the errors of before from being known, once it was tried.
    let mut past: Option<Option<String>> = None;
    loop {
        let snapshot = match reader.read() {
            Ok(reading) => {
                let mut snapshot = known.merge(reading.clone());
                let log = &health.policy().kernel_log;
                let unknown =
                    past.get_or_insert_with(|| kernel_log::take_past(log, health, &snapshot));
                snapshot.warnings.extend(unknown.clone());
                health.judge(&mut snapshot, Some(&reading), Instant::now());
                snapshot
            }
            Err(error) => {
                let mut snapshot = known.unreadable(&error);
                health.judge(&mut snapshot, None, Instant::now());
                snapshot
            }
        };
        *read_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        publish(sender, snapshot);
        if sender.is_closed() {
            return;
        }
        // When the time is over of a call that was not waited for, that is told at once.
        health.wait(reader.patience().map_or(pace, |left| pace.min(left)));
    }
}

fn publish(sender: &watch::Sender<Snapshot>, snapshot: Snapshot) {
    sender.send_if_modified(|current| {
        let changed = *current != snapshot;
        if changed {
            for warning in &snapshot.warnings {
                tracing::warn!("{warning}");
            }
            *current = snapshot;
        }
        changed
    });
}

/// Marks all devices as suspect while NVML does not answer.
async fn doubt_old_readings(sender: &watch::Sender<Snapshot>, read_at: &Mutex<Instant>) {
    let mut tick = tokio::time::interval(AGE_CHECK);
    loop {
        tick.tick().await;
        let age = read_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed();
        if age > READING_AGE_MAX {
            let doubted = doubt(&sender.borrow());
            publish(sender, doubted);
        }
        if sender.is_closed() {
            return;
        }
    }
}

/// The same devices while nobody can say how they are. Whether they were ever read stays as it is.
fn doubt(snapshot: &Snapshot) -> Snapshot {
    let mut doubted = snapshot.clone();
    let words = SILENT;
    for device in doubted.devices.iter_mut().filter(|d| d.health == "healthy") {
        device.health = domain::state::DeviceHealth::Suspect.to_string();
        device.health_reason = words.to_owned();
    }
    doubted.warnings = vec![format!(
        "{words} (for more than {} s)",
        READING_AGE_MAX.as_secs()
    )];
    doubted
}
