//! The profiles of MIG instances by device model, and which layouts exist on a device.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::world::MigInstance;

/// A profile of one model: how much of the memory it takes, and where it may begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Memory slices that an instance takes.
    pub size: u32,
    /// Memory slices at which it may begin.
    pub starts: Vec<u32>,
    /// Memory slices of the whole device.
    pub slices: u32,
    /// Its memory in MiB.
    pub memory_mib: i64,
}

#[derive(serde::Deserialize)]
struct File {
    models: Vec<FileModel>,
}

#[derive(serde::Deserialize)]
struct FileModel {
    key: String,
    memory_slices: u32,
    profiles: Vec<FileProfile>,
}

#[derive(serde::Deserialize)]
struct FileProfile {
    name: String,
    placement_size: Option<u32>,
    #[serde(default)]
    placement_starts: Option<Vec<u32>>,
    memory_mib: Option<i64>,
}

type Table = BTreeMap<String, BTreeMap<String, Profile>>;

/// The table of all models, read once from the file that ships with the crate.
fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let file: File = serde_json::from_str(include_str!("../data/mig_profiles.json"))
            .expect("the file is part of the crate and read by a test");
        file.models
            .into_iter()
            .map(|model| (model.key, profiles(model.memory_slices, model.profiles)))
            .collect()
    })
}

fn profiles(slices: u32, listed: Vec<FileProfile>) -> BTreeMap<String, Profile> {
    let usable = listed.into_iter().filter_map(|profile| {
        let (size, starts) = (profile.placement_size?, profile.placement_starts?);
        let shape = Profile {
            size,
            starts,
            slices,
            memory_mib: profile.memory_mib.unwrap_or(0),
        };
        (!shape.starts.is_empty()).then_some((profile.name, shape))
    });
    usable.collect()
}

/// The profile of that name on devices of that model.
pub fn profile(model: &str, name: &str) -> Option<&'static Profile> {
    table().get(model)?.get(name)
}

/// Whether the model can be cut at all.
pub fn known(model: &str) -> bool {
    table().contains_key(model)
}

/// Gives each instance its start: as listed, those without one at their lowest
/// free start. `Err` holds the instance that cannot exist beside the others.
pub fn lay_out(model: &str, instances: &[MigInstance]) -> Result<Vec<(String, u32)>, MigInstance> {
    let mut taken: u64 = 0;
    let mut placed = Vec::with_capacity(instances.len());
    for instance in instances {
        let shape = profile(model, &instance.profile).ok_or_else(|| instance.clone())?;
        let free = |start: u32| taken & mask(start, shape.size) == 0;
        let start = match instance.start {
            Some(start) if shape.starts.contains(&start) && free(start) => start,
            Some(_) => return Err(instance.clone()),
            None => shape
                .starts
                .iter()
                .copied()
                .find(|&s| free(s))
                .ok_or_else(|| instance.clone())?,
        };
        taken |= mask(start, shape.size);
        placed.push((instance.profile.clone(), start));
    }
    Ok(placed)
}

/// The memory slices from `start` on, as bits; no model has more than 64.
fn mask(start: u32, size: u32) -> u64 {
    let ones = if size >= u64::BITS {
        u64::MAX
    } else {
        (1 << size) - 1
    };
    if start >= u64::BITS { 0 } else { ones << start }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(profiles: &[&str]) -> Vec<MigInstance> {
        profiles
            .iter()
            .map(|p| MigInstance {
                profile: (*p).to_owned(),
                start: None,
            })
            .collect()
    }

    #[test]
    fn three_and_three_fill_an_h100_and_leave_no_room_for_one() {
        assert!(lay_out("H100-80GB", &listed(&["3g.40gb", "3g.40gb"])).is_ok());
        assert!(lay_out("H100-80GB", &listed(&["3g.40gb", "3g.40gb", "1g.10gb"])).is_err());
    }

    #[test]
    fn a_profile_of_another_model_does_not_exist() {
        assert!(
            profile("H100-80GB", "1g.6gb").is_none() && profile("A30-24GB", "1g.6gb").is_some()
        );
    }
}
