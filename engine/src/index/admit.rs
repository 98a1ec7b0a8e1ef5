//! Takes a workload into an index: its names become numbers.

use std::collections::BTreeMap;
use std::rc::Rc;

use domain::spec::Topology;
use rustc_hash::FxHashMap;

use super::shape::{Form, Shape};
use super::{Index, Need, NodeFacts, Profiles, Stint, Wait, WorkFacts};
use crate::world::{Workload, WorkloadState};

/// The numbers of names, and of shapes.
pub(super) struct Numbers<'w> {
    pub pools: FxHashMap<&'w str, usize>,
    pub nodes: FxHashMap<&'w str, usize>,
    pub teams: FxHashMap<&'w str, usize>,
    pub services: FxHashMap<&'w str, usize>,
    /// Priority, and whether work may be preempted, by class.
    pub classes: FxHashMap<&'w str, (i64, bool)>,
    pub shapes: FxHashMap<Shape<'w>, usize>,
    /// What follows from each shape.
    pub shaped: Vec<Shaped>,
    pub forms: FxHashMap<Form<'w>, usize>,
    pub frames: FxHashMap<(usize, &'w Topology), usize>,
    /// The profiles of MIG instances that are asked for.
    pub profiles: Profiles<'w>,
    /// All pools, and those of each list of names.
    pub anywhere: Rc<[usize]>,
    pub lists: FxHashMap<&'w [String], Rc<[usize]>>,
}

/// What follows from a shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shaped {
    need: Need,
    form: usize,
    frame: usize,
}

impl<'w> Index<'w> {
    /// What decisions ask of a workload; nothing where its team is not there.
    pub(super) fn facts(&mut self, row: &'w Workload) -> Option<WorkFacts<'w>> {
        let numbers = &mut self.numbers;
        let team = *numbers.teams.get(row.team.as_str())?;
        let (priority, preemptible) = numbers
            .classes
            .get(row.class.as_str())
            .copied()
            .unwrap_or((0, true));
        let service = row.service.as_deref();
        let service = service.and_then(|name| numbers.services.get(name).copied());
        let pools = match row.pools.as_slice() {
            [] => Rc::clone(&numbers.anywhere),
            names => {
                let named = || {
                    let named = names.iter();
                    distinct(named.filter_map(|p| numbers.pools.get(p.as_str()).copied()))
                };
                Rc::clone(numbers.lists.entry(names).or_insert_with(|| named().into()))
            }
        };
        let fresh = numbers.shaped.len();
        let by_user = self.teams[team].by_user;
        let shape = Shape::of(row, by_user);
        let shape = *numbers.shapes.entry(shape).or_insert(fresh);
        if shape == fresh {
            let shaped = self.shaped(row);
            self.numbers.shaped.push(shaped);
        }
        let Shaped { need, form, frame } = self.numbers.shaped[shape];
        Some(WorkFacts {
            row,
            stint: Stint::of(row),
            wait: Wait::of(row),
            team,
            service,
            priority,
            preemptible: row.preemptible.unwrap_or(preemptible),
            pools,
            need,
            cpus: row.per_worker.cpus.milli(),
            memory: row.per_worker.memory_mib,
            shape,
            form,
            frame,
        })
    }

    /// What follows from the shape of a workload.
    fn shaped(&mut self, row: &'w Workload) -> Shaped {
        let numbers = &mut self.numbers;
        let fresh = numbers.forms.len();
        let form = *numbers.forms.entry(Form::of(row)).or_insert(fresh);
        let topology = [&row.topology.require, &row.topology.prefer];
        for label in topology.into_iter().flatten() {
            if !self.domains.contains_key(label.as_str()) {
                let domains = domains(&self.nodes, label);
                self.domains.insert(label, domains);
            }
        }
        let frame = (form, &row.topology);
        let fresh = numbers.frames.len();
        let frame = *numbers.frames.entry(frame).or_insert(fresh);
        let need = Need::of(&row.per_worker, &mut numbers.profiles);
        Shaped { need, form, frame }
    }

    /// Gives the next number to a workload, or leaves it vacant.
    pub(super) fn push(&mut self, facts: Option<WorkFacts<'w>>, name: &'w str) {
        self.names.push(name);
        match facts {
            Some(facts) => {
                self.count_in(self.works.len(), &facts);
                self.works.push(facts);
            }
            None => self.works.push(WorkFacts::vacant()),
        }
    }

    /// A workload has this number, that was vacant.
    pub(super) fn fill(&mut self, work: usize, facts: WorkFacts<'w>) {
        self.names[work] = facts.row.name.as_str();
        self.count_in(work, &facts);
        self.works[work] = facts;
    }

    /// The number of a workload: they are in the order of the names.
    pub fn work(&self, name: &str) -> Option<usize> {
        let first = self.names.partition_point(|there| *there < name);
        let alike = self.names[first..]
            .iter()
            .take_while(|there| **there == name);
        let mut numbers = (first..).take(alike.count());
        numbers.find(|&work| !self.works[work].is_vacant())
    }

    /// How many workloads there are.
    pub fn count(&self) -> usize {
        self.count
    }

    fn count_in(&mut self, work: usize, facts: &WorkFacts<'w>) {
        self.count += 1;
        if let Some(service) = facts.service {
            let replicas = &mut self.services[service].replicas;
            replicas.insert(replicas.partition_point(|&r| r < work), work);
        }
        self.list(work, facts.row);
    }

    /// Puts a workload on the lists of what steps of a cycle look at.
    pub(super) fn list(&mut self, work: usize, row: &Workload) {
        if row.state == WorkloadState::Running && row.min_workers.is_some() {
            self.elastic.insert(work);
        }
        if row.nominated.is_some() {
            self.nominated.insert(work);
        }
    }

    /// Takes it off them.
    pub(super) fn unlist(&mut self, work: usize) {
        self.elastic.remove(&work);
        self.nominated.remove(&work);
    }
}

/// The domain of each node by the value of a label, numbered in the order of the values.
fn domains(nodes: &[NodeFacts<'_>], label: &str) -> Vec<Option<usize>> {
    let values = nodes.iter().map(|node| node.row.labels.get(label));
    let mut numbers: BTreeMap<&str, usize> = values
        .clone()
        .flatten()
        .map(|value| (value.as_str(), 0))
        .collect();
    for (number, place) in numbers.values_mut().enumerate() {
        *place = number;
    }
    values
        .map(|value| numbers.get(value?.as_str()).copied())
        .collect()
}

fn distinct(ids: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut seen = Vec::new();
    for id in ids {
        if !seen.contains(&id) {
            seen.push(id);
        }
    }
    seen
}
