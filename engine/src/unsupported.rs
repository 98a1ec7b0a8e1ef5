//! Values of the contract whose rule is not built yet: refused by name, in files and by REST alike, never ignored.

use domain::sharing::SharingMode;
use domain::spec::{JobSpec, NvlinkRule, PerWorker};

use crate::world::{MigMode, Workload, World};

/// A value that is well-formed, and not supported yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value} is not supported yet; {remedy}")]
pub struct Unsupported {
    /// The key, such as `pools[h100].backfill`.
    pub field: String,
    /// The value.
    pub value: String,
    /// What is supported instead.
    pub remedy: String,
}

fn refuse(field: String, value: impl Into<String>, remedy: &str) -> Option<Unsupported> {
    Some(Unsupported {
        field,
        value: value.into(),
        remedy: remedy.to_owned(),
    })
}

/// The first value of a world that differs from its default and whose rule is not built.
pub fn unsupported(world: &World) -> Option<Unsupported> {
    for pool in &world.pools {
        let at = |key: &str| format!("pools[{}].{key}", pool.name);
        if let Some(mode) = pool
            .sharing
            .iter()
            .find(|mode| matches!(mode, SharingMode::Mig | SharingMode::Vgpu))
        {
            return refuse(
                at("sharing"),
                mode.as_str(),
                "use exclusive, time_slice or mps",
            );
        }
        if pool.mig_mode != MigMode::Dynamic {
            let value = if pool.mig_mode == MigMode::Static {
                "static"
            } else {
                "never"
            };
            return refuse(at("mig_mode"), value, "leave it out");
        }
    }
    if let Some(node) = world.nodes.iter().find(|n| !n.mig.is_empty()) {
        return refuse(
            format!("nodes[{}].mig", node.name),
            "devices in MIG mode",
            "leave them out of MIG mode",
        );
    }
    world.workloads.iter().find_map(|w| {
        workload(w).map(|mut found| {
            found.field = format!("workloads[{}].{}", w.name, found.field);
            found
        })
    })
}

fn workload(work: &Workload) -> Option<Unsupported> {
    let modes = work.placed.iter().flat_map(|p| &p.devices).map(|d| d.mode);
    let kept = work
        .nominated
        .iter()
        .flat_map(|n| &n.placement)
        .flat_map(|p| &p.devices)
        .map(|d| d.mode);
    if let Some(mode) = modes
        .chain(kept)
        .find(|m| matches!(m, SharingMode::Mig | SharingMode::Vgpu))
    {
        return refuse(
            "placed".to_owned(),
            mode.as_str(),
            "use exclusive, time_slice or mps",
        );
    }
    asked(&work.per_worker)
}

/// Modes may be accepted that no pool offers yet; what is asked for must be built.
fn asked(per_worker: &PerWorker) -> Option<Unsupported> {
    per_worker.mig_profile.as_ref().and_then(|profile| {
        refuse(
            "per_worker.mig_profile".to_owned(),
            profile.clone(),
            "ask for whole devices or a fraction in gpus",
        )
    })
}

/// The first value of a job's spec whose rule is not built.
pub fn unsupported_spec(spec: &JobSpec) -> Option<Unsupported> {
    debug_assert!(NvlinkRule::ALL.len() == 3, "all rules on links are built");
    asked(&spec.per_worker)
}
