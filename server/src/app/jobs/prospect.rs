//! Whether a job could ever run: asked of the engine on the registered fleet without any work.

mod misfit;
mod quota;

use std::collections::BTreeSet;

use domain::FieldError;
use domain::spec::JobSpec;
use engine::plan::{Code, Waiting};
use engine::world::{Node, NodeState, PoolState, Workload, World};

use crate::app::RefusalCode;
use crate::scheduler::week::Week;
use crate::scheduler::{capable, discreet};

use quota::Standing;
pub use quota::{BeyondQuota, QuotaCode};
pub(in crate::app) use quota::{beyond_at_all_times, may_be_beyond};
pub(crate) use quota::{beyond_quotas, waits_for_quota};

/// Names, of roots and of pools, that a refusal gives: enough to recognise the one that was meant.
const NAMED_MAX: usize = 20;

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

/// Asks whether a workload of a spec could ever run, at any time of the week. The engine thinks for
/// it: not on a thread that answers requests.
pub(in crate::app) fn of(week: &Week, spec: &JobSpec, workload: Workload) -> Prospect {
    if let Some((code, field)) = beyond_agents(&week.now, spec) {
        return Prospect::Closed { code, field };
    }
    let fleet = &in_service(&week.now);
    let pools = accepted(spec);
    // What it waits for besides is not asked: a verdict on that would hide the others.
    let asked = Workload {
        not_before: None,
        nominated: None,
        ..workload
    };
    let engine::DryRun::Waits {
        waiting: verdict, ..
    } = engine::dry_run(fleet, asked.clone())
    else {
        return Prospect::Open;
    };
    let (code, field) = match verdict.code {
        Code::NeverFits => (
            RefusalCode::NeverFits,
            misfit::find(fleet, spec, &asked, &pools),
        ),
        Code::NoSuchHardware => (
            RefusalCode::NoSuchHardware,
            misfit::hardware(fleet, spec, &verdict.scope, &pools),
        ),
        Code::NoQuota => match at_another_time(week, &asked) {
            Some(prospect) => return prospect,
            None => (
                RefusalCode::NoQuota,
                FieldError::new(
                    "pools",
                    &pools,
                    "pools in which the team has a quota; an operator gives one",
                ),
            ),
        },
        _ => {
            let beyond = quota::beyond_quotas(week, vec![asked.clone()]).pop_first();
            return beyond.map_or(Prospect::Open, |(_, beyond)| {
                beyond_quota(fleet, asked, beyond)
            });
        }
    };
    Prospect::Closed { code, field }
}

/// What of a workload without a quota is so at other times: a weekly window may give its team one.
fn at_another_time(week: &Week, asked: &Workload) -> Option<Prospect> {
    let mut fleet = in_service(&week.now);
    let mut found = None;
    for teams in week.otherwise() {
        fleet.teams = teams;
        match quota::standings(&fleet, [asked.clone()]).pop_first()?.1 {
            Standing::Admitted => return Some(Prospect::Open),
            Standing::Beyond(beyond) => {
                found = Some(beyond_quota(&fleet, asked.clone(), beyond));
            }
            Standing::Nowhere => {}
        }
    }
    found
}

/// What the engine says besides of a workload that a quota never admits.
fn beyond_quota(fleet: &World, mut asked: Workload, beyond: BeyondQuota) -> Prospect {
    asked.pools = vec![beyond.pool.clone()];
    let team = asked.team.clone();
    match engine::dry_run(fleet, asked) {
        engine::DryRun::Waits {
            waiting: verdict, ..
        } => {
            let verdict = discreet::verdict(fleet, &team, &verdict);
            Prospect::BeyondQuota(beyond, Box::new(verdict))
        }
        _ => Prospect::Open,
    }
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

/// Whether no agent of the accepted pools would carry the job, whatever its node has.
fn beyond_agents(fleet: &World, spec: &JobSpec) -> Option<(RefusalCode, FieldError)> {
    if nodes(fleet, spec).next().is_none() {
        let field = FieldError::new("pools", accepted(spec), pools_with_nodes(fleet));
        return Some((RefusalCode::NoSuchHardware, field));
    }
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
    let named: Vec<&str> = roots.names().take(NAMED_MAX).collect();
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

/// The pools that a spec accepts, in words.
fn accepted(spec: &JobSpec) -> String {
    if spec.pools.is_empty() {
        return "all pools".to_owned();
    }
    let names: Vec<&str> = spec.pools.iter().map(|pool| pool.as_str()).collect();
    names.join(", ")
}

/// What may stand in the place of pools without nodes.
fn pools_with_nodes(fleet: &World) -> String {
    let pools: BTreeSet<&str> = fleet.nodes.iter().map(|node| node.pool.as_str()).collect();
    if pools.is_empty() {
        return "a pool that has nodes; no node is registered yet".to_owned();
    }
    let named: Vec<&str> = pools.into_iter().take(NAMED_MAX).collect();
    format!("pools that have nodes: {}", named.join(", "))
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
