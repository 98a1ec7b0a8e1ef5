//! The journal: what an agent must not forget, on disk before anybody is told.
//!
//! One thread writes. What came while it synced is written and synced together the next
//! time, so that a burst of a hundred facts costs a few syncs.

mod file;
mod history;
mod record;
mod state;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::ids::{AssignmentId, AttemptId};
use protocol::desired::Epoch;
use tokio::sync::{mpsc, oneshot, watch};

use file::JournalFile;
pub use history::{Holding, history};
pub use record::{Fact, FactKind, Kept, KeptDevice, Record};
pub use state::State;

use crate::clock;

/// Most requests that are written as one group; bounds the memory of a burst.
const GROUP_MAX: usize = 256;
/// Requests that wait for the writing thread: four groups. Who comes later waits until a group is
/// on disk, so that a slow disk costs time and no memory.
const QUEUE_MAX: usize = 4 * GROUP_MAX;

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error("{path} cannot be read or written")]
    File {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The file is damaged before its end.
    #[error(
        "{path} is damaged at line {line}: make sure that no job runs here (`ps -ef | grep supervise`), then move the file away and restart; the server gives up what was running"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// The file is of another version.
    #[error(
        "{path} has the form of version {version}: run the agent that wrote it, or a newer one"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The writing thread is gone; only when the agent ends.
    #[error("the journal is closed")]
    Closed,
}

/// What to write: a record, or a fact that is yet to get its number.
#[derive(Debug, Clone)]
pub enum Entry {
    /// A record as it is.
    Record(Record),
    /// A fact.
    Fact {
        /// The assignment.
        assignment_id: AssignmentId,
        /// Its attempt.
        attempt_id: AttemptId,
        /// When, by the wall clock.
        at_micros: i64,
        /// For how long the node itself had kept what is released now.
        kept_micros: i64,
        /// What.
        kind: FactKind,
    },
}

impl Entry {
    /// A fact of this moment.
    pub fn fact(assignment_id: AssignmentId, attempt_id: AttemptId, kind: FactKind) -> Self {
        Self::Fact {
            assignment_id,
            attempt_id,
            at_micros: clock::wall_micros(),
            kept_micros: 0,
            kind,
        }
    }

    /// That what an assignment held is clean now, which the node itself had kept for so long.
    pub fn released(
        assignment_id: AssignmentId,
        attempt_id: AttemptId,
        kept: std::time::Duration,
    ) -> Self {
        Self::Fact {
            assignment_id,
            attempt_id,
            at_micros: clock::wall_micros(),
            kept_micros: i64::try_from(kept.as_micros()).unwrap_or(i64::MAX),
            kind: FactKind::Released,
        }
    }
}

struct Request {
    entries: Vec<Entry>,
    sync: bool,
    done: Option<oneshot::Sender<Result<(), JournalError>>>,
}

/// The open journal; clones share it.
#[derive(Clone)]
pub struct Journal {
    state: Arc<Mutex<State>>,
    requests: mpsc::Sender<Request>,
    last_fact: watch::Receiver<u64>,
}

impl Journal {
    /// Opens the journal. Tells whether the machine has restarted since it was last written.
    pub fn open(path: &Path, boot_id: &str) -> Result<(Self, bool), JournalError> {
        let (mut file, records) = JournalFile::open(path)?;
        let mut state = State::default();
        records.into_iter().for_each(|record| state.apply(record));
        let mut beginning = Vec::new();
        if state.journal_id.is_empty() {
            beginning.push(Record::Head {
                version: record::VERSION,
                journal_id: domain::ids::JournalId::new().to_string(),
                next_fact: 1,
            });
        }
        let rebooted = !state.boot_id.is_empty() && state.boot_id != boot_id;
        if state.boot_id != boot_id {
            beginning.push(Record::Boot {
                boot_id: boot_id.to_owned(),
            });
        }
        file.append(&beginning, true)
            .map_err(|source| JournalError::File {
                path: path.to_owned(),
                source,
            })?;
        beginning.into_iter().for_each(|record| state.apply(record));

        let (numbers, last_fact) = watch::channel(state.next_fact - 1);
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let state = Arc::new(Mutex::new(state));
        let writer = Writer {
            path: path.to_owned(),
            file,
            state: Arc::clone(&state),
            numbers,
        };
        std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run(queue))
            .map_err(|source| JournalError::File {
                path: path.to_owned(),
                source,
            })?;
        let journal = Self {
            state,
            requests,
            last_fact,
        };
        Ok((journal, rebooted))
    }

    /// Appends entries, all or none, and returns when they are on disk.
    pub async fn append(&self, entries: Vec<Entry>) -> Result<(), JournalError> {
        let (done, written) = oneshot::channel();
        let request = Request {
            entries,
            sync: true,
            done: Some(done),
        };
        self.requests
            .send(request)
            .await
            .map_err(|_| JournalError::Closed)?;
        written.await.map_err(|_| JournalError::Closed)?
    }

    /// Notes that the server knows all facts up to one. Not synced, and left out where the queue
    /// is full: the next one says it too, and at worst facts are sent again.
    pub fn acknowledge(&self, up_to: u64) {
        let request = Request {
            entries: vec![Entry::Record(Record::Acknowledged { up_to })],
            sync: false,
            done: None,
        };
        // Closed only when the agent ends.
        let _ = self.requests.try_send(request);
    }

    /// Takes note of an epoch; false where a higher one was seen before.
    pub async fn admit(&self, epoch: Epoch) -> Result<bool, JournalError> {
        let highest = self.state().epoch;
        if highest < Some(epoch) {
            self.append(vec![Entry::Record(epoch.into())]).await?;
        }
        Ok(highest <= Some(epoch))
    }

    /// What the journal adds up to now.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The facts after one that the server has yet to acknowledge.
    pub fn facts_after(&self, number: u64, most: usize) -> Vec<Fact> {
        let state = self.state();
        let facts = state.facts.iter().filter(|fact| fact.number > number);
        facts.take(most).cloned().collect()
    }

    /// Sees the number of the last fact whenever there is a new one.
    pub fn last_fact(&self) -> watch::Receiver<u64> {
        self.last_fact.clone()
    }
}

struct Writer {
    path: PathBuf,
    file: JournalFile,
    state: Arc<Mutex<State>>,
    numbers: watch::Sender<u64>,
}

impl Writer {
    fn run(mut self, mut queue: mpsc::Receiver<Request>) {
        let mut group = Vec::new();
        while queue.blocking_recv_many(&mut group, GROUP_MAX) > 0 {
            self.write(std::mem::take(&mut group));
        }
    }

    fn write(&mut self, mut group: Vec<Request>) {
        let mut number = lock(&self.state).next_fact;
        let mut records = Vec::new();
        for entry in group
            .iter_mut()
            .flat_map(|r| std::mem::take(&mut r.entries))
        {
            records.push(match entry {
                Entry::Record(record) => record,
                Entry::Fact {
                    assignment_id,
                    attempt_id,
                    at_micros,
                    kept_micros,
                    kind,
                } => {
                    number += 1;
                    Record::Fact(Fact {
                        number: number - 1,
                        assignment_id,
                        attempt_id,
                        at_micros,
                        kept_micros,
                        kind,
                    })
                }
            });
        }
        let sync = group.iter().any(|request| request.sync);
        let written = self.file.append(&records, sync);
        if written.is_ok() {
            let mut state = lock(&self.state);
            records.into_iter().for_each(|record| state.apply(record));
            let last = state.next_fact - 1;
            if let Err(error) = self.file.rewrite_if_long(&state) {
                tracing::warn!(%error, "the journal cannot be rewritten");
            }
            drop(state);
            self.numbers.send_replace(last);
        }
        for done in group.into_iter().filter_map(|request| request.done) {
            let told = written.as_ref().map_err(|error| JournalError::File {
                path: self.path.clone(),
                source: std::io::Error::new(error.kind(), error.to_string()),
            });
            // Who asked may have gone.
            let _ = done.send(told.copied());
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic elsewhere leaves no state half applied: records are applied whole.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
