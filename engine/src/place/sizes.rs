//! With how many workers an elastic gang is tried: with none that all nodes together could not hold.

use rustc_hash::FxHashMap;

use super::{devices_free, fit, host_free, nodes_able};
use crate::index::{DEVICE, Need};
use crate::ledger::{Ledger, Sight};

/// What the nodes are taken to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stock {
    /// What is free for a start.
    Free,
    /// All that is theirs, as if whatever stands there could leave.
    Emptied,
}

/// The numbers of workers that a gang may have room with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    least: u32,
    most: u32,
    /// Whether there is room for fewer wherever there is for more. Where whole nodes are promised
    /// there may not be: fewer may be in the guarantee, and so use up a promise.
    falls: bool,
}

impl Sizes {
    /// What is found for the largest number for which anything is: by halves between the largest
    /// and the least, since there may be thousands.
    pub fn largest<T>(self, mut find: impl FnMut(u32) -> Option<T>) -> Option<T> {
        if !self.falls {
            return self.one_by_one(find);
        }
        if self.least > self.most {
            return None;
        }
        let found = find(self.most);
        if found.is_some() || self.least == self.most {
            return found;
        }
        let mut best = find(self.least)?;
        let (mut low, mut high) = (self.least, self.most);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match find(middle) {
                Some(found) => (low, best) = (middle, found),
                None => high = middle,
            }
        }
        Some(best)
    }

    /// Whether there is room for fewer wherever there is for more.
    pub fn falls(self) -> bool {
        self.falls
    }

    /// The least of these numbers, if there are any.
    pub fn least(self) -> Option<u32> {
        (self.least <= self.most).then_some(self.least)
    }

    /// Those of these numbers that are no larger.
    pub fn at_most(self, most: i64) -> Self {
        let most = u32::try_from(most.max(0)).unwrap_or(u32::MAX);
        Self {
            most: self.most.min(most),
            ..self
        }
    }

    /// Those of these numbers that are larger.
    pub fn above(self, number: u32) -> Self {
        Self {
            least: self.least.max(number.saturating_add(1)),
            ..self
        }
    }

    /// The same whether or not it falls.
    pub fn one_by_one<T>(self, find: impl FnMut(u32) -> Option<T>) -> Option<T> {
        (self.least..=self.most).rev().find_map(find)
    }
}

/// The numbers of workers to try. Larger ones than these have no room: each node holds no more
/// workers than its sums say, and a domain no more than its nodes.
pub(crate) fn sizes(ledger: &mut Ledger<'_, '_>, work: usize, pool: usize, stock: Stock) -> Sizes {
    let row = ledger.index.works[work].row;
    let least = row.workers_least();
    let most = if least < row.workers {
        let ceiling = u32::try_from(ceiling(ledger, work, pool, stock));
        row.workers.min(ceiling.unwrap_or(u32::MAX))
    } else {
        row.workers
    };
    Sizes {
        least,
        most,
        falls: !ledger.index.pools[pool].row.whole_node_guarantees,
    }
}

/// The numbers of workers that a running gang may gain on some nodes, as [`sizes`] has them for all.
pub(crate) fn gains(ledger: &Ledger<'_, '_>, work: usize, pool: usize, nodes: &[usize]) -> Sizes {
    let index = ledger.index;
    let missing = index.works[work].row.workers as usize - ledger.slots(work).len();
    let able = nodes
        .iter()
        .filter(|n| fit(index, work, **n, false).is_ok());
    let each = able.map(|&node| on_node(ledger, work, node, Stock::Free));
    let most = each.fold(0, i64::saturating_add).min(missing as i64);
    Sizes {
        least: 1,
        most: most as u32,
        falls: !index.pools[pool].row.whole_node_guarantees,
    }
}

fn ceiling(ledger: &mut Ledger<'_, '_>, work: usize, pool: usize, stock: Stock) -> i64 {
    let index = ledger.index;
    let able = nodes_able(ledger, work, pool);
    let each = able.iter().map(|&node| on_node(ledger, work, node, stock));
    let Some(label) = &index.works[work].row.topology.require else {
        return each.fold(0, i64::saturating_add);
    };
    let domains = index.domains.get(label.as_str());
    let mut sums: FxHashMap<usize, i64> = FxHashMap::default();
    for (&node, workers) in able.iter().zip(each) {
        if let Some(domain) = domains.and_then(|of| of[node]) {
            let sum = sums.entry(domain).or_default();
            *sum = sum.saturating_add(workers);
        }
    }
    sums.into_values().max().unwrap_or(0)
}

/// How many workers a node holds at most.
fn on_node(ledger: &Ledger<'_, '_>, work: usize, node: usize, stock: Stock) -> i64 {
    let index = ledger.index;
    let (facts, machine) = (&index.works[work], &index.nodes[node]);
    let (cpus, memory) = match stock {
        Stock::Free => host_free(ledger, node, Sight::Start),
        Stock::Emptied => (machine.row.cpus.milli(), machine.row.memory_mib),
    };
    let by = |there: i64, each: i64| {
        if each > 0 {
            there.max(0) / each
        } else {
            i64::MAX
        }
    };
    let devices = i64::from(machine.row.gpus);
    let by_devices = match facts.need {
        Need::Nothing => i64::MAX,
        Need::Whole(count) => {
            let there = match stock {
                Stock::Free => devices_free(ledger, node, Sight::Start).count_ones().into(),
                Stock::Emptied => devices,
            };
            by(there, count.into())
        }
        Need::Part { milli, .. } => by(DEVICE, milli).saturating_mul(devices),
        Need::Instances { count, profile } => {
            let profile = index.profile(profile, node);
            let each = profile.map_or(0, |profile| by(DEVICE, profile.milli()));
            by(each.saturating_mul(devices), count.into())
        }
    };
    by_devices
        .min(by(cpus, facts.cpus))
        .min(by(memory, facts.memory))
}

#[cfg(test)]
mod tests {
    use super::Sizes;

    #[test]
    fn halves_find_what_one_by_one_finds() {
        for (least, most) in [(1, 1), (1, 2), (2, 9), (1, 1000), (5, 4)] {
            for room in 0..=most + 1 {
                let (mut tried, falls) = (0, true);
                let sizes = Sizes { least, most, falls };
                let fits = |n: u32| (n <= room).then_some(n);
                let found = sizes.largest(|n| {
                    tried += 1;
                    fits(n)
                });
                assert!(tried <= 12, "{tried} tries of {least} to {most}");
                assert_eq!(found, sizes.one_by_one(fits), "{least} to {most}, {room}");
            }
        }
    }
}
