//! The sentence that tells a verdict to people.

use std::collections::BTreeMap;
use std::rc::Rc;

use domain::words::{self, IS, counted, gpus, gpus_between};
use domain::{MilliCpu, MilliGpu};

use super::counts::{self, Host};
use super::{BOOKINGS, REPLICAS, Verdict, alone, remedies};
use crate::cycle::Cycle;
use crate::index::{Index, Need};
use crate::place;
use crate::plan::Code;
use crate::world::NodeState;

/// One factual sentence: what binds, what is needed at the least and at the most, what there is, and
/// which nodes are out.
pub(super) fn message(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    pool: Option<usize>,
    verdict: &Verdict,
    need: (MilliGpu, MilliGpu),
    have: MilliGpu,
    counts: &BTreeMap<String, u64>,
) -> String {
    let binding = for_want_of_host(cycle.index, work, pool, verdict.code, counts)
        .unwrap_or_else(|| binding(cycle.index, work, pool, verdict, need, have));
    let for_want_of_nodes = matches!(
        verdict.code,
        Code::Topology | Code::Fragmented | Code::PreemptionNotAllowed | Code::InsufficientCapacity
    );
    match pool.filter(|_| for_want_of_nodes) {
        Some(pool) => binding + &told_nodes_out(cycle, work, pool),
        None => binding,
    }
}

/// What is said of nodes that are out: the same for equal workers.
fn told_nodes_out(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize) -> Rc<str> {
    let index = cycle.index;
    let key = (pool, index.works[work].form);
    let out = cycle.counted.out.entry(key);
    Rc::clone(out.or_insert_with(|| nodes_out(index, work, pool).into()))
}

/// The nodes of a pool that would do but for their state, to be added to a sentence: whoever sees
/// many devices idle there would not believe that none is free.
fn nodes_out(index: &Index<'_>, work: usize, pool: usize) -> String {
    let (mut cordoned, mut draining, mut full, mut unreachable) = (0_u64, 0, 0, 0);
    for &node in &index.pools[pool].nodes {
        if place::fit(index, work, node, true).is_err() {
            continue;
        }
        match index.nodes[node].row.state {
            NodeState::Ready => {}
            NodeState::Cordoned => cordoned += 1,
            NodeState::Draining => draining += 1,
            NodeState::Unhealthy => full += 1,
            NodeState::Unreachable => unreachable += 1,
        }
    }
    let said: Vec<String> = [
        (cordoned, "cordoned"),
        (draining, "draining"),
        (full, "unhealthy"),
        (unreachable, "unreachable"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, state)| format!("{count} {state}"))
    .collect();
    let total = cordoned + draining + full + unreachable;
    match said.as_slice() {
        [] => String::new(),
        [one] => format!(
            "; not counting {one} {}",
            words::form(total, ("node", "nodes"))
        ),
        many => format!(
            "; not counting {} ({})",
            counted(total, "node"),
            many.join(", ")
        ),
    }
}

/// What binds where it is no device: too little else is free on the nodes, or none of them takes
/// work that needs no device.
fn for_want_of_host(
    index: &Index<'_>,
    work: usize,
    pool: Option<usize>,
    code: Code,
    counts: &BTreeMap<String, u64>,
) -> Option<String> {
    if !matches!(code, Code::Fragmented | Code::InsufficientCapacity) {
        return None;
    }
    let facts = &index.works[work];
    let pool = &index.pools[pool?].row.name;
    let each = match counts::host_binds(counts) {
        Some(Host::Cpus) => words::cpus(MilliCpu::from_milli(facts.cpus)),
        Some(Host::Memory) => format!("{} MiB of memory", facts.memory),
        None if facts.need == Need::Nothing => {
            return Some(format!(
                "no node of pool {pool} that could hold it takes work"
            ));
        }
        None => return None,
    };
    Some(format!(
        "each worker needs {each}, and no node of pool {pool} that could hold one has as much free"
    ))
}

/// What binds, what is needed, what there is.
fn binding(
    index: &Index<'_>,
    work: usize,
    told_pool: Option<usize>,
    verdict: &Verdict,
    need: (MilliGpu, MilliGpu),
    have: MilliGpu,
) -> String {
    let row = index.works[work].row;
    let (least, most) = need;
    let need = gpus_between(least, most);
    let are_free = format!("{have} {} free", words::form_of(have, IS));
    let never = || told_pool.map_or(String::new(), |pool| never(index, work, pool));
    let pool = told_pool.map_or("", |pool| index.pools[pool].row.name.as_str());
    let scope = &verdict.scope;
    match verdict.code {
        Code::Suspended => "it is suspended until somebody resumes it".to_owned(),
        Code::NotYet => format!("it is not to start before {scope}"),
        Code::Dependency => {
            let name = scope.strip_prefix("workload ").unwrap_or(scope);
            format!("it waits for job {name} to end well")
        }
        Code::PoolClosed => format!("nothing new starts in pool {pool}, which is closed"),
        Code::NeverFits => format!(
            "no node registered in pool {pool} could ever hold {} with {}",
            workers(row.workers_least()),
            gpus(least)
        ),
        Code::NoQuota => format!("{scope} has no quota in pool {pool}"),
        Code::NoSuchHardware => format!("pool {pool} has no node that offers {scope}"),
        Code::OverLimit if scope.starts_with(REPLICAS) => full(index, work, scope),
        Code::OverLimit | Code::AncestorOverLimit => {
            let limit = limit(scope);
            format!(
                "it needs {need}, and {limit} in pool {pool} leaves {have}{}",
                never()
            )
        }
        Code::NonPreemptibleOverGuarantee => format!(
            "it may not be preempted and so must fit in the guarantee: it needs {need}, {have} {} left of it{}",
            words::form_of(have, IS),
            never()
        ),
        Code::OverBudget => format!("a budget of {scope} has stopped such work"),
        Code::WaitingForVictims => {
            format!("room is kept for it in pool {pool} until those that make way have left")
        }
        Code::Topology => {
            let need = gpus(least);
            format!("there is room for {need} in pool {pool}, but not as {scope} demands")
        }
        Code::Fragmented => {
            format!(
                "{} {} free in pool {pool}, but not where {} could use {}",
                gpus(have),
                words::form_of(have, IS),
                workers(row.workers_least()),
                words::form_of(have, ("it", "them"))
            )
        }
        Code::PreemptionNotAllowed => {
            format!(
                "it needs {need}, {are_free} in pool {pool}, and policy keeps it from making room{}",
                rules(scope)
            )
        }
        Code::InsufficientCapacity => {
            format!("it needs {need}, and {are_free} in pool {pool}")
        }
        Code::HeldForReservation if scope.starts_with(BOOKINGS) => {
            format!("what is free in pool {pool} is booked for a time at which it would still run")
        }
        Code::HeldForReservation => format!("what is free in pool {pool} is kept for others"),
        Code::BehindInOrder => format!("what is free in pool {pool} goes to those before it"),
    }
}

/// A limit, in words.
fn limit(scope: &str) -> String {
    if let Some(team) = scope.strip_prefix("max_per_user of ") {
        format!("what one user of {team} may hold")
    } else if let Some(team) = scope.strip_prefix("lend_limit of ") {
        format!("what {team} lends")
    } else {
        scope.to_owned()
    }
}

/// The rules of policy that bind, in words, to be added to a sentence.
fn rules(scope: &str) -> String {
    let Some((keys, _)) = scope.split_once(" of pool ") else {
        return String::new();
    };
    let rule = |key| match key {
        "preemption.within_team" => "who gives way inside a team",
        "preemption.reclaim" => "who gives way to a guarantee",
        "preemption.across_borrowers" => "whether borrowers are evened out",
        "preemption.delay_seconds" => "how long work waits before it may displace others",
        "preemption.min_runtime_seconds" | "preemption.min_runtime_reclaim_seconds" => {
            "how long work is protected after its start"
        }
        "preemption.max_per_day" => "how often a job may be preempted in 24 hours",
        "preemption.max_per_team_hour" => "how many evictions a team may suffer in an hour",
        other => other,
    };
    let said: Vec<&str> = keys.split(", ").map(rule).collect();
    format!(" by {}", said.join(", and by "))
}

/// What is said of a replica whose service has as many as it may.
fn full(index: &Index<'_>, work: usize, scope: &str) -> String {
    let service = index.works[work].service;
    let most = service.map_or(0, |service| index.services[service].max_replicas);
    let most = counted(most.into(), "replica");
    format!("{scope} allows {most}, and it has no fewer")
}

/// What is added where no end of other work would bring it within its limits.
fn never(index: &Index<'_>, work: usize, pool: usize) -> String {
    match remedies::never(index, work, pool) {
        Some(most) => {
            let most = alone::legal(index, work, pool, most);
            let most = MilliGpu::from_milli(index.pools[pool].milli(most));
            format!("; as it is it can never start: its limits allow {most} at most")
        }
        None => String::new(),
    }
}

fn workers(count: u32) -> String {
    if count == 1 {
        "one worker".to_owned()
    } else {
        counted(count.into(), "worker")
    }
}
