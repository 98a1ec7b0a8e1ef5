//! A node's two facts, and a device's health.

use super::steps;
use crate::text_enum::text_enum;

/// Most seconds until a drain's deadline, thirty days: what may stay for longer is not waited for.
pub const DRAIN_SECONDS_MAX: i64 = 30 * 24 * 3600;

text_enum!(
    /// What people want of a node.
    NodeIntent, "intent" {
        /// Takes new work.
        Open = "open",
        /// Takes no new work; what runs stays.
        Cordoned = "cordoned",
        /// Takes no new work; what runs leaves.
        Draining = "draining",
        /// Gone for good.
        Retired = "retired",
    }
);

steps!(NodeIntent, "node" {
    Open => [Cordoned, Draining, Retired],
    Cordoned => [Open, Draining, Retired],
    Draining => [Open, Cordoned, Retired],
    Retired => [],
});

text_enum!(
    /// What the control plane knows of a node.
    Reachability, "reachability" {
        /// Its heartbeats arrive.
        Ready = "ready",
        /// Its heartbeats stopped; its lease may still run.
        Unreachable = "unreachable",
        /// Its lease and all margins are over.
        Lost = "lost",
    }
);

steps!(Reachability, "node's reachability" {
    Ready => [Unreachable],
    Unreachable => [Ready, Lost],
    Lost => [Ready],
}
);

text_enum!(
    /// How a device does.
    DeviceHealth, "health" {
        /// May be given out.
        Healthy = "healthy",
        /// Something was seen; not given out anew.
        Suspect = "suspect",
        /// Out.
        Failed = "failed",
        /// Its mode is being changed.
        ModeChange = "mode_change",
    }
);

steps!(DeviceHealth, "device" {
    Healthy => [Suspect, Failed, ModeChange],
    Suspect => [Healthy, Failed],
    Failed => [Healthy, Suspect],
    ModeChange => [Healthy, Failed],
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_lost_only_after_it_was_unreachable() {
        assert!(Reachability::Ready.step(Reachability::Lost).is_err());
        assert!(NodeIntent::Retired.step(NodeIntent::Open).is_err());
        assert!(DeviceHealth::Failed.step(DeviceHealth::ModeChange).is_err());
    }
}
