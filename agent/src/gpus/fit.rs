//! Whether a device could have the instances of a layout beside one another, said before any is made.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::mig::{self, Profile};

/// What instances have in all may be so small a part more than the largest has: drivers round each.
const ROUNDED: u64 = 32;
/// No model has more slices of compute.
const COMPUTE_SLICES: u64 = 7;
/// What could be asked for in place of instances that do not fit.
pub const FEWER: &str = "instances that lie beside one another: fewer, or smaller ones";

/// What can be said of instances before any is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// The device has such profiles, and room for so many.
    Fits,
    /// Their names say nothing against them: many drivers tell profiles while the mode is on alone.
    Unsaid,
    /// They cannot be there together.
    Not {
        /// What is wanted.
        wanted: String,
        /// What could be.
        remedy: String,
    },
}

/// Whether a device could have these instances beside one another, by its profiles, or where its driver
/// does not tell them, by the names alone.
pub fn fit(nvml: &Nvml, device: &Device<'_>, wanted: &[String]) -> Result<Fit, NvmlError> {
    let all = mig::profiles(nvml, device)?;
    let beyond = if all.is_empty() {
        let bytes = device.memory_info()?.total;
        beyond_by_names(wanted, bytes / (1024 * 1024))
    } else {
        beyond(&all, wanted)
    };
    Ok(match beyond {
        Some((wanted, remedy)) => Fit::Not { wanted, remedy },
        None if all.is_empty() => Fit::Unsaid,
        None => Fit::Fits,
    })
}

/// What of these instances a device with such profiles cannot have, and what it could.
fn beyond(all: &[Profile], wanted: &[String]) -> Option<(String, String)> {
    let known = |name: &str| {
        let same = all.iter().find(|profile| profile.name == name);
        same.or_else(|| all.iter().find(|profile| mig::alike(&profile.name, name)))
    };
    let (mut compute, mut memory) = (0, 0);
    for name in wanted {
        let Some(profile) = known(name) else {
            let names: Vec<&str> = all.iter().map(|profile| profile.name.as_str()).collect();
            return Some((
                name.clone(),
                format!("profiles of this model: {}", names.join(", ")),
            ));
        };
        let count = wanted.iter().filter(|other| *other == name).count();
        if count > profile.most as usize {
            return Some((
                wanted.join(", "),
                format!("at most {} of {name}", profile.most),
            ));
        }
        compute += profile.compute;
        memory += profile.memory_mib;
    }
    let largest_compute = all.iter().map(|profile| profile.compute).max()?;
    let largest_memory = all.iter().map(|profile| profile.memory_mib).max()?;
    let most_memory = largest_memory + largest_memory / ROUNDED;
    (compute > largest_compute || memory > most_memory)
        .then(|| (wanted.join(", "), FEWER.to_owned()))
}

/// The same where only their names are known: slices of compute and GB of memory.
fn beyond_by_names(wanted: &[String], memory_mib: u64) -> Option<(String, String)> {
    let (mut compute, mut memory) = (0, 0);
    for (slices, gb) in wanted.iter().filter_map(|name| numbers(name)) {
        compute += slices;
        memory += gb * 1024;
    }
    (compute > COMPUTE_SLICES || memory > memory_mib + memory_mib / ROUNDED)
        .then(|| (wanted.join(", "), FEWER.to_owned()))
}

/// Slices of compute and GB of memory, as a profile's name has them.
fn numbers(profile: &str) -> Option<(u64, u64)> {
    let plain = profile.split(['+', '-']).next()?;
    let (compute, memory) = plain.split_once("g.")?;
    let gb = memory.strip_suffix("gb")?;
    Some((compute.parse().ok()?, gb.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_that_a_device_cannot_have_are_known_before_any_is_made() {
        let profile = |name: &str, compute, most, memory_mib| Profile {
            id: 0,
            name: name.to_owned(),
            compute,
            most,
            memory_mib,
        };
        let h100 = [
            profile("1g.10gb", 1, 7, 9_856),
            profile("1g.20gb", 1, 4, 20_096),
            profile("3g.40gb", 3, 2, 40_192),
            profile("7g.80gb", 7, 1, 81_153),
        ];
        let told = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            beyond(&h100, &wanted).map(|(_, remedy)| remedy)
        };
        assert_eq!(told(&["3g.40gb", "3g.40gb"]), None);
        assert_eq!(told(&["1g.20gb"; 4]), None);
        assert_eq!(told(&["1g.10gb"; 7]), None);
        assert_eq!(
            told(&["3g.40gb", "3g.40gb", "1g.10gb"]),
            Some(FEWER.to_owned())
        );
        assert_eq!(told(&["7g.80gb", "1g.10gb"]), Some(FEWER.to_owned()));
        assert_eq!(
            told(&["3g.40gb"; 3]),
            Some("at most 2 of 3g.40gb".to_owned())
        );
        let by_names = |wanted: &[&str], memory_mib| {
            let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            beyond_by_names(&wanted, memory_mib).is_some()
        };
        assert!(!by_names(&["3g.71gb", "3g.71gb"], 143_771));
        assert!(!by_names(
            &["1g.24gb", "1g.24gb", "1g.24gb", "1g.24gb+me"],
            97_887
        ));
        assert!(by_names(&["3g.40gb", "3g.40gb", "1g.10gb"], 81_559));
        assert!(by_names(&["1g.5gb"; 8], 40_960));
        let unknown = told(&["2g.24gb"]).expect("no such profile");
        assert!(unknown.contains("1g.10gb, 1g.20gb"), "{unknown}");
    }
}
