//! Takes a workload into an index: its names become numbers.

use std::collections::HashMap;

use super::shape::Shape;
use super::{Index, Need, Profiles, WorkFacts};
use crate::world::Workload;

/// The numbers of names, and of shapes.
pub(super) struct Numbers<'w> {
    pub pools: HashMap<&'w str, usize>,
    pub teams: HashMap<&'w str, usize>,
    pub services: HashMap<&'w str, usize>,
    /// Priority, and whether work may be preempted, by class.
    pub classes: HashMap<&'w str, (i64, bool)>,
    pub shapes: HashMap<Shape<'w>, usize>,
    /// The profiles of MIG instances that are asked for.
    pub profiles: Profiles<'w>,
}

impl<'w> Index<'w> {
    /// Takes in one more workload and numbers it; nothing where its team is not there.
    pub fn admit(&mut self, row: &'w Workload) -> Option<usize> {
        let numbers = &mut self.numbers;
        let team = *numbers.teams.get(row.team.as_str())?;
        let (priority, preemptible) = numbers
            .classes
            .get(row.class.as_str())
            .copied()
            .unwrap_or((0, true));
        let service = row.service.as_deref();
        let service = service.and_then(|name| numbers.services.get(name).copied());
        let named = row
            .pools
            .iter()
            .filter_map(|p| numbers.pools.get(p.as_str()).copied());
        let pools = if row.pools.is_empty() {
            (0..self.pools.len()).collect()
        } else {
            distinct(named)
        };
        let fresh = numbers.shapes.len();
        let shape = *numbers.shapes.entry(Shape::of(row)).or_insert(fresh);
        let need = Need::of(&row.per_worker, &mut numbers.profiles);
        let work = self.works.len();
        if let Some(service) = service {
            self.services[service].replicas.push(work);
        }
        self.works.push(WorkFacts {
            row,
            team,
            service,
            priority,
            preemptible: row.preemptible.unwrap_or(preemptible),
            pools,
            need,
            cpus: row.per_worker.cpus.milli(),
            memory: row.per_worker.memory_mib,
            shape,
        });
        self.by_name.insert(row.name.as_str(), work);
        Some(work)
    }
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
