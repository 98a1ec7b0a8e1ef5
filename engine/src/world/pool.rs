//! Pools and the policies that hold in them.

use domain::sharing::SharingMode;

/// Whether new work starts in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolState {
    /// New work starts.
    Open,
    /// Nothing new starts.
    Closed,
}

/// Which node is preferred among those that fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// The fullest.
    Pack,
    /// The emptiest.
    Spread,
    /// Where the unusable remainder grows least.
    LeastFragmentation,
}

/// Whether devices are cut into MIG instances by the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigMode {
    /// As work needs it.
    Dynamic,
    /// Existing instances only.
    Static,
    /// Not at all.
    Never,
}

/// What may pass a workload that is first in order and does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backfill {
    /// What does not delay the head.
    Easy,
    /// What does not delay anybody.
    Conservative,
    /// Anything that fits.
    None,
    /// Nothing.
    Strict,
}

/// What a workload counts for in quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Its GPUs.
    Gpus,
    /// The largest of its parts of GPUs, CPUs and memory.
    Dominant,
}

/// Who gives way inside a team.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithinTeam {
    /// Nobody.
    Never,
    /// Work of lower priority.
    LowerPriority,
}

/// Who gives way to a team that takes its guarantee back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaim {
    /// Nobody.
    Never,
    /// Borrowers of lower priority.
    LowerPriority,
    /// Any borrower.
    Any,
}

/// Who may displace whom in a pool, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreemptionPolicy {
    /// Inside a team.
    pub within_team: WithinTeam,
    /// By a team that takes its guarantee back.
    pub reclaim: Reclaim,
    /// Whether one borrower may displace another to even out shares.
    pub across_borrowers: bool,
    /// Protects a workload that has run for less.
    pub min_runtime_seconds: i64,
    /// When set, in place of the former for reclaim.
    pub min_runtime_reclaim_seconds: Option<i64>,
    /// How long a workload waits before it may displace others.
    pub delay_seconds: i64,
    /// Preemptions that one workload may suffer in 24 hours.
    pub max_per_day: Option<u32>,
    /// Evictions that one team may suffer in an hour.
    pub max_per_team_hour: Option<u32>,
    /// How long a victim has to leave.
    pub grace_seconds: i64,
    /// Whether running preemptible work may move to make room.
    pub consolidate: bool,
}

/// How long a victim has to leave unless the pool says otherwise.
pub const GRACE_SECONDS_DEFAULT: i64 = 30;

impl Default for PreemptionPolicy {
    fn default() -> Self {
        Self {
            within_team: WithinTeam::Never,
            reclaim: Reclaim::Any,
            across_borrowers: false,
            min_runtime_seconds: 0,
            min_runtime_reclaim_seconds: None,
            delay_seconds: 0,
            max_per_day: None,
            max_per_team_hour: None,
            grace_seconds: GRACE_SECONDS_DEFAULT,
            consolidate: false,
        }
    }
}

/// Nodes that can stand in for one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Whether new work starts.
    pub state: PoolState,
    /// Which node is preferred.
    pub strategy: Strategy,
    /// The modes in which its devices are given out.
    pub sharing: Vec<SharingMode>,
    /// The most sharers of one device in time slices.
    pub time_slices: u32,
    /// Whether several teams may share a device by MPS.
    pub mps_across_teams: bool,
    /// Whether devices are cut.
    pub mig_mode: MigMode,
    /// What may pass a blocked head.
    pub backfill: Backfill,
    /// What a workload counts for.
    pub charge: Charge,
    /// Whether work that may not be preempted may borrow.
    pub non_preemptible_borrowing: bool,
    /// Priority that an hour of waiting adds, in thousandths of a point.
    pub ageing_milli_per_hour: i64,
    /// Fair share with memory of the past, when set.
    pub usage_half_life_seconds: Option<i64>,
    /// Whether guarantees must stay formable in whole nodes.
    pub whole_node_guarantees: bool,
    /// Who may displace whom.
    pub preemption: PreemptionPolicy,
}

/// The most sharers of a device in time slices unless the pool says otherwise.
pub const TIME_SLICES_DEFAULT: u32 = 4;

impl Pool {
    /// An open pool with the defaults of the contract.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: PoolState::Open,
            strategy: Strategy::Pack,
            sharing: vec![SharingMode::Exclusive],
            time_slices: TIME_SLICES_DEFAULT,
            mps_across_teams: false,
            mig_mode: MigMode::Dynamic,
            backfill: Backfill::Easy,
            charge: Charge::Gpus,
            non_preemptible_borrowing: false,
            ageing_milli_per_hour: 0,
            usage_half_life_seconds: None,
            whole_node_guarantees: false,
            preemption: PreemptionPolicy::default(),
        }
    }

    /// The same with these sharing modes.
    #[must_use]
    pub fn sharing(mut self, modes: &[SharingMode]) -> Self {
        self.sharing = modes.to_vec();
        self
    }

    /// The same with this policy of preemption.
    #[must_use]
    pub fn preemption(mut self, policy: PreemptionPolicy) -> Self {
        self.preemption = policy;
        self
    }
}
