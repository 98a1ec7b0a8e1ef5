//! What of a job's quota can never admit it, in numbers and in words.

use std::fmt;

use domain::MilliGpu;
use domain::quota::QuotaBound;
use engine::plan::{Code, Waiting};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    pub(super) fn of(team: &str, verdict: &Waiting) -> Option<Self> {
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
