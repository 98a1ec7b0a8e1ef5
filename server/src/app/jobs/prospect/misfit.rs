//! Which key of a spec is at fault where no node of its pools could ever hold it.

use std::collections::BTreeSet;

use domain::sharing::SharingMode;
use domain::spec::{JobSpec, NvlinkRule};
use domain::{FieldError, MilliCpu, MilliGpu, words};
use engine::plan::Code;
use engine::world::{Node, Workload, World};

use super::nodes;
use crate::scheduler::capable;

/// Values that a refusal names: enough to recognise the one that was meant.
const VALUES_NAMED_MAX: usize = 20;

/// A spec that no node holds, and where it was looked for.
struct Misfit<'a> {
    fleet: &'a World,
    spec: &'a JobSpec,
    /// The accepted pools in words.
    pools: &'a str,
}

/// The key of a spec that asks for more than any node has, or for what none has together with the
/// rest; `fleet` is all in service and without work. The engine thinks for it, as for a prospect.
pub(super) fn find(fleet: &World, spec: &JobSpec, workload: &Workload, pools: &str) -> FieldError {
    let asked = Misfit { fleet, spec, pools };
    let alone = asked.too_much().or_else(|| asked.nowhere());
    alone.unwrap_or_else(|| asked.together(workload))
}

/// The key that asks for hardware which no node of the pools offers, from the engine's words for it.
pub(super) fn hardware(fleet: &World, spec: &JobSpec, scope: &str, pools: &str) -> FieldError {
    let asked = Misfit { fleet, spec, pools };
    let (key, value) = scope.split_once(' ').unwrap_or(("sharing", scope));
    let remedy = match key {
        "gpu_model" => asked.models(),
        "mig_profile" => format!("a profile that a device on a node of {pools} can be cut into"),
        _ => asked.modes(),
    };
    FieldError::new(format!("per_worker.{key}"), value, remedy)
}

impl Misfit<'_> {
    /// An amount that is more than any node has.
    fn too_much(&self) -> Option<FieldError> {
        let need = &self.spec.per_worker;
        let refused = |key: &str, asked: String, most: String, of: &str| {
            Some(FieldError::new(key, asked, format!("at most {most} {of}")))
        };
        let (gpus, pool) = self.most(|node| MilliGpu::whole(i64::from(node.gpus)).milli());
        // Instances are counted, and a device holds several.
        if need.mig_profile.is_none() && need.gpus().milli() > gpus {
            let (asked, most) = (
                need.gpus().to_string(),
                MilliGpu::from_milli(gpus).to_string(),
            );
            return refused("per_worker.gpus", asked, most, &on_one_node(pool));
        }
        let (cpus, pool) = self.most(|node| node.cpus.milli());
        if need.cpus.milli() > cpus {
            let (asked, most) = (
                need.cpus.to_string(),
                MilliCpu::from_milli(cpus).to_string(),
            );
            return refused("per_worker.cpus", asked, most, &on_one_node(pool));
        }
        let (memory, pool) = self.most(|node| node.memory_mib);
        if need.memory_mib > memory {
            let (asked, most) = (need.memory_mib.to_string(), memory.to_string());
            return refused("per_worker.memory_mib", asked, most, &on_one_node(pool));
        }
        let (memory, pool) = self.most(|node| node.gpu_memory_mib);
        let asked = need.gpu_memory_mib.filter(|asked| *asked > memory)?;
        let on_one = format!("on one device of {pool}");
        refused(
            "per_worker.gpu_memory_mib",
            asked.to_string(),
            memory.to_string(),
            &on_one,
        )
    }

    /// The most of an amount that a node has, and the pool that it is in.
    fn most(&self, amount: fn(&Node) -> i64) -> (i64, &str) {
        let largest = self.nodes().max_by_key(|node| amount(node));
        largest.map_or((0, self.pools), |node| (amount(node), node.pool.as_str()))
    }

    /// A value that no node has.
    fn nowhere(&self) -> Option<FieldError> {
        let spec = self.spec;
        if let Some(name) = &spec.node
            && !self.nodes().any(|node| node.name == name.as_str())
        {
            let remedy = format!("null, or a node of {}", self.pools);
            return Some(FieldError::new("node", name, remedy));
        }
        let has = |label: &(&String, &String)| {
            self.nodes()
                .any(|node| node.labels.get(label.0) == Some(label.1))
        };
        if let Some((label, value)) = spec.selector.iter().find(|label| !has(label)) {
            let remedy = self.values(label);
            return Some(FieldError::new(format!("selector.{label}"), value, remedy));
        }
        let model = spec.per_worker.gpu_model.as_ref()?;
        let known = self
            .nodes()
            .any(|node| node.gpu_model.as_ref() == Some(model));
        (!known).then(|| FieldError::new("per_worker.gpu_model", model, self.models()))
    }

    /// The key without which the rest would have a place.
    fn together(&self, workload: &Workload) -> FieldError {
        let fits = |(without, _): &(Workload, FieldError)| has_place(self.fleet, without);
        if let Some((_, fault)) = self.dropped(workload).into_iter().find(fits) {
            return fault;
        }
        if self.spec.workers > 1 {
            return self.too_many_workers();
        }
        let gpus = self.spec.per_worker.gpus();
        let remedy = format!(
            "less, or fewer demands: no node of {} meets all of them",
            self.pools
        );
        FieldError::new("per_worker", words::gpus(gpus), remedy)
    }

    /// The workload without each of its demands in turn, and what is said of the one that is left out:
    /// what binds it to certain nodes before how much it asks for.
    fn dropped(&self, workload: &Workload) -> Vec<(Workload, FieldError)> {
        let (spec, pools) = (self.spec, self.pools);
        let need = &spec.per_worker;
        let mut dropped = Vec::new();
        let mut drop = |change: &dyn Fn(&mut Workload), fault: FieldError| {
            let mut without = workload.clone();
            change(&mut without);
            dropped.push((without, fault));
        };
        if let Some(name) = &spec.node {
            let remedy = self.this_node(name.as_str());
            drop(&|w| w.node = None, FieldError::new("node", name, remedy));
        }
        for (label, value) in &spec.selector {
            let remedy = format!(
                "another value, or none: no node of {pools} with this one could hold the rest"
            );
            let fault = FieldError::new(format!("selector.{label}"), value, remedy);
            drop(&|w| drop_label(w, label), fault);
        }
        if let Some(model) = &need.gpu_model {
            let remedy = format!(
                "another model, or null: no node of {pools} with this one could hold the rest"
            );
            let fault = FieldError::new("per_worker.gpu_model", model, remedy);
            drop(&|w| w.per_worker.gpu_model = None, fault);
        }
        if let Some(mib) = need.gpu_memory_mib {
            let remedy = format!(
                "less, or null: no node of {pools} with so much on a device could hold the rest"
            );
            let fault = FieldError::new("per_worker.gpu_memory_mib", mib, remedy);
            drop(&|w| w.per_worker.gpu_memory_mib = None, fault);
        }
        if spec.nvlink == NvlinkRule::Require {
            let remedy = format!(
                "prefer or any: no node of {pools} links {} of its devices",
                need.gpus()
            );
            let fault = FieldError::new("nvlink", spec.nvlink, remedy);
            drop(&|w| w.nvlink = NvlinkRule::Any, fault);
        }
        if let Some(label) = &spec.topology.require {
            let workers = spec.min_workers.unwrap_or(spec.workers);
            let remedy = format!(
                "null, or topology.prefer in its place: no nodes of {pools} with one value of this label could hold {}",
                words::counted(workers.into(), "worker")
            );
            let fault = FieldError::new("topology.require", label, remedy);
            drop(&|w| w.topology.require = None, fault);
        }
        if workload.workers_least() > 1 {
            drop(&one_worker, self.too_many_workers());
        }
        let beside = format!("no node of {pools} has as much together with the rest");
        let fewer = |key: &str, asked: &dyn std::fmt::Display| {
            FieldError::new(key, asked, format!("less: {beside}"))
        };
        if need.gpus() > MilliGpu::whole(1) {
            let one = Some(MilliGpu::whole(1));
            drop(
                &|w| w.per_worker.gpus = one,
                fewer("per_worker.gpus", &need.gpus()),
            );
        }
        if need.cpus > MilliCpu::ZERO {
            drop(
                &|w| w.per_worker.cpus = MilliCpu::ZERO,
                fewer("per_worker.cpus", &need.cpus),
            );
        }
        if need.memory_mib > 0 {
            drop(
                &|w| w.per_worker.memory_mib = 0,
                fewer("per_worker.memory_mib", &need.memory_mib),
            );
        }
        dropped
    }

    fn too_many_workers(&self) -> FieldError {
        let (key, workers) = match self.spec.min_workers {
            Some(least) => ("min_workers", least),
            None => ("workers", self.spec.workers),
        };
        let pools = self.pools;
        let remedy =
            format!("as many as the nodes of {pools} could hold at once when they are empty");
        FieldError::new(key, workers, remedy)
    }

    /// What a node has that cannot hold what is pinned to it.
    fn this_node(&self, name: &str) -> String {
        match self.nodes().find(|node| node.name == name) {
            Some(node) => format!(
                "null, or a node that holds the rest; this one has {}, {} and {} MiB",
                words::counted(node.gpus.into(), "GPU"),
                words::cpus(node.cpus),
                node.memory_mib
            ),
            None => format!("null, or a node of {}", self.pools),
        }
    }

    fn models(&self) -> String {
        let models = self.nodes().filter_map(|node| node.gpu_model.clone());
        self.one_of("a model", models.collect())
    }

    /// The modes of the nodes that hold such work, or what to ask for where there are none.
    fn modes(&self) -> String {
        let need = &self.spec.per_worker;
        let offered = self.offered();
        let serves = |mode: &SharingMode| match mode {
            SharingMode::Exclusive => need.mig_profile.is_none() && !need.fraction(),
            SharingMode::Mig => need.mig_profile.is_some(),
            SharingMode::Mps | SharingMode::TimeSlice | SharingMode::Vgpu => need.fraction(),
        };
        if offered.iter().any(serves) {
            let served = offered.iter().filter(|mode| serves(mode));
            return self.one_of("modes", served.map(ToString::to_string).collect());
        }
        let instead = if need.mig_profile.is_some() {
            "mig_profile null, since nothing is cut into instances there"
        } else if need.fraction() {
            "a whole number of gpus, since no device is shared there"
        } else {
            "a fraction of a device in gpus, since none is given out whole there"
        };
        let known: Vec<&str> = offered.iter().map(|mode| mode.as_str()).collect();
        let (pools, known) = (self.pools, known.join(", "));
        format!("another pool, or {instead} (modes of nodes of {pools}: {known})")
    }

    /// The modes that nodes of the pools are given out in.
    fn offered(&self) -> BTreeSet<SharingMode> {
        let offered = self.nodes().flat_map(|node| {
            let pool = self.fleet.pools.iter().find(|pool| pool.name == node.pool);
            let modes = pool.map_or(&[][..], |pool| &pool.sharing);
            let drives = |mode: &&_| {
                node.drives
                    .as_ref()
                    .is_none_or(|known| known.contains(mode))
            };
            modes.iter().filter(drives).copied()
        });
        offered.collect()
    }

    /// The values of a label, or the labels where no node has that one.
    fn values(&self, label: &str) -> String {
        let values: BTreeSet<String> = self
            .nodes()
            .filter_map(|node| node.labels.get(label).cloned())
            .collect();
        if !values.is_empty() {
            return self.one_of("a value of this label", values);
        }
        let labels = self.nodes().flat_map(|node| node.labels.keys());
        let known = labels.filter(|label| !capable::internal(label)).cloned();
        self.one_of("another label", known.collect())
    }

    /// A remedy that names what the nodes have.
    fn one_of(&self, what: &str, values: BTreeSet<String>) -> String {
        let pools = self.pools;
        if values.is_empty() {
            return format!("nothing, since the nodes of {pools} have none");
        }
        let named: Vec<String> = values.into_iter().take(VALUES_NAMED_MAX).collect();
        format!("{what} that nodes of {pools} have: {}", named.join(", "))
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        nodes(self.fleet, self.spec)
    }
}

fn on_one_node(pool: &str) -> String {
    format!("on one node of {pool}")
}

fn drop_label(workload: &mut Workload, label: &str) {
    workload.selector.remove(label);
}

fn one_worker(workload: &mut Workload) {
    workload.workers = 1;
    workload.min_workers = None;
}

/// Whether the fleet could ever hold a workload, whatever quotas say.
fn has_place(fleet: &World, workload: &Workload) -> bool {
    match engine::dry_run(fleet, workload.clone()) {
        engine::DryRun::Waits {
            waiting: verdict, ..
        } => !matches!(verdict.code, Code::NeverFits | Code::NoSuchHardware),
        _ => true,
    }
}
