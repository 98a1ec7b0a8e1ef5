//! Where a workload can start this moment, within its limits.

use std::rc::Rc;

use crate::index::{Amount, Index};
use crate::ledger::{Ledger, Slot};
use crate::place::{Query, place};
use crate::quota;
use crate::world::PoolState;

/// Whether a workload may start in a pool at all.
pub(crate) fn usable(index: &Index<'_>, work: usize, pool: usize) -> bool {
    let facts = &index.pools[pool];
    facts.row.state == PoolState::Open && facts.rows[index.works[work].team].written
}

/// Room for all its workers, else for fewer where it is elastic.
pub(crate) fn room_now(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
) -> Option<Vec<Rc<Slot>>> {
    let row = ledger.index.works[work].row;
    (row.workers_least()..=row.workers)
        .rev()
        .find_map(|workers| room_of(ledger, work, pool, workers))
}

/// Room for so many of its workers.
pub(crate) fn room_of(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
    workers: u32,
) -> Option<Vec<Rc<Slot>>> {
    let query = Query::start(ledger.index, work, pool).workers(workers);
    let least = ledger.index.charge_least(work, pool) * Amount::from(workers);
    quota::allowed(ledger, work, pool, least).ok()?;
    let slots = place(ledger, query)?;
    let amount = slots.iter().map(|s| s.amount).sum();
    quota::allowed(ledger, work, pool, amount).ok()?;
    Some(slots)
}
