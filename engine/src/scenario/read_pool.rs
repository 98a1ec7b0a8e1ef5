//! The reader of pools and their policies.

use std::ops::RangeInclusive;

use domain::policy::{
    AGEING_PER_HOUR_MAX, HALF_LIFE_SECONDS, PREEMPTIONS, PoolPolicy, PreemptionPolicy, SECONDS,
    TIME_SLICES,
};
use domain::quantity::{MILLI, Points};
use domain::sharing::SharingMode;

use super::fields::{Field, Read};
use crate::world::Pool;

pub(super) fn pool(field: Field<'_>) -> Read<Pool> {
    let fields = field.fields()?;
    let defaults = PoolPolicy::default();
    let name = fields.require("name")?.text()?;
    let policy = PoolPolicy {
        state: fields.or("state", defaults.state, Field::parsed)?,
        strategy: fields.or("strategy", defaults.strategy, Field::parsed)?,
        sharing: fields.or("sharing", defaults.sharing, modes)?,
        time_slices: fields.or("time_slices", defaults.time_slices, |f| {
            count(f, TIME_SLICES)
        })?,
        mps_across_teams: fields.or("mps_across_teams", defaults.mps_across_teams, Field::flag)?,
        mig_mode: fields.or("mig_mode", defaults.mig_mode, Field::parsed)?,
        backfill: fields.or("backfill", defaults.backfill, Field::parsed)?,
        charge: fields.or("charge", defaults.charge, Field::parsed)?,
        non_preemptible_borrowing: fields.or(
            "non_preemptible_borrowing",
            defaults.non_preemptible_borrowing,
            Field::flag,
        )?,
        ageing_per_hour: fields.or("ageing_per_hour", defaults.ageing_per_hour, |f| {
            f.milli(AGEING_PER_HOUR_MAX.milli() / MILLI)
                .map(Points::from_milli)
        })?,
        usage_half_life_seconds: fields
            .optional("usage_half_life_seconds", |f| integer(f, HALF_LIFE_SECONDS))?,
        whole_node_guarantees: fields.or(
            "whole_node_guarantees",
            defaults.whole_node_guarantees,
            Field::flag,
        )?,
        preemption: fields.or("preemption", defaults.preemption, preemption)?,
    };
    fields.finish()?;
    Ok(Pool { name, policy })
}

fn integer(field: Field<'_>, range: RangeInclusive<i64>) -> Read<i64> {
    field.integer(*range.start(), *range.end())
}

fn count(field: Field<'_>, range: RangeInclusive<u32>) -> Read<u32> {
    field.count(i64::from(*range.start()), i64::from(*range.end()))
}

/// Most entries of a list of modes.
const MODES_MAX: usize = 16;

/// A list of sharing modes, without repetition.
pub(super) fn modes(field: Field<'_>) -> Read<Vec<SharingMode>> {
    let refused = field.clone();
    let modes: Vec<SharingMode> = field.list(MODES_MAX, Field::parsed)?;
    domain::policy::check_modes(&modes).map_err(|error| refused.refuse(error.remedy))?;
    Ok(modes)
}

fn preemption(field: Field<'_>) -> Read<PreemptionPolicy> {
    let fields = field.fields()?;
    let defaults = PreemptionPolicy::default();
    let seconds = |f: Field<'_>| integer(f, SECONDS);
    let preemptions = |f: Field<'_>| count(f, PREEMPTIONS);
    let policy = PreemptionPolicy {
        within_team: fields.or("within_team", defaults.within_team, Field::parsed)?,
        reclaim: fields.or("reclaim", defaults.reclaim, Field::parsed)?,
        across_borrowers: fields.or("across_borrowers", defaults.across_borrowers, Field::flag)?,
        min_runtime_seconds: fields.or(
            "min_runtime_seconds",
            defaults.min_runtime_seconds,
            seconds,
        )?,
        min_runtime_reclaim_seconds: fields.optional("min_runtime_reclaim_seconds", seconds)?,
        delay_seconds: fields.or("delay_seconds", defaults.delay_seconds, seconds)?,
        max_per_day: fields.optional("max_per_day", preemptions)?,
        max_per_team_hour: fields.optional("max_per_team_hour", preemptions)?,
        grace_seconds: fields.or("grace_seconds", defaults.grace_seconds, seconds)?,
        consolidate: fields.or("consolidate", defaults.consolidate, Field::flag)?,
    };
    fields.finish()?;
    Ok(policy)
}
