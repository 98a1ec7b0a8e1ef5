//! What of its quota can never admit a job, in figures and in what would let it start.

use domain::quota::QuotaBound;

use crate::messages::{Messages, Phrase};

/// A quota that does not admit a job even when nothing else runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeyondQuota {
    /// Which of its numbers binds.
    pub bound: QuotaBound,
    /// The team whose quota it is; nothing for another's, whose name is not the reader's to know.
    pub team: Option<String>,
    /// The pool that it is of.
    pub pool: String,
    /// What the job needs at least, in thousandths of a GPU.
    pub need_milli: i64,
    /// What the quota leaves it.
    pub have_milli: i64,
    /// How many instances of its profile that is, where it asks for instances.
    pub instances: Option<i64>,
    /// Whether it would be admitted if it might be preempted, which it may not.
    pub preemptible_admitted: bool,
}

impl BeyondQuota {
    /// What binds, in figures.
    pub fn figures(&self, t: &Messages) -> Phrase {
        t.word("beyond_quota", self.bound.as_str())
            .nest("need", t.gpus(self.need_milli))
            .nest("have", t.gpus(self.have_milli))
            .nest("team", self.whose(t))
            .with("pool", &self.pool)
    }

    /// The number that binds, and the team and the pool whose it is.
    pub fn binds(&self, t: &Messages) -> Phrase {
        t.word("beyond_binds", self.bound.as_str())
            .nest("team", self.whose(t))
            .with("pool", &self.pool)
    }

    fn whose(&self, t: &Messages) -> Phrase {
        match &self.team {
            Some(name) => t.word("scope", "team").with("name", name),
            None => t.word("scope", "another"),
        }
    }

    /// What would let the job start, or one like it.
    pub(super) fn next(&self, t: &Messages) -> Phrase {
        let next = t.word("next_beyond_quota", self.ways());
        next.nest("have", self.most(t))
    }

    /// What would let a job start that is not submitted yet.
    pub(super) fn before(&self, t: &Messages) -> Phrase {
        let before = t.word("form_beyond_quota", self.ways());
        before.nest("have", self.most(t))
    }

    /// The most that it could ask for.
    fn most(&self, t: &Messages) -> Phrase {
        match self.instances {
            Some(count) => t.count("count.instances", count),
            None => t.gpus(self.have_milli),
        }
    }

    fn ways(&self) -> &'static str {
        match (self.have_milli > 0, self.preemptible_admitted) {
            (true, true) => "smaller_or_preemptible",
            (true, false) => "smaller",
            (false, true) => "preemptible",
            (false, false) => "quota_alone",
        }
    }
}
