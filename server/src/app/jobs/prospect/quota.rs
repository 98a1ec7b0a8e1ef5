//! What of a job's quota can never admit it, in numbers and in words.

use std::collections::BTreeMap;
use std::fmt;

use domain::MilliGpu;
use domain::quantity::MILLI;
use domain::quota::QuotaBound;
use domain::words;
use engine::Bound;
use engine::plan::Code;
use engine::world::{Team, Workload, WorkloadState, World};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::in_service;
use crate::app::promises;
use crate::scheduler::discreet;
use crate::scheduler::week::Week;

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
}

/// The key of a spec that says whether its job may be preempted.
const PREEMPTIBLE: &str = "preemptible";

/// Causes of a wait besides those of quota that may hide that a quota never admits the job.
const HIDING: [Code; 4] = [
    Code::Suspended,
    Code::NotYet,
    Code::Dependency,
    Code::PoolClosed,
];

/// Whether a job waits for a quota, as a code says.
pub(crate) fn waits_for_quota(code: &str) -> bool {
    let codes = [
        Code::OverLimit,
        Code::AncestorOverLimit,
        Code::NonPreemptibleOverGuarantee,
    ];
    codes.iter().any(|known| known.as_str() == code)
}

/// Whether what a job waits for, as a code, may be that its quota never admits it, or may hide that.
pub(in crate::app) fn may_be_beyond(code: &str) -> bool {
    waits_for_quota(code) || HIDING.iter().any(|known| known.as_str() == code)
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
    /// The pool in which that is so; of several that the job accepts the one that admits the most.
    pub pool: String,
    /// The GPUs that it needs at least, all workers together.
    pub need: MilliGpu,
    /// The GPUs that it could be given when nothing else runs: whole ones where it asks for whole ones.
    pub have: MilliGpu,
    /// How many instances of its MIG profile that is; null where it asks for none.
    pub instances: Option<i64>,
    /// Whether it would be admitted some day if it might be preempted, which it may not.
    pub preemptible_admitted: bool,
    /// What would let it start.
    pub remedy: String,
}

impl fmt::Display for BeyondQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (need, have) = (words::gpus(self.need), self.have);
        let number = self.number();
        write!(
            f,
            "it cannot start under the present quota: it needs {need}, and {number} admits {have} even when nothing else runs; {}",
            self.remedy
        )
    }
}

impl BeyondQuota {
    /// What a bound on a workload says of a quota; nothing where no quota binds.
    fn of(fleet: &World, work: &Workload, bound: &Bound) -> Option<Self> {
        let code = QuotaCode::of(bound.code)?;
        let (number, team) = match code {
            QuotaCode::NonPreemptibleOverGuarantee => {
                (QuotaBound::Guarantee, Some(work.team.clone()))
            }
            QuotaCode::OverLimit | QuotaCode::AncestorOverLimit => {
                read_scope(&discreet::scope(fleet, &work.team, &bound.scope))
            }
        };
        let mut told = Self {
            code,
            bound: number,
            team,
            pool: bound.pool.clone(),
            need: bound.need,
            have: bound.have,
            instances: instances(work, bound),
            preemptible_admitted: false,
            remedy: String::new(),
        };
        told.remedy = told.ways().join(", or ");
        Some(told)
    }

    /// Notes that it would be admitted if it might be preempted.
    fn admit_preemptible(&mut self) {
        self.preemptible_admitted = true;
        self.remedy = self.ways().join(", or ");
    }

    /// The one of two times that admits more; at either it might be admitted as preemptible work.
    fn or(&mut self, there: Self) {
        let admitted = self.preemptible_admitted || there.preemptible_admitted;
        if there.have > self.have {
            *self = there;
        }
        if admitted && !self.preemptible_admitted {
            self.admit_preemptible();
        }
    }

    /// Adds to a verdict, as it is told, the change of the job itself that would let it start.
    pub(crate) fn mend(&self, verdict: &mut Value) {
        let Some(remedies) = verdict["remedies"].as_array_mut() else {
            return;
        };
        let named = remedies
            .iter()
            .any(|remedy| !remedy["change"][PREEMPTIBLE].is_null());
        if self.preemptible_admitted && !named {
            let change = json!({ PREEMPTIBLE: true });
            remedies.insert(0, json!({ "change": change, "effect": "within_limit" }));
        }
    }

    /// The same of one that is kept with its job, for whoever shows the job without asking again.
    pub(crate) fn keep(&self, verdict: &mut Value) {
        self.mend(verdict);
        verdict["beyond_quota"] = serde_json::to_value(self).unwrap_or_default();
    }

    /// What would let it start, each by itself.
    fn ways(&self) -> Vec<String> {
        let mut ways = Vec::new();
        match self.instances {
            _ if self.have == MilliGpu::ZERO => {}
            Some(count) => {
                let instances = words::counted(count.unsigned_abs(), "instance");
                ways.push(format!("ask for at most {instances}"));
            }
            None => ways.push(format!("ask for at most {}", words::gpus(self.have))),
        }
        if self.preemptible_admitted {
            ways.push("let it be preempted".to_owned());
        }
        ways.push(format!("have an administrator raise {}", self.number()));
        ways
    }

    /// The number that binds, in words.
    fn number(&self) -> String {
        let team = self.team.as_deref();
        let whose = team.map_or_else(|| "another team".to_owned(), |team| format!("team {team}"));
        let number = match self.bound {
            QuotaBound::Limit => format!("the limit of {whose}"),
            QuotaBound::LendLimit => format!("what {whose} lends"),
            QuotaBound::MaxPerUser => format!("what one user of {whose} may hold"),
            QuotaBound::Guarantee => "its team's guarantee".to_owned(),
        };
        format!("{number} in pool {}", self.pool)
    }
}

/// How many instances of its profile a bound leaves a workload that asks for some.
fn instances(work: &Workload, bound: &Bound) -> Option<i64> {
    work.per_worker.mig_profile.as_ref()?;
    let asked = work.per_worker.gpus().milli() / MILLI * i64::from(work.workers_least());
    (bound.have.milli() * asked).checked_div(bound.need.milli())
}

/// What of their quotas can never admit these workloads, by name, at any time of the week; told by the
/// time that admits the most. The engine thinks for it: not on a thread that answers requests.
pub(crate) fn beyond_quotas(week: &Week, works: Vec<Workload>) -> BTreeMap<String, BeyondQuota> {
    beyond_at_all_times(&week.now, || week.otherwise(), works)
}

/// The same of a fleet as it is now, and of the quotas of its teams at other times.
pub(in crate::app) fn beyond_at_all_times(
    now: &World,
    otherwise: impl FnOnce() -> Vec<Vec<Team>>,
    works: Vec<Workload>,
) -> BTreeMap<String, BeyondQuota> {
    let mut found: BTreeMap<String, BeyondQuota> = standings(now, works.clone())
        .into_iter()
        .filter_map(|(name, standing)| Some((name, standing.beyond()?)))
        .collect();
    if found.is_empty() {
        return found;
    }
    let mut fleet = now.clone();
    for teams in otherwise() {
        fleet.teams = teams;
        let asked = works.iter().filter(|work| found.contains_key(&work.name));
        for (name, standing) in standings(&fleet, asked.cloned()) {
            match (standing, found.get_mut(&name)) {
                (Standing::Admitted, _) => {
                    found.remove(&name);
                }
                (Standing::Beyond(there), Some(known)) => known.or(there),
                (Standing::Beyond(_) | Standing::Nowhere, _) => {}
            }
        }
    }
    found
}

/// How a workload stands to the quotas of a time.
#[derive(Debug)]
pub(super) enum Standing {
    /// Some pool would let it start some day.
    Admitted,
    /// A quota never admits it.
    Beyond(BeyondQuota),
    /// No pool has a quota and a place for it.
    Nowhere,
}

impl Standing {
    fn beyond(self) -> Option<BeyondQuota> {
        match self {
            Self::Beyond(beyond) => Some(beyond),
            Self::Admitted | Self::Nowhere => None,
        }
    }
}

/// How these workloads stand to the quotas of a fleet, by name, whatever else runs and once all that
/// is out has come back.
pub(super) fn standings(
    fleet: &World,
    works: impl IntoIterator<Item = Workload>,
) -> BTreeMap<String, Standing> {
    let mut fleet = in_service(fleet);
    // What they wait for besides is not asked.
    let waiting = |work: Workload| Workload {
        state: WorkloadState::Waiting,
        nominated: None,
        placed: Vec::new(),
        ..work
    };
    fleet.workloads = works.into_iter().map(waiting).collect();
    let mut found = each(&fleet);
    let firm = |work: &Workload| matches!(found.get(&work.name), Some(Standing::Beyond(beyond)) if beyond.bound == QuotaBound::Guarantee);
    fleet.workloads.retain(firm);
    for work in &mut fleet.workloads {
        work.preemptible = Some(true);
    }
    for (name, standing) in each(&fleet) {
        if let (Standing::Admitted, Some(Standing::Beyond(beyond))) =
            (standing, found.get_mut(&name))
        {
            beyond.admit_preemptible();
        }
    }
    found
}

/// How each workload of a fleet stands to its quotas, as though it were alone.
fn each(fleet: &World) -> BTreeMap<String, Standing> {
    if fleet.workloads.is_empty() {
        return BTreeMap::new();
    }
    let mut bounds = engine::alone(fleet);
    let found = fleet.workloads.iter().filter_map(|work| {
        let bounds = bounds.remove(&work.name)?;
        Some((work.name.clone(), standing(fleet, work, &bounds)))
    });
    found.collect()
}

/// How a workload stands by what binds it in each pool: of those that keep it out by quota the one
/// that admits the most is told, the first among equals.
fn standing(fleet: &World, work: &Workload, bounds: &[Bound]) -> Standing {
    let mut best: Option<BeyondQuota> = None;
    for bound in bounds {
        match bound.code {
            Code::NeverFits | Code::NoSuchHardware | Code::NoQuota => {}
            _ => {
                let Some(told) = BeyondQuota::of(fleet, work, bound) else {
                    return Standing::Admitted;
                };
                if shrunk(fleet, work, &told) {
                    return Standing::Admitted;
                }
                if best.as_ref().is_none_or(|best| told.have > best.have) {
                    best = Some(told);
                }
            }
        }
    }
    best.map_or(Standing::Nowhere, Standing::Beyond)
}

/// Whether the work is within its team's guarantee as it was given: what binds is then that a pool
/// promises more than it has, which machines mend.
fn shrunk(fleet: &World, work: &Workload, beyond: &BeyondQuota) -> bool {
    matches!(beyond.bound, QuotaBound::Guarantee | QuotaBound::LendLimit)
        && promises::of_team(&fleet.teams, &work.team, &beyond.pool) >= beyond.need
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
