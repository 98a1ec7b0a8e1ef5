//! What a workload's row says of its run and of its wait, at hand for whoever looks at all work.

use domain::Timestamp;

use crate::world::{Workload, WorkloadState};

/// What a workload's row says of its run, where whoever looks at all that runs finds it at hand.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stint {
    /// Its workers as they are placed, the least that it goes on with, and all that it asks for.
    pub placed: u32,
    pub least: u32,
    pub workers: u32,
    /// Whether it says what the least is.
    pub elastic: bool,
    pub started: Option<Timestamp>,
    pub checkpoint_seconds: Option<i64>,
    pub restart_seconds: i64,
}

impl Stint {
    pub(super) fn of(row: &Workload) -> Self {
        Self {
            placed: row.placed.len() as u32,
            least: row.workers_least(),
            workers: row.workers,
            elastic: row.min_workers.is_some(),
            started: row.started,
            checkpoint_seconds: row.checkpoint_seconds,
            restart_seconds: row.restart_seconds,
        }
    }
}

/// What a workload's row says of its wait, where whoever looks at all that waits finds it at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    pub state: WorkloadState,
    pub submitted: Timestamp,
    /// Whether an hour or another's end may keep it from being ready.
    pub bound: bool,
}

impl Wait {
    pub(super) fn of(row: &Workload) -> Self {
        Self {
            state: row.state,
            submitted: row.submitted,
            bound: row.not_before.is_some() || !row.after.is_empty(),
        }
    }
}
