//! What is told of work for which an earlier plan keeps room.

use crate::cycle::Cycle;
use crate::index::Index;
use crate::world::PoolState;

/// Who waits in such room, with its pool: it was looked at before all others.
pub(super) fn first(cycle: &Cycle<'_, '_>) -> Vec<(usize, usize)> {
    let index = cycle.index;
    let told = cycle.plan.nominations.iter();
    let works = told.filter_map(|kept| index.work(&kept.workload));
    let kept = works.filter(|&work| index.works[work].row.nominated.is_some());
    let kept = kept.map(|work| (work, index.nodes[cycle.ledger.slots(work)[0].node].pool));
    // Whose room was lost and found anew in this plan was looked at in its turn.
    let kept = kept.filter(|(work, pool)| !cycle.passed[*pool].contains(work));
    kept.collect()
}

/// The pool in which room is kept for a workload that may not start there while the pool is closed.
pub(super) fn in_closed<'w>(index: &Index<'w>, work: usize) -> Option<&'w str> {
    let kept = index.works[work].row.nominated.as_ref()?;
    let node = index.node(&kept.placement.first()?.node)?;
    let pool = index.pools[index.nodes[node].pool].row;
    let waits = index.ready(work) && kept.until > index.world.now;
    (waits && pool.state == PoolState::Closed).then_some(pool.name.as_str())
}
