//! What a world must not say of itself: names twice, things that are not there, devices held twice.

use std::collections::{BTreeMap, BTreeSet};

use domain::MilliGpu;
use domain::error::quote;

use super::ScenarioError;
use super::amounts::TEAM_DEPTH_MAX;
use super::tree;
use crate::mig;
use crate::world::{Node, Team, World};

use super::check_work::{dependencies, held, workload};
use super::instances;

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
    pub(super) fn new(section: &str, index: usize, keys: &[&str], what: String) -> Self {
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
    instances::check(world, &names)?;
    dependencies(world)?;
    services_and_bookings(world, &names)
}

pub(super) struct Names<'w> {
    pub pools: BTreeSet<&'w str>,
    pub classes: BTreeSet<&'w str>,
    pub teams: BTreeSet<&'w str>,
    /// Services and the teams that they are of.
    pub services: BTreeMap<&'w str, &'w str>,
    pub nodes: BTreeMap<&'w str, &'w Node>,
}

impl<'w> Names<'w> {
    pub(super) fn of(world: &'w World) -> Self {
        Self {
            pools: world.pools.iter().map(|p| p.name.as_str()).collect(),
            classes: world.classes.iter().map(|c| c.name.as_str()).collect(),
            teams: world.teams.iter().map(|t| t.name.as_str()).collect(),
            services: world
                .services
                .iter()
                .map(|s| (s.name.as_str(), s.team.as_str()))
                .collect(),
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

pub(super) fn unknown(section: &str, index: usize, keys: &[&str], kind: &str, name: &str) -> Fault {
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
            if mig::model(model).is_none() {
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
        if booking.gpus <= MilliGpu::ZERO {
            let what = format!("{} are refused; it takes 0.001 or more", booking.gpus);
            return Err(Fault::new("bookings", index, &["gpus"], what));
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
