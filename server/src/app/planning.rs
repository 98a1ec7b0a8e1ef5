//! What the planner would do, asked without doing it: dry runs, explanations, and the live world on paper.

mod accuracy;
mod dry_run;
mod explain;
mod price;

use chrono::TimeDelta;
use domain::MilliGpu;
use domain::ids::UserId;
use domain::name::Name;
use domain::spec::JobSpec;
use engine::world::{Workload, WorkloadState, World};

use super::authorise::{Action, Target, authorise};
use super::questions::live;
use super::{App, AppError, Asker};
use crate::scheduler::{capable, translate};

pub(super) use accuracy::of_pool as accuracy_of;
pub use accuracy::{Accuracy, LastEstimates};
pub use dry_run::{
    Displaced, DryRun, DryRunArray, DryRunDevice, DryRunInstance, DryRunSlices, DryRunVerdict,
    DryRunWorker, ElementsOn, ElementsWaiting, Refusal, dry_run,
};
pub use explain::{Ended, Evidence, Explanation, Holders, evidence, explain};
pub use price::CostThere;

/// The name of a workload that is asked about and not submitted; no id looks like it.
const ASKED: &str = "dry-run";

/// A spec of a user as a workload that somebody asks about.
pub(super) fn workload(world: &World, team: &str, user: UserId, spec: &JobSpec) -> Workload {
    translate::waiting(
        ASKED.to_owned(),
        team,
        user.to_string(),
        spec,
        &capable::roots(&world.nodes),
        world.now,
    )
}

/// What the work on a node holds of it, by what a drain does to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// Held by preemptible work, which is placed elsewhere.
    pub moves: MilliGpu,
    /// Held by the rest, which ends by itself.
    pub stays: MilliGpu,
}

/// What a drain of a node would move, and what it would leave.
pub async fn leaving(app: &App, asker: &Asker, node: &Name) -> Result<Leaving, AppError> {
    authorise(asker, Action::DrainNode, Target::Platform)?;
    let world = live(app).await?;
    let mut sum = Leaving {
        moves: MilliGpu::ZERO,
        stays: MilliGpu::ZERO,
    };
    for work in &world.workloads {
        let class = world.classes.iter().find(|class| class.name == work.class);
        let moves = work
            .preemptible
            .unwrap_or_else(|| class.is_some_and(|class| class.preemptible));
        let here = work.placed.iter().filter(|p| p.node == node.as_str());
        let held: MilliGpu = here.flat_map(|p| &p.devices).map(|d| d.gpus).sum();
        *(if moves {
            &mut sum.moves
        } else {
            &mut sum.stays
        }) += held;
    }
    Ok(sum)
}

/// The live world as a scenario file: teams, pools, classes and nodes by their names, which are
/// unique; workloads and users by their ids.
pub async fn scenario(app: &App, asker: &Asker) -> Result<String, AppError> {
    authorise(asker, Action::GetScenario, Target::Platform)?;
    let mut world = live(app).await?;
    about_to_end(&mut world);
    Ok(engine::scenario::write(&world))
}

/// No file says of running work that it holds other devices than it asks for, as it does while its end is
/// recorded because a device was replaced under it or its spec cannot be read: it is told to leave.
fn about_to_end(world: &mut World) {
    let soon = world.now + TimeDelta::seconds(1);
    for work in &mut world.workloads {
        let each = work.devices_each();
        let other = work.placed.iter().any(|p| p.devices.len() != each);
        if other && work.state == WorkloadState::Running {
            (work.state, work.leaves_at) = (WorkloadState::Leaving, Some(soon));
        }
    }
}
