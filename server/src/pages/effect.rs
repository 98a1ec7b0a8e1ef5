//! What a try of changed policies came to, as its panel shows it.

use domain::MilliGpu;
use domain::name::Name;
use domain::weekly::Zone;
use web::views::{Effect, EffectConflicts, EffectCut, EffectJob, EffectShare, Fate, PolicyWarning};

use super::bookings::conflict_row;
use super::job::why;
use super::jobs::Teams;
use crate::app::policy_diff::{self, BookingConflicts, PolicyDiff, ShareView};
use crate::app::quotas::Warning;

/// Jobs that are named on a page; of more it is told how many.
const JOBS_SHOWN_MAX: usize = 20;
/// Conflicts of one booking that a try shows; of more it is told how many: under weekly windows a
/// long booking has some in each week.
const SPANS_SHOWN_MAX: usize = 5;

/// The panel of a try, with moments by the clocks of a zone.
pub fn of(diff: PolicyDiff, teams: &Teams, zone: Zone) -> Effect {
    let all = diff.jobs.len() + diff.jobs_left_out;
    let shown: Vec<EffectJob> = diff.jobs.iter().take(JOBS_SHOWN_MAX).map(job).collect();
    let shares = diff.shares.iter().filter(|s| s.before != s.after);
    Effect {
        at: diff.at,
        windows_at: diff.windows_at,
        counts: counts(&diff),
        jobs_left_out: all - shown.len(),
        jobs: shown,
        shares: shares
            .map(|share| {
                let pair = |part: fn(&ShareView) -> MilliGpu| {
                    (part(&share.before).milli(), part(&share.after).milli())
                };
                EffectShare {
                    team: teams.shown(&share.team),
                    pool: share.pool.clone(),
                    guaranteed: pair(|s| s.guaranteed),
                    used: pair(|s| s.used),
                    borrowed: pair(|s| s.borrowed),
                    lent: pair(|s| s.lent),
                    fair_share: pair(|s| s.fair_share),
                }
            })
            .collect(),
        cuts: diff.cuts.iter().map(cut).collect(),
        warnings: diff.warnings.iter().map(warning).collect(),
        conflicts: diff.conflicts.iter().map(|c| conflicts(c, zone)).collect(),
        conflicts_left_out: diff.conflicts_left_out,
    }
}

/// A warning of a policy, as pages show it.
pub fn warning(warning: &Warning) -> PolicyWarning {
    let names = |names: &[Name]| names.iter().map(Name::to_string).collect();
    match warning {
        Warning::Overpromised {
            pool,
            windows,
            guaranteed,
            capacity,
            ..
        } => PolicyWarning::Overpromised {
            pool: pool.to_string(),
            windows: names(windows),
            guaranteed: guaranteed.milli(),
            capacity: capacity.milli(),
        },
        Warning::WindowsOverlap { windows, teams, .. } => PolicyWarning::WindowsOverlap {
            windows: names(windows),
            teams: names(teams),
        },
        Warning::WindowInPlace {
            window,
            teams,
            until,
            ..
        } => PolicyWarning::WindowInPlace {
            window: window.to_string(),
            teams: names(teams),
            until: *until,
        },
    }
}

fn conflicts(told: &BookingConflicts, zone: Zone) -> EffectConflicts {
    let shown = told.conflicts.iter().take(SPANS_SHOWN_MAX);
    let shown: Vec<_> = shown.map(|conflict| conflict_row(conflict, zone)).collect();
    EffectConflicts {
        booking: told.booking.to_string(),
        team: told.team.to_string(),
        pool: told.pool.to_string(),
        left_out: told.conflicts.len() - shown.len(),
        conflicts: shown,
    }
}

/// The effects that people look for, always told; the others where they occur.
fn counts(diff: &PolicyDiff) -> Vec<(&'static str, usize)> {
    use policy_diff::Effect::{
        Delayed, Moves, NeverStarts, Resized, Sooner, Starts, StartsAfterVictims, Stays, Stops,
        WaitsOtherwise,
    };
    let always = [Starts, Sooner, Stops, Delayed, Moves];
    let all = [
        Starts,
        StartsAfterVictims,
        Sooner,
        Stays,
        Stops,
        Delayed,
        NeverStarts,
        Moves,
        Resized,
        WaitsOtherwise,
    ];
    let count = |effect| diff.jobs.iter().filter(|job| job.effect == effect).count();
    all.into_iter()
        .map(|effect| (effect, count(effect)))
        .filter(|(effect, jobs)| *jobs > 0 || always.contains(effect))
        .map(|(effect, jobs)| (effect_code(effect), jobs))
        .collect()
}

fn job(job: &policy_diff::JobDiff) -> EffectJob {
    EffectJob {
        id: job.job.clone(),
        name: job.name.clone(),
        team: job.team.clone(),
        effect: effect_code(job.effect),
        before: fate(&job.before),
        after: fate(&job.after),
    }
}

fn fate(fate: &policy_diff::Fate) -> Fate {
    use policy_diff::Outcome;
    Fate {
        outcome: match fate.outcome {
            Outcome::Starts => "starts",
            Outcome::StartsAfterVictims => "starts_after_victims",
            Outcome::Runs => "runs",
            Outcome::Stops => "stops",
            Outcome::Moves => "moves",
            Outcome::Resized => "resized",
            Outcome::Waits => "waits",
        },
        reason: fate.reason.clone(),
        expected_start: fate.expected_start,
        beyond_quota: fate.beyond_quota.as_ref().map(why::beyond),
    }
}

fn effect_code(effect: policy_diff::Effect) -> &'static str {
    use policy_diff::Effect;
    match effect {
        Effect::Starts => "starts",
        Effect::StartsAfterVictims => "starts_after_victims",
        Effect::Stops => "stops",
        Effect::Moves => "moves",
        Effect::Resized => "resized",
        Effect::Stays => "stays",
        Effect::Delayed => "delayed",
        Effect::NeverStarts => "never_starts",
        Effect::Sooner => "sooner",
        Effect::WaitsOtherwise => "waits_otherwise",
    }
}

fn cut(cut: &policy_diff::Cut) -> EffectCut {
    EffectCut {
        team: cut.team.clone(),
        pool: cut.pool.clone(),
        held: cut.held.milli(),
        guaranteed: (cut.guaranteed_before.milli(), cut.guaranteed_after.milli()),
        becomes_borrowed: cut.becomes_borrowed.milli(),
        reclaimable: cut.reclaimable.milli(),
        over_limit: cut.over_limit.milli(),
    }
}
