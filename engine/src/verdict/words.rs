//! The sentence that tells a verdict to people.

use domain::MilliGpu;

use super::Verdict;
use crate::index::Index;
use crate::plan::Code;

/// One factual sentence: what binds, what is needed, what there is.
pub(super) fn message(
    index: &Index<'_>,
    work: usize,
    pool: Option<usize>,
    verdict: &Verdict,
    need: MilliGpu,
    have: MilliGpu,
) -> String {
    let row = index.works[work].row;
    let pool = pool.map_or("", |pool| index.pools[pool].row.name.as_str());
    let scope = &verdict.scope;
    match verdict.code {
        Code::Suspended => "it is suspended until somebody resumes it".to_owned(),
        Code::NotYet => format!("it is not to start before {scope}"),
        Code::Dependency => format!("it waits for {scope} to end well"),
        Code::PoolClosed => format!("nothing new starts in pool {pool}, which is closed"),
        Code::NeverFits => format!(
            "no node registered in pool {pool} could ever hold {} with {need} GPUs",
            workers(row.workers_least())
        ),
        Code::NoQuota => format!("{scope} has no quota in pool {pool}"),
        Code::NoSuchHardware => format!("pool {pool} has no node that offers {scope}"),
        Code::OverLimit | Code::AncestorOverLimit => {
            format!("it needs {need} GPUs, and {scope} in pool {pool} leaves {have}")
        }
        Code::NonPreemptibleOverGuarantee => format!(
            "it may not be preempted and so must fit in the guarantee: it needs {need} GPUs, {have} are left of it"
        ),
        Code::OverBudget => format!("a budget of {scope} has stopped such work"),
        Code::WaitingForVictims => {
            format!("room is kept for it in pool {pool} until those that make way have left")
        }
        Code::Topology => {
            format!("there is room for {need} GPUs in pool {pool}, but not as {scope} demands")
        }
        Code::Fragmented => {
            format!(
                "{have} GPUs are free in pool {pool}, but not where {} could use them",
                workers(row.workers_least())
            )
        }
        Code::PreemptionNotAllowed => {
            format!(
                "it needs {need} GPUs, {have} are free in pool {pool}, and policy keeps it from making room"
            )
        }
        Code::InsufficientCapacity => {
            format!("it needs {need} GPUs, and {have} are free in pool {pool}")
        }
        Code::HeldForReservation => format!("what is free in pool {pool} is kept for others"),
        Code::BehindInOrder => format!("what is free in pool {pool} goes to those before it"),
    }
}

fn workers(count: u32) -> String {
    if count == 1 {
        "one worker".to_owned()
    } else {
        format!("{count} workers")
    }
}
