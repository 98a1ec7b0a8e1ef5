//! The checker's own reading of the table of MIG profiles: what an instance takes of its device, by model and name.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use crate::world::Node;

/// What an instance of a profile takes.
#[derive(Debug)]
pub(super) struct Shape {
    /// Memory slices that it takes, and that the whole device has.
    pub size: u32,
    pub of: u32,
    /// Memory slices at which it may begin.
    pub starts: Vec<u32>,
    /// Whether it has the engines of which a device has one set.
    pub extra: bool,
    /// Whether it has all engines, so that no other instance has any.
    pub alone: bool,
    /// Whether it has any engine.
    pub engines: bool,
}

impl Shape {
    /// What it counts for, in thousandths of a device: its part of the memory slices.
    pub fn milli(&self) -> i128 {
        1000 * i128::from(self.size) / i128::from(self.of)
    }
}

/// The shape of a profile on the devices of a node; `None` where they have no such profile.
pub(super) fn shape(node: &Node, profile: &str) -> Option<&'static Shape> {
    static SHAPES: OnceLock<BTreeMap<(String, String), Shape>> = OnceLock::new();
    let model = node.gpu_model.clone()?;
    let shapes = SHAPES.get_or_init(|| read(include_str!("../../data/mig_profiles.json")));
    shapes.get(&(model, profile.to_owned()))
}

fn read(text: &str) -> BTreeMap<(String, String), Shape> {
    let file: Value = serde_json::from_str(text).expect("the file is part of the crate");
    let mut shapes = BTreeMap::new();
    for model in list(&file["models"]) {
        for profile in list(&model["profiles"]) {
            let key = (word(&model["key"]), word(&profile["name"]));
            let starts: Vec<u32> = list(&profile["placement_starts"])
                .iter()
                .filter_map(number)
                .collect();
            let sizes = number(&profile["placement_size"]).zip(number(&model["memory_slices"]));
            let Some((size, of)) = sizes.filter(|_| !starts.is_empty()) else {
                continue;
            };
            let kind = word(&profile["kind"]);
            let alone = kind.ends_with("+me.all");
            let shape = Shape {
                size,
                of,
                starts,
                extra: alone || kind.ends_with("+me"),
                alone,
                engines: !kind.ends_with("-me"),
            };
            shapes.insert(key, shape);
        }
    }
    shapes
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}
