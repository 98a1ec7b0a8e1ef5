//! A pool's policy as it is sent: in whole for a new pool, and in part as it is changed.

use std::ops::RangeInclusive;

use domain::FieldError;
use domain::policy::{
    Backfill, Charge, MigMode, PREEMPTIONS, PoolPolicy, PoolState, Reclaim, Strategy, TIME_SLICES,
    WithinTeam,
};
use domain::quantity::Points;
use domain::sharing::SharingMode;
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

/// A pool to be made; keys of its policy that are absent have their defaults.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPool {
    /// Its name.
    pub name: domain::name::Name,
    /// Whether new work starts.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub state: Option<PoolState>,
    /// Which node is preferred.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub strategy: Option<Strategy>,
    /// The modes in which its devices are given out.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub sharing: Option<Vec<SharingMode>>,
    /// Most sharers of one device in time slices.
    #[serde(default, deserialize_with = "time_slices")]
    #[schema(nullable = false)]
    pub time_slices: Option<u32>,
    /// Whether several teams may share a device by MPS.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub mps_across_teams: Option<bool>,
    /// Whether devices are cut into MIG instances.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub mig_mode: Option<MigMode>,
    /// What may pass a blocked head.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub backfill: Option<Backfill>,
    /// What a workload counts for in quota.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub charge: Option<Charge>,
    /// Whether work that may not be preempted may borrow.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub non_preemptible_borrowing: Option<bool>,
    /// Points of priority that an hour of waiting adds.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub ageing_per_hour: Option<Points>,
    /// Fair share with memory of the past; null is without.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<i64>)]
    pub usage_half_life_seconds: Option<Option<i64>>,
    /// Whether guarantees must stay formable in whole nodes.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub whole_node_guarantees: Option<bool>,
    /// Who may displace whom.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub preemption: Option<PreemptionPatch>,
}

impl NewPool {
    /// One with the policy that all begin with.
    pub fn named(name: domain::name::Name) -> Self {
        Self {
            name,
            state: None,
            strategy: None,
            sharing: None,
            time_slices: None,
            mps_across_teams: None,
            mig_mode: None,
            backfill: None,
            charge: None,
            non_preemptible_borrowing: None,
            ageing_per_hour: None,
            usage_half_life_seconds: None,
            whole_node_guarantees: None,
            preemption: None,
        }
    }

    /// The policy that it begins with.
    pub fn policy(&self) -> PoolPolicy {
        let keys = self.clone();
        let mut policy = PoolPolicy::default();
        let patch = PolicyPatch {
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
        };
        patch.onto(&mut policy);
        policy
    }
}

/// Keys of a policy that are to be set; what is absent stays.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyPatch {
    /// Whether new work starts.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub state: Option<PoolState>,
    /// Which node is preferred.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub strategy: Option<Strategy>,
    /// The modes in which its devices are given out.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub sharing: Option<Vec<SharingMode>>,
    /// Most sharers of one device in time slices.
    #[serde(default, deserialize_with = "time_slices")]
    #[schema(nullable = false)]
    pub time_slices: Option<u32>,
    /// Whether several teams may share a device by MPS.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub mps_across_teams: Option<bool>,
    /// Whether devices are cut into MIG instances.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub mig_mode: Option<MigMode>,
    /// What may pass a blocked head.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub backfill: Option<Backfill>,
    /// What a workload counts for in quota.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub charge: Option<Charge>,
    /// Whether work that may not be preempted may borrow.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub non_preemptible_borrowing: Option<bool>,
    /// Points of priority that an hour of waiting adds.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub ageing_per_hour: Option<Points>,
    /// Fair share with memory of the past; null is without.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<i64>)]
    pub usage_half_life_seconds: Option<Option<i64>>,
    /// Whether guarantees must stay formable in whole nodes.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub whole_node_guarantees: Option<bool>,
    /// Who may displace whom.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub preemption: Option<PreemptionPatch>,
}

/// Keys of the policy of preemption that are to be set; what is absent stays.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreemptionPatch {
    /// Inside a team.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub within_team: Option<WithinTeam>,
    /// By a team that takes its guarantee back.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub reclaim: Option<Reclaim>,
    /// Whether one borrower may displace another to even out shares.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub across_borrowers: Option<bool>,
    /// Protects a workload that has run for less.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub min_runtime_seconds: Option<i64>,
    /// When set, in place of the former for reclaim.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(value_type = Option<i64>)]
    pub min_runtime_reclaim_seconds: Option<Option<i64>>,
    /// How long a workload waits before it may displace others.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub delay_seconds: Option<i64>,
    /// Preemptions that one workload may suffer in 24 hours; null is any number.
    #[serde(default, deserialize_with = "preemptions")]
    #[schema(value_type = Option<u32>)]
    pub max_per_day: Option<Option<u32>>,
    /// Evictions that one team may suffer in an hour; null is any number.
    #[serde(default, deserialize_with = "preemptions")]
    #[schema(value_type = Option<u32>)]
    pub max_per_team_hour: Option<Option<u32>>,
    /// How long a victim has to leave.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub grace_seconds: Option<i64>,
    /// Whether running preemptible work may move to make room.
    #[serde(default, deserialize_with = "super::some")]
    #[schema(nullable = false)]
    pub consolidate: Option<bool>,
}

/// Reads a whole number by the bounds of its key, not by those of its type.
fn within<E: serde::de::Error>(number: i64, range: RangeInclusive<u32>) -> Result<u32, E> {
    let fits = u32::try_from(number).ok().filter(|n| range.contains(n));
    fits.ok_or_else(|| {
        let remedy = format!("a whole number from {} to {}", range.start(), range.end());
        E::custom(FieldError::new("number", number, remedy))
    })
}

fn time_slices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    within(i64::deserialize(deserializer)?, TIME_SLICES).map(Some)
}

fn preemptions<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<u32>>, D::Error> {
    let number = Option::<i64>::deserialize(deserializer)?;
    let number = number.map(|number| within(number, PREEMPTIONS));
    number.transpose().map(Some)
}

/// Sets the fields that a patch has.
macro_rules! set {
    ($whole:expr, $patch:expr, $($field:ident)+) => {
        $(if let Some(value) = $patch.$field { $whole.$field = value; })+
    };
}

impl From<PoolPolicy> for PolicyPatch {
    /// Every key.
    fn from(policy: PoolPolicy) -> Self {
        let p = policy.preemption;
        Self {
            state: Some(policy.state),
            strategy: Some(policy.strategy),
            sharing: Some(policy.sharing),
            time_slices: Some(policy.time_slices),
            mps_across_teams: Some(policy.mps_across_teams),
            mig_mode: Some(policy.mig_mode),
            backfill: Some(policy.backfill),
            charge: Some(policy.charge),
            non_preemptible_borrowing: Some(policy.non_preemptible_borrowing),
            ageing_per_hour: Some(policy.ageing_per_hour),
            usage_half_life_seconds: Some(policy.usage_half_life_seconds),
            whole_node_guarantees: Some(policy.whole_node_guarantees),
            preemption: Some(PreemptionPatch {
                within_team: Some(p.within_team),
                reclaim: Some(p.reclaim),
                across_borrowers: Some(p.across_borrowers),
                min_runtime_seconds: Some(p.min_runtime_seconds),
                min_runtime_reclaim_seconds: Some(p.min_runtime_reclaim_seconds),
                delay_seconds: Some(p.delay_seconds),
                max_per_day: Some(p.max_per_day),
                max_per_team_hour: Some(p.max_per_team_hour),
                grace_seconds: Some(p.grace_seconds),
                consolidate: Some(p.consolidate),
            }),
        }
    }
}

impl PolicyPatch {
    /// Sets in `policy` what the patch has.
    pub fn onto(self, policy: &mut PoolPolicy) {
        set!(
            policy, self,
            state strategy sharing time_slices mps_across_teams mig_mode backfill charge
            non_preemptible_borrowing ageing_per_hour usage_half_life_seconds whole_node_guarantees
        );
        let Some(patch) = self.preemption else {
            return;
        };
        set!(
            policy.preemption, patch,
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
        patch(r#"{"preemption": {"max_per_day": 3}}"#).onto(&mut policy);
        assert_eq!(policy.preemption.max_per_day, Some(3));
        assert_eq!(policy.usage_half_life_seconds, Some(60));
        patch(r#"{"usage_half_life_seconds": null, "preemption": {"max_per_day": null}}"#)
            .onto(&mut policy);
        assert_eq!(policy, PoolPolicy::default());
    }

    #[test]
    fn an_unknown_key_is_refused() {
        assert!(
            serde_json::from_str::<PolicyPatch>(r#"{"preemption": {"reclam": "any"}}"#).is_err()
        );
    }
}
