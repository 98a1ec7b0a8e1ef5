//! An assignment's phases.

use super::steps;
use crate::text_enum::text_enum;

text_enum!(
    /// Where one worker of one attempt stands on its node.
    AssignmentPhase, "phase" {
        /// The scheduler gave it its slices.
        Granted = "granted",
        /// Its node acknowledged it: the slices are held and charged.
        HandedOver = "handed_over",
        /// Its process runs.
        Running = "running",
        /// Its process is being stopped.
        Stopping = "stopping",
        /// Its process has ended; its node cleans up.
        Cleaning = "cleaning",
        /// Its slices are free again.
        Released = "released",
        /// Its node is gone, and its lease with it.
        Fenced = "fenced",
    }
);

steps!(AssignmentPhase, "assignment" {
    Granted => [HandedOver, Stopping, Released, Fenced],
    HandedOver => [Running, Stopping, Cleaning, Released, Fenced],
    Running => [Stopping, Cleaning, Released, Fenced],
    Stopping => [Cleaning, Released, Fenced],
    Cleaning => [Released, Fenced],
    Released => [],
    Fenced => [],
});

impl AssignmentPhase {
    /// Whether it holds its slices.
    pub fn live(self) -> bool {
        !self.terminal()
    }

    /// Whether what it holds is charged.
    pub fn charged(self) -> bool {
        self.live() && self != Self::Granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_only_go_forward() {
        for (at, from) in AssignmentPhase::ALL.iter().enumerate() {
            for to in &AssignmentPhase::ALL[..=at] {
                assert!(from.step(*to).is_err(), "{from} to {to}");
            }
        }
    }
}
