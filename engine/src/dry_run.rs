//! What would come of a workload that is not submitted yet; nothing is changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::cycle::{plan, slice_changes};
use crate::cycles;
use crate::plan::{
    Migration, Nomination, Plan, Preemption, Reservation, SliceChange, Start, Waiting,
};
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
    /// It would get its room once these have left; nobody gives way to one that starts in what the
    /// victims of others asked about leave over.
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
    dry_runs(world, vec![workload])
        .pop()
        .expect("one was asked about, and one is answered")
}

/// Plans a world with several workloads more, as if they were submitted together: the outcome of
/// each, in the order in which they are given.
pub fn dry_runs(world: &World, workloads: Vec<Workload>) -> Vec<DryRun> {
    let names: Vec<String> = workloads.iter().map(|w| w.name.clone()).collect();
    let mut trial = world.clone();
    let replaced: BTreeSet<&String> = names.iter().collect();
    trial.workloads.retain(|w| !replaced.contains(&w.name));
    let waiting = workloads.into_iter().map(|workload| Workload {
        state: WorkloadState::Waiting,
        placed: Vec::new(),
        ..workload
    });
    trial.workloads.extend(waiting);
    let plan = plan(&trial);
    let found = Found::of(&plan);
    let mut outcomes: Vec<DryRun> = names
        .iter()
        .map(|name| found.outcome(&trial, name))
        .collect();
    let displaces = |outcome: &DryRun| matches!(outcome, DryRun::Displaces { .. });
    let waits = |outcome: &DryRun| matches!(outcome, DryRun::Waits { .. });
    if outcomes.iter().any(displaces) && outcomes.iter().any(waits) {
        follow(&trial, &names, &mut outcomes);
    }
    outcomes
}

/// Who waits and starts beside those whose victims have left.
fn follow(trial: &World, names: &[String], outcomes: &mut [DryRun]) {
    let stages = cycles::until_left(trial.clone(), &BTreeSet::new());
    let later = stages.iter().skip(1);
    let starts: BTreeMap<&str, &Start> = later
        .flat_map(|stage| &stage.plan.starts)
        .map(|start| (start.workload.as_str(), start))
        .collect();
    for (name, outcome) in names.iter().zip(outcomes) {
        if let DryRun::Waits { waiting, .. } = outcome
            && let Some(start) = starts.get(name.as_str())
        {
            *outcome = DryRun::Displaces {
                nomination: Nomination {
                    workload: name.clone(),
                    placement: start.placement.clone(),
                    waits_for: Vec::new(),
                },
                slices: slice_changes(trial, start),
                victims: Vec::new(),
                movers: Vec::new(),
                waiting: waiting.clone(),
            };
        }
    }
}

/// A plan by the names of workloads.
struct Found<'p> {
    plan: &'p Plan,
    starts: BTreeMap<&'p str, &'p Start>,
    waiting: BTreeMap<&'p str, &'p Waiting>,
    nominations: BTreeMap<&'p str, &'p Nomination>,
    reservations: BTreeMap<&'p str, &'p Reservation>,
}

impl<'p> Found<'p> {
    fn of(plan: &'p Plan) -> Self {
        Self {
            plan,
            starts: named(&plan.starts, |s| &s.workload),
            waiting: named(&plan.waiting, |w| &w.workload),
            nominations: named(&plan.nominations, |n| &n.workload),
            reservations: named(&plan.reservations, |r| &r.workload),
        }
    }

    fn outcome(&self, trial: &World, name: &str) -> DryRun {
        if let Some(start) = self.starts.get(name) {
            return DryRun::Starts {
                start: (*start).clone(),
                slices: slice_changes(trial, start),
            };
        }
        let waiting = self.waiting.get(name);
        let waiting = waiting.expect("what waits and does not start has a verdict");
        let waiting = (*waiting).clone();
        let Some(nomination) = self.nominations.get(name) else {
            return DryRun::Waits {
                waiting,
                reservation: self.reservations.get(name).map(|kept| (*kept).clone()),
            };
        };
        let victims = self.plan.preemptions.iter();
        let movers = self.plan.migrations.iter();
        let start = Start {
            workload: name.to_owned(),
            workers: u32::try_from(nomination.placement.len()).unwrap_or(u32::MAX),
            placement: nomination.placement.clone(),
        };
        DryRun::Displaces {
            slices: slice_changes(trial, &start),
            nomination: (*nomination).clone(),
            victims: victims
                .filter(|p| p.gainer.as_deref() == Some(name))
                .cloned()
                .collect(),
            movers: movers
                .filter(|m| m.gainer.as_deref() == Some(name))
                .cloned()
                .collect(),
            waiting,
        }
    }
}

fn named<T>(all: &[T], name: impl Fn(&T) -> &String) -> BTreeMap<&str, &T> {
    all.iter().map(|one| (name(one).as_str(), one)).collect()
}
