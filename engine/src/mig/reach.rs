//! How much of a device's table stays within reach: sets of instances that still have a place, by what is free.

use std::collections::BTreeMap;

use super::{Engines, Model, Profile, mask};

/// Models with more slices would need a table too large to keep; the widest has 8.
const SLICES_MAX: u32 = 12;

/// For every set of free slices the number of multisets of profiles that can be placed on
/// it. Profiles that differ in their engines only are one: they take the same room.
pub(super) fn table(model: &Model) -> Vec<u32> {
    if model.slices > SLICES_MAX {
        return Vec::new();
    }
    let mut shapes: Vec<&Profile> = Vec::new();
    for profile in model.profiles.values() {
        let known = shapes.iter().any(|s| {
            (s.size, s.compute) == (profile.size, profile.compute) && s.starts == profile.starts
        });
        if profile.engines == Engines::Plain && !known {
            shapes.push(profile);
        }
    }
    let mut filled = Filled::default();
    fill(&shapes, 0, 0, &mut vec![0; shapes.len()], &mut filled);
    let sets: Vec<&Vec<u64>> = filled.values().collect();
    (0..=mask(0, model.slices))
        .map(|free| {
            let fits = |places: &&&Vec<u64>| places.iter().any(|taken| taken & !free == 0);
            sets.iter().filter(fits).count() as u32
        })
        .collect()
}

/// The sets of slices that each multiset of shapes can take.
type Filled = BTreeMap<Vec<u8>, Vec<u64>>;

/// Goes through all ways to place instances, shape by shape.
fn fill(shapes: &[&Profile], from: usize, taken: u64, counts: &mut Vec<u8>, filled: &mut Filled) {
    let places = filled.entry(counts.clone()).or_default();
    if places.contains(&taken) {
        return;
    }
    places.push(taken);
    for at in from..shapes.len() {
        for &start in &shapes[at].starts {
            let more = mask(start, shapes[at].size);
            if taken & more == 0 {
                counts[at] += 1;
                fill(shapes, at, taken | more, counts, filled);
                counts[at] -= 1;
            }
        }
    }
}
