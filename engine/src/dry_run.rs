//! What would come of a workload that is not submitted yet; nothing is changed.

use crate::cycle::plan;
use crate::plan::{Nomination, Preemption, Start, Waiting};
use crate::world::{Workload, WorkloadState, World};

/// The outcome for the workload, were it in the world now.
#[derive(Debug, Clone, PartialEq)]
pub enum DryRun {
    /// It would start.
    Starts(Start),
    /// It would get its room once these have left.
    Displaces {
        /// Where it would run.
        nomination: Nomination,
        /// Who would give way.
        victims: Vec<Preemption>,
        /// The verdict until then.
        waiting: Waiting,
    },
    /// It would wait.
    Waits(Waiting),
}

/// Plans a world with one workload more. A name that the world has already is replaced.
pub fn dry_run(world: &World, workload: Workload) -> DryRun {
    let mut trial = world.clone();
    let name = workload.name.clone();
    trial.workloads.retain(|w| w.name != name);
    trial.workloads.push(Workload {
        state: WorkloadState::Waiting,
        placed: Vec::new(),
        ..workload
    });
    let mut plan = plan(&trial);
    if let Some(at) = plan.starts.iter().position(|s| s.workload == name) {
        return DryRun::Starts(plan.starts.swap_remove(at));
    }
    let waiting = plan.waiting.iter().position(|w| w.workload == name);
    let waiting = plan
        .waiting
        .swap_remove(waiting.expect("what waits and does not start has a verdict"));
    match plan.nominations.iter().position(|n| n.workload == name) {
        Some(at) => {
            let mut victims = plan.preemptions;
            victims.retain(|p| p.gainer.as_deref() == Some(&name));
            DryRun::Displaces {
                nomination: plan.nominations.swap_remove(at),
                victims,
                waiting,
            }
        }
        None => DryRun::Waits(waiting),
    }
}
