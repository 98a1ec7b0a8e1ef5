//! A job's states.

use super::steps;
use crate::text_enum::text_enum;

text_enum!(
    /// Where a job stands.
    JobState, "state" {
        /// It waits for a placement.
        Queued = "queued",
        /// It has a placement; its nodes are being told.
        Starting = "starting",
        /// Its processes run.
        Running = "running",
        /// Policy takes its placement; it will queue again.
        Preempting = "preempting",
        /// A person holds it back.
        Suspended = "suspended",
        /// A person cancelled it; its processes are being stopped.
        Cancelling = "cancelling",
        /// It ended with exit code 0.
        Succeeded = "succeeded",
        /// It ended otherwise.
        Failed = "failed",
        /// It was cancelled.
        Cancelled = "cancelled",
    }
);

steps!(JobState, "job" {
    Queued => [Starting, Suspended, Succeeded, Cancelled, Failed],
    Starting => [Running, Queued, Preempting, Suspended, Cancelling, Succeeded, Failed, Cancelled],
    Running => [Preempting, Suspended, Cancelling, Succeeded, Failed, Queued],
    Preempting => [Queued, Suspended, Cancelling, Succeeded, Failed, Cancelled],
    Suspended => [Queued, Cancelling, Cancelled, Succeeded, Failed],
    Cancelling => [Cancelled, Succeeded, Failed],
    Succeeded => [],
    Failed => [],
    Cancelled => [],
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_final_state_is_final() {
        for from in JobState::ALL.iter().filter(|s| s.terminal()) {
            for to in JobState::ALL {
                assert!(from.step(*to).is_err(), "{from} to {to}");
            }
        }
    }

    #[test]
    fn a_cancel_is_possible_from_every_state_that_is_not_final() {
        for from in JobState::ALL.iter().filter(|s| !s.terminal()) {
            let cancelled = [JobState::Cancelling, JobState::Cancelled];
            assert!(
                *from == JobState::Cancelling || cancelled.iter().any(|to| from.step(*to).is_ok()),
                "{from}"
            );
        }
    }

    #[test]
    fn a_queued_job_runs_only_once_it_has_a_place() {
        for to in [
            JobState::Running,
            JobState::Preempting,
            JobState::Cancelling,
        ] {
            assert!(JobState::Queued.step(to).is_err(), "{to}");
        }
    }

    /// Whoever suspends a job and resumes it leaves its attempt to end: that may end well.
    #[test]
    fn work_that_is_done_has_succeeded_in_every_state_that_is_not_final() {
        for from in JobState::ALL.iter().filter(|s| !s.terminal()) {
            assert!(from.step(JobState::Succeeded).is_ok(), "{from}");
        }
    }
}
