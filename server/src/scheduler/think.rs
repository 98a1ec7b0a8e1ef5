//! One thought: the engine's plan for a world, passed by the independent checker.

use std::collections::BTreeMap;

use engine::plan::Plan;
use engine::world::World;

use super::poison;

/// What came of planning.
#[derive(Debug, Clone)]
pub enum Thought {
    /// A plan that the checker passed, with the world that it was made for.
    Plan(Box<Plan>),
    /// The planner failed or its plan was refused; with the workload at fault, if it is one.
    Fault {
        /// The workload without which planning succeeds.
        culprit: Option<String>,
        /// What was wrong.
        messages: Vec<String>,
    },
}

impl Thought {
    /// Nothing was thought, for no workload's fault.
    pub fn failed(message: &str) -> Self {
        Self::Fault {
            culprit: None,
            messages: vec![message.to_owned()],
        }
    }
}

/// Plans. `preferred` names, for waiting workloads, the one node on which their checkpoints
/// lie: each is first planned as if it were pinned there, and without the pin when it could
/// not start so.
pub fn think(world: &World, preferred: &BTreeMap<String, String>) -> Thought {
    match attempt(world, preferred) {
        Ok(plan) => Thought::Plan(Box::new(plan)),
        Err(messages) => Thought::Fault {
            culprit: poison::culprit(world, |part| attempt(part, preferred).is_err()),
            messages,
        },
    }
}

/// A plan that the checker passed, or what was wrong.
fn attempt(world: &World, preferred: &BTreeMap<String, String>) -> Result<Plan, Vec<String>> {
    let run = std::panic::AssertUnwindSafe(|| checked(world, preferred, engine::plan));
    std::panic::catch_unwind(run).map_err(|panic| vec![words(&*panic)])?
}

/// What `plan` plans with preferences, if the checker passes it, or what is wrong with it.
pub(super) fn checked(
    world: &World,
    preferred: &BTreeMap<String, String>,
    plan: impl FnMut(&World) -> Plan,
) -> Result<Plan, Vec<String>> {
    let (planned_for, plan) = plan_with_preferences(world, preferred, plan);
    let violations = engine::check::violations(&planned_for, &plan);
    if violations.is_empty() {
        Ok(plan)
    } else {
        Err(violations)
    }
}

fn plan_with_preferences(
    world: &World,
    preferred: &BTreeMap<String, String>,
    mut plan: impl FnMut(&World) -> Plan,
) -> (World, Plan) {
    let mut pinned = world.clone();
    for work in &mut pinned.workloads {
        if work.node.is_none() {
            work.node = preferred.get(&work.name).cloned();
        }
    }
    let first = plan(&pinned);
    let helpless = |name: &str| first.start_of(name).is_none();
    if preferred.keys().all(|name| !helpless(name)) {
        return (pinned, first);
    }
    for (work, original) in pinned.workloads.iter_mut().zip(&world.workloads) {
        if helpless(&work.name) {
            work.node.clone_from(&original.node);
        }
    }
    let second = plan(&pinned);
    (pinned, second)
}

/// What a panic said.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the planner panicked".to_owned())
}
