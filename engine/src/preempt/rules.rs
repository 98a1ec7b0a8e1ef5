//! What a pool's policy allows, and the same with every rule of policy lifted.

use std::collections::HashMap;

use super::{Right, Victim};
use crate::index::Index;
use crate::ledger::{Ledger, Standing};
use crate::world::{Reclaim, WithinTeam};

/// The rules of one pool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rules {
    pub(super) within_team: WithinTeam,
    pub(super) reclaim: Reclaim,
    pub(super) across_borrowers: bool,
    pub(super) min_runtime: i64,
    /// For reclaim in place of the former, when set.
    pub(super) min_runtime_reclaim: Option<i64>,
    pub(super) delay: i64,
    consolidate: bool,
    pub(super) max_per_day: Option<u32>,
    pub(super) max_per_team_hour: Option<u32>,
    /// By how many seconds longer all has run than it has: to tell when room can be made.
    pub(super) later: i64,
    /// Elastic work that this plan shrinks already, and by which right.
    shrunk: HashMap<usize, Right>,
}

impl Rules {
    /// As the pool has them.
    pub fn of(index: &Index<'_>, pool: usize) -> Self {
        let policy = &index.pools[pool].row.preemption;
        Self {
            within_team: policy.within_team,
            reclaim: policy.reclaim,
            across_borrowers: policy.across_borrowers,
            min_runtime: policy.min_runtime_seconds,
            min_runtime_reclaim: policy.min_runtime_reclaim_seconds,
            delay: policy.delay_seconds,
            consolidate: policy.consolidate,
            max_per_day: policy.max_per_day,
            max_per_team_hour: policy.max_per_team_hour,
            later: 0,
            shrunk: HashMap::new(),
        }
    }

    /// With all rules of policy lifted: to tell whether only they keep a workload from making room.
    pub fn lifted() -> Self {
        Self {
            within_team: WithinTeam::LowerPriority,
            reclaim: Reclaim::Any,
            across_borrowers: true,
            min_runtime: 0,
            min_runtime_reclaim: None,
            delay: 0,
            consolidate: true,
            max_per_day: None,
            max_per_team_hour: None,
            later: 0,
            shrunk: HashMap::new(),
        }
    }

    /// The same lifted, where each rule that is set stays one that is set.
    pub fn lifted_too(&self) -> Self {
        Self {
            min_runtime_reclaim: self.min_runtime_reclaim.map(|_| 0),
            consolidate: self.consolidate,
            shrunk: self.shrunk.clone(),
            ..Self::lifted()
        }
    }

    /// As a booking has them that has begun: nothing protects what it was lent.
    pub fn booked() -> Self {
        Self {
            within_team: WithinTeam::Never,
            across_borrowers: false,
            ..Self::lifted()
        }
    }

    /// Says that these give way in this plan: what was shrunk may be shrunk further by the
    /// same right, so that nobody waits for a grace period more than needed.
    pub fn took(&mut self, victims: &[Victim]) {
        let shrunk = victims.iter().filter(|v| v.keep > 0);
        self.shrunk.extend(shrunk.map(|v| (v.work, v.right)));
    }

    /// What was shrunk so, and by which right.
    pub fn shrunk(&self) -> impl Iterator<Item = (usize, Right)> {
        self.shrunk.iter().map(|(&work, &right)| (work, right))
    }

    /// Whether anybody may be displaced at all.
    pub fn any(&self) -> bool {
        self.within_team != WithinTeam::Never
            || self.reclaim != Reclaim::Never
            || self.across_borrowers
    }

    /// Whether work is taken back for guarantees alone.
    pub fn only_reclaims(&self) -> bool {
        self.within_team == WithinTeam::Never && !self.across_borrowers
    }

    /// Whether there is any victim by some right.
    pub fn allow(&self, right: Right) -> bool {
        match right {
            Right::Priority => self.within_team != WithinTeam::Never,
            Right::Reclaim => self.reclaim != Reclaim::Never,
            Right::Share => self.across_borrowers,
        }
    }

    /// Whether what a team's own lower work leaves may bring work into the guarantee, from where it takes back more.
    pub fn mixes(&self) -> bool {
        self.allow(Right::Priority) && self.allow(Right::Reclaim)
    }

    /// Whether work that started a moment ago may not be taken yet.
    pub fn protects(&self) -> bool {
        self.min_runtime > 0
    }

    /// Whether work may take back what another borrows, as far as their priorities tell.
    pub fn takes_back(&self, index: &Index<'_>, newcomer: usize, victim: usize) -> bool {
        let lower = index.works[victim].priority < index.works[newcomer].priority;
        let by_right = match self.reclaim {
            Reclaim::Never => false,
            Reclaim::LowerPriority => lower,
            Reclaim::Any => true,
        };
        by_right && self.least_before_reclaim() <= 0
    }

    /// Whether running work may be moved to make room.
    pub fn consolidates(&self) -> bool {
        self.consolidate
    }

    /// Whether a workload has not waited long enough to displace others.
    pub fn delayed(&self, index: &Index<'_>, work: usize) -> bool {
        self.delay_left(index, work) > 0
    }

    /// For how many seconds a workload must still wait before it may displace others.
    pub fn delay_left(&self, index: &Index<'_>, work: usize) -> i64 {
        let waited = index.world.now - index.works[work].wait.submitted;
        self.delay.saturating_sub(waited.num_seconds())
    }

    /// For how many seconds a workload has run.
    fn ran(&self, index: &Index<'_>, work: usize) -> i64 {
        let started = index.works[work].stint.started;
        let ran = started.map_or(0, |started| (index.world.now - started).num_seconds());
        ran.saturating_add(self.later)
    }

    /// The seconds from now, none among them, after which running work of a pool has run for long enough
    /// to be taken: from each on more room can be made.
    pub(super) fn waits(&self, ledger: &Ledger<'_, '_>, pool: usize) -> Vec<i64> {
        let index = ledger.index;
        let mut seconds = vec![0];
        for work in 0..index.works.len() {
            let here = ledger.slots(work).first();
            let here = here.is_some_and(|slot| index.nodes[slot.node].pool == pool);
            if !here || !index.works[work].preemptible || ledger.standing(work) != Standing::Running
            {
                continue;
            }
            let ran = self.ran(index, work);
            seconds
                .extend([self.min_runtime, self.least_before_reclaim()].map(|least| least - ran));
        }
        seconds.retain(|wait| *wait >= 0);
        seconds.sort_unstable();
        seconds.dedup();
        seconds
    }

    /// Whether a running workload may be a victim of another by some right, as far as
    /// the two alone tell.
    pub fn open_to(
        &self,
        ledger: &Ledger<'_, '_>,
        newcomer: usize,
        victim: usize,
        right: Right,
    ) -> bool {
        let index = ledger.index;
        let (new, old) = (&index.works[newcomer], &index.works[victim]);
        let same = new.team == old.team;
        let lower = old.priority < new.priority;
        let by_right = match right {
            Right::Priority => same && self.within_team == WithinTeam::LowerPriority && lower,
            Right::Reclaim => {
                !same
                    && match self.reclaim {
                        Reclaim::Never => false,
                        Reclaim::LowerPriority => lower,
                        Reclaim::Any => true,
                    }
            }
            Right::Share => !same && self.across_borrowers,
        };
        let least = if right == Right::Reclaim {
            self.least_before_reclaim()
        } else {
            self.min_runtime
        };
        by_right && self.disturbs(ledger, victim, least, Some(right))
    }

    /// Whether a running workload may be taken back from who borrows, for work of a priority.
    pub fn reclaimable(&self, ledger: &Ledger<'_, '_>, work: usize, priority: i64) -> bool {
        let by_right = match self.reclaim {
            Reclaim::Never => false,
            Reclaim::LowerPriority => ledger.index.works[work].priority < priority,
            Reclaim::Any => true,
        };
        by_right
            && self.disturbs(
                ledger,
                work,
                self.least_before_reclaim(),
                Some(Right::Reclaim),
            )
    }

    fn least_before_reclaim(&self) -> i64 {
        self.min_runtime_reclaim.unwrap_or(self.min_runtime)
    }

    /// Whether a running workload may be moved.
    pub fn movable(&self, ledger: &Ledger<'_, '_>, work: usize) -> bool {
        self.disturbs(ledger, work, self.min_runtime, None)
    }

    /// Whether a running workload that is protected for `least` seconds may be disturbed at all.
    fn disturbs(
        &self,
        ledger: &Ledger<'_, '_>,
        work: usize,
        least: i64,
        right: Option<Right>,
    ) -> bool {
        let index = ledger.index;
        let facts = &index.works[work];
        facts.preemptible
            && ledger.standing(work) == Standing::Running
            // A plan takes from a workload by one right, which is the one that is told.
            && (ledger.slots(work).len() == facts.stint.placed as usize
                || right.is_some() && self.shrunk.get(&work).copied() == right)
            && self.ran(index, work) >= least
            && self
                .max_per_day
                .is_none_or(|most| facts.row.preemptions_today < most)
    }

    /// Whether a team may suffer one more eviction this hour; `taken` are those of this plan.
    pub fn team_can_lose(&self, index: &Index<'_>, pool: usize, team: usize, taken: u32) -> bool {
        let before = index.teams[team]
            .row
            .preemptions_this_hour
            .get(&index.pools[pool].row.name)
            .copied()
            .unwrap_or(0);
        self.max_per_team_hour
            .is_none_or(|most| before.saturating_add(taken) < most)
    }
}
