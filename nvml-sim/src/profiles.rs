//! The profiles of MIG instances by product, with the driver's own numbers and placements.

use std::sync::OnceLock;

use serde::Deserialize;

/// The products that can be cut alike.
#[derive(Debug, Deserialize)]
pub(crate) struct Model {
    product_names: Vec<String>,
    /// Memory slices of the whole device.
    pub memory_slices: u32,
    /// Whether a change of the mode outlives a restart of the machine, as on cards that keep it in
    /// their own memory.
    #[serde(rename = "mode_change_needs_gpu_reset")]
    pub mode_kept: bool,
    pub profiles: Vec<Profile>,
}

/// One way of cutting.
#[derive(Debug, Deserialize)]
pub(crate) struct Profile {
    pub name: String,
    kind: String,
    /// The number that all calls but one take.
    #[serde(rename = "profile_id")]
    pub id: u32,
    /// The number that a profile is asked for by.
    #[serde(rename = "nvml_profile_enum")]
    pub number: u32,
    pub compute_slices: u32,
    #[serde(default)]
    memory_mib: Option<u64>,
    #[serde(default)]
    pub sm: Option<u32>,
    #[serde(default)]
    pub copy_engines: Option<u32>,
    #[serde(default)]
    pub decoders: Option<u32>,
    #[serde(default)]
    pub encoders: Option<u32>,
    #[serde(default)]
    pub jpeg: Option<u32>,
    #[serde(default)]
    pub ofa: Option<u32>,
    pub max_instances: u32,
    #[serde(rename = "placement_starts", default)]
    pub starts: Option<Vec<u32>>,
    #[serde(rename = "placement_size", default)]
    pub size: Option<u32>,
}

/// What a profile takes of the engines that a device has one set of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engines {
    Plain,
    /// `+me`: one instance may have them.
    Extra,
    /// `+me.all`: nobody else has any.
    All,
    /// `-me`.
    Without,
}

impl Profile {
    pub fn size(&self) -> u32 {
        self.size.unwrap_or(1)
    }

    pub fn starts(&self) -> &[u32] {
        self.starts.as_deref().unwrap_or_default()
    }

    /// Memory of an instance; where nobody has seen the number, its slices' part of the device's.
    pub fn memory_mib(&self, device_mib: u64, slices: u32) -> u64 {
        let part = device_mib * u64::from(self.size()) / u64::from(slices.max(1));
        self.memory_mib.unwrap_or(part)
    }

    pub fn engines(&self) -> Engines {
        if self.kind.ends_with("+me.all") {
            Engines::All
        } else if self.kind.ends_with("+me") {
            Engines::Extra
        } else if self.kind.ends_with("-me") {
            Engines::Without
        } else {
            Engines::Plain
        }
    }
}

impl Model {
    pub fn profile(&self, id: u32) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }
}

/// The model of a product; none where it cannot be cut.
pub(crate) fn of_product(name: &str) -> Option<&'static Model> {
    #[derive(Deserialize)]
    struct File {
        models: Vec<Model>,
    }
    static TABLE: OnceLock<Vec<Model>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        // The project's one table: the planner reads the same file.
        let text = include_str!("../../engine/data/mig_profiles.json");
        let file: File = serde_json::from_str(text).expect("the file is built in and tested");
        file.models
    });
    let has = |model: &&Model| model.product_names.iter().any(|known| known == name);
    table.iter().find(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_drivers_numbers() {
        let a100 = of_product("NVIDIA A100-SXM4-80GB").expect("it can be cut");
        let small = a100.profile(19).expect("1g");
        assert_eq!((small.name.as_str(), small.size()), ("1g.10gb", 1));
        assert_eq!(a100.profile(9).expect("3g").starts(), [0, 4]);
        assert_eq!(a100.profile(20).expect("1g+me").engines(), Engines::Extra);
        assert!(a100.mode_kept);
        assert!(!of_product("NVIDIA H200").expect("it can").mode_kept);
        assert!(of_product("NVIDIA L40S").is_none());
    }
}
