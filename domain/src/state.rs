//! The state machines: one enum each, and one function that refuses an illegal step.

mod array;
mod assignment;
mod attempt;
mod job;
mod node;
mod period;

pub use array::{ArrayIntent, ElementCounts};
pub use assignment::AssignmentPhase;
pub use attempt::{AttemptEnd, AttemptState};
pub use job::JobState;
pub use node::{DRAIN_SECONDS_MAX, DeviceHealth, NodeIntent, Reachability};
pub use period::{PeriodState, PriceBookState};

/// A step that a state machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {what} cannot go from {from} to {to}")]
pub struct IllegalStep {
    /// The machine.
    pub what: &'static str,
    /// Where it stands.
    pub from: &'static str,
    /// Where it was asked to go.
    pub to: &'static str,
}

/// Gives an enum its table of legal steps.
macro_rules! steps {
    ($name:ident, $what:literal { $($from:ident => [$($to:ident),* $(,)?]),+ $(,)? }) => {
        impl $name {
            /// The states that this one may be followed by.
            pub fn next(self) -> &'static [Self] {
                match self { $(Self::$from => &[$(Self::$to),*],)+ }
            }

            /// Steps to `to`, or says that the machine has no such step.
            pub fn step(self, to: Self) -> Result<Self, $crate::state::IllegalStep> {
                if self.next().contains(&to) {
                    Ok(to)
                } else {
                    Err($crate::state::IllegalStep { what: $what, from: self.as_str(), to: to.as_str() })
                }
            }

            /// Whether nothing follows.
            pub fn terminal(self) -> bool {
                self.next().is_empty()
            }
        }
    };
}
pub(crate) use steps;
