//! What a world must not say of itself: names twice, things that are not there, devices held twice.

use std::collections::{BTreeMap, BTreeSet};

use domain::MilliGpu;
use domain::error::quote;
use domain::sharing::SharingMode;

use super::ScenarioError;
use super::amounts::TEAM_DEPTH_MAX;
use super::tree;
use crate::mig;
use crate::world::{Node, Placed, PlacedDevice, Team, Workload, WorkloadState, World};

/// A contradiction: where it is, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what}", render(path))]
pub struct Fault {
    path: Vec<Step>,
    what: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

fn render(path: &[Step]) -> String {
    path.iter().fold(String::new(), |text, step| match step {
        Step::Key(key) if text.is_empty() => key.clone(),
        Step::Key(key) => format!("{text}.{key}"),
        Step::Index(index) => format!("{text}[{index}]"),
    })
}

impl Fault {
    fn new(section: &str, index: usize, keys: &[&str], what: String) -> Self {
        let head = [Step::Key(section.to_owned()), Step::Index(index)];
        let rest = keys.iter().map(|key| match key.parse() {
            Ok(index) if key.bytes().all(|b| b.is_ascii_digit()) => Step::Index(index),
            _ => Step::Key((*key).to_owned()),
        });
        Self {
            path: head.into_iter().chain(rest).collect(),
            what,
        }
    }

    /// The same as an error of the file, with the line nearest to it.
    pub(super) fn at(self, root: &tree::Node) -> ScenarioError {
        let (mut node, mut line) = (Some(root), root.line);
        for step in &self.path {
            let Some(here) = node else { break };
            node = match step {
                Step::Index(index) => here.item(*index).inspect(|item| line = item.line),
                Step::Key(key) => here.get(key).map(|(key, value)| {
                    line = key.line;
                    value
                }),
            };
        }
        ScenarioError {
            line,
            key: render(&self.path),
            what: self.what,
        }
    }
}

/// Checks a world against itself; the first contradiction is returned.
pub fn check(world: &World) -> Result<(), Fault> {
    names(world)?;
    nodes(world)?;
    teams(world)?;
    let names = Names::of(world);
    world
        .workloads
        .iter()
        .enumerate()
        .try_for_each(|(i, w)| workload(world, &names, i, w))?;
    held(world, &names)?;
    services_and_bookings(world, &names)
}

struct Names<'w> {
    pools: BTreeSet<&'w str>,
    classes: BTreeSet<&'w str>,
    teams: BTreeSet<&'w str>,
    services: BTreeSet<&'w str>,
    nodes: BTreeMap<&'w str, &'w Node>,
}

impl<'w> Names<'w> {
    fn of(world: &'w World) -> Self {
        Self {
            pools: world.pools.iter().map(|p| p.name.as_str()).collect(),
            classes: world.classes.iter().map(|c| c.name.as_str()).collect(),
            teams: world.teams.iter().map(|t| t.name.as_str()).collect(),
            services: world.services.iter().map(|s| s.name.as_str()).collect(),
            nodes: world.nodes.iter().map(|n| (n.name.as_str(), n)).collect(),
        }
    }
}

fn names(world: &World) -> Result<(), Fault> {
    unique("pools", world.pools.iter().map(|p| p.name.as_str()))?;
    unique("nodes", world.nodes.iter().map(|n| n.name.as_str()))?;
    unique("classes", world.classes.iter().map(|c| c.name.as_str()))?;
    unique("teams", world.teams.iter().map(|t| t.name.as_str()))?;
    unique("workloads", world.workloads.iter().map(|w| w.name.as_str()))?;
    unique("services", world.services.iter().map(|s| s.name.as_str()))?;
    unique("bookings", world.bookings.iter().map(|b| b.name.as_str()))
}

fn unique<'w>(section: &str, names: impl Iterator<Item = &'w str>) -> Result<(), Fault> {
    let mut seen = BTreeSet::new();
    for (index, name) in names.enumerate() {
        if !seen.insert(name) {
            let what = format!("{} is there twice; a name is given once", quote(name));
            return Err(Fault::new(section, index, &["name"], what));
        }
    }
    Ok(())
}

fn unknown(section: &str, index: usize, keys: &[&str], kind: &str, name: &str) -> Fault {
    Fault::new(
        section,
        index,
        keys,
        format!("there is no {kind} {}", quote(name)),
    )
}

fn nodes(world: &World) -> Result<(), Fault> {
    let pools: BTreeSet<&str> = world.pools.iter().map(|p| p.name.as_str()).collect();
    for (index, node) in world.nodes.iter().enumerate() {
        if !pools.contains(node.pool.as_str()) {
            return Err(unknown("nodes", index, &["pool"], "pool", &node.pool));
        }
        let there = |device: &u32| *device < node.gpus;
        let missing = |key: &str, device: u32| {
            let what = format!(
                "device {device} is not there: {} has gpus: {}",
                node.name, node.gpus
            );
            Fault::new("nodes", index, &[key], what)
        };
        for (key, sets) in [("nvlink", &node.nvlink), ("numa", &node.numa)] {
            let mut seen = BTreeSet::new();
            for device in sets.iter().flatten() {
                if !there(device) {
                    return Err(missing(key, *device));
                }
                if !seen.insert(*device) {
                    let what = format!("device {device} is there twice; the sets do not overlap");
                    return Err(Fault::new("nodes", index, &[key], what));
                }
            }
        }
        if let Some(device) = node.failed.iter().find(|d| !there(d)) {
            return Err(missing("failed", *device));
        }
        let failed: BTreeSet<&u32> = node.failed.iter().collect();
        if failed.len() != node.failed.len() {
            return Err(Fault::new(
                "nodes",
                index,
                &["failed"],
                "a device is there twice".to_owned(),
            ));
        }
        for (device, instances) in &node.mig {
            if !there(device) {
                return Err(missing("mig", *device));
            }
            let model = node.gpu_model.as_deref().unwrap_or("");
            if !mig::known(model) {
                let what = format!(
                    "mig needs a gpu_model of the table of profiles, not {}",
                    quote(model)
                );
                return Err(Fault::new("nodes", index, &["mig"], what));
            }
            if let Err(instance) = mig::lay_out(model, instances) {
                let what = format!(
                    "the mig instance {} cannot exist beside the others on device {device} of a {model}",
                    quote(&instance.profile)
                );
                return Err(Fault::new(
                    "nodes",
                    index,
                    &["mig", &device.to_string()],
                    what,
                ));
            }
        }
    }
    Ok(())
}

fn teams(world: &World) -> Result<(), Fault> {
    let by_name: BTreeMap<&str, &Team> = world.teams.iter().map(|t| (t.name.as_str(), t)).collect();
    let pools: BTreeSet<&str> = world.pools.iter().map(|p| p.name.as_str()).collect();
    for (index, team) in world.teams.iter().enumerate() {
        let (mut at, mut depth) = (team, 0);
        while let Some(parent) = &at.parent {
            at = by_name
                .get(parent.as_str())
                .ok_or_else(|| unknown("teams", index, &["parent"], "team", parent))?;
            depth += 1;
            if depth > TEAM_DEPTH_MAX {
                let what = format!(
                    "{} is in a cycle of parents, or deeper than {TEAM_DEPTH_MAX} levels",
                    team.name
                );
                return Err(Fault::new("teams", index, &["parent"], what));
            }
        }
        for (key, named) in [
            ("quotas", team.quotas.keys().collect::<Vec<_>>()),
            ("past_use", team.past_use.keys().collect()),
            ("max_per_user", team.max_per_user.keys().collect()),
            (
                "preemptions_this_hour",
                team.preemptions_this_hour.keys().collect(),
            ),
        ] {
            if let Some(pool) = named
                .into_iter()
                .find(|pool| !pools.contains(pool.as_str()))
            {
                return Err(unknown("teams", index, &[key, pool], "pool", pool));
            }
        }
        for (pool, quota) in &team.quotas {
            if let Some(limit) = quota.limit
                && quota.guaranteed > limit
            {
                let what = format!(
                    "the guarantee of {} is above the limit of {limit}",
                    quota.guaranteed
                );
                return Err(Fault::new(
                    "teams",
                    index,
                    &["quotas", pool, "guaranteed"],
                    what,
                ));
            }
        }
    }
    guarantees(world)
}

/// Children's guarantees may not exceed their parent's.
fn guarantees(world: &World) -> Result<(), Fault> {
    let mut children: BTreeMap<&str, Vec<&Team>> = BTreeMap::new();
    for team in &world.teams {
        if let Some(parent) = &team.parent {
            children.entry(parent.as_str()).or_default().push(team);
        }
    }
    fn nominal(team: &Team, pool: &str, children: &BTreeMap<&str, Vec<&Team>>) -> i64 {
        match team.quotas.get(pool) {
            Some(quota) => quota.guaranteed.milli(),
            None => below(team, pool, children),
        }
    }
    fn below(team: &Team, pool: &str, children: &BTreeMap<&str, Vec<&Team>>) -> i64 {
        children
            .get(team.name.as_str())
            .into_iter()
            .flatten()
            .map(|child| nominal(child, pool, children))
            .sum()
    }
    for (index, team) in world.teams.iter().enumerate() {
        for (pool, quota) in &team.quotas {
            let sum = below(team, pool, &children);
            if sum > quota.guaranteed.milli() {
                let what = format!(
                    "the guarantees below {} add up to {}, more than its own {}",
                    team.name,
                    MilliGpu::from_milli(sum),
                    quota.guaranteed
                );
                return Err(Fault::new(
                    "teams",
                    index,
                    &["quotas", pool, "guaranteed"],
                    what,
                ));
            }
        }
    }
    Ok(())
}

fn workload(world: &World, names: &Names<'_>, index: usize, work: &Workload) -> Result<(), Fault> {
    let at = |keys: &[&str], what: String| Fault::new("workloads", index, keys, what);
    if !names.teams.contains(work.team.as_str()) {
        return Err(unknown("workloads", index, &["team"], "team", &work.team));
    }
    // A file need not list the class that everything has unless it says otherwise.
    if !names.classes.contains(work.class.as_str()) && work.class != "normal" {
        return Err(unknown(
            "workloads",
            index,
            &["class"],
            "class",
            &work.class,
        ));
    }
    if let Some(pool) = work
        .pools
        .iter()
        .find(|p| !names.pools.contains(p.as_str()))
    {
        return Err(unknown("workloads", index, &["pools"], "pool", pool));
    }
    if let Some(service) = work
        .service
        .as_deref()
        .filter(|s| !names.services.contains(s))
    {
        return Err(unknown(
            "workloads",
            index,
            &["service"],
            "service",
            service,
        ));
    }
    if let Some(node) = work
        .node
        .as_deref()
        .filter(|n| !names.nodes.contains_key(n))
    {
        return Err(unknown("workloads", index, &["node"], "node", node));
    }
    if work.after.iter().any(|name| *name == work.name) {
        return Err(at(&["after"], "it waits for itself".to_owned()));
    }
    if work.workers_least() > work.workers {
        return Err(at(
            &["min_workers"],
            format!("it is above workers, which is {}", work.workers),
        ));
    }
    let gpus = work.per_worker.gpus();
    if work.per_worker.mig_profile.is_some()
        && (gpus < MilliGpu::whole(1) || gpus.milli() % 1000 != 0)
    {
        return Err(at(
            &["per_worker", "gpus"],
            format!("{gpus} instances are refused; it takes 1 to 64"),
        ));
    }
    let holds = matches!(work.state, WorkloadState::Running | WorkloadState::Leaving);
    if !holds {
        if !work.placed.is_empty() {
            return Err(at(
                &["placed"],
                "only running and leaving work is placed".to_owned(),
            ));
        }
        return nominated(names, index, work);
    }
    if work.nominated.is_some() {
        return Err(at(
            &["nominated"],
            "only waiting work is nominated".to_owned(),
        ));
    }
    let Some(started) = work.started else {
        return Err(at(
            &["started"],
            "is missing; running and leaving work has it".to_owned(),
        ));
    };
    if started > world.now {
        return Err(at(&["started"], "it is after now".to_owned()));
    }
    if work.state == WorkloadState::Leaving && work.leaves_at.is_none() {
        return Err(at(
            &["leaves_at"],
            "is missing; leaving work has it".to_owned(),
        ));
    }
    if work.placed.is_empty() {
        return Err(at(
            &["placed"],
            "is missing; running and leaving work has an entry for each worker".to_owned(),
        ));
    }
    if work.placed.len() > work.workers as usize {
        return Err(at(
            &["placed"],
            format!(
                "{} workers are placed of {}",
                work.placed.len(),
                work.workers
            ),
        ));
    }
    placement(names, index, &["placed"], &work.placed)
}

fn nominated(names: &Names<'_>, index: usize, work: &Workload) -> Result<(), Fault> {
    let Some(kept) = &work.nominated else {
        return Ok(());
    };
    if kept.placement.is_empty() || kept.placement.len() > work.workers as usize {
        let what = format!(
            "{} workers are placed of {}",
            kept.placement.len(),
            work.workers
        );
        return Err(Fault::new(
            "workloads",
            index,
            &["nominated", "placement"],
            what,
        ));
    }
    placement(names, index, &["nominated", "placement"], &kept.placement)
}

/// Nodes and devices that are there, each once in a worker, all in one pool.
fn placement(
    names: &Names<'_>,
    index: usize,
    keys: &[&str],
    placed: &[Placed],
) -> Result<(), Fault> {
    let mut pools = BTreeSet::new();
    for (rank, worker) in placed.iter().enumerate() {
        let rank = rank.to_string();
        let at = |more: &[&str], what: String| {
            let path: Vec<&str> = keys
                .iter()
                .copied()
                .chain([rank.as_str()])
                .chain(more.iter().copied())
                .collect();
            Fault::new("workloads", index, &path, what)
        };
        let Some(node) = names.nodes.get(worker.node.as_str()) else {
            return Err(at(
                &["node"],
                format!("there is no node {}", quote(&worker.node)),
            ));
        };
        pools.insert(node.pool.as_str());
        if pools.len() > 1 {
            return Err(at(
                &["node"],
                "it is in another pool than the workers before it".to_owned(),
            ));
        }
        let mut seen = BTreeSet::new();
        for (place, device) in worker.devices.iter().enumerate() {
            let place = place.to_string();
            if device.index >= node.gpus {
                let what = format!(
                    "device {} is not there: {} has gpus: {}",
                    device.index, node.name, node.gpus
                );
                return Err(at(&["devices", &place, "index"], what));
            }
            if !seen.insert((device.index, device.start, device.mig.clone()))
                && device.mig.is_none()
            {
                return Err(at(
                    &["devices", &place, "index"],
                    format!("device {} is there twice", device.index),
                ));
            }
            part(node, device).map_err(|what| at(&["devices", &place], what))?;
        }
    }
    Ok(())
}

/// Whether a part of a device can be what it says.
fn part(node: &Node, device: &PlacedDevice) -> Result<(), String> {
    let model = node.gpu_model.as_deref().unwrap_or("");
    match (&device.mig, device.mode) {
        (Some(profile), _) => match mig::profile(model, profile) {
            None => Err(format!(
                "there is no mig profile {} on a {}",
                quote(profile),
                quote(model)
            )),
            Some(shape) if device.start.is_some_and(|s| !shape.starts.contains(&s)) => Err(
                format!("a mig instance {} cannot begin there", quote(profile)),
            ),
            Some(_) => Ok(()),
        },
        (None, SharingMode::Exclusive) if device.gpus != MilliGpu::whole(1) => Err(format!(
            "gpus: {} of a device in mode exclusive; it is given whole",
            device.gpus
        )),
        (None, _) if device.gpus == MilliGpu::ZERO => Err("gpus: 0 of a device".to_owned()),
        (None, _) if device.memory_mib.is_some_and(|m| m > node.gpu_memory_mib) => Err(format!(
            "memory_mib is above the device's {}",
            node.gpu_memory_mib
        )),
        (None, _) => Ok(()),
    }
}

/// No device is held in two ways, or for more than there is.
fn held(world: &World, names: &Names<'_>) -> Result<(), Fault> {
    #[derive(Default)]
    struct Use {
        exclusive: bool,
        modes: BTreeSet<SharingMode>,
        milli: i64,
        memory_mib: i64,
        instances: BTreeSet<(String, u32)>,
    }
    let mut uses: BTreeMap<(&str, u32), Use> = BTreeMap::new();
    for (index, work) in world.workloads.iter().enumerate() {
        for (rank, worker) in work.placed.iter().enumerate() {
            let node = names.nodes[worker.node.as_str()];
            for device in &worker.devices {
                let seen = uses
                    .entry((worker.node.as_str(), device.index))
                    .or_default();
                let fault = |what: &str| {
                    let what = format!("device {} of {} {what}", device.index, worker.node);
                    Err(Fault::new(
                        "workloads",
                        index,
                        &["placed", &rank.to_string(), "devices"],
                        what,
                    ))
                };
                let first = seen.modes.is_empty();
                seen.modes.insert(device.mode);
                if seen.exclusive || (device.mode == SharingMode::Exclusive && !first) {
                    return fault("is held exclusively and by another holder too");
                }
                if seen.modes.len() > 1 {
                    return fault("is in two modes at once");
                }
                seen.exclusive = device.mode == SharingMode::Exclusive;
                if let Some(profile) = &device.mig {
                    if let Some(start) = device.start
                        && !seen.instances.insert((profile.clone(), start))
                    {
                        return fault("has one mig instance with two holders");
                    }
                } else if !seen.exclusive {
                    seen.milli += device.gpus.milli();
                    let share = node.gpu_memory_mib * device.gpus.milli() / 1000;
                    seen.memory_mib += device
                        .memory_mib
                        .or(work.per_worker.gpu_memory_mib)
                        .unwrap_or(share);
                    if seen.milli > 1000 {
                        return fault("is held for more than one device");
                    }
                    if seen.memory_mib > node.gpu_memory_mib {
                        return fault("is held for more than its memory");
                    }
                }
            }
        }
    }
    Ok(())
}

fn services_and_bookings(world: &World, names: &Names<'_>) -> Result<(), Fault> {
    for (index, service) in world.services.iter().enumerate() {
        if !names.teams.contains(service.team.as_str()) {
            return Err(unknown("services", index, &["team"], "team", &service.team));
        }
        if service.min_replicas > service.max_replicas {
            let what = format!(
                "it is above max_replicas, which is {}",
                service.max_replicas
            );
            return Err(Fault::new("services", index, &["min_replicas"], what));
        }
    }
    for (index, booking) in world.bookings.iter().enumerate() {
        if !names.teams.contains(booking.team.as_str()) {
            return Err(unknown("bookings", index, &["team"], "team", &booking.team));
        }
        if !names.pools.contains(booking.pool.as_str()) {
            return Err(unknown("bookings", index, &["pool"], "pool", &booking.pool));
        }
        if booking.from >= booking.to {
            return Err(Fault::new(
                "bookings",
                index,
                &["to"],
                "it is not after from".to_owned(),
            ));
        }
    }
    Ok(())
}
