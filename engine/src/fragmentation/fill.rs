//! What will be left over of a node's devices when tasks of the usual mix come until one does not fit.

use super::WORTH;

/// Units of one GPU in the table.
pub const UNITS: i64 = 20;
/// What one of them is in millionths of a GPU.
const UNIT: i64 = WORTH / UNITS;
/// The most units of cores in the table; larger nodes are counted in larger units.
const CORE_UNITS_MAX: i64 = 256;
/// The least unit of cores, in thousandths.
const CORE_UNIT_LEAST: i64 = 500;
/// One, for weights.
pub const ONE: i64 = 1_000_000;

/// A kind of task as the table sees it.
#[derive(Debug, Clone, Copy)]
pub struct Comer {
    pub cpus: i64,
    /// Units of GPU; none for tasks without devices.
    pub units: i64,
    /// Its part of the tasks on devices, in millionths.
    pub weight: i64,
    /// Whether it may run on these nodes at all.
    pub fits: bool,
}

/// What is expected to be left over, by free cores and the worth of free devices.
#[derive(Debug)]
pub struct Fill {
    core_unit: i64,
    core_units: i64,
    units: i64,
    rest: Vec<i64>,
}

impl Fill {
    /// The table for nodes of at most so many cores (in thousandths) and devices. `scarce` is
    /// how far tasks without devices count, in thousandths.
    pub fn of(cpus: i64, devices: i64, comers: &[Comer], scarce: i64) -> Self {
        let core_unit = CORE_UNIT_LEAST.max((cpus + CORE_UNITS_MAX - 1) / CORE_UNITS_MAX);
        let core_units = cpus / core_unit;
        let units = devices * UNITS;
        let width = units as usize + 1;
        let cores = |comer: &Comer| (comer.cpus + core_unit - 1) / core_unit;
        let mut on_devices: Vec<(usize, usize, i64)> = Vec::new();
        let mut plain: Vec<(usize, i64)> = Vec::new();
        for comer in comers.iter().filter(|c| c.fits) {
            let needs = cores(comer);
            if comer.units > 0 {
                on_devices.push((needs as usize, comer.units as usize, comer.weight));
            } else if needs > 0 && scarce > 0 {
                plain.push((needs as usize, comer.weight * scarce / 1000));
            }
        }
        let mut rest = vec![0; (core_units as usize + 1) * width];
        for c in 0..=core_units as usize {
            for g in 1..width {
                let mut sum = 0;
                let mut ends = ONE;
                for &(cores, units, weight) in &on_devices {
                    if cores <= c && units <= g {
                        sum += weight * rest[(c - cores) * width + g - units];
                        ends -= weight;
                    }
                }
                sum += ends * UNIT * g as i64;
                let mut all = ONE;
                for &(cores, weight) in &plain {
                    if cores <= c {
                        sum += weight * rest[(c - cores) * width + g];
                        all += weight;
                    }
                }
                rest[c * width + g] = sum / all;
            }
        }
        Self {
            core_unit,
            core_units,
            units,
            rest,
        }
    }

    /// What is left over in the end, in millionths of a GPU, of devices of this worth beside
    /// these free cores.
    pub fn rest(&self, cpus: i64, worth: i64) -> i64 {
        let c = (cpus / self.core_unit).clamp(0, self.core_units);
        let g = (worth / UNIT).clamp(0, self.units);
        let at = (c * (self.units + 1) + g) as usize;
        let low = self.rest[at];
        if g == self.units {
            return low;
        }
        low + (self.rest[at + 1] - low) * (worth - g * UNIT) / UNIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_mix_cannot_use_is_left_over() {
        let comer = Comer {
            cpus: 4000,
            units: UNITS,
            weight: ONE,
            fits: true,
        };
        let fill = Fill::of(16_000, 4, &[comer], 0);
        // Cores for all four devices, for one, for none.
        assert_eq!(fill.rest(16_000, 4 * WORTH), 0);
        assert_eq!(fill.rest(4_000, 4 * WORTH), 3 * WORTH);
        assert_eq!(fill.rest(0, 4 * WORTH), 4 * WORTH);
        // A half serves nobody, and counts for a half.
        assert_eq!(fill.rest(16_000, WORTH / 2), WORTH / 2);
        let elsewhere = Fill::of(
            16_000,
            4,
            &[Comer {
                fits: false,
                ..comer
            }],
            0,
        );
        assert_eq!(elsewhere.rest(16_000, 4 * WORTH), 4 * WORTH);
    }
}
