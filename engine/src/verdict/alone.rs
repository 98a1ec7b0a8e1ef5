//! What binds each workload that waits were it the only work there is: no end of other work would help it.

use std::collections::BTreeMap;

use domain::MilliGpu;

use super::{Memo, Verdict, blocked, in_pool, need_of};
use crate::cycle::Cycle;
use crate::index::{Amount, DEVICE, Index, Need};
use crate::plan::Code;
use crate::quota;
use crate::world::World;

/// What binds a workload in one of its pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The pool.
    pub pool: String,
    /// The cause; where it is one of quota, that which would let it have the least. One that other
    /// work brings about says that nothing binds it here.
    pub code: Code,
    /// What binds: a team, a pool, a node label.
    pub scope: String,
    /// GPUs that it needs.
    pub need: MilliGpu,
    /// GPUs that there are for it where it binds; by quotas, whole ones where it asks for whole ones.
    pub have: MilliGpu,
}

/// What binds each workload of a world in each pool that it accepts, in its order of them. Nobody is
/// to work in that world: the workloads are looked at one by one, each as though it were alone.
pub fn alone(world: &World) -> BTreeMap<String, Vec<Bound>> {
    let index = Index::of(world);
    let mut cycle = Cycle::of(&index);
    let mut memo = Memo::default();
    let mut bounds = BTreeMap::new();
    for (work, facts) in index.works.iter().enumerate() {
        let mut in_one = |&pool: &usize| {
            let told = in_pool(&mut cycle, work, pool, &mut memo);
            let first = told.verdict.clone();
            let Verdict { code, scope, have } = tightest(&cycle, work, pool, first);
            Bound {
                pool: index.pools[pool].row.name.clone(),
                code,
                scope: scope.to_string(),
                need: need_of(
                    &index,
                    work,
                    Some(pool),
                    index.works[work].row.workers_least(),
                ),
                have: MilliGpu::from_milli(index.pools[pool].milli(have.max(0))),
            }
        };
        let found = facts.pools.iter().map(&mut in_one).collect();
        bounds.insert(facts.row.name.clone(), found);
    }
    bounds
}

/// Of all that a quota says against a workload what leaves it the least: within that, nothing else
/// stands in its way.
fn tightest(cycle: &Cycle<'_, '_>, work: usize, pool: usize, first: Verdict) -> Verdict {
    if !of_quota(first.code) {
        return first;
    }
    let mut tightest = first;
    loop {
        let have = legal(cycle.index, work, pool, tightest.have.max(0));
        tightest.have = have;
        if have == 0 {
            return tightest;
        }
        match quota::allowed(&cycle.ledger, work, pool, have) {
            Err(block) => {
                let next = blocked(cycle.index, block);
                if !of_quota(next.code) {
                    return tightest;
                }
                // Each is less than the one before, which it does not let through.
                tightest = next;
            }
            Ok(()) => return tightest,
        }
    }
}

fn of_quota(code: Code) -> bool {
    matches!(
        code,
        Code::OverLimit | Code::AncestorOverLimit | Code::NonPreemptibleOverGuarantee
    )
}

/// As much of an amount as work of this kind may ask for: whole devices, or instances.
pub(super) fn legal(index: &Index<'_>, work: usize, pool: usize, amount: Amount) -> Amount {
    let device = Amount::from(DEVICE) * index.pools[pool].unit;
    let step = match index.works[work].need {
        Need::Whole(_) => device,
        Need::Instances { count, .. } => {
            index.charge_least(work, pool) / Amount::from(count.max(1))
        }
        Need::Nothing | Need::Part { .. } => index.pools[pool].unit,
    };
    amount - amount.checked_rem(step).unwrap_or(0)
}
