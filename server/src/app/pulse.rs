//! Signs of life of this replica's loops.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the loops last achieved, by the machine's monotonic clock; `/readyz` reads it.
#[derive(Debug, Default)]
pub struct Pulse {
    scheduler: Mutex<Scheduler>,
}

#[derive(Debug, Default)]
struct Scheduler {
    beat_at: Option<Instant>,
    refused: bool,
}

impl Pulse {
    /// Notes that the scheduling loop has finished a round: a cycle as the leader, or as a
    /// follower a look at a leader that is alive.
    pub fn scheduler_beats(&self) {
        *self.lock() = Scheduler {
            beat_at: Some(Instant::now()),
            refused: false,
        };
    }

    /// Notes that the loop turns and starts nothing, since its plan was refused: no beat, and until
    /// the next one it is not ready.
    pub fn plan_was_refused(&self) {
        self.lock().refused = true;
    }

    /// How long ago the loop finished a round; none before the first.
    pub fn scheduler_age(&self) -> Option<Duration> {
        self.lock().beat_at.map(|at| at.elapsed())
    }

    /// Whether all plans since the last beat were refused.
    pub fn plans_refused(&self) -> bool {
        self.lock().refused
    }

    fn lock(&self) -> MutexGuard<'_, Scheduler> {
        self.scheduler
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
