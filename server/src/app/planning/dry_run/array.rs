//! What would happen to the elements of an array that was submitted now.

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::money::Money;
use domain::spec::Array;
use domain::words;
use engine::plan::Preemption;
use engine::world::{Workload, World};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Displaced, DryRun, DryRunVerdict, DryRunWorker, displaced, places, price};
use crate::app::AppError;
use crate::store::Tx;

/// Most elements that are planned: the form asks as it is filled in, and is answered at once.
const PLANNED_MAX: u32 = 1_000;

/// What would happen to the elements of an array.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DryRunArray {
    /// How many elements it has.
    pub count: u32,
    /// How many would start at once.
    pub starts: u32,
    /// How many would start when those whom they displace have left.
    pub waits_for_victims: u32,
    /// How many would wait for their place in the order, by cause; those that wait for the most first.
    pub waits: Vec<ElementsWaiting>,
    /// How many would wait since as many of the array hold places as `at_most` allows.
    pub held_by_at_most: u32,
    /// How many were not planned: of a large array the first 1,000 are.
    pub not_planned: u32,
    /// Where those would run that start at once, by node.
    pub nodes: Vec<ElementsOn>,
    /// What all that start at once cost per hour. Null where none does, and where no price covers it.
    pub cost_per_hour: Option<Money>,
    /// Where those would run that start at once.
    #[serde(skip)]
    placement: Vec<DryRunWorker>,
    #[serde(skip)]
    displaces: Displaced,
}

/// Elements that wait for one cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ElementsWaiting {
    /// The cause, by the code of an explanation.
    pub code: String,
    /// How many of them wait for it.
    pub elements: u32,
}

/// Elements that would run on one node; one of several workers counts on each node of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ElementsOn {
    /// The node.
    pub node: String,
    /// How many of them.
    pub elements: u32,
    /// What they would hold of it.
    pub gpus: MilliGpu,
}

/// What is asked about: one workload, or the elements of an array that may hold places, as far as
/// they are planned.
pub(super) fn elements(asked: Workload, array: Option<Array>) -> Vec<Workload> {
    let Some(array) = array else {
        return vec![asked];
    };
    // With leading zeros: the engine looks at equal work by name.
    let element = |index: u32| Workload {
        name: format!("{}.{index:05}", asked.name),
        ..asked.clone()
    };
    (0..planned(array)).map(element).collect()
}

fn planned(array: Array) -> u32 {
    may_start(array).min(PLANNED_MAX)
}

fn may_start(array: Array) -> u32 {
    array.at_most.unwrap_or(array.count).min(array.count)
}

/// What comes of all elements.
pub(super) fn told(
    world: &World,
    array: Array,
    outcomes: &[engine::DryRun],
    own_teams: &[String],
) -> DryRunArray {
    let mut placement = Vec::new();
    let mut nodes: BTreeMap<String, (u32, MilliGpu)> = BTreeMap::new();
    let mut waits: BTreeMap<String, u32> = BTreeMap::new();
    let (mut starts, mut waits_for_victims, mut moved) = (0, 0, 0);
    let mut victims: Vec<Preemption> = Vec::new();
    for outcome in outcomes {
        match outcome {
            engine::DryRun::Starts { start, .. } => {
                starts += 1;
                let workers = places(&start.placement);
                let mut here: BTreeMap<&str, MilliGpu> = BTreeMap::new();
                for worker in &workers {
                    *here.entry(&worker.node).or_default() +=
                        worker.devices.iter().map(|device| device.gpus).sum();
                }
                for (node, gpus) in here {
                    let on = nodes.entry(node.to_owned()).or_default();
                    on.0 += 1;
                    on.1 += gpus;
                }
                placement.extend(workers);
            }
            engine::DryRun::Displaces {
                victims: giving_way,
                movers,
                ..
            } => {
                waits_for_victims += 1;
                victims.extend(giving_way.iter().cloned());
                moved += u32::try_from(movers.len()).unwrap_or(u32::MAX);
            }
            engine::DryRun::Waits { waiting, .. } => {
                *waits.entry(waiting.code.as_str().to_owned()).or_default() += 1;
            }
        }
    }
    let mut displaces = displaced(world, &victims, own_teams);
    displaces.moved_jobs = moved;
    let mut waits: Vec<ElementsWaiting> = waits
        .into_iter()
        .map(|(code, elements)| ElementsWaiting { code, elements })
        .collect();
    waits.sort_by_key(|cause| std::cmp::Reverse(cause.elements));
    DryRunArray {
        count: array.count,
        starts,
        waits_for_victims,
        waits,
        held_by_at_most: array.count - may_start(array),
        not_planned: may_start(array) - planned(array),
        nodes: nodes
            .into_iter()
            .map(|(node, (elements, gpus))| ElementsOn {
                node,
                elements,
                gpus,
            })
            .collect(),
        cost_per_hour: None,
        placement,
        displaces,
    }
}

impl DryRunArray {
    /// Puts it into the answer, which is told of its first element so far.
    pub(super) fn tell(mut self, answer: &mut DryRun) {
        if answer.verdict != DryRunVerdict::Waits {
            let elements = words::counted(self.count.into(), "element");
            let at_once = format!("{} of {elements} would start at once", self.starts);
            answer.message = match self.waits_for_victims {
                0 => at_once,
                more => format!("{at_once}, and {more} {}", self.displaces.made_room()),
            };
        }
        answer.displaces = std::mem::take(&mut self.displaces);
        answer.array = Some(self);
    }

    /// Adds what those cost that would start at once.
    pub(super) async fn price(&mut self, tx: &mut Tx, world: &World) -> Result<(), AppError> {
        self.cost_per_hour = price::there(tx, world, &self.placement).await?;
        Ok(())
    }
}
