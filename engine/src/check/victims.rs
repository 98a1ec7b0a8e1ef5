//! Whether every victim may be taken, by the rule that is told, for somebody who gains.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Exact, Facts};
use crate::plan::{Migration, Plan, Preemption, Reason};
use crate::world::{
    NodeState, Placed, PreemptionPolicy, Reclaim, WithinTeam, Workload, WorkloadState,
};

/// What teams hold, by (team, pool).
type ByTeam<'w> = BTreeMap<(&'w str, &'w str), Exact>;

pub(super) fn faults(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    let left = facts.held(&facts.remaining);
    let mut faults: Vec<String> = plan
        .preemptions
        .iter()
        .flat_map(|p| victim(facts, &left, p))
        .collect();
    faults.extend(borrowed_only(facts, plan));
    faults.extend(hourly(facts, plan));
    faults.extend(plan.migrations.iter().flat_map(|m| mover(facts, m)));
    faults.extend(services(facts));
    faults
}

/// Who moves runs, may be preempted and takes all its workers along: off a node that is
/// emptied, or for work on whole devices where the pool consolidates.
fn mover(facts: &Facts<'_>, told: &Migration) -> Vec<String> {
    let work = facts.works[told.workload.as_str()];
    let mut faults = Vec::new();
    let mut wrong = |what: String| faults.push(format!("{} is moved {what}", work.name));
    if work.state != WorkloadState::Running || work.placed.is_empty() {
        wrong("and does not run".to_owned());
        return faults;
    }
    if !facts.preemptible(work) {
        wrong("and may not be preempted".to_owned());
    }
    if told.placement.len() != work.placed.len() {
        wrong(format!("with {} workers", told.placement.len()));
    }
    let Some(gainer) = &told.gainer else {
        let drains = |p: &Placed| facts.nodes[p.node.as_str()].state == NodeState::Draining;
        if !work.placed.iter().any(drains) {
            wrong("and its nodes are not draining".to_owned());
        }
        return faults;
    };
    let Some((newcomer, _)) = facts.kept.iter().find(|(w, _)| w.name == *gainer) else {
        wrong(format!("for {gainer}, which is not nominated"));
        return faults;
    };
    let asked = &newcomer.per_worker;
    if asked
        .gpus
        .is_none_or(|gpus| gpus < domain::MilliGpu::whole(1))
        || asked.mig_profile.is_some()
    {
        wrong(format!("for {gainer}, which is not on whole devices"));
    }
    let policy = &facts.pools[facts.nodes[work.placed[0].node.as_str()].pool.as_str()].preemption;
    if !policy.consolidate {
        wrong(format!("for {gainer}, which the policy does not allow"));
    }
    for what in waited_and_ran(facts, policy, policy.min_runtime_seconds, work, newcomer) {
        wrong(what);
    }
    faults
}

/// What is true of any victim, whoever gains.
fn victim<'w>(facts: &Facts<'w>, left: &ByTeam<'w>, told: &Preemption) -> Vec<String> {
    let work = facts.works[told.workload.as_str()];
    let mut faults = Vec::new();
    let mut wrong = |what: String| faults.push(format!("{} is preempted {what}", work.name));
    if work.state != WorkloadState::Running || work.placed.is_empty() {
        wrong("and does not run".to_owned());
        return faults;
    }
    let (keep, had) = (told.to_workers as usize, work.placed.len());
    if !facts.preemptible(work) {
        wrong("and may not be".to_owned());
    }
    if keep >= had || (keep > 0 && keep < work.min_workers.unwrap_or(work.workers) as usize) {
        wrong(format!("to {keep} of {had} workers"));
    }
    let highest: Vec<u32> = (told.to_workers..had as u32).collect();
    if told.released != highest {
        wrong("and does not release its highest ranks".to_owned());
    }
    match told.reason {
        Reason::Drain => {
            let drains = work
                .placed
                .iter()
                .any(|p| facts.nodes[p.node.as_str()].state == NodeState::Draining);
            if !drains {
                wrong("and its nodes are not draining".to_owned());
            }
        }
        Reason::Reservation => for_booking(facts, told, work).into_iter().for_each(wrong),
        _ => by_policy(facts, left, told, work)
            .into_iter()
            .for_each(wrong),
    }
    faults
}

/// Who leaves for a booking is in the way of one that has begun, and of another team.
fn for_booking(facts: &Facts<'_>, told: &Preemption, work: &Workload) -> Option<String> {
    let name = told.gainer.as_deref().unwrap_or("");
    let pool = &facts.nodes[work.placed[0].node.as_str()].pool;
    let now = facts.world.now;
    let lasts = facts
        .world
        .bookings
        .iter()
        .find(|b| b.name == name && b.pool == *pool && b.from <= now && now < b.to);
    match lasts {
        None => Some(format!(
            "for {name}, which is no booking that has begun in {pool}"
        )),
        Some(booking)
            if facts
                .path(&facts.works[work.name.as_str()].team)
                .contains(&booking.team.as_str()) =>
        {
            Some(format!("for {name}, which is its own team's"))
        }
        Some(_) => None,
    }
}

/// Whether the pool's policy lets this victim be taken for the one who gains.
fn by_policy<'w>(
    facts: &Facts<'w>,
    left: &ByTeam<'w>,
    told: &Preemption,
    work: &'w Workload,
) -> Vec<String> {
    let gainer = told.gainer.as_deref().unwrap_or("");
    let gains = facts
        .starts
        .iter()
        .chain(&facts.kept)
        .find(|(w, _)| w.name == gainer);
    let Some((newcomer, placed)) = gains else {
        return vec![format!(
            "for {gainer}, which is neither nominated nor started"
        )];
    };
    let pool = facts.nodes[work.placed[0].node.as_str()].pool.as_str();
    let row = facts.pools[pool];
    let policy = &row.preemption;
    let mut faults = Vec::new();
    if facts.nodes[placed[0].node.as_str()].pool != pool {
        faults.push(format!("for {gainer}, which is in another pool"));
    }
    let lower = facts.priority(work) < facts.priority(newcomer);
    let same = work.team == newcomer.team;
    let allowed = match (same, told.reason) {
        (true, _) => policy.within_team == WithinTeam::LowerPriority && lower,
        (false, Reason::Share) => policy.across_borrowers,
        (false, _) => match policy.reclaim {
            Reclaim::Never => false,
            Reclaim::LowerPriority => lower,
            Reclaim::Any => true,
        },
    };
    if !allowed {
        faults.push(format!("for {gainer}, which the policy does not allow"));
    }
    if !same && told.reason != Reason::Share {
        faults.extend(in_guarantee(facts, left, newcomer, placed, work));
    }
    faults.extend(protected(facts, policy, told, work, newcomer, same));
    faults
}

/// Whether the policy's times and counts protect the victim.
fn protected(
    facts: &Facts<'_>,
    policy: &PreemptionPolicy,
    told: &Preemption,
    work: &Workload,
    newcomer: &Workload,
    same: bool,
) -> Vec<String> {
    let reclaimed = !same && told.reason != Reason::Share;
    let least = match policy.min_runtime_reclaim_seconds {
        Some(least) if reclaimed => least,
        _ => policy.min_runtime_seconds,
    };
    waited_and_ran(facts, policy, least, work, newcomer)
}

/// Whether a workload has run and another has waited long enough, and it is not disturbed too often.
fn waited_and_ran(
    facts: &Facts<'_>,
    policy: &PreemptionPolicy,
    least: i64,
    work: &Workload,
    newcomer: &Workload,
) -> Vec<String> {
    let mut faults = Vec::new();
    let now = facts.world.now;
    if work
        .started
        .is_some_and(|started| (now - started).num_seconds() < least)
    {
        faults.push(format!("before it has run {least} s"));
    }
    if (now - newcomer.submitted).num_seconds() < policy.delay_seconds {
        faults.push(format!(
            "for {}, which has not waited long enough",
            newcomer.name
        ));
    }
    if policy
        .max_per_day
        .is_some_and(|most| work.preemptions_today >= most)
    {
        faults.push("a time too many today".to_owned());
    }
    faults
}

/// Who reclaims is in its team's guarantee, and in that of each team above it below the
/// lowest one shared with the victim.
fn in_guarantee<'w>(
    facts: &Facts<'w>,
    left: &ByTeam<'w>,
    newcomer: &'w Workload,
    placed: &[crate::world::Placed],
    victim: &'w Workload,
) -> Vec<String> {
    let own: Exact = placed.iter().map(|p| facts.amount(newcomer, p)).sum();
    let pool = facts.nodes[placed[0].node.as_str()].pool.as_str();
    let shared = facts.path(&victim.team);
    let outside = facts
        .path(&newcomer.team)
        .into_iter()
        .filter(|team| !shared.contains(team))
        .filter(|team| {
            let there = left.get(&(*team, pool)).copied().unwrap_or(0);
            there + own > facts.guarantees.get(&(*team, pool)).copied().unwrap_or(0)
        });
    outside
        .map(|team| {
            format!(
                "for {}, which is not in the guarantee of {team}",
                newcomer.name
            )
        })
        .collect()
}

/// A victim of another team is of one that borrows when it is taken: the largest may be the last.
fn borrowed_only(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    let mut lost: BTreeMap<(&str, &str), Vec<Exact>> = BTreeMap::new();
    for told in &plan.preemptions {
        let work = facts.works[told.workload.as_str()];
        let gainer = told
            .gainer
            .as_deref()
            .and_then(|name| facts.works.get(name));
        let other = gainer.is_some_and(|g| g.team != work.team);
        if !other || work.placed.is_empty() {
            continue;
        }
        let pool = facts.nodes[work.placed[0].node.as_str()].pool.as_str();
        let gone = &work.placed[(told.to_workers as usize).min(work.placed.len())..];
        let amount = gone.iter().map(|p| facts.amount(work, p)).sum();
        lost.entry((work.team.as_str(), pool))
            .or_default()
            .push(amount);
    }
    let standing = facts
        .running
        .iter()
        .chain(&facts.starts)
        .chain(&facts.kept)
        .cloned()
        .collect();
    let held = facts.held(&standing);
    let beyond = lost.iter().filter(|((team, pool), amounts)| {
        let last = amounts.iter().max().copied().unwrap_or(0);
        let all: Exact = amounts.iter().sum();
        let there = held.get(&(*team, *pool)).copied().unwrap_or(0);
        let guaranteed = facts.guarantees.get(&(*team, *pool)).copied().unwrap_or(0);
        there - all + last <= guaranteed
    });
    beyond
        .map(|((team, pool), _)| format!("team {team} loses more than what it borrows in {pool}"))
        .collect()
}

/// No team suffers more evictions in an hour than a pool's policy lets it.
fn hourly(facts: &Facts<'_>, plan: &Plan) -> Vec<String> {
    let mut suffered: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    let by_policy =
        |told: &&Preemption| !matches!(told.reason, Reason::Drain | Reason::Reservation);
    for told in plan.preemptions.iter().filter(by_policy) {
        let work = facts.works[told.workload.as_str()];
        if let Some(placed) = work.placed.first() {
            let pool = facts.nodes[placed.node.as_str()].pool.as_str();
            *suffered.entry((work.team.as_str(), pool)).or_default() += 1;
        }
    }
    let beyond = suffered.iter().filter(|((team, pool), more)| {
        let before = facts.teams[team].preemptions_this_hour.get(*pool);
        let all = before.copied().unwrap_or(0).saturating_add(**more);
        let most = facts.pools[pool].preemption.max_per_team_hour;
        most.is_some_and(|most| all > most)
    });
    beyond
        .map(|((team, pool), _)| format!("team {team} is preempted too often this hour in {pool}"))
        .collect()
}

/// A service keeps its least replicas, also where nodes are emptied.
fn services(facts: &Facts<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    for service in &facts.world.services {
        let of = |standing: &super::facts::PlacedWork<'_>| -> BTreeSet<String> {
            let replicas = standing
                .iter()
                .filter(|(w, _)| w.service.as_ref() == Some(&service.name));
            replicas.map(|(w, _)| w.name.clone()).collect()
        };
        let (before, after) = (of(&facts.running), of(&facts.remaining));
        if before != after && after.len() < service.min_replicas as usize {
            let left = after.len();
            faults.push(format!(
                "service {} is left with {left} replicas of at least {}",
                service.name, service.min_replicas
            ));
        }
    }
    faults
}
