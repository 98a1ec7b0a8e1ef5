//! Scenario files: the engine's input on paper, read with line and key in every error, and written back.

pub mod amounts;
mod check;
mod check_work;
mod fields;
mod instances;
mod read;
mod read_pool;
mod read_workload;
mod tree;
mod write;

use crate::world::World;

pub use check::{Fault, check};
pub use write::write;

/// Why a scenario file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {key}: {what}")]
pub struct ScenarioError {
    /// The line in the file, from 1.
    pub line: usize,
    /// The key, as a path such as `nodes[0].gpus`; `file` where no key is at fault.
    pub key: String,
    /// The value, why it is refused, and what would be accepted.
    pub what: String,
}

/// Reads a scenario, YAML 1.2 or JSON, and checks it against itself.
pub fn parse(text: &str) -> Result<World, ScenarioError> {
    let root = tree::read(text)?;
    let mut world = read::world(&root)?;
    check(&world).map_err(|fault| fault.at(&root))?;
    instances::settle(&mut world);
    Ok(world)
}

#[cfg(test)]
mod tests;
