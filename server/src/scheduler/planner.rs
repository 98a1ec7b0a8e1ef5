//! The leader's planner: a world that is kept between plans, and taken in anew on any doubt.
//!
//! It has a thread of its own, since what it keeps borrows from rows that it holds. Each plan is told
//! the world as it is; what is otherwise than in the one before is handed on, and the rest stays. The
//! checker passes every plan; where it refuses one of a kept world, or the planner fails on it, the
//! plan is made of a fresh one, as [`think`] does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use engine::Shelf;
use engine::plan::Plan;
use engine::world::{Node, Past, Team, Workload, World};
use tokio::sync::oneshot;

use super::think::{Thought, checked, think};

/// Changed rows that are kept before the world is taken in anew: what a planner borrows stays until
/// then, and as much again as the world itself may stay without filling the memory.
const LENT_MIN: usize = 10_000;

/// A planner that keeps its world.
#[derive(Debug)]
pub struct Planner {
    asks: Sender<Ask>,
    taken_in: Arc<AtomicU64>,
}

/// Waiting workloads with the one node on which their checkpoints lie.
type Preferred = BTreeMap<String, String>;

struct Ask {
    world: Arc<World>,
    preferred: Preferred,
    answer: oneshot::Sender<Thought>,
}

impl Planner {
    /// Starts it; it ends when it is dropped.
    pub fn start() -> std::io::Result<Self> {
        let (asks, waiting) = channel();
        let taken_in = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&taken_in);
        std::thread::Builder::new()
            .name("planner".to_owned())
            .spawn(move || run(&waiting, &counted))?;
        Ok(Self { asks, taken_in })
    }

    /// Plans, as [`think`] does.
    pub async fn think(&self, world: Arc<World>, preferred: Preferred) -> Thought {
        let (answer, thought) = oneshot::channel();
        let ask = Ask {
            world,
            preferred,
            answer,
        };
        let gone = |_| Thought::failed("the planner's thread has ended");
        if self.asks.send(ask).is_err() {
            return gone(());
        }
        thought.await.unwrap_or_else(|_| gone(()))
    }

    /// How often a world was taken in anew.
    pub fn taken_in(&self) -> u64 {
        self.taken_in.load(Ordering::Relaxed)
    }
}

fn run(asks: &Receiver<Ask>, taken_in: &AtomicU64) {
    let mut next = asks.recv().ok();
    while let Some(ask) = next {
        taken_in.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("allotment_scheduler_worlds_taken_in_total").increment(1);
        next = keep(ask, asks);
    }
}

/// Takes a world in and answers for as long as it can be kept; the next to be answered.
fn keep(first: Ask, asks: &Receiver<Ask>) -> Option<Ask> {
    let world = World::clone(&first.world);
    let lent = Lent::default();
    let mut kept = Kept {
        planner: engine::Planner::of(&world),
        known: world.clone(),
        lent: &lent,
    };
    let lent_max = LENT_MIN.max(world.workloads.len());
    let mut ask = first;
    loop {
        let run = std::panic::AssertUnwindSafe(|| kept.answer(&ask.world, &ask.preferred));
        let planned = std::panic::catch_unwind(run);
        let doubtful = !matches!(planned, Ok(Some(_)));
        let thought = match planned {
            Ok(Some(plan)) => Thought::Plan(Box::new(plan)),
            Ok(None) | Err(_) => {
                metrics::counter!("allotment_scheduler_kept_refused_total").increment(1);
                tracing::error!("a plan of a kept world was refused; it is made of a fresh one");
                think(&ask.world, &ask.preferred)
            }
        };
        // Who asked may have gone.
        let _ = ask.answer.send(thought);
        ask = asks.recv().ok()?;
        if doubtful || lent.len() > lent_max || !follows(&kept.known, &ask.world) {
            return Some(ask);
        }
    }
}

/// Rows that were lent to a planner.
#[derive(Default)]
struct Lent {
    works: Shelf<Workload>,
    nodes: Shelf<Node>,
    teams: Shelf<Team>,
    histories: Shelf<Vec<Past>>,
}

impl Lent {
    fn len(&self) -> usize {
        let past = self.histories.len() * engine::world::PASTS_MAX;
        self.works.len() + self.nodes.len() + self.teams.len() + past
    }
}

/// A world in mind, and what it was last told.
struct Kept<'w> {
    planner: engine::Planner<'w>,
    known: World,
    lent: &'w Lent,
}

impl<'w> Kept<'w> {
    /// A plan that the checker passed; nothing where it did not.
    fn answer(&mut self, world: &World, preferred: &Preferred) -> Option<Plan> {
        let plan = |world: &World| {
            self.tell(world);
            self.planner.plan()
        };
        checked(world, preferred, plan).ok()
    }

    /// Tells the planner all that is otherwise.
    fn tell(&mut self, world: &World) {
        let before = std::mem::replace(&mut self.known, world.clone());
        let (planner, lent) = (&mut self.planner, self.lent);
        planner.turn(world.now);
        let (there, here) = (
            by_name(&before.workloads, |work| &work.name),
            by_name(&world.workloads, |work| &work.name),
        );
        for name in there.keys().filter(|name| !here.contains_key(*name)) {
            planner.end(name);
        }
        for work in otherwise(&there, &here) {
            planner.take(lent.works.put(work.clone()));
        }
        let there = by_name(&before.nodes, |node| &node.name);
        for node in otherwise(&there, &by_name(&world.nodes, |node| &node.name)) {
            planner.take_node(lent.nodes.put(node.clone()));
        }
        let there = by_name(&before.teams, |team| &team.name);
        for team in otherwise(&there, &by_name(&world.teams, |team| &team.name)) {
            planner.take_team(lent.teams.put(team.clone()));
        }
        if before.history != world.history {
            planner.remember(lent.histories.put(world.history.clone()));
        }
    }
}

fn by_name<T>(rows: &[T], name: fn(&T) -> &str) -> BTreeMap<&str, &T> {
    rows.iter().map(|row| (name(row), row)).collect()
}

/// Those that are new or were otherwise, by name.
fn otherwise<'r, T: PartialEq>(
    there: &'r BTreeMap<&str, &T>,
    here: &'r BTreeMap<&str, &'r T>,
) -> impl Iterator<Item = &'r T> {
    let new = here
        .iter()
        .filter(|(name, row)| there.get(*name) != Some(row));
    new.map(|(_, row)| *row)
}

/// Whether a kept world can follow to another: the same rules, machines and teams, though each machine
/// and each team may be in another state.
fn follows(before: &World, after: &World) -> bool {
    let nodes = |world: &World| -> BTreeSet<String> {
        world.nodes.iter().map(|node| node.name.clone()).collect()
    };
    let teams = |world: &World| -> BTreeSet<(String, Option<String>)> {
        let teams = world.teams.iter();
        teams.map(|t| (t.name.clone(), t.parent.clone())).collect()
    };
    before.pools == after.pools
        && before.classes == after.classes
        && before.services == after.services
        && before.bookings == after.bookings
        && before.cycle_seconds == after.cycle_seconds
        && nodes(before) == nodes(after)
        && teams(before) == teams(after)
}

#[cfg(test)]
mod tests {
    use engine::rig::{Rig, noon};
    use engine::world::WorkloadState;

    use super::*;

    fn plan_of(thought: Thought) -> Plan {
        match thought {
            Thought::Plan(plan) => *plan,
            Thought::Fault { messages, .. } => panic!("{messages:?}"),
        }
    }

    #[tokio::test]
    async fn a_kept_world_plans_as_a_fresh_one_and_is_taken_in_anew_for_another_policy() {
        let planner = Planner::start().expect("a thread");
        let mut world = Rig::new().nodes(2, 4).team("t", 8).world().clone();
        for number in 0..30 {
            let mut work = Workload::waiting(&format!("j{number:02}"), "t", 1 + number % 3, noon());
            work.class = "normal".to_owned();
            world.workloads.push(work);
            let preferred = Preferred::from([("j04".to_owned(), "n2".to_owned())]);
            let asked = planner.think(Arc::new(world.clone()), preferred.clone());
            let plan = plan_of(asked.await);
            assert_eq!(plan, plan_of(think(&world, &preferred)), "after {number}");
            engine::cycles::apply(&mut world, &plan);
            engine::cycles::advance(&mut world, None);
            if number % 4 == 3 {
                let running = |work: &Workload| work.state == WorkloadState::Running;
                let first = world.workloads.iter().position(running);
                world.workloads.remove(first.expect("one runs"));
            }
        }
        assert_eq!(planner.taken_in(), 1);
        world.pools[0].backfill = engine::world::Backfill::Conservative;
        let asked = planner.think(Arc::new(world.clone()), Preferred::new());
        assert_eq!(
            plan_of(asked.await),
            plan_of(think(&world, &Preferred::new()))
        );
        assert_eq!(planner.taken_in(), 2);
    }
}
