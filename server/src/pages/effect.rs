//! What a try of changed policies came to, as its panel shows it.

use domain::MilliGpu;
use domain::Timestamp;
use web::views::{Effect, EffectCut, EffectJob, EffectShare, EffectWarning, Fate};

use super::jobs::Teams;
use crate::app::policy_diff::{self, PolicyDiff, ShareView};

/// Jobs that are named on a page; of more it is told how many.
const JOBS_SHOWN_MAX: usize = 20;

/// The panel of a try.
pub fn of(diff: PolicyDiff, teams: &Teams, windows_at: Option<Timestamp>) -> Effect {
    let all = diff.jobs.len() + diff.jobs_left_out;
    let shown: Vec<EffectJob> = diff.jobs.iter().take(JOBS_SHOWN_MAX).map(job).collect();
    let shares = diff.shares.iter().filter(|s| s.before != s.after);
    Effect {
        at: diff.at,
        windows_at,
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
        warnings: diff
            .warnings
            .iter()
            .map(|warning| EffectWarning {
                pool: warning.pool.to_string(),
                guaranteed: warning.guaranteed.milli(),
                capacity: warning.capacity.milli(),
            })
            .collect(),
    }
}

/// The effects that people look for, always told; the others where they occur.
fn counts(diff: &PolicyDiff) -> Vec<(&'static str, usize)> {
    use policy_diff::Effect::{
        Delayed, Moves, Resized, Sooner, Starts, Stays, Stops, WaitsOtherwise,
    };
    let always = [Starts, Sooner, Stops, Delayed, Moves];
    let all = [
        Starts,
        Sooner,
        Stays,
        Stops,
        Delayed,
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
            Outcome::Runs => "runs",
            Outcome::Stops => "stops",
            Outcome::Moves => "moves",
            Outcome::Resized => "resized",
            Outcome::Waits => "waits",
        },
        reason: fate.reason.clone(),
        expected_start: fate.expected_start,
    }
}

fn effect_code(effect: policy_diff::Effect) -> &'static str {
    use policy_diff::Effect;
    match effect {
        Effect::Starts => "starts",
        Effect::Stops => "stops",
        Effect::Moves => "moves",
        Effect::Resized => "resized",
        Effect::Stays => "stays",
        Effect::Delayed => "delayed",
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
