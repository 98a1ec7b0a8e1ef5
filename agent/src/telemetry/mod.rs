//! What devices do: readings of each at a pace, by one thread for each device, so that a driver that hangs on
//! one keeps no other from being read.

pub mod buffer;
pub mod reading;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

pub use reading::{Process, Reading};

/// Longest wait for what one device tells; one that takes longer has no reading this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What a thread is asked with: where its answer goes.
type Ask = SyncSender<Reading>;

/// The threads that read devices, by UUID. A thread ends with a failure of its driver, and another is begun
/// when its device is next asked for: it opens the driver anew.
pub struct Readers {
    library: Option<PathBuf>,
    threads: BTreeMap<String, SyncSender<Ask>>,
}

impl Readers {
    /// No thread is begun until something is read.
    pub fn new(library: Option<PathBuf>) -> Self {
        Self {
            library,
            threads: BTreeMap::new(),
        }
    }

    /// Reads these devices at once; those that do not answer in time, or whose last call still hangs, are left out.
    pub fn read(&mut self, uuids: &[String]) -> BTreeMap<String, Reading> {
        self.threads.retain(|uuid, _| uuids.contains(uuid));
        let begun: Vec<_> = uuids
            .iter()
            .filter_map(|uuid| Some((uuid, self.begin(uuid)?)))
            .collect();
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut readings = BTreeMap::new();
        for (uuid, answer) in begun {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Ok(reading) = answer.recv_timeout(left) {
                readings.insert(uuid.clone(), reading);
            }
        }
        readings
    }

    fn begin(&mut self, uuid: &str) -> Option<Receiver<Reading>> {
        let (sender, receiver) = sync_channel(1);
        let ask = match self.threads.get(uuid) {
            None => sender,
            Some(thread) => match thread.try_send(sender) {
                Ok(()) => return Some(receiver),
                Err(TrySendError::Full(_)) => return None,
                Err(TrySendError::Disconnected(ask)) => ask,
            },
        };
        let thread = self.spawn(uuid)?;
        thread.try_send(ask).ok()?;
        self.threads.insert(uuid.to_owned(), thread);
        Some(receiver)
    }

    fn spawn(&self, uuid: &str) -> Option<SyncSender<Ask>> {
        // One question: who asks again while it waits or is worked on is told that the device is not done.
        let (sender, asked) = sync_channel::<Ask>(1);
        let (library, device) = (self.library.clone(), uuid.to_owned());
        let thread = std::thread::Builder::new().name("samples".to_owned());
        let spawned = thread.spawn(move || {
            if let Err(error) = reading::serve(library.as_deref(), &device, &asked) {
                tracing::debug!(device.uuid = device, %error, "a device was not sampled");
            }
        });
        match spawned {
            Ok(_) => Some(sender),
            Err(error) => {
                tracing::warn!(%error, "a device cannot be sampled: no thread");
                None
            }
        }
    }
}
