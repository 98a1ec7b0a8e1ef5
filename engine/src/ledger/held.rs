//! What a team holds, and what work counts for.

use crate::index::{Amount, Index};

/// What a team holds in a pool, with all below it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Charged amount.
    pub gpu: Amount,
    /// Cores and memory of work with GPUs.
    pub cpus: i128,
    pub memory: i128,
    /// Cores and memory of work without GPUs.
    pub plain_cpus: i128,
    pub plain_memory: i128,
}

impl Held {
    /// What so many workers of a workload count for.
    pub fn of(index: &Index<'_>, work: usize, amount: Amount, workers: i64) -> Self {
        let facts = &index.works[work];
        let cpus = i128::from(facts.cpus) * i128::from(workers);
        let memory = i128::from(facts.memory) * i128::from(workers);
        let plain = index.plain(work);
        let part = |of: i128, counts: bool| if counts { of } else { 0 };
        Self {
            gpu: amount,
            cpus: part(cpus, !plain),
            memory: part(memory, !plain),
            plain_cpus: part(cpus, plain),
            plain_memory: part(memory, plain),
        }
    }

    pub fn plus(&self, more: &Self) -> Self {
        Self {
            gpu: self.gpu + more.gpu,
            cpus: self.cpus + more.cpus,
            memory: self.memory + more.memory,
            plain_cpus: self.plain_cpus + more.plain_cpus,
            plain_memory: self.plain_memory + more.plain_memory,
        }
    }

    pub fn minus(&self, less: &Self) -> Self {
        Self {
            gpu: self.gpu - less.gpu,
            cpus: self.cpus - less.cpus,
            memory: self.memory - less.memory,
            plain_cpus: self.plain_cpus - less.plain_cpus,
            plain_memory: self.plain_memory - less.plain_memory,
        }
    }
}
