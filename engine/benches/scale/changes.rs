//! B4: a change comes into a full cluster, and a decision is made of it.

use std::collections::HashMap;
use std::time::Duration;

use chrono::TimeDelta;
use engine::plan::Plan;
use engine::world::{Node, NodeState, Placed, Workload, WorkloadState, World};
use engine::{Planner, Shelf, cycles};

use crate::on_core;
use crate::worlds::{Draw, Scale, full, work};

/// Changes of each kind.
const CHANGES: usize = 200;
/// The same where all verdicts are told after each, which costs a hundred times as much.
const CHANGES_EXPLAINED: usize = 20;
/// Changes of each kind of which a sum is made.
const CHANGES_SUMMED: usize = 40;
/// What passes from one change to the next: some seventy jobs a second end in such a cluster.
const MILLIS_EACH: i64 = 14;

/// What is asked for after a change.
#[derive(Clone, Copy)]
enum Says {
    Decisions,
    Verdicts,
}

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
    /// How much has been submitted.
    came: usize,
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
            came: 0,
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

    fn comes(&mut self) {
        self.came += 1;
        let team = self.draw.below(196) as usize;
        let name = format!("y{:07}", self.came);
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

    fn times(&mut self, says: Says, count: usize, change: fn(&mut Self)) -> Vec<Duration> {
        (0..count)
            .map(|_| {
                self.now += TimeDelta::milliseconds(MILLIS_EACH);
                let begun = on_core();
                self.planner.turn(self.now);
                change(self);
                let plan = match says {
                    Says::Decisions => self.planner.decide(),
                    Says::Verdicts => self.planner.plan(),
                };
                let took = on_core() - begun;
                self.follow(&plan);
                took
            })
            .collect()
    }

    /// A number of all that is planned from change to change.
    pub fn sum(&mut self) -> u64 {
        let mut all = 0_u64;
        for change in [Self::ends, Self::comes, Self::falls] {
            for at in 0..CHANGES_SUMMED {
                self.now += TimeDelta::seconds(1);
                self.planner.turn(self.now);
                change(self);
                let plan = if at % 8 == 0 {
                    self.planner.plan()
                } else {
                    self.planner.decide()
                };
                all = all.rotate_left(1) ^ crate::sum(&plan);
                self.follow(&plan);
            }
        }
        all
    }

    /// Tells how long decisions take after each kind of change, and how long with all verdicts.
    pub fn tell(&mut self) {
        for (says, count) in [
            (Says::Decisions, CHANGES),
            (Says::Verdicts, CHANGES_EXPLAINED),
        ] {
            self.tell_of("a job ends", says, count, Self::ends);
            self.tell_of("a job is submitted", says, count, Self::comes);
            self.tell_of("a node is lost", says, count, Self::falls);
        }
    }

    fn tell_of(&mut self, kind: &str, says: Says, count: usize, change: fn(&mut Self)) {
        (self.starts, self.victims) = (0, 0);
        let mut times = self.times(says, count, change);
        times.sort_unstable();
        let told = match says {
            Says::Decisions => "",
            Says::Verdicts => ", all verdicts told",
        };
        println!(
            "B4 {kind}{told}: p50 {:.2} ms, p99 {:.2} ms of {count} ({} start, {} preempted, {} times anew)",
            millis(times[count / 2]),
            millis(times[count * 99 / 100]),
            self.starts,
            self.victims,
            self.planner.renewed(),
        );
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
