//! Pools with the policies that hold in them.

use std::ops::{Deref, DerefMut};

use domain::policy::{PoolPolicy, PreemptionPolicy};
use domain::sharing::SharingMode;

/// Nodes that can stand in for one another; it is read like its policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// How its devices are shared.
    pub policy: PoolPolicy,
}

impl Deref for Pool {
    type Target = PoolPolicy;

    fn deref(&self) -> &PoolPolicy {
        &self.policy
    }
}

impl DerefMut for Pool {
    fn deref_mut(&mut self) -> &mut PoolPolicy {
        &mut self.policy
    }
}

impl Pool {
    /// An open pool with the defaults of the contract.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            policy: PoolPolicy::default(),
        }
    }

    /// The same with a policy that is changed so.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut PoolPolicy)) -> Self {
        change(&mut self.policy);
        self
    }

    /// The same with these sharing modes.
    #[must_use]
    pub fn sharing(self, modes: &[SharingMode]) -> Self {
        self.with(|policy| policy.sharing = modes.to_vec())
    }

    /// The same with this policy of preemption.
    #[must_use]
    pub fn preemption(self, preemption: PreemptionPolicy) -> Self {
        self.with(|policy| policy.preemption = preemption)
    }
}
