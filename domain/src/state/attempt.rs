//! An attempt's states and ends.

use super::steps;
use crate::text_enum::text_enum;

text_enum!(
    /// Where an attempt stands.
    AttemptState, "attempt state" {
        /// Its workers are being told.
        Starting = "starting",
        /// All its workers were told to run.
        Running = "running",
        /// Its workers are being stopped; the end it will have is recorded.
        Stopping = "stopping",
        /// All its workers have left.
        Ended = "ended",
    }
);

steps!(AttemptState, "attempt" {
    Starting => [Running, Stopping, Ended],
    Running => [Stopping, Ended],
    Stopping => [Ended],
    Ended => [],
});

text_enum!(
    /// Why an attempt ended.
    AttemptEnd, "reason" {
        /// All workers exited, the first non-zero exit code is its own.
        Exit = "exit",
        /// A signal that nobody of ours sent.
        Signal = "signal",
        /// It was killed for using more memory than it had asked for.
        Oom = "oom",
        /// It ran into its time limit.
        TimeLimit = "time_limit",
        /// Its node was lost or restarted.
        NodeLost = "node_lost",
        /// A node would not start it.
        StartRefused = "start_refused",
        /// Policy took its placement.
        Preempted = "preempted",
        /// A person cancelled it.
        Cancelled = "cancelled",
        /// It could never have run as it was asked for: no such program, no such folder.
        Invalid = "invalid",
    }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_attempt_stays_ended() {
        for to in AttemptState::ALL {
            assert!(AttemptState::Ended.step(*to).is_err());
        }
        assert!(AttemptState::Stopping.step(AttemptState::Running).is_err());
    }
}
