//! The idle GPUs of a moment that the usual jobs could not use, over all idle GPUs.

use std::collections::BTreeMap;

use domain::quantity::MILLI;
use engine::world::{NodeState, World};

use super::super::Job;

/// Billionths in one.
pub const BILLION: i64 = 1_000_000_000;
/// The most kinds that are tried on every node: the most frequent.
const KINDS_MAX: usize = 32;

/// What a worker of a usual job asks for, and how usual it is.
struct Kind {
    /// Workers that asked so.
    count: i64,
    gpu_milli: i64,
    cpu_milli: i64,
    memory_mib: i64,
}

/// The usual jobs.
pub struct Fragments {
    kinds: Vec<Kind>,
}

impl Fragments {
    /// From the jobs with GPUs of a trace, by their workers.
    pub fn of(jobs: &[Job]) -> Self {
        let mut counts: BTreeMap<(i64, i64, i64), i64> = BTreeMap::new();
        for job in jobs
            .iter()
            .filter(|job| job.work.per_worker.gpus().milli() > 0)
        {
            let asked = &job.work.per_worker;
            let kind = (asked.gpus().milli(), asked.cpus.milli(), asked.memory_mib);
            *counts.entry(kind).or_default() += i64::from(job.work.workers);
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(kind, count)| (std::cmp::Reverse(count), kind));
        counts.truncate(KINDS_MAX);
        let kind = |&((gpu_milli, cpu_milli, memory_mib), count): &((i64, i64, i64), i64)| Kind {
            count,
            gpu_milli,
            cpu_milli,
            memory_mib,
        };
        Self {
            kinds: counts.iter().map(kind).collect(),
        }
    }

    /// The idle part of each pool that is of no use to a usual worker, in billionths of its idle GPUs.
    pub fn by_pool(&self, world: &World) -> BTreeMap<String, i64> {
        let mut free: BTreeMap<&str, (i64, i64, Vec<i64>)> = BTreeMap::new();
        for node in world.nodes.iter().filter(|n| n.state == NodeState::Ready) {
            let mut holes = vec![MILLI; node.gpus as usize];
            for &failed in &node.failed {
                holes[failed as usize] = 0;
            }
            free.insert(&node.name, (node.cpus.milli(), node.memory_mib, holes));
        }
        for work in &world.workloads {
            for place in &work.placed {
                let Some(node) = free.get_mut(place.node.as_str()) else {
                    continue;
                };
                node.0 -= work.per_worker.cpus.milli();
                node.1 -= work.per_worker.memory_mib;
                for device in &place.devices {
                    let hole = &mut node.2[device.index as usize];
                    *hole = (*hole - device.gpus.milli()).max(0);
                }
            }
        }
        let all: i128 = self.kinds.iter().map(|kind| i128::from(kind.count)).sum();
        let mut sums: BTreeMap<String, (i128, i128)> = BTreeMap::new();
        for node in &world.nodes {
            let Some((cpus, memory, holes)) = free.get(node.name.as_str()) else {
                continue;
            };
            let idle: i64 = holes.iter().sum();
            let of_use = |kind: &Kind| {
                let each = kind.gpu_milli.min(MILLI);
                let good = holes.iter().filter(|&&hole| hole >= each);
                let fits = *cpus >= kind.cpu_milli
                    && *memory >= kind.memory_mib
                    && good.clone().count() as i64 * each >= kind.gpu_milli;
                if fits { good.sum::<i64>() } else { 0 }
            };
            let useful: i128 = self
                .kinds
                .iter()
                .map(|kind| i128::from(kind.count) * i128::from(of_use(kind)))
                .sum();
            let idle = all * i128::from(idle);
            let sum = sums.entry(node.pool.clone()).or_default();
            *sum = (sum.0 + idle - useful, sum.1 + idle);
        }
        let part = |(name, (lost, idle)): (String, (i128, i128))| {
            let part = (lost * i128::from(BILLION)).checked_div(idle).unwrap_or(0);
            let part = i64::try_from(part).expect("a part is at most the whole");
            (name, part)
        };
        sums.into_iter().map(part).collect()
    }
}
