//! B4: a change comes into a full cluster, and a decision is made of it.

use std::collections::HashMap;
use std::time::Duration;

use engine::plan::Plan;
use engine::world::{Node, NodeState, Placed, Workload, WorkloadState, World};
use engine::{Planner, Shelf, cycles};

use crate::on_core;
use crate::worlds::{Draw, Scale, full, work};

/// Changes of each kind.
const CHANGES: usize = 200;

/// Rows that are lent to the planner.
#[derive(Default)]
pub struct Lent {
    works: Shelf<Workload>,
    nodes: Shelf<Node>,
}

/// A full cluster that goes on from change to change.
pub struct Cluster<'w> {
    planner: Planner<'w>,
    lent: &'w Lent,
    now: domain::Timestamp,
    works: HashMap<String, &'w Workload>,
    running: Vec<String>,
    nodes: Vec<&'w Node>,
    draw: Draw,
    starts: usize,
    victims: usize,
}

/// The cluster of B3 once its first plan is done.
pub fn settled(scale: Scale, seed: u64) -> World {
    let mut world = full(scale, seed);
    let made = engine::decide(&world);
    cycles::apply(&mut world, &made);
    world
}

impl<'w> Cluster<'w> {
    pub fn of(world: &'w World, lent: &'w Lent, seed: u64) -> Self {
        let running = world.workloads.iter();
        let running = running.filter(|w| w.state == WorkloadState::Running);
        let mut cluster = Self {
            planner: Planner::of(world),
            lent,
            now: world.now,
            works: world
                .workloads
                .iter()
                .map(|w| (w.name.clone(), w))
                .collect(),
            running: running.map(|w| w.name.clone()).collect(),
            nodes: world.nodes.iter().collect(),
            draw: Draw::seeded(seed),
            starts: 0,
            victims: 0,
        };
        let first = cluster.planner.decide();
        cluster.follow(&first);
        cluster
    }

    pub fn planner(&mut self) -> &mut Planner<'w> {
        &mut self.planner
    }

    fn take(&mut self, row: Workload) {
        let row = self.lent.works.put(row);
        self.works.insert(row.name.clone(), row);
        self.planner.take(row);
    }

    /// Does what a plan says.
    fn follow(&mut self, plan: &Plan) {
        for start in &plan.starts {
            let mut row = self.works[&start.workload].clone();
            row.state = WorkloadState::Running;
            row.started = Some(self.now);
            row.nominated = None;
            row.placed = start.placement.iter().map(Placed::from).collect();
            self.running.push(row.name.clone());
            self.take(row);
        }
        self.starts += plan.starts.len();
        self.victims += plan.preemptions.len();
    }

    fn ends(&mut self) {
        let at = self.draw.below(self.running.len() as u64) as usize;
        let name = self.running.swap_remove(at);
        self.planner.end(&name);
    }

    fn comes(&mut self, number: usize) {
        let team = self.draw.below(196) as usize;
        let name = format!("y{number:07}");
        let fresh = work(&name, team, &mut self.draw);
        self.take(fresh);
    }

    fn falls(&mut self) {
        let at = self.draw.below(self.nodes.len() as u64) as usize;
        let mut row = self.nodes[at].clone();
        row.state = NodeState::Unreachable;
        let row = self.lent.nodes.put(row);
        self.nodes[at] = row;
        self.planner.take_node(row);
    }

    fn times(&mut self, mut change: impl FnMut(&mut Self, usize)) -> Vec<Duration> {
        (0..CHANGES)
            .map(|number| {
                let begun = on_core();
                change(self, number);
                let plan = self.planner.decide();
                let took = on_core() - begun;
                self.follow(&plan);
                took
            })
            .collect()
    }

    /// Tells how long decisions take after each kind of change.
    pub fn tell(&mut self) {
        self.tell_of("a job ends", |this, _| this.ends());
        self.tell_of("a job is submitted", Self::comes);
        self.tell_of("a node is lost", |this, _| this.falls());
    }

    fn tell_of(&mut self, kind: &str, change: impl FnMut(&mut Self, usize)) {
        (self.starts, self.victims) = (0, 0);
        let mut times = self.times(change);
        times.sort_unstable();
        println!(
            "B4 {kind}: median {:.2} ms, 99th {:.2} ms of {CHANGES} ({} start, {} preempted, {} times anew)",
            millis(times[CHANGES / 2]),
            millis(times[CHANGES * 99 / 100]),
            self.starts,
            self.victims,
            self.planner.renewed(),
        );
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
