//! Whether a job could ever run: asked of the engine on the registered fleet without any work.

use std::fmt;

use domain::quota::QuotaBound;
use domain::spec::JobSpec;
use domain::{FieldError, MilliCpu, MilliGpu};
use engine::plan::{Code, Waiting};
use engine::world::{Node, NodeState, Pool, PoolState, Workload, World};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::{RefusalCode, promises};
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
        /// For what it is refused.
        code: RefusalCode,
        /// What stands in the way.
        field: FieldError,
    },
    /// Its quota can never admit it. It is taken, since people may change a quota, and told so;
    /// with the engine's verdict.
    BeyondQuota(BeyondQuota, Box<Waiting>),
}

/// By which rule a quota binds, as a verdict's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuotaCode {
    /// The limit of its own team, what others lend, or what one user may hold.
    OverLimit,
    /// The limit of a team above its own.
    AncestorOverLimit,
    /// It may not be preempted, and so must fit in its team's guarantee.
    NonPreemptibleOverGuarantee,
}

impl QuotaCode {
    /// The rule of a verdict; nothing where it is not one of quota.
    pub(in crate::app) fn of(code: Code) -> Option<Self> {
        match code {
            Code::OverLimit => Some(Self::OverLimit),
            Code::AncestorOverLimit => Some(Self::AncestorOverLimit),
            Code::NonPreemptibleOverGuarantee => Some(Self::NonPreemptibleOverGuarantee),
            _ => None,
        }
    }

    /// The rule that a job's row names as what it waits for; nothing where that is not one of quota.
    pub(in crate::app) fn read(reason: &str) -> Option<Self> {
        let codes = [
            Code::OverLimit,
            Code::AncestorOverLimit,
            Code::NonPreemptibleOverGuarantee,
        ];
        let named = codes.into_iter().find(|code| code.as_str() == reason);
        named.and_then(Self::of)
    }
}

/// What of a job's quota can never admit it, even when nothing else runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BeyondQuota {
    /// `over_limit`, `ancestor_over_limit` or `non_preemptible_over_guarantee`.
    pub code: QuotaCode,
    /// Which number binds: `limit`, `lend_limit`, `max_per_user` or `guarantee`.
    pub bound: QuotaBound,
    /// The team whose number it is; null for another's, whose name is not the reader's to know.
    pub team: Option<String>,
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
            number(self.bound, self.team.as_deref()),
            self.have,
            self.remedy
        )
    }
}

impl BeyondQuota {
    /// What a verdict on work of `team` says of a quota; nothing where no quota binds.
    fn of(team: &str, verdict: &Waiting) -> Option<Self> {
        let code = QuotaCode::of(verdict.code)?;
        let (bound, team) = match code {
            QuotaCode::NonPreemptibleOverGuarantee => {
                (QuotaBound::Guarantee, Some(team.to_owned()))
            }
            QuotaCode::OverLimit | QuotaCode::AncestorOverLimit => read_scope(&verdict.scope),
        };
        let mut ways = Vec::new();
        if verdict.have > MilliGpu::ZERO {
            ways.push(format!("ask for at most {} GPUs", verdict.have));
        }
        if bound == QuotaBound::Guarantee {
            ways.push("let it be preempted".to_owned());
        }
        let raised = number(bound, team.as_deref());
        ways.push(format!("have an administrator raise {raised}"));
        Some(Self {
            code,
            bound,
            team,
            need: verdict.need,
            have: verdict.have,
            remedy: ways.join(", or "),
        })
    }
}

/// The number that binds and whose it is, from the engine's words for a limit.
fn read_scope(scope: &str) -> (QuotaBound, Option<String>) {
    let bounds = [
        ("lend_limit of ", QuotaBound::LendLimit),
        ("max_per_user of ", QuotaBound::MaxPerUser),
    ];
    let found = bounds
        .iter()
        .find_map(|(words, bound)| Some((*bound, scope.strip_prefix(words)?)));
    let (bound, whose) = found.unwrap_or((QuotaBound::Limit, scope));
    (bound, whose.strip_prefix("team ").map(str::to_owned))
}

/// A number of a quota in words.
fn number(bound: QuotaBound, team: Option<&str>) -> String {
    let whose = team.map_or_else(|| "another team".to_owned(), |team| format!("team {team}"));
    match bound {
        QuotaBound::Limit => format!("the limit of {whose}"),
        QuotaBound::LendLimit => format!("the lend_limit of {whose}"),
        QuotaBound::MaxPerUser => format!("the max_per_user of {whose}"),
        QuotaBound::Guarantee => "its team's guarantee".to_owned(),
    }
}

/// Asks whether a workload of a spec could ever run. The engine thinks for it: not on a thread
/// that answers requests.
pub(in crate::app) fn of(fleet: &World, spec: &JobSpec, workload: Workload) -> Prospect {
    if let Some((code, field)) = beyond_agents(fleet, spec) {
        return Prospect::Closed { code, field };
    }
    let fleet = &in_service(fleet);
    let pools = if workload.pools.is_empty() {
        "all pools".to_owned()
    } else {
        workload.pools.join(", ")
    };
    let asked = workload.clone();
    // What it waits for besides is not asked: a verdict on that would hide the others.
    let workload = Workload {
        not_before: None,
        nominated: None,
        ..workload
    };
    let engine::DryRun::Waits {
        waiting: verdict, ..
    } = engine::dry_run(fleet, workload)
    else {
        return Prospect::Open;
    };
    let asked_for = || format!("what is asked for ({})", verdict.scope);
    let (code, field) = match verdict.code {
        Code::NeverFits => (RefusalCode::NeverFits, too_large(fleet, spec, &pools)),
        Code::NoSuchHardware => (
            RefusalCode::NoSuchHardware,
            FieldError::new(
                "per_worker",
                asked_for(),
                "a model, sharing mode and runner that a registered node has",
            ),
        ),
        Code::NoQuota => (
            RefusalCode::NoQuota,
            FieldError::new(
                "pools",
                &pools,
                "pools in which the team has a quota; an operator gives one",
            ),
        ),
        _ => {
            let verdict = discreet::verdict(fleet, &asked.team, &verdict);
            return match BeyondQuota::of(&asked.team, &verdict) {
                Some(beyond) if !shrunk(fleet, &asked, &beyond) => {
                    Prospect::BeyondQuota(beyond, Box::new(verdict))
                }
                _ => Prospect::Open,
            };
        }
    };
    Prospect::Closed { code, field }
}

/// The fleet as it is once whatever is out has come back: outages and closed pools pass, and
/// guarantees shrink with what is away.
fn in_service(fleet: &World) -> World {
    let mut fleet = fleet.clone();
    for node in &mut fleet.nodes {
        node.state = NodeState::Ready;
        node.failed.clear();
    }
    for pool in &mut fleet.pools {
        pool.state = PoolState::Open;
    }
    fleet
}

/// Whether the work is within its team's guarantee as it was given: what binds is then that a pool
/// promises more than it has, which machines mend.
fn shrunk(fleet: &World, work: &Workload, beyond: &BeyondQuota) -> bool {
    if !matches!(beyond.bound, QuotaBound::Guarantee | QuotaBound::LendLimit) {
        return false;
    }
    let accepted = |pool: &&Pool| work.pools.is_empty() || work.pools.contains(&pool.name);
    fleet
        .pools
        .iter()
        .filter(accepted)
        .any(|pool| promises::of_team(&fleet.teams, &work.team, &pool.name) >= beyond.need)
}

/// Whether no agent of the accepted pools would carry the job, whatever its node has.
fn beyond_agents(fleet: &World, spec: &JobSpec) -> Option<(RefusalCode, FieldError)> {
    let carrying: Vec<&Node> = nodes(fleet, spec)
        .filter(|node| capable::carries(node, spec.runner))
        .collect();
    if carrying.is_empty() {
        let remedy = "a runner that a registered node has";
        let field = FieldError::new("runner", spec.runner, remedy);
        return Some((RefusalCode::NoSuchHardware, field));
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
    Some((RefusalCode::NoSuchHardware, field))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_calls_a_limit_is_read_as_what_it_is() {
        let whose = |bound, team: Option<&str>| (bound, team.map(str::to_owned));
        for (scope, read) in [
            ("team vision", whose(QuotaBound::Limit, Some("vision"))),
            ("another team", whose(QuotaBound::Limit, None)),
            (
                "lend_limit of another team",
                whose(QuotaBound::LendLimit, None),
            ),
            (
                "max_per_user of team org",
                whose(QuotaBound::MaxPerUser, Some("org")),
            ),
        ] {
            assert_eq!(read_scope(scope), read, "{scope}");
        }
    }
}
