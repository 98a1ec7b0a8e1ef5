//! What a placement leaves unusable, over the mix of tasks that usually come.
//!
//! A node has a *potential*: the thousandths of a GPU on it that are expected to serve
//! nobody. It adds up from open holes of shared devices, which are worth less than they
//! are large (`holes`), and from what is left over when tasks of the mix come to the node
//! until one does not fit (`fill`). A placement costs what it adds to the potential, and
//! more where it takes the room of requests for several devices that have little room
//! left (`reserve`).
//!
//! A consequence to know: cores count only as far as devices cannot be used without them,
//! so that where cores are scarce they are kept for work on devices, and less work without
//! devices is placed on these nodes than by packing.
//!
//! All values are whole numbers and come from the mix alone: the same mix gives the same
//! tables. Nothing here knows a node or a workload by name.

mod fill;
mod holes;
mod reserve;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use fill::{Comer, Fill, ONE, UNITS};
pub use reserve::{Request, UsualRequests};

/// Thousandths of one device.
const DEVICE: i64 = domain::quantity::MILLI;
/// One GPU in the unit of worths: millionths.
const WORTH: i64 = 1_000_000;
/// The most kinds of task in the tables, the most frequent first.
const KINDS_MAX: usize = 64;
/// How much of the tasks the typical kinds cover, in percent.
const TYPICAL_PERCENT: i64 = 95;
/// An open hole counts for a little less than it is worth, in thousandths: so holes are
/// closed before devices are opened.
const OPEN_WORTH: i64 = 950;
/// Cores wanted per core there is, from which tasks without devices begin to count, in
/// thousandths, and the span over which they come to count in full.
const CORES_SCARCE_FROM: i64 = 900;
const CORES_SCARCE_SPAN: i64 = 150;
/// What taking the room of a scarce request costs, in thousandths of a GPU.
pub const ROOM_TAKEN: i64 = 1000;
/// The most sets of hardware that have a table of their own.
const SETS_MAX: usize = 16;

/// What one task asks of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// Devices, whole if several.
    pub devices: i64,
    /// Thousandths of each.
    pub milli: i64,
    pub cpus: i64,
    pub memory: i64,
    /// What hardware it demands, as a number.
    pub hardware: usize,
}

/// How many tasks of each kind there are.
pub type Mix = BTreeMap<Kind, i64>;

/// The nodes in sum.
#[derive(Debug, Clone, Copy)]
pub struct Ground {
    pub devices: i64,
    pub cpus: i64,
    /// The most of one node.
    pub devices_max: i64,
    pub cpus_max: i64,
}

/// What is read when a placement is priced.
#[derive(Debug)]
pub struct Tables {
    /// The worth of a hole in millionths of a GPU, by its thousandths.
    values: Vec<i64>,
    /// What a hole loses by being open, likewise.
    losses: Vec<i64>,
    /// By set of hardware.
    fills: Vec<Fill>,
    pub reserve: UsualRequests,
}

/// A node as it is priced: sums over its devices.
#[derive(Debug, Clone, Copy)]
pub struct PricedNode {
    /// The set of hardware.
    pub set: usize,
    pub cpus: i64,
    losses: i64,
    worth: i64,
}

impl Tables {
    /// The tables for a mix on these nodes. `sets` says for each set of hardware which
    /// demands it meets.
    pub fn of(mix: &Mix, ground: Ground, sets: &[Vec<bool>]) -> Self {
        let tasks: i64 = mix.values().sum();
        let sum = |of: &dyn Fn(&Kind) -> i64| mix.iter().map(|(kind, n)| of(kind) * n).sum::<i64>();
        let milli = sum(&|kind| kind.devices * kind.milli);
        let cpus = sum(&|kind| kind.cpus);
        let mut shared: BTreeMap<i64, i64> = BTreeMap::new();
        let mut several: BTreeMap<Request, i64> = BTreeMap::new();
        for (kind, n) in mix {
            if kind.devices == 1 && kind.milli < DEVICE {
                *shared.entry(kind.milli).or_default() += n;
            }
            if kind.devices > 1 {
                *several.entry(kind.request()).or_default() += n;
            }
        }
        let shared: Vec<(i64, i64)> = shared.into_iter().collect();
        let several: Vec<(Request, i64)> = several.into_iter().collect();
        let values = holes::hole_values(&shared);
        let loss = |h: usize| match (h, values[h]) {
            (0, _) => 0,
            (_, value) if h < DEVICE as usize => {
                h as i64 * (WORTH / DEVICE) - value * OPEN_WORTH / 1000
            }
            _ => 0,
        };
        let comers = comers(mix, &values);
        let wanted = i128::from(cpus) * i128::from(ground.devices) * 1000 * i128::from(DEVICE);
        let there = i128::from(milli.max(1)) * i128::from(ground.cpus.max(1));
        let pressure = (wanted / there).min(1_000_000) as i64;
        let scarce = ((pressure - CORES_SCARCE_FROM) * 1000 / CORES_SCARCE_SPAN).clamp(0, 1000);
        let fill = |met: &Vec<bool>| {
            let comers: Vec<Comer> = comers
                .iter()
                .map(|&(comer, hardware)| Comer {
                    fits: met[hardware],
                    ..comer
                })
                .collect();
            Fill::of(ground.cpus_max, ground.devices_max, &comers, scarce)
        };
        Self {
            losses: (0..values.len()).map(loss).collect(),
            fills: sets.iter().take(SETS_MAX).map(fill).collect(),
            reserve: UsualRequests::of(&several, tasks, milli),
            values,
        }
    }

    /// A node with these free cores and holes (in thousandths of a device).
    pub fn stand(&self, set: usize, cpus: i64, holes: impl Iterator<Item = i64>) -> PricedNode {
        let mut standing = PricedNode {
            set: set % self.fills.len().max(1),
            cpus,
            losses: 0,
            worth: 0,
        };
        for hole in holes {
            standing.losses += self.losses[hole as usize];
            standing.worth += self.values[hole as usize];
        }
        standing
    }

    /// The standing after one of its holes has changed.
    pub fn turn(&self, standing: &mut PricedNode, from: i64, to: i64) {
        standing.losses += self.losses[to as usize] - self.losses[from as usize];
        standing.worth += self.values[to as usize] - self.values[from as usize];
    }

    /// What is expected to serve nobody, in millionths of a GPU.
    pub fn potential(&self, standing: &PricedNode) -> i64 {
        standing.losses + self.fills[standing.set].rest(standing.cpus, standing.worth)
    }

    /// What a change of a node costs, in thousandths of a GPU.
    pub fn cost(&self, before: &PricedNode, after: &PricedNode) -> i64 {
        let grown = self.potential(after) - self.potential(before);
        (grown + 500).div_euclid(1000)
    }
}

impl Kind {
    /// The kind as a request for whole devices.
    pub fn request(&self) -> Request {
        Request {
            devices: self.devices,
            cpus: self.cpus,
            memory: self.memory,
            hardware: self.hardware,
        }
    }
}

/// The typical kinds as the fill table sees them, each with its hardware: the most frequent
/// that make most of the tasks, of them those on one device, and those without devices.
fn comers(mix: &Mix, values: &[i64]) -> Vec<(Comer, usize)> {
    let mut kinds: Mix = BTreeMap::new();
    for (kind, n) in mix {
        *kinds.entry(Kind { memory: 0, ..*kind }).or_default() += n;
    }
    let tasks: i64 = kinds.values().sum();
    let mut kinds: Vec<(Kind, i64)> = kinds.into_iter().collect();
    kinds.sort_by_key(|&(kind, n)| (Reverse(n), kind));
    let mut covered = 0;
    kinds.retain(|&(_, n)| {
        let typical = covered * 100 < tasks * TYPICAL_PERCENT;
        covered += n;
        typical
    });
    kinds.truncate(KINDS_MAX);
    let single: i64 = kinds
        .iter()
        .filter(|(k, _)| k.devices == 1)
        .map(|(_, n)| n)
        .sum();
    let comer = |&(kind, n): &(Kind, i64)| {
        let value = values[kind.milli.clamp(0, DEVICE) as usize];
        let units = match kind.devices {
            0 => 0,
            _ => ((value * UNITS + WORTH / 2) / WORTH).max(1),
        };
        let comer = Comer {
            cpus: kind.cpus,
            units,
            weight: n * ONE / single.max(1),
            fits: true,
        };
        (kind.devices <= 1).then_some((comer, kind.hardware))
    };
    kinds.iter().filter_map(comer).collect()
}
