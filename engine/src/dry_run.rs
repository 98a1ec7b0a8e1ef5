//! What would come of a workload that is not submitted yet; nothing is changed.

use crate::cycle::{plan, slice_changes};
use crate::plan::{Migration, Nomination, Preemption, Reservation, SliceChange, Start, Waiting};
use crate::world::{Workload, WorkloadState, World};

/// The outcome for the workload, were it in the world now.
#[derive(Debug, Clone, PartialEq)]
pub enum DryRun {
    /// It would start.
    Starts {
        /// Where.
        start: Start,
        /// What would be changed on its devices.
        slices: Vec<SliceChange>,
    },
    /// It would get its room once these have left.
    Displaces {
        /// Where it would run.
        nomination: Nomination,
        /// What would be changed on its devices once they are free.
        slices: Vec<SliceChange>,
        /// Who would give way.
        victims: Vec<Preemption>,
        /// Who would move elsewhere.
        movers: Vec<Migration>,
        /// The verdict until then.
        waiting: Waiting,
    },
    /// It would wait.
    Waits {
        /// The verdict.
        waiting: Waiting,
        /// The start that would be kept for it.
        reservation: Option<Reservation>,
    },
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
        let start = plan.starts.swap_remove(at);
        let slices = slice_changes(&trial, &start);
        return DryRun::Starts { start, slices };
    }
    let waiting = plan.waiting.iter().position(|w| w.workload == name);
    let waiting = plan
        .waiting
        .swap_remove(waiting.expect("what waits and does not start has a verdict"));
    match plan.nominations.iter().position(|n| n.workload == name) {
        Some(at) => {
            let mut victims = plan.preemptions;
            victims.retain(|p| p.gainer.as_deref() == Some(&name));
            let mut movers = plan.migrations;
            movers.retain(|m| m.gainer.as_deref() == Some(&name));
            let nomination = plan.nominations.swap_remove(at);
            let start = Start {
                workload: name,
                workers: u32::try_from(nomination.placement.len()).unwrap_or(u32::MAX),
                placement: nomination.placement.clone(),
            };
            DryRun::Displaces {
                slices: slice_changes(&trial, &start),
                nomination,
                victims,
                movers,
                waiting,
            }
        }
        None => {
            let kept = plan.reservations.into_iter().find(|r| r.workload == name);
            DryRun::Waits {
                waiting,
                reservation: kept,
            }
        }
    }
}
