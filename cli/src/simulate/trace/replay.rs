//! The virtual clock: from one event to the next, with a cycle of the engine at each.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use chrono::TimeDelta;
use domain::{MilliGpu, Timestamp};
use engine::plan::Plan;
use engine::world::{Quota, Team, Workload, WorkloadState, World};

use super::measure::{Measure, Report};
use super::{Job, Trace};

/// What is left to run of a job that is in the world.
struct Life {
    left_seconds: i64,
    /// When the run began that goes on; nothing while it does not run.
    began: Option<Timestamp>,
    /// Whether it ran before, so that it pays for a restart.
    interrupted: bool,
}

/// Replays a trace and measures it.
pub fn run(trace: Trace, until: Option<i64>) -> Report {
    let Trace {
        mut world,
        mut jobs,
        one_queue,
    } = trace;
    let last = until.map(|seconds| world.now + TimeDelta::seconds(seconds));
    let mut measure = Measure::of(&world, &jobs);
    if one_queue {
        merge(&mut world, &mut jobs);
    }
    for work in &world.workloads {
        measure.comes(work, world.now, left(&BTreeMap::new(), work, world.now));
    }
    let mut lives: BTreeMap<String, Life> = BTreeMap::new();
    let mut ends: BinaryHeap<Reverse<(Timestamp, String)>> = BinaryHeap::new();
    let mut coming = jobs.iter().peekable();
    loop {
        while let Some(job) = coming.next_if(|job| job.work.submitted <= world.now) {
            measure.comes(&job.work, world.now, job.run_seconds);
            arrive(&mut world, &mut lives, job);
        }
        let plan = engine::decide(&world);
        follow(&mut world, &mut lives, &mut ends, &plan);
        engine::cycles::apply(&mut world, &plan);
        measure.planned(&world, &plan);
        let arrival = coming.peek().map(|job| job.work.submitted);
        let Some(next) = next_event(&world, &ends, &lives, &plan, arrival) else {
            break;
        };
        let next = next.max(world.now + TimeDelta::seconds(1));
        if let Some(last) = last.filter(|last| next > *last) {
            measure.pass(&world, last, &|work, at| left(&lives, work, at));
            world.now = last;
            break;
        }
        measure.pass(&world, next, &|work, at| left(&lives, work, at));
        world.now = next;
        leave(&mut world);
        end(&mut world, &mut lives, &mut ends, &mut measure);
    }
    measure.report(&world)
}

/// One team that is guaranteed everything in place of all: its work is in one queue, by time of submission.
fn merge(world: &mut World, jobs: &mut [Job]) {
    const ONE: &str = "all";
    let mut one = Team::new(ONE);
    for pool in &world.pools {
        let here = world.nodes.iter().filter(|node| node.pool == pool.name);
        let gpus = here.map(|node| i64::from(node.gpus)).sum();
        one = one.quota(&pool.name, Quota::guaranteed(MilliGpu::whole(gpus)));
    }
    world.teams = vec![one];
    // They are of teams that are not there any more.
    world.services.clear();
    world.bookings.clear();
    let works = world.workloads.iter_mut();
    for work in works.chain(jobs.iter_mut().map(|job| &mut job.work)) {
        ONE.clone_into(&mut work.team);
        work.service = None;
    }
}

/// The seconds that are left of a workload's run at some moment.
fn left(lives: &BTreeMap<String, Life>, work: &Workload, at: Timestamp) -> i64 {
    match lives.get(&work.name) {
        Some(life) => {
            let ran = life.began.map_or(0, |began| (at - began).num_seconds());
            life.left_seconds - ran
        }
        None if work.placed.is_empty() => work.length_seconds().unwrap_or(i64::MAX),
        None => given_end(work).map_or(i64::MAX, |end| (end - at).num_seconds()),
    }
}

fn arrive(world: &mut World, lives: &mut BTreeMap<String, Life>, job: &Job) {
    let life = Life {
        left_seconds: job.run_seconds,
        began: None,
        interrupted: false,
    };
    lives.insert(job.work.name.clone(), life);
    world.workloads.push(job.work.clone());
}

/// Keeps in mind what a plan means for the lives of jobs, before it is applied.
fn follow(
    world: &mut World,
    lives: &mut BTreeMap<String, Life>,
    ends: &mut BinaryHeap<Reverse<(Timestamp, String)>>,
    plan: &Plan,
) {
    let now = world.now;
    let stopped = plan
        .preemptions
        .iter()
        .filter(|p| p.to_workers == 0)
        .map(|p| &p.workload);
    let moved = plan.migrations.iter().map(|m| &m.workload);
    for name in stopped.chain(moved) {
        let checkpoint = world.workload(name).and_then(|w| w.checkpoint_seconds);
        if let Some(life) = lives.get_mut(name)
            && let Some(began) = life.began.take()
        {
            let ran = (now - began).num_seconds().max(0);
            let kept = checkpoint.map_or(0, |every| ran / every * every);
            life.left_seconds = (life.left_seconds - kept).max(1);
            life.interrupted = true;
        }
    }
    for start in &plan.starts {
        let restart = world
            .workload(&start.workload)
            .map_or(0, |w| w.restart_seconds);
        if let Some(life) = lives.get_mut(&start.workload) {
            if std::mem::take(&mut life.interrupted) {
                life.left_seconds += restart;
            }
            life.began = Some(now);
            let end = now + TimeDelta::seconds(life.left_seconds);
            ends.push(Reverse((end, start.workload.clone())));
        }
    }
}

/// What ends next, leaves, arrives, or may start.
fn next_event(
    world: &World,
    ends: &BinaryHeap<Reverse<(Timestamp, String)>>,
    lives: &BTreeMap<String, Life>,
    plan: &Plan,
    arrival: Option<Timestamp>,
) -> Option<Timestamp> {
    let of_work = world.workloads.iter().filter_map(|work| match work.state {
        WorkloadState::Leaving => work.leaves_at,
        WorkloadState::Waiting => {
            let kept = work.nominated.as_ref().map(|kept| kept.until);
            let moments = work.not_before.into_iter().chain(kept);
            moments.filter(|moment| *moment > world.now).min()
        }
        // What the scenario had running ends as it was predicted.
        WorkloadState::Running if !lives.contains_key(&work.name) => given_end(work),
        WorkloadState::Running | WorkloadState::Suspended => None,
    });
    let bookings = world.bookings.iter().flat_map(|b| [b.from, b.to]);
    let bookings = bookings.filter(|moment| *moment > world.now);
    let end = ends.peek().map(|Reverse((end, _))| *end);
    // Victims that have no grace are gone in the next cycle.
    let again = !plan.preemptions.is_empty() || !plan.migrations.is_empty();
    let again = again.then(|| world.now + TimeDelta::seconds(world.cycle_seconds));
    of_work
        .chain(bookings)
        .chain(end)
        .chain(again)
        .chain(arrival)
        .min()
}

fn given_end(work: &Workload) -> Option<Timestamp> {
    let length = TimeDelta::try_seconds(work.length_seconds()?)?;
    work.started?.checked_add_signed(length)
}

/// Victims and movers whose grace is over wait again.
fn leave(world: &mut World) {
    let now = world.now;
    for work in &mut world.workloads {
        if work.state == WorkloadState::Leaving && work.leaves_at.is_some_and(|at| at <= now) {
            work.state = WorkloadState::Waiting;
            work.started = None;
            work.leaves_at = None;
            work.placed = Vec::new();
        }
    }
}

/// Takes out of the world what is done.
fn end(
    world: &mut World,
    lives: &mut BTreeMap<String, Life>,
    ends: &mut BinaryHeap<Reverse<(Timestamp, String)>>,
    measure: &mut Measure,
) {
    let now = world.now;
    let mut done: Vec<String> = Vec::new();
    while let Some(Reverse((at, _))) = ends.peek()
        && *at <= now
    {
        let Some(Reverse((at, name))) = ends.pop() else {
            break;
        };
        // An end that was planned before an interruption is none.
        let real = lives.get(&name).is_some_and(|life| {
            life.began
                .is_some_and(|began| began + TimeDelta::seconds(life.left_seconds) == at)
        });
        if real {
            lives.remove(&name);
            done.push(name);
        }
    }
    let given = world.workloads.iter().filter(|w| {
        w.state == WorkloadState::Running
            && !lives.contains_key(&w.name)
            && given_end(w).is_some_and(|end| end <= now)
    });
    done.extend(given.map(|w| w.name.clone()).collect::<Vec<_>>());
    if done.is_empty() {
        return;
    }
    done.sort_unstable();
    let (gone, stay): (Vec<Workload>, Vec<Workload>) = std::mem::take(&mut world.workloads)
        .into_iter()
        .partition(|w| done.binary_search(&w.name).is_ok());
    world.workloads = stay;
    for work in &gone {
        measure.ended(work);
        let pool = work.placed.first().and_then(|place| {
            world
                .nodes
                .iter()
                .find(|n| n.name == place.node)
                .map(|n| n.pool.clone())
        });
        if let Some(pool) = pool {
            world.remember(&pool, work);
        }
    }
}
