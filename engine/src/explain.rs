//! Why one workload waits: the verdict of a whole cycle, so that it is never another than the plan's.

use crate::cycle::plan;
use crate::plan::Waiting;
use crate::world::World;

/// The verdict on one workload; `None` when it runs, starts in this cycle, or is not there.
pub fn explain(world: &World, workload: &str) -> Option<Waiting> {
    plan(world)
        .waiting
        .into_iter()
        .find(|waiting| waiting.workload == workload)
}
