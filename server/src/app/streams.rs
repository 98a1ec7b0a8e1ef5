//! Who follows what: event streams are bounded by person, and so is what they read at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use domain::ids::UserId;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::AppError;

/// Streams of one replica that read their askers' rights again at a time: a change of the tree of
/// teams makes all of them look, and each takes a connection, of which requests need theirs.
const LOOKS_MAX: usize = 4;

/// The event streams of one replica.
#[derive(Debug)]
pub struct Streams {
    open: Arc<Mutex<HashMap<UserId, usize>>>,
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

/// One person's right to one stream, until it is dropped.
#[derive(Debug)]
pub struct Seat {
    open: Arc<Mutex<HashMap<UserId, usize>>>,
    user: UserId,
}

impl Streams {
    /// Takes one more stream of a person; refused where that has as many as it may.
    pub fn take(&self, user: UserId, per_person_max: usize) -> Result<Seat, AppError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.get(&user).copied().unwrap_or(0);
        if count >= per_person_max {
            return Err(AppError::TooManyStreams { open: count });
        }
        open.insert(user, count + 1);
        Ok(Seat {
            open: Arc::clone(&self.open),
            user,
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
        if let Some(count) = open.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.user);
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
        let first = streams.take(ada, 2).expect("room");
        let second = streams.take(ada, 2).expect("room");
        assert!(matches!(
            streams.take(ada, 2),
            Err(AppError::TooManyStreams { open: 2 })
        ));
        assert!(streams.take(bob, 2).is_ok());
        drop(first);
        assert!(streams.take(ada, 2).is_ok());
        drop(second);
        assert!(streams.open.lock().expect("not poisoned").is_empty());
    }
}
