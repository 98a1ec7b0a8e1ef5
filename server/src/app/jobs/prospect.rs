//! Whether a job could ever run: asked of the engine on the registered fleet without any work.

use std::fmt;

use domain::spec::JobSpec;
use domain::{FieldError, MilliCpu, MilliGpu};
use engine::plan::{Code, Waiting};
use engine::world::{Node, Workload, World};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::scheduler::{capable, discreet};

/// Roots that a refusal names: enough to recognise the one that was meant.
const ROOTS_NAMED_MAX: usize = 20;

/// What the registered fleet and the rules have for a job when nothing else runs.
#[derive(Debug)]
pub(in crate::app) enum Prospect {
    /// It may start one day.
    Open,
    /// It never can on these nodes, or has no quota at all: it is refused.
    Closed {
        /// A stable word for programs, such as `never_fits`.
        code: &'static str,
        /// What stands in the way.
        field: FieldError,
    },
    /// Its quota can never admit it. It is taken, since people may change a quota, and told so;
    /// with the engine's verdict.
    BeyondQuota(BeyondQuota, Box<Waiting>),
}

/// What of a job's quota can never admit it, even when nothing else runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BeyondQuota {
    /// `over_limit`, `ancestor_over_limit` or `non_preemptible_over_guarantee`.
    pub code: String,
    /// What binds, such as `team vision`.
    pub scope: String,
    /// The GPUs that it needs at least, all workers together.
    pub need: MilliGpu,
    /// The GPUs that the quota leaves it when nothing else runs.
    pub have: MilliGpu,
    /// What would let it start.
    pub remedy: String,
}

impl fmt::Display for BeyondQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "it cannot start under the present quota: it needs {} GPUs, and {} admits {} even when nothing else runs; {}",
            self.need,
            bound(
                self.code == Code::NonPreemptibleOverGuarantee.as_str(),
                &self.scope
            ),
            self.have,
            self.remedy
        )
    }
}

/// Verdicts by which a quota binds.
const OF_QUOTA: [Code; 3] = [
    Code::OverLimit,
    Code::AncestorOverLimit,
    Code::NonPreemptibleOverGuarantee,
];

/// Whether a waiting code is one by which a quota binds.
pub(in crate::app) fn of_quota(code: &str) -> bool {
    OF_QUOTA.iter().any(|known| known.as_str() == code)
}

impl BeyondQuota {
    fn of(verdict: &Waiting) -> Option<Self> {
        if !OF_QUOTA.contains(&verdict.code) {
            return None;
        }
        let in_guarantee = verdict.code == Code::NonPreemptibleOverGuarantee;
        let raise = format!(
            "have an administrator raise {}",
            bound(in_guarantee, &verdict.scope)
        );
        let mut ways = Vec::new();
        if verdict.have > MilliGpu::ZERO {
            ways.push(format!("ask for at most {} GPUs", verdict.have));
        }
        if in_guarantee {
            ways.push("let it be preempted".to_owned());
        }
        ways.push(raise);
        Some(Self {
            code: verdict.code.as_str().to_owned(),
            scope: verdict.scope.clone(),
            need: verdict.need,
            have: verdict.have,
            remedy: ways.join(", or "),
        })
    }
}

/// The number of a quota that binds, by what the engine calls it.
fn bound(in_guarantee: bool, scope: &str) -> String {
    if in_guarantee {
        "its team's guarantee".to_owned()
    } else if scope.starts_with("team ") {
        format!("the limit of {scope}")
    } else {
        format!("the {scope}")
    }
}

/// Asks whether a workload of a spec could ever run.
pub(in crate::app) fn of(fleet: &World, spec: &JobSpec, workload: Workload) -> Prospect {
    if let Some((code, field)) = beyond_agents(fleet, spec) {
        return Prospect::Closed { code, field };
    }
    let pools = if workload.pools.is_empty() {
        "all pools".to_owned()
    } else {
        workload.pools.join(", ")
    };
    let team = workload.team.clone();
    // What it waits for besides is not asked: a verdict on that would hide the others.
    let workload = Workload {
        not_before: None,
        nominated: None,
        ..workload
    };
    let engine::DryRun::Waits(verdict) = engine::dry_run(fleet, workload) else {
        return Prospect::Open;
    };
    let asked = || format!("what is asked for ({})", verdict.scope);
    let (code, field) = match verdict.code {
        Code::NeverFits => ("never_fits", too_large(fleet, spec, &pools)),
        Code::NoSuchHardware => (
            "no_such_hardware",
            FieldError::new(
                "per_worker",
                asked(),
                "a model, sharing mode and runner that a registered node has",
            ),
        ),
        Code::NoQuota => (
            "no_quota",
            FieldError::new(
                "pools",
                &pools,
                "pools in which the team has a quota; an operator gives one",
            ),
        ),
        _ => {
            let verdict = discreet::verdict(fleet, &team, &verdict);
            return match BeyondQuota::of(&verdict) {
                Some(beyond) => Prospect::BeyondQuota(beyond, Box::new(verdict)),
                None => Prospect::Open,
            };
        }
    };
    Prospect::Closed { code, field }
}

/// Whether no agent of the accepted pools would carry the job, whatever its node has.
fn beyond_agents(fleet: &World, spec: &JobSpec) -> Option<(&'static str, FieldError)> {
    let carrying: Vec<&Node> = nodes(fleet, spec)
        .filter(|node| capable::carries(node, spec.runner))
        .collect();
    if carrying.is_empty() {
        let remedy = "a runner that a registered node has";
        let field = FieldError::new("runner", spec.runner, remedy);
        return Some(("no_such_hardware", field));
    }
    let wanted = spec.working_directory.as_deref()?;
    let roots = capable::roots(carrying);
    if roots.hold(wanted) {
        return None;
    }
    let named: Vec<&str> = roots.names().take(ROOTS_NAMED_MAX).collect();
    let remedy = if named.is_empty() {
        "null, since no node of its pools lets a job work outside of its own folder".to_owned()
    } else {
        format!(
            "null, or a path below what nodes of its pools allow: {}",
            named.join(", ")
        )
    };
    let field = FieldError::new("working_directory", wanted, remedy);
    Some(("no_such_hardware", field))
}

/// The nodes of the pools that a spec accepts.
pub(super) fn nodes<'f>(
    fleet: &'f World,
    spec: &'f JobSpec,
) -> impl Iterator<Item = &'f Node> + 'f {
    let accepted = |pool: &str| {
        spec.pools.is_empty() || spec.pools.iter().any(|accepted| accepted.as_str() == pool)
    };
    fleet.nodes.iter().filter(move |node| accepted(&node.pool))
}

/// Which key of a spec asks for more than any node of its pools has, and the most that one has.
fn too_large(fleet: &World, spec: &JobSpec, pools: &str) -> FieldError {
    let need = &spec.per_worker;
    let most = |amount: fn(&Node) -> i64| {
        let largest = nodes(fleet, spec).max_by_key(|node| amount(node));
        largest.map_or((0, pools), |node| (amount(node), node.pool.as_str()))
    };
    let (gpus, gpus_pool) = most(|node| MilliGpu::whole(i64::from(node.gpus)).milli());
    let (cpus, cpus_pool) = most(|node| node.cpus.milli());
    let (memory, memory_pool) = most(|node| node.memory_mib);
    let refused = |key: &str, value: String, most: String, pool: &str| {
        FieldError::new(key, value, format!("at most {most} on one node of {pool}"))
    };
    if need.gpus().milli() > gpus {
        let most = MilliGpu::from_milli(gpus).to_string();
        refused("per_worker.gpus", need.gpus().to_string(), most, gpus_pool)
    } else if need.cpus.milli() > cpus {
        let most = MilliCpu::from_milli(cpus).to_string();
        refused("per_worker.cpus", need.cpus.to_string(), most, cpus_pool)
    } else if need.memory_mib > memory {
        let asked = need.memory_mib.to_string();
        refused(
            "per_worker.memory_mib",
            asked,
            memory.to_string(),
            memory_pool,
        )
    } else {
        // Each worker would fit; it is all of them together, or what else they ask for.
        FieldError::new(
            "workers",
            spec.workers,
            format!("as many as the nodes of {pools} could hold at once when they are empty"),
        )
    }
}
