//! Fragmentation as the experiment measures it: idle GPUs that a task drawn from the typical ones could not use.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use engine::Left;

use super::{DEVICE, Machine, Task};

/// How much of the tasks the typical kinds make, in percent.
const TYPICAL_PERCENT: usize = 95;

/// A typical kind of task.
struct Kind {
    weight: f64,
    cpu_milli: i64,
    gpus: i64,
    gpu_milli: i64,
    /// By machine, whether its model will do.
    suits: Vec<bool>,
}

/// The typical kinds.
pub struct Waste {
    kinds: Vec<Kind>,
}

/// What is wasted on each node.
pub struct Wasted {
    by_node: Vec<f64>,
    sum: f64,
}

impl Waste {
    /// From the lists.
    pub(super) fn of(machines: &[Machine], tasks: &[Task]) -> Self {
        let mut counts: BTreeMap<(i64, i64, i64, &str), usize> = BTreeMap::new();
        for task in tasks {
            let kind = (
                task.cpu_milli,
                task.gpus,
                task.gpu_milli,
                task.spec.as_str(),
            );
            *counts.entry(kind).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(kind, count)| (Reverse(count), kind));
        let mut covered = 0;
        counts.retain(|&(_, count)| {
            let typical = covered * 100 < tasks.len() * TYPICAL_PERCENT;
            covered += count;
            typical
        });
        let all: usize = counts.iter().map(|(_, count)| count).sum();
        let suits = |spec: &str, machine: &Machine| {
            spec.is_empty() || spec.split('|').any(|model| model == machine.model)
        };
        let kinds = counts
            .iter()
            .map(|&((cpu_milli, gpus, gpu_milli, spec), count)| Kind {
                weight: count as f64 / all as f64,
                cpu_milli,
                gpus,
                gpu_milli,
                suits: machines
                    .iter()
                    .map(|machine| suits(spec, machine))
                    .collect(),
            });
        Self {
            kinds: kinds.collect(),
        }
    }

    /// What is wasted while nothing runs.
    pub(super) fn of_idle(&self, machines: &[Machine]) -> Wasted {
        let idle = |(rank, machine): (usize, &Machine)| {
            self.on(
                rank,
                machine.cpu_milli,
                &vec![DEVICE; machine.gpus as usize],
            )
        };
        let by_node: Vec<f64> = machines.iter().enumerate().map(idle).collect();
        Wasted {
            sum: by_node.iter().sum(),
            by_node,
        }
    }

    fn on(&self, rank: usize, cpu_milli: i64, holes: &[i64]) -> f64 {
        let idle: i64 = holes.iter().sum();
        if idle == 0 {
            return 0.0;
        }
        let lost = |kind: &Kind| {
            let of_use = holes.iter().filter(|&&hole| hole >= kind.gpu_milli);
            let fits = kind.gpus > 0
                && kind.suits[rank]
                && cpu_milli >= kind.cpu_milli
                && of_use.clone().count() as i64 >= kind.gpus;
            if fits {
                idle - of_use.sum::<i64>()
            } else {
                idle
            }
        };
        self.kinds
            .iter()
            .map(|kind| kind.weight * lost(kind) as f64)
            .sum()
    }
}

impl Wasted {
    /// A node has changed.
    pub fn change(&mut self, waste: &Waste, rank: usize, left: &Left) {
        let holes: Vec<i64> = left.devices.iter().map(|d| d.milli()).collect();
        let now = waste.on(rank, left.cpus.milli(), &holes);
        self.sum += now - self.by_node[rank];
        self.by_node[rank] = now;
    }

    /// The sum in percent of the capacity.
    pub fn percent(&self, capacity: i64) -> f64 {
        self.sum * 100.0 / capacity as f64
    }
}
