//! Cycle after cycle on paper: each plan is applied to the world, time moves on, and the next is made.

use std::collections::{BTreeMap, BTreeSet};

use chrono::TimeDelta;
use domain::Timestamp;
use domain::sharing::SharingMode;

use crate::cycle::plan;
use crate::plan::{Instance, Plan, Preemption, SliceChange};
use crate::world::{
    MigInstance, Node, Nominated, Placed, PlacedDevice, Workload, WorkloadState, World,
};

/// Most cycles that are run, whatever is asked: the plans are all kept.
pub const CYCLES_MAX: usize = 10_000;
/// How long room is kept beyond the grace of the victims: they may need a moment to be cleaned up.
const NOMINATION_MARGIN_SECONDS: i64 = 60;

/// Plans, applies the plan, and plans again: until nothing changes and nothing lies ahead,
/// or `count` cycles are done.
pub fn run(mut world: World, count: usize) -> Vec<Plan> {
    let mut plans = Vec::new();
    for _ in 0..count.clamp(1, CYCLES_MAX) {
        let made = plan(&world);
        let idle = made.idle();
        apply(&mut world, &made);
        plans.push(made);
        let Some(next) = next_moment(&world) else {
            if idle {
                break;
            }
            advance(&mut world, None);
            continue;
        };
        advance(&mut world, Some(next).filter(|_| idle));
    }
    plans
}

/// A plan of several in a row, between which nothing happens but that those leave who make way.
#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// When it can be made: now, or once all those have left who leave by the plans before it.
    pub at: Timestamp,
    /// The plan.
    pub plan: Plan,
}

/// Most plans of [`until_left`]: who starts in the room of victims seldom displaces others in turn,
/// and each plan takes as long as the first.
pub const STAGES_MAX: usize = 4;

/// Plans, and plans again once those have left who make way, until nobody does or so many plans are
/// made. The clock stands still meanwhile, so that of two policies nothing but they themselves makes
/// another outcome. Of those that leave already when it begins, these queue again.
pub fn until_left(mut world: World, again: &BTreeSet<String>) -> Vec<Stage> {
    let now = world.now;
    let known: BTreeSet<String> = leaving(&world).map(|work| work.name.clone()).collect();
    let mut at = now;
    let mut stages = Vec::new();
    loop {
        let made = plan(&world);
        apply(&mut world, &made);
        stages.push(Stage { at, plan: made });
        let last = leaving(&world)
            .map(|work| work.leaves_at.unwrap_or(now))
            .max();
        let Some(last) = last.filter(|_| stages.len() < STAGES_MAX) else {
            return stages;
        };
        // Each plan is made as if it were now; who leaves by it leaves that much later.
        at += (last - now).max(TimeDelta::zero());
        // Who moves has a place to go to.
        let gone = |work: &Workload| {
            known.contains(&work.name) && !again.contains(&work.name) && work.nominated.is_none()
        };
        leave(&mut world, gone);
    }
}

/// All that leaves has left: what is gone for good is taken out, the rest waits again.
fn leave(world: &mut World, gone: impl Fn(&Workload) -> bool) {
    let left = |work: &Workload| work.state == WorkloadState::Leaving;
    (world.workloads).retain(|work| !left(work) || !gone(work) && !work.name.contains(RELEASED));
    for work in world.workloads.iter_mut().filter(|work| left(work)) {
        work.state = WorkloadState::Waiting;
        work.started = None;
        work.leaves_at = None;
        work.placed = Vec::new();
    }
}

fn leaving(world: &World) -> impl Iterator<Item = &Workload> {
    let all = world.workloads.iter();
    all.filter(|work| work.state == WorkloadState::Leaving)
}

/// Does what a plan says.
pub fn apply(world: &mut World, made: &Plan) {
    let now = world.now;
    let pools: BTreeMap<String, String> = world
        .nodes
        .iter()
        .map(|n| (n.name.clone(), n.pool.clone()))
        .collect();
    let graces: BTreeMap<String, i64> = world
        .pools
        .iter()
        .map(|p| (p.name.clone(), p.preemption.grace_seconds))
        .collect();
    let grace = |placed: &[Placed]| {
        let pool = placed.first().and_then(|p| pools.get(&p.node));
        TimeDelta::seconds(pool.and_then(|pool| graces.get(pool)).copied().unwrap_or(0))
    };
    let mut released: Vec<Workload> = Vec::new();
    let mut evictions: Vec<(String, String)> = Vec::new();
    let mut by_name: BTreeMap<String, &mut Workload> = world
        .workloads
        .iter_mut()
        .map(|w| (w.name.clone(), w))
        .collect();
    for eviction in &made.preemptions {
        let Some(work) = by_name.get_mut(&eviction.workload) else {
            continue;
        };
        if let Some(pool) = work.placed.first().and_then(|p| pools.get(&p.node)) {
            evictions.push((work.team.clone(), pool.clone()));
        }
        released.extend(preempt(work, eviction, now + grace(&work.placed)));
    }
    for mover in &made.migrations {
        let Some(work) = by_name.get_mut(&mover.workload) else {
            continue;
        };
        let leaves_at = now + grace(&work.placed);
        work.state = WorkloadState::Leaving;
        work.leaves_at = Some(leaves_at);
        work.nominated = Some(Nominated {
            placement: mover.placement.iter().map(Placed::from).collect(),
            until: leaves_at + TimeDelta::seconds(NOMINATION_MARGIN_SECONDS),
        });
    }
    for start in &made.starts {
        let Some(work) = by_name.get_mut(&start.workload) else {
            continue;
        };
        work.state = WorkloadState::Running;
        work.started = Some(now);
        work.leaves_at = None;
        work.nominated = None;
        work.placed = start.placement.iter().map(Placed::from).collect();
    }
    for growth in &made.resizes {
        if let Some(work) = by_name.get_mut(&growth.workload) {
            work.placed
                .extend(growth.placement.iter().map(Placed::from));
        }
    }
    for nomination in &made.nominations {
        let Some(work) = by_name.get_mut(&nomination.workload) else {
            continue;
        };
        let placement: Vec<Placed> = nomination.placement.iter().map(Placed::from).collect();
        let kept_until = work.nominated.as_ref().map(|kept| kept.until);
        let until = now + grace(&placement) * 2 + TimeDelta::seconds(NOMINATION_MARGIN_SECONDS);
        work.nominated = Some(Nominated {
            placement,
            until: kept_until.unwrap_or(until),
        });
    }
    for change in &made.slice_changes {
        if let Some(node) = world.nodes.iter_mut().find(|n| n.name == change.node) {
            recut(node, change);
        }
    }
    for (team, pool) in evictions {
        if let Some(team) = world.teams.iter_mut().find(|t| t.name == team) {
            *team.preemptions_this_hour.entry(pool).or_default() += 1;
        }
    }
    world.workloads.extend(released);
}

/// A device's instances and mode change.
fn recut(node: &mut Node, change: &SliceChange) {
    let listed = |instance: &Instance| MigInstance {
        profile: instance.profile.clone(),
        start: Some(instance.start),
    };
    let gone: Vec<MigInstance> = change.destroy.iter().map(listed).collect();
    let instances = node.mig.entry(change.index).or_default();
    instances.retain(|instance| !gone.contains(instance));
    instances.extend(change.create.iter().map(listed));
    instances.sort_by_key(|instance| instance.start);
    if change.mode == Some(SharingMode::Exclusive) {
        node.mig.remove(&change.index);
    }
}

/// A victim leaves, whole or with its highest ranks; ranks that go on in their grace are
/// a row of their own, which nothing but their devices needs.
fn preempt(work: &mut Workload, eviction: &Preemption, leaves_at: Timestamp) -> Option<Workload> {
    work.preemptions_today = work.preemptions_today.saturating_add(1);
    let keep = eviction.to_workers as usize;
    if keep == 0 {
        work.state = WorkloadState::Leaving;
        work.leaves_at = Some(leaves_at);
        return None;
    }
    let gone = work.placed.split_off(keep.min(work.placed.len()));
    // Ranks that it gave up before may still be in their grace, and be as many.
    let until = leaves_at.timestamp();
    (!gone.is_empty()).then(|| Workload {
        name: format!("{}{RELEASED}{keep} until {until}", work.name),
        state: WorkloadState::Leaving,
        leaves_at: Some(leaves_at),
        placed: gone,
        service: None,
        ..work.clone()
    })
}

/// Stands between the name of a shrunk workload and its released ranks' row; no name holds it.
const RELEASED: &str = "\u{1f}released from ";

/// The name by which a row is told: that of the workload whose released ranks it is.
pub(crate) fn told_name(name: &str) -> &str {
    name.split_once(RELEASED).map_or(name, |(whole, _)| whole)
}

/// The next moment at which something ends, leaves or may start.
fn next_moment(world: &World) -> Option<Timestamp> {
    let moments = world.workloads.iter().filter_map(|work| match work.state {
        WorkloadState::Running => end(work),
        WorkloadState::Leaving => work.leaves_at,
        WorkloadState::Waiting => work
            .not_before
            .into_iter()
            .chain(kept_until(work))
            .filter(|t| *t > world.now)
            .min(),
        WorkloadState::Suspended => None,
    });
    let bookings = world.bookings.iter().flat_map(|b| [b.from, b.to]);
    moments.chain(bookings.filter(|t| *t > world.now)).min()
}

fn kept_until(work: &Workload) -> Option<Timestamp> {
    work.nominated.as_ref().map(|kept| kept.until)
}

fn end(work: &Workload) -> Option<Timestamp> {
    let length = TimeDelta::try_seconds(work.length_seconds()?)?;
    work.started?.checked_add_signed(length)
}

/// Moves time by a cycle, or to the next moment when that is later and nothing was done;
/// what is due then ends or leaves.
pub fn advance(world: &mut World, next: Option<Timestamp>) {
    let step = world.now + TimeDelta::seconds(world.cycle_seconds);
    world.now = next.map_or(step, |next| next.max(step));
    let now = world.now;
    let mut ended: BTreeSet<String> = BTreeSet::new();
    let held = stays_leaving(world);
    let nodes: BTreeMap<&str, &Node> = world.nodes.iter().map(|n| (n.name.as_str(), n)).collect();
    for work in &mut world.workloads {
        match work.state {
            WorkloadState::Running if end(work).is_some_and(|end| end <= now) => {
                ended.insert(work.name.clone());
            }
            WorkloadState::Leaving if work.leaves_at.is_some_and(|at| at <= now) => {
                if work.name.contains(RELEASED) {
                    ended.insert(work.name.clone());
                }
                work.leaves_at = None;
                // A mover goes on where room is kept for it; else, and where a device has to be cut anew
                // first, it is started there by a plan.
                let goes_on = |kept: &mut Nominated| ready_for(&nodes, &held, &kept.placement);
                match work.nominated.take_if(goes_on) {
                    Some(kept) => {
                        work.state = WorkloadState::Running;
                        work.started = Some(now);
                        work.placed = kept.placement;
                    }
                    None => {
                        work.state = WorkloadState::Waiting;
                        work.started = None;
                        work.placed = Vec::new();
                    }
                }
            }
            _ => {}
        }
    }
    let (gone, left) = std::mem::take(&mut world.workloads)
        .into_iter()
        .partition(|w| ended.contains(&w.name));
    world.workloads = left;
    remember(world, &gone);
}

/// The devices of what is still leaving, by node and index.
fn stays_leaving(world: &World) -> BTreeSet<(String, u32)> {
    let now = world.now;
    let leaving = world.workloads.iter().filter(|work| {
        work.state == WorkloadState::Leaving && work.leaves_at.is_some_and(|at| at > now)
    });
    leaving.flat_map(|work| &work.placed).flat_map(on).collect()
}

/// Whether devices are as a placement has them, and nothing that leaves is still on them.
fn ready_for(
    nodes: &BTreeMap<&str, &Node>,
    held: &BTreeSet<(String, u32)>,
    placement: &[Placed],
) -> bool {
    let cut = |placed: &Placed, device: &PlacedDevice| {
        let node = nodes.get(placed.node.as_str());
        let instances = node.and_then(|node| node.mig.get(&device.index));
        match (&device.mig, instances) {
            (None, instances) => instances.is_none(),
            (Some(profile), Some(instances)) => instances
                .iter()
                .any(|instance| instance.profile == *profile && instance.start == device.start),
            (Some(_), None) => false,
        }
    };
    placement.iter().all(|placed| {
        let mut devices = placed.devices.iter();
        devices.all(|device| cut(placed, device))
    }) && !placement.iter().flat_map(on).any(|at| held.contains(&at))
}

fn on(placed: &Placed) -> impl Iterator<Item = (String, u32)> + '_ {
    let devices = placed.devices.iter();
    devices.map(|device| (placed.node.clone(), device.index))
}

/// Keeps in mind what kind of work there was.
fn remember(world: &mut World, gone: &[Workload]) {
    let pools: BTreeMap<String, String> = match gone.first() {
        None => return,
        Some(_) => world
            .nodes
            .iter()
            .map(|n| (n.name.clone(), n.pool.clone()))
            .collect(),
    };
    for work in gone.iter().filter(|w| !w.name.contains(RELEASED)) {
        if let Some(pool) = work.placed.first().and_then(|p| pools.get(&p.node)) {
            world.remember(pool, work);
        }
    }
}
