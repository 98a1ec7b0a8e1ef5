//! Whether the plan takes anybody over a limit, a cap, or what others lend.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Exact, Facts, PlacedWork};
use crate::plan::Plan;
use crate::world::{NodeState, Placed, PlacedDevice, Stopped, Workload};

type ByTeam<'w> = BTreeMap<(&'w str, &'w str), Exact>;

pub(super) fn faults(facts: &Facts<'_>, _plan: &Plan) -> Vec<String> {
    let (before, after) = (facts.held(&facts.running), facts.held(&facts.later()));
    let mut faults = limits(facts, &before, &after);
    faults.extend(users(facts));
    faults.extend(replicas(facts));
    faults.extend(lending(facts, &before, &after));
    faults.extend(guarantee_only(facts));
    faults.extend(stopped(facts));
    faults
}

fn scaled(facts: &Facts<'_>, pool: &str, amount: domain::MilliGpu) -> Exact {
    Exact::from(amount.milli()) * facts.totals[pool].scale
}

fn limits(facts: &Facts<'_>, before: &ByTeam<'_>, after: &ByTeam<'_>) -> Vec<String> {
    let over = after.iter().filter(|((team, pool), amount)| {
        let limit = facts.teams[team]
            .quotas
            .get(*pool)
            .and_then(|row| row.limit);
        let was = before.get(&(*team, *pool)).copied().unwrap_or(0);
        limit.is_some_and(|limit| **amount > scaled(facts, pool, limit) && **amount > was)
    });
    over.map(|((team, pool), _)| format!("team {team} is taken over its limit in {pool}"))
        .collect()
}

fn users(facts: &Facts<'_>) -> Vec<String> {
    if facts
        .teams
        .values()
        .all(|team| team.max_per_user.is_empty())
    {
        return Vec::new();
    }
    let of = |standing: &PlacedWork<'_>| {
        let mut held: BTreeMap<(String, String, String), Exact> = BTreeMap::new();
        for (work, workers) in standing {
            let Some(user) = &work.user else { continue };
            for worker in workers {
                let pool = &facts.nodes[worker.node.as_str()].pool;
                for team in facts.path(&facts.works[work.name.as_str()].team) {
                    let key = (team.to_owned(), pool.clone(), user.clone());
                    *held.entry(key).or_default() += facts.amount(work, worker);
                }
            }
        }
        held
    };
    let (before, after) = (of(&facts.running), of(&facts.later()));
    let over = after.iter().filter(|((team, pool, user), amount)| {
        let most = facts.teams[team.as_str()].max_per_user.get(pool);
        let was = before
            .get(&(team.clone(), pool.clone(), user.clone()))
            .copied()
            .unwrap_or(0);
        most.is_some_and(|most| **amount > scaled(facts, pool, *most) && **amount > was)
    });
    over.map(|((team, pool, user), _)| format!("{user} is taken over the cap of {team} in {pool}"))
        .collect()
}

/// A service that is given a replica has no more than it may.
fn replicas(facts: &Facts<'_>) -> Vec<String> {
    let later = facts.later();
    let mut faults = Vec::new();
    for service in &facts.world.services {
        let of = |(work, _): &&(&Workload, Vec<Placed>)| {
            work.service.as_deref() == Some(service.name.as_str())
        };
        let given = facts.starts.iter().chain(&facts.kept).any(|work| of(&work));
        let names: BTreeSet<&str> = later
            .iter()
            .filter(of)
            .map(|(w, _)| w.name.as_str())
            .collect();
        if given && names.len() > service.max_replicas as usize {
            faults.push(format!(
                "service {} is given {} replicas of at most {}",
                service.name,
                names.len(),
                service.max_replicas
            ));
        }
    }
    faults
}

/// Of an idle guarantee no more is used by borrowers outside than its owner lends.
fn lending(facts: &Facts<'_>, before: &ByTeam<'_>, after: &ByTeam<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let held =
        |by: &ByTeam<'_>, team: &str, pool: &str| by.get(&(team, pool)).copied().unwrap_or(0);
    let teams = |of: &PlacedWork<'_>| -> BTreeSet<&str> {
        let works = of.iter().map(|(work, _)| work.name.as_str());
        works.map(|name| facts.works[name].team.as_str()).collect()
    };
    let (starters, waiters) = (teams(&facts.starts), teams(&facts.kept));
    for (&(owner, pool), &guaranteed) in &facts.guarantees {
        let row = facts.teams[owner].quotas.get(pool);
        let Some(lent) = row.and_then(|row| row.lend_limit) else {
            continue;
        };
        let used: Exact = facts.later().iter().map(|of| there(facts, of, pool)).sum();
        // What teams take of their own guarantees is bound by nobody, and may be taken last.
        let own: Exact = (starters.union(&waiters))
            .map(|&team| {
                let was = held(before, team, pool);
                let most = facts.guarantees[&(team, pool)].min(held(after, team, pool));
                (most - was).max(0)
            })
            .sum();
        let free = (facts.totals[pool].capacity * facts.totals[pool].scale - used + own).max(0);
        let idle = guaranteed - held(after, owner, pool);
        let new = starters.iter().any(|&team| {
            let most = facts.guarantees[&(team, pool)].max(held(before, team, pool));
            !facts.path(team).contains(&owner) && held(after, team, pool) > most
        });
        if new && idle - scaled(facts, pool, lent) > free {
            faults.push(format!(
                "more than {lent} of the idle guarantee of {owner} in {pool} is lent"
            ));
        }
    }
    faults
}

/// What work holds of a pool's capacity: devices that have failed and nodes that do not answer are held
/// and no part of it.
fn there(facts: &Facts<'_>, (work, workers): &(&Workload, Vec<Placed>), pool: &str) -> Exact {
    let of = |worker: &Placed| {
        let node = facts.nodes[worker.node.as_str()];
        if node.pool != pool || node.state == NodeState::Unreachable {
            return 0;
        }
        let sound = |device: &&PlacedDevice| !node.failed.contains(&device.index);
        let sum = |devices: &mut dyn Iterator<Item = &PlacedDevice>| {
            devices.map(|d| Exact::from(d.gpus.milli())).sum::<Exact>()
        };
        let all = sum(&mut worker.devices.iter());
        let left = sum(&mut worker.devices.iter().filter(sound));
        if all == left {
            facts.amount(work, worker)
        } else {
            facts.amount(work, worker) * left / all
        }
    };
    workers.iter().map(of).sum()
}

/// Work that may not be preempted starts in the guarantee only, unless the pool lets it borrow.
fn guarantee_only(facts: &Facts<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut left = before_moves(facts);
    let all = facts
        .kept
        .iter()
        .map(|k| (k, false))
        .chain(facts.starts.iter().map(|s| (s, true)));
    for ((work, workers), starts) in all {
        let own = facts.held(&vec![(*work, workers.clone())]);
        let team = facts.works[work.name.as_str()].team.as_str();
        for (&(holder, pool), &amount) in own.iter().filter(|((holder, _), _)| *holder == team) {
            let there = left.get(&(holder, pool)).copied().unwrap_or(0);
            let outside = there + amount > facts.guarantees[&(team, pool)];
            if amount > 0
                && outside
                && !facts.preemptible(work)
                && !facts.pools[pool].non_preemptible_borrowing
            {
                faults.push(format!(
                    "{} may not be preempted and starts outside the guarantee",
                    work.name
                ));
            }
        }
        if starts {
            // Elastic work begins with fewer workers, and comes to the rest as a borrower, after what is in guarantees.
            let begins = match work.min_workers {
                Some(least) if facts.preemptible(work) => workers.len().min(least as usize),
                _ => workers.len(),
            };
            let own = facts.held(&vec![(*work, workers[..begins].to_vec())]);
            for (key, amount) in own {
                *left.entry(key).or_default() += amount;
            }
        }
    }
    faults
}

/// What is held by who stays; who moves may count for more where it goes, and has not left when others
/// start.
fn before_moves<'w>(facts: &Facts<'w>) -> ByTeam<'w> {
    let mut held = ByTeam::new();
    for (work, workers) in &facts.remaining {
        let mut own = facts.held(&vec![(*work, workers.clone())]);
        if !work.placed.starts_with(workers) {
            let before = facts.held(&vec![(*work, work.placed.clone())]);
            for (key, amount) in &mut own {
                *amount = before.get(key).map_or(*amount, |was| (*was).min(*amount));
            }
        }
        for (key, amount) in own {
            *held.entry(key).or_default() += amount;
        }
    }
    held
}

/// Nothing starts of a team that a budget stopped.
fn stopped(facts: &Facts<'_>) -> Vec<String> {
    let halted: BTreeSet<&str> = facts
        .teams
        .values()
        .filter(|t| t.stopped == Stopped::All)
        .map(|t| t.name.as_str())
        .collect();
    let path = |team: &str| facts.path(facts.teams[team].name.as_str());
    let starts = facts
        .starts
        .iter()
        .filter(|(work, _)| path(&work.team).iter().any(|t| halted.contains(t)));
    starts
        .map(|(work, _)| {
            format!(
                "{} starts although a budget has stopped its team",
                work.name
            )
        })
        .collect()
}
