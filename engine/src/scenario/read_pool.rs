//! The reader of pools and their policies.

use domain::sharing::SharingMode;

use super::amounts::{COUNT_MAX, PRIORITY_MAX, SECONDS_MAX};
use super::fields::{Field, Read};
use crate::world::{
    Backfill, Charge, MigMode, Pool, PoolState, PreemptionPolicy, Reclaim, Strategy, WithinTeam,
};

pub(super) fn pool(field: Field<'_>) -> Read<Pool> {
    let fields = field.fields()?;
    let defaults = Pool::new("");
    let pool = Pool {
        name: fields.require("name")?.text()?,
        state: fields.or("state", defaults.state, |f| {
            f.word(&[("open", PoolState::Open), ("closed", PoolState::Closed)])
        })?,
        strategy: fields.or("strategy", defaults.strategy, |f| {
            f.word(&[
                ("pack", Strategy::Pack),
                ("spread", Strategy::Spread),
                ("least_fragmentation", Strategy::LeastFragmentation),
            ])
        })?,
        sharing: fields.or("sharing", defaults.sharing.clone(), modes)?,
        time_slices: fields.or("time_slices", defaults.time_slices, |f| {
            f.count(1, TIME_SLICES_MAX)
        })?,
        mps_across_teams: fields.or("mps_across_teams", defaults.mps_across_teams, Field::flag)?,
        mig_mode: fields.or("mig_mode", defaults.mig_mode, |f| {
            f.word(&[
                ("dynamic", MigMode::Dynamic),
                ("static", MigMode::Static),
                ("never", MigMode::Never),
            ])
        })?,
        backfill: fields.or("backfill", defaults.backfill, |f| {
            f.word(&[
                ("easy", Backfill::Easy),
                ("conservative", Backfill::Conservative),
                ("none", Backfill::None),
                ("strict", Backfill::Strict),
            ])
        })?,
        charge: fields.or("charge", defaults.charge, |f| {
            f.word(&[("gpus", Charge::Gpus), ("dominant", Charge::Dominant)])
        })?,
        non_preemptible_borrowing: fields.or(
            "non_preemptible_borrowing",
            defaults.non_preemptible_borrowing,
            Field::flag,
        )?,
        ageing_milli_per_hour: fields.or("ageing_per_hour", 0, |f| f.milli(AGEING_MAX))?,
        usage_half_life_seconds: fields
            .optional("usage_half_life_seconds", |f| f.integer(1, SECONDS_MAX))?,
        whole_node_guarantees: fields.or(
            "whole_node_guarantees",
            defaults.whole_node_guarantees,
            Field::flag,
        )?,
        preemption: fields.or("preemption", defaults.preemption, preemption)?,
    };
    fields.finish()?;
    Ok(pool)
}

/// Most sharers of one device: each has at least a thousandth of it.
const TIME_SLICES_MAX: i64 = 1000;
/// Most points that an hour of waiting adds.
const AGEING_MAX: i64 = PRIORITY_MAX / 1000;
/// Most entries of a list of modes.
const MODES_MAX: usize = 16;

/// A list of sharing modes, without repetition.
pub(super) fn modes(field: Field<'_>) -> Read<Vec<SharingMode>> {
    let refused = field.clone();
    let modes: Vec<SharingMode> = field.list(MODES_MAX, Field::parsed)?;
    if modes.is_empty() {
        return Err(refused.refuse("at least one mode, such as exclusive"));
    }
    if modes
        .iter()
        .enumerate()
        .any(|(i, mode)| modes[..i].contains(mode))
    {
        return Err(refused.refuse("each mode once"));
    }
    Ok(modes)
}

fn preemption(field: Field<'_>) -> Read<PreemptionPolicy> {
    let fields = field.fields()?;
    let defaults = PreemptionPolicy::default();
    let seconds = |f: Field<'_>| f.integer(0, SECONDS_MAX);
    let policy = PreemptionPolicy {
        within_team: fields.or("within_team", defaults.within_team, |f| {
            f.word(&[
                ("never", WithinTeam::Never),
                ("lower_priority", WithinTeam::LowerPriority),
            ])
        })?,
        reclaim: fields.or("reclaim", defaults.reclaim, |f| {
            f.word(&[
                ("never", Reclaim::Never),
                ("lower_priority", Reclaim::LowerPriority),
                ("any", Reclaim::Any),
            ])
        })?,
        across_borrowers: fields.or("across_borrowers", defaults.across_borrowers, Field::flag)?,
        min_runtime_seconds: fields.or(
            "min_runtime_seconds",
            defaults.min_runtime_seconds,
            seconds,
        )?,
        min_runtime_reclaim_seconds: fields.optional("min_runtime_reclaim_seconds", seconds)?,
        delay_seconds: fields.or("delay_seconds", defaults.delay_seconds, seconds)?,
        max_per_day: fields.optional("max_per_day", |f| f.count(0, COUNT_MAX))?,
        max_per_team_hour: fields.optional("max_per_team_hour", |f| f.count(0, COUNT_MAX))?,
        grace_seconds: fields.or("grace_seconds", defaults.grace_seconds, seconds)?,
        consolidate: fields.or("consolidate", defaults.consolidate, Field::flag)?,
    };
    fields.finish()?;
    Ok(policy)
}
