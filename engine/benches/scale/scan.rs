//! The peer: a plain scan that looks at every node for every worker, in order of submission, without
//! teams, quotas, reasons or a second try.

use engine::world::{Workload, World};

struct Node {
    cpus: i64,
    memory: i64,
    /// Thousandths that are free of each device.
    devices: [i64; 8],
}

/// How many workloads it places.
pub fn place_all(world: &World) -> usize {
    let mut nodes: Vec<Node> = world
        .nodes
        .iter()
        .map(|node| Node {
            cpus: node.cpus.milli(),
            memory: node.memory_mib,
            devices: [1000; 8],
        })
        .collect();
    let mut order: Vec<&Workload> = world.workloads.iter().collect();
    order.sort_by_key(|work| (work.submitted, &work.name));
    order
        .into_iter()
        .filter(|work| place(&mut nodes, work))
        .count()
}

fn place(nodes: &mut [Node], work: &Workload) -> bool {
    let asked = &work.per_worker;
    let (cpus, memory) = (asked.cpus.milli(), asked.memory_mib);
    let milli = asked.gpus().milli();
    let mut taken = Vec::new();
    for _ in 0..work.workers {
        let best = nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| node.fits(cpus, memory, milli))
            .min_by_key(|(_, node)| node.devices.iter().sum::<i64>())
            .map(|(at, _)| at);
        let Some(at) = best else {
            for at in taken {
                let node: &mut Node = &mut nodes[at];
                node.give(-cpus, -memory, -milli);
            }
            return false;
        };
        nodes[at].give(cpus, memory, milli);
        taken.push(at);
    }
    true
}

impl Node {
    fn fits(&self, cpus: i64, memory: i64, milli: i64) -> bool {
        self.cpus >= cpus
            && self.memory >= memory
            && match milli {
                0 => true,
                1..1000 => self.devices.iter().any(|&free| free >= milli),
                _ => {
                    self.devices.iter().filter(|&&free| free == 1000).count() as i64 >= milli / 1000
                }
            }
    }

    /// Gives out, or takes back whole nodes' worth where the amounts are negative.
    fn give(&mut self, cpus: i64, memory: i64, milli: i64) {
        self.cpus -= cpus;
        self.memory -= memory;
        if (1..1000).contains(&milli) {
            let fullest = self.devices.iter_mut().filter(|free| **free >= milli).min();
            if let Some(free) = fullest {
                *free -= milli;
            }
            return;
        }
        let (want, to) = if milli > 0 { (1000, 0) } else { (0, 1000) };
        let count = (milli / 1000).unsigned_abs() as usize;
        for free in self
            .devices
            .iter_mut()
            .filter(|free| **free == want)
            .take(count)
        {
            *free = to;
        }
    }
}
