//! Signs of life of this replica's loops.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the loops last achieved, by the machine's monotonic clock; `/readyz` reads it.
#[derive(Debug, Default)]
pub struct Pulse {
    scheduler: Mutex<Option<Instant>>,
}

impl Pulse {
    /// Notes that the scheduling loop has finished a round: a cycle as the leader, or as a
    /// follower a look at a leader that is alive.
    pub fn scheduler_beats(&self) {
        *self.lock() = Some(Instant::now());
    }

    /// How long ago that was; none before the first.
    pub fn scheduler_age(&self) -> Option<Duration> {
        self.lock().map(|at| at.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.scheduler
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
