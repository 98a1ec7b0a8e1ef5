//! A pool's policy: the keys of the scenario format, whole as they are kept, and in part as they are changed.

use domain::quantity::Points;
use domain::sharing::SharingMode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $first:ident $(, $rest:ident)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        #[allow(missing_docs)]
        pub enum $name { #[default] $first $(, $rest)* }
    };
}

words!(
    /// Whether new work starts.
    PoolState { Open, Closed }
);
words!(
    /// Which node is preferred.
    Strategy { Pack, Spread, LeastFragmentation }
);
words!(
    /// Whether devices are cut into MIG instances.
    MigMode { Dynamic, Static, Never }
);
words!(
    /// What may pass a workload that is first in order and does not fit.
    Backfill { Easy, Conservative, None, Strict }
);
words!(
    /// What a workload counts for in quota.
    Charge { Gpus, Dominant }
);
words!(
    /// Who gives way inside a team.
    WithinTeam { Never, LowerPriority }
);
words!(
    /// Who gives way to a team that takes its guarantee back.
    Reclaim { Any, LowerPriority, Never }
);

// Whole numbers are read in one width and judged by the engine, which knows their bounds.

/// Most sharers of one device in time slices unless a pool says otherwise.
const TIME_SLICES_DEFAULT: i64 = 4;
/// Time that a victim has to leave unless a pool says otherwise, in seconds.
const GRACE_SECONDS_DEFAULT: i64 = 30;

/// The policy of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PoolPolicy {
    /// Whether new work starts.
    pub state: PoolState,
    /// Which node is preferred.
    pub strategy: Strategy,
    /// The modes in which its devices are given out.
    pub sharing: Vec<SharingMode>,
    /// Most sharers of one device in time slices.
    pub time_slices: i64,
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
    pub preemption: Preemption,
}

impl Default for PoolPolicy {
    fn default() -> Self {
        Self {
            state: PoolState::default(),
            strategy: Strategy::default(),
            sharing: vec![SharingMode::Exclusive],
            time_slices: TIME_SLICES_DEFAULT,
            mps_across_teams: false,
            mig_mode: MigMode::default(),
            backfill: Backfill::default(),
            charge: Charge::default(),
            non_preemptible_borrowing: false,
            ageing_per_hour: Points::ZERO,
            usage_half_life_seconds: None,
            whole_node_guarantees: false,
            preemption: Preemption::default(),
        }
    }
}

/// Who may displace whom in a pool, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Preemption {
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
    pub max_per_day: Option<i64>,
    /// Evictions that one team may suffer in an hour.
    pub max_per_team_hour: Option<i64>,
    /// How long a victim has to leave.
    pub grace_seconds: i64,
    /// Whether running preemptible work may move to make room.
    pub consolidate: bool,
}

impl Default for Preemption {
    fn default() -> Self {
        Self {
            within_team: WithinTeam::default(),
            reclaim: Reclaim::default(),
            across_borrowers: false,
            min_runtime_seconds: 0,
            min_runtime_reclaim_seconds: None,
            delay_seconds: 0,
            max_per_day: None,
            max_per_team_hour: None,
            grace_seconds: GRACE_SECONDS_DEFAULT,
            consolidate: false,
        }
    }
}

/// A pool to be made; keys of its policy that are absent have their defaults.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPool {
    /// Its name.
    pub name: domain::name::Name,
    /// Whether new work starts.
    pub state: Option<PoolState>,
    /// Which node is preferred.
    pub strategy: Option<Strategy>,
    /// The modes in which its devices are given out.
    pub sharing: Option<Vec<SharingMode>>,
    /// Most sharers of one device in time slices.
    pub time_slices: Option<i64>,
    /// Whether several teams may share a device by MPS.
    pub mps_across_teams: Option<bool>,
    /// Whether devices are cut into MIG instances.
    pub mig_mode: Option<MigMode>,
    /// What may pass a blocked head.
    pub backfill: Option<Backfill>,
    /// What a workload counts for in quota.
    pub charge: Option<Charge>,
    /// Whether work that may not be preempted may borrow.
    pub non_preemptible_borrowing: Option<bool>,
    /// Points of priority that an hour of waiting adds.
    pub ageing_per_hour: Option<Points>,
    /// Fair share with memory of the past; null is without.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<i64>)]
    pub usage_half_life_seconds: Option<Option<i64>>,
    /// Whether guarantees must stay formable in whole nodes.
    pub whole_node_guarantees: Option<bool>,
    /// Who may displace whom.
    pub preemption: Option<PreemptionPatch>,
}

impl NewPool {
    /// The policy that it begins with.
    pub fn policy(&self) -> PoolPolicy {
        let keys = self.clone();
        let mut policy = PoolPolicy::default();
        policy.apply(PolicyPatch {
            state: keys.state,
            strategy: keys.strategy,
            sharing: keys.sharing,
            time_slices: keys.time_slices,
            mps_across_teams: keys.mps_across_teams,
            mig_mode: keys.mig_mode,
            backfill: keys.backfill,
            charge: keys.charge,
            non_preemptible_borrowing: keys.non_preemptible_borrowing,
            ageing_per_hour: keys.ageing_per_hour,
            usage_half_life_seconds: keys.usage_half_life_seconds,
            whole_node_guarantees: keys.whole_node_guarantees,
            preemption: keys.preemption,
        });
        policy
    }
}

/// Keys of a policy that are to be set; what is absent stays.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyPatch {
    /// Whether new work starts.
    pub state: Option<PoolState>,
    /// Which node is preferred.
    pub strategy: Option<Strategy>,
    /// The modes in which its devices are given out.
    pub sharing: Option<Vec<SharingMode>>,
    /// Most sharers of one device in time slices.
    pub time_slices: Option<i64>,
    /// Whether several teams may share a device by MPS.
    pub mps_across_teams: Option<bool>,
    /// Whether devices are cut into MIG instances.
    pub mig_mode: Option<MigMode>,
    /// What may pass a blocked head.
    pub backfill: Option<Backfill>,
    /// What a workload counts for in quota.
    pub charge: Option<Charge>,
    /// Whether work that may not be preempted may borrow.
    pub non_preemptible_borrowing: Option<bool>,
    /// Points of priority that an hour of waiting adds.
    pub ageing_per_hour: Option<Points>,
    /// Fair share with memory of the past; null is without.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<i64>)]
    pub usage_half_life_seconds: Option<Option<i64>>,
    /// Whether guarantees must stay formable in whole nodes.
    pub whole_node_guarantees: Option<bool>,
    /// Who may displace whom.
    pub preemption: Option<PreemptionPatch>,
}

/// Keys of the policy of preemption that are to be set; what is absent stays.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreemptionPatch {
    /// Inside a team.
    pub within_team: Option<WithinTeam>,
    /// By a team that takes its guarantee back.
    pub reclaim: Option<Reclaim>,
    /// Whether one borrower may displace another to even out shares.
    pub across_borrowers: Option<bool>,
    /// Protects a workload that has run for less.
    pub min_runtime_seconds: Option<i64>,
    /// When set, in place of the former for reclaim.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<i64>)]
    pub min_runtime_reclaim_seconds: Option<Option<i64>>,
    /// How long a workload waits before it may displace others.
    pub delay_seconds: Option<i64>,
    /// Preemptions that one workload may suffer in 24 hours; null is any number.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<i64>)]
    pub max_per_day: Option<Option<i64>>,
    /// Evictions that one team may suffer in an hour; null is any number.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<i64>)]
    pub max_per_team_hour: Option<Option<i64>>,
    /// How long a victim has to leave.
    pub grace_seconds: Option<i64>,
    /// Whether running preemptible work may move to make room.
    pub consolidate: Option<bool>,
}

/// Sets the fields that a patch has.
macro_rules! set {
    ($whole:expr, $patch:expr, $($field:ident)+) => {
        $(if let Some(value) = $patch.$field { $whole.$field = value; })+
    };
}

impl PoolPolicy {
    /// Sets what the patch has.
    pub fn apply(&mut self, patch: PolicyPatch) {
        set!(
            self, patch,
            state strategy sharing time_slices mps_across_teams mig_mode backfill charge
            non_preemptible_borrowing ageing_per_hour usage_half_life_seconds whole_node_guarantees
        );
        let Some(patch) = patch.preemption else {
            return;
        };
        set!(
            self.preemption, patch,
            within_team reclaim across_borrowers min_runtime_seconds min_runtime_reclaim_seconds
            delay_seconds max_per_day max_per_team_hour grace_seconds consolidate
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_sets_what_it_has_and_null_is_not_absence() {
        let mut policy = PoolPolicy {
            usage_half_life_seconds: Some(60),
            ..PoolPolicy::default()
        };
        let patch = |text: &str| serde_json::from_str::<PolicyPatch>(text).expect("a patch");
        policy.apply(patch(r#"{"preemption": {"max_per_day": 3}}"#));
        assert_eq!(policy.preemption.max_per_day, Some(3));
        assert_eq!(policy.usage_half_life_seconds, Some(60));
        policy.apply(patch(
            r#"{"usage_half_life_seconds": null, "preemption": {"max_per_day": null}}"#,
        ));
        assert_eq!(policy, PoolPolicy::default());
    }

    #[test]
    fn an_unknown_key_is_refused() {
        assert!(
            serde_json::from_str::<PolicyPatch>(r#"{"preemption": {"reclam": "any"}}"#).is_err()
        );
    }
}
