//! A pool's policy: the keys of the scenario format that say how its devices are shared.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::FieldError;
use crate::quantity::Points;
use crate::sharing::SharingMode;
use crate::text_enum::text_enum;

/// Sharers of one device in time slices: each has at least a thousandth of it.
pub const TIME_SLICES: RangeInclusive<u32> = 1..=1_000;
/// Most points of priority that an hour of waiting adds; leaves room for years of it in 64 bits.
pub const AGEING_PER_HOUR_MAX: Points = Points::whole(1_000_000);
/// Durations: a hundred years at most, in seconds.
pub const SECONDS: RangeInclusive<i64> = 0..=100 * 366 * 24 * 3600;
/// The same of a half-life, which is never nothing.
pub const HALF_LIFE_SECONDS: RangeInclusive<i64> = 1..=*SECONDS.end();
/// Counts of preemptions.
pub const PREEMPTIONS: RangeInclusive<u32> = 0..=1_000_000_000;

text_enum!(
    /// Whether new work starts in a pool.
    PoolState, "state" {
        /// New work starts.
        Open = "open",
        /// Nothing new starts.
        Closed = "closed",
    }
);

text_enum!(
    /// Which node is preferred among those that fit.
    Strategy, "strategy" {
        /// The fullest.
        Pack = "pack",
        /// The emptiest.
        Spread = "spread",
        /// Where the unusable remainder grows least.
        LeastFragmentation = "least_fragmentation",
    }
);

text_enum!(
    /// Whether devices are cut into MIG instances by the planner.
    MigMode, "mig_mode" {
        /// As work needs it.
        Dynamic = "dynamic",
        /// Existing instances only.
        Static = "static",
        /// Not at all.
        Never = "never",
    }
);

text_enum!(
    /// What may pass a workload that is first in order and does not fit.
    Backfill, "backfill" {
        /// What does not delay the head.
        Easy = "easy",
        /// What does not delay anybody.
        Conservative = "conservative",
        /// Anything that fits.
        None = "none",
        /// Nothing.
        Strict = "strict",
    }
);

text_enum!(
    /// What a workload counts for in quota.
    Charge, "charge" {
        /// Its GPUs.
        Gpus = "gpus",
        /// The largest of its parts of GPUs, CPUs and memory.
        Dominant = "dominant",
    }
);

text_enum!(
    /// Who gives way inside a team.
    WithinTeam, "preemption.within_team" {
        /// Nobody.
        Never = "never",
        /// Work of lower priority.
        LowerPriority = "lower_priority",
    }
);

text_enum!(
    /// Who gives way to a team that takes its guarantee back.
    Reclaim, "preemption.reclaim" {
        /// Any borrower.
        Any = "any",
        /// Borrowers of lower priority.
        LowerPriority = "lower_priority",
        /// Nobody.
        Never = "never",
    }
);

/// The policy of a pool; keys that are absent have their defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PoolPolicy {
    /// Whether new work starts.
    pub state: PoolState,
    /// Which node is preferred.
    pub strategy: Strategy,
    /// The modes in which its devices are given out.
    pub sharing: Vec<SharingMode>,
    /// Most sharers of one device in time slices.
    pub time_slices: u32,
    /// Whether several teams may share a device by MPS.
    pub mps_across_teams: bool,
    /// Whether devices are cut into MIG instances.
    pub mig_mode: MigMode,
    /// What may pass a blocked head.
    pub backfill: Backfill,
    /// What a workload counts for in quota.
    pub charge: Charge,
    /// Whether work that may not be preempted may borrow.
    pub non_preemptible_borrowing: bool,
    /// Points of priority that an hour of waiting adds.
    pub ageing_per_hour: Points,
    /// Fair share with memory of the past, when set.
    pub usage_half_life_seconds: Option<i64>,
    /// Whether guarantees must stay formable in whole nodes.
    pub whole_node_guarantees: bool,
    /// Who may displace whom.
    pub preemption: PreemptionPolicy,
}

impl Default for PoolPolicy {
    fn default() -> Self {
        Self {
            state: PoolState::Open,
            strategy: Strategy::Pack,
            sharing: vec![SharingMode::Exclusive],
            time_slices: 4,
            mps_across_teams: false,
            mig_mode: MigMode::Dynamic,
            backfill: Backfill::Easy,
            charge: Charge::Gpus,
            non_preemptible_borrowing: false,
            ageing_per_hour: Points::ZERO,
            usage_half_life_seconds: None,
            whole_node_guarantees: false,
            preemption: PreemptionPolicy::default(),
        }
    }
}

/// Who may displace whom in a pool, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PreemptionPolicy {
    /// Inside a team.
    pub within_team: WithinTeam,
    /// By a team that takes its guarantee back.
    pub reclaim: Reclaim,
    /// Whether one borrower may displace another to even out shares.
    pub across_borrowers: bool,
    /// Protects a workload that has run for less.
    pub min_runtime_seconds: i64,
    /// When set, in place of the former for reclaim.
    pub min_runtime_reclaim_seconds: Option<i64>,
    /// How long a workload waits before it may displace others.
    pub delay_seconds: i64,
    /// Preemptions that one workload may suffer in 24 hours.
    pub max_per_day: Option<u32>,
    /// Evictions that one team may suffer in an hour.
    pub max_per_team_hour: Option<u32>,
    /// How long a victim has to leave.
    pub grace_seconds: i64,
    /// Whether running preemptible work may move to make room.
    pub consolidate: bool,
}

impl Default for PreemptionPolicy {
    fn default() -> Self {
        Self {
            within_team: WithinTeam::Never,
            reclaim: Reclaim::Any,
            across_borrowers: false,
            min_runtime_seconds: 0,
            min_runtime_reclaim_seconds: None,
            delay_seconds: 0,
            max_per_day: None,
            max_per_team_hour: None,
            grace_seconds: 30,
            consolidate: false,
        }
    }
}

impl PoolPolicy {
    /// Checks what no type can; the error names the key, its value and what it may be.
    pub fn check(&self) -> Result<(), FieldError> {
        check_modes(&self.sharing)?;
        within("time_slices", Some(self.time_slices), TIME_SLICES)?;
        if self.ageing_per_hour > AGEING_PER_HOUR_MAX {
            let remedy = format!("0 to {AGEING_PER_HOUR_MAX}");
            let refused = FieldError::new("ageing_per_hour", self.ageing_per_hour, remedy);
            return Err(refused);
        }
        within(
            "usage_half_life_seconds",
            self.usage_half_life_seconds,
            HALF_LIFE_SECONDS,
        )?;
        self.preemption
            .check()
            .map_err(|error| error.under("preemption"))
    }
}

impl PreemptionPolicy {
    fn check(&self) -> Result<(), FieldError> {
        for (field, seconds) in [
            ("min_runtime_seconds", Some(self.min_runtime_seconds)),
            (
                "min_runtime_reclaim_seconds",
                self.min_runtime_reclaim_seconds,
            ),
            ("delay_seconds", Some(self.delay_seconds)),
            ("grace_seconds", Some(self.grace_seconds)),
        ] {
            within(field, seconds, SECONDS)?;
        }
        within("max_per_day", self.max_per_day, PREEMPTIONS)?;
        within("max_per_team_hour", self.max_per_team_hour, PREEMPTIONS)
    }
}

/// Refuses a list of modes that is empty, or has one of them twice.
pub fn check_modes(modes: &[SharingMode]) -> Result<(), FieldError> {
    if modes.is_empty() {
        let remedy = "at least one mode, such as exclusive";
        return Err(FieldError::new("sharing", "[]", remedy));
    }
    let again = |(i, mode): &(usize, &SharingMode)| modes[..*i].contains(mode);
    match modes.iter().enumerate().find(again) {
        Some((_, mode)) => Err(FieldError::new("sharing", mode, "each mode once")),
        None => Ok(()),
    }
}

fn within<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: Option<T>,
    range: RangeInclusive<T>,
) -> Result<(), FieldError> {
    match value {
        Some(value) if !range.contains(&value) => {
            let remedy = format!("a whole number from {} to {}", range.start(), range.end());
            Err(FieldError::new(field, value, remedy))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_value_that_cannot_be_followed_is_refused_by_its_key() {
        let refused = |keys: Value| {
            let policy: PoolPolicy = serde_json::from_value(keys).expect("a policy");
            policy.check().expect_err("refused").field
        };
        for (keys, field) in [
            (json!({"sharing": []}), "sharing"),
            (json!({"sharing": ["mig", "mig"]}), "sharing"),
            (json!({"time_slices": 0}), "time_slices"),
            (json!({"time_slices": 1001}), "time_slices"),
            (json!({"ageing_per_hour": 1_000_001}), "ageing_per_hour"),
            (
                json!({"usage_half_life_seconds": 0}),
                "usage_half_life_seconds",
            ),
            (
                json!({"preemption": {"grace_seconds": -1}}),
                "preemption.grace_seconds",
            ),
            (
                json!({"preemption": {"max_per_day": 2_000_000_000}}),
                "preemption.max_per_day",
            ),
        ] {
            assert_eq!(refused(keys), field);
        }
        assert_eq!(PoolPolicy::default().check(), Ok(()));
    }
}
