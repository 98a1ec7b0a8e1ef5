//! Who follows what: event streams and logs are bounded by person, and so is what they read at once.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use domain::ids::UserId;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::AppError;

/// Streams of one replica that read their askers' rights again at a time: a change of the tree of
/// teams makes all of them look, and each takes a connection, of which requests need theirs.
const LOOKS_MAX: usize = 4;

/// The open streams of one replica, of one kind.
#[derive(Debug)]
pub struct Streams {
    open: Open,
    looks: Semaphore,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            open: Arc::default(),
            looks: Semaphore::new(LOOKS_MAX),
        }
    }
}

/// What a stream tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Everything that changes.
    Events,
    /// What one worker writes.
    Logs,
    /// Commands beside jobs, their output and ports.
    Terminals,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Events => "event streams",
            Self::Logs => "logs",
            Self::Terminals => "terminals",
        })
    }
}

/// One person's right to one stream, until it is dropped.
#[derive(Debug)]
pub struct Seat {
    open: Open,
    of: (UserId, Kind),
}

/// How many streams are open, by person and kind.
type Open = Arc<Mutex<HashMap<(UserId, Kind), usize>>>;

impl Streams {
    /// Takes one more stream of a kind of a person; refused where that has as many as it may.
    pub fn take(&self, user: UserId, kind: Kind, per_person_max: usize) -> Result<Seat, AppError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let of = (user, kind);
        let count = open.get(&of).copied().unwrap_or(0);
        if count >= per_person_max {
            return Err(AppError::TooManyStreams { kind, open: count });
        }
        open.insert(of, count + 1);
        Ok(Seat {
            open: Arc::clone(&self.open),
            of,
        })
    }

    /// Waits until so few streams read at once that one more may.
    pub async fn look(&self) -> SemaphorePermit<'_> {
        self.looks
            .acquire()
            .await
            .expect("nobody closes this semaphore")
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_has_so_many_streams_and_another_one_its_own() {
        let streams = Streams::default();
        let (ada, bob) = (UserId::new(), UserId::new());
        let first = streams.take(ada, Kind::Events, 2).expect("room");
        let second = streams.take(ada, Kind::Events, 2).expect("room");
        assert!(matches!(
            streams.take(ada, Kind::Events, 2),
            Err(AppError::TooManyStreams { open: 2, .. })
        ));
        assert!(streams.take(ada, Kind::Logs, 2).is_ok());
        assert!(streams.take(bob, Kind::Events, 2).is_ok());
        drop(first);
        assert!(streams.take(ada, Kind::Events, 2).is_ok());
        drop(second);
        assert!(streams.open.lock().expect("not poisoned").is_empty());
    }
}
