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
    let index = ledger.index;
    let row = index.works[work].row;
    let each = index.charge_least(work, pool);
    for workers in (row.workers_least()..=row.workers).rev() {
        if quota::allowed(ledger, work, pool, each * Amount::from(workers)).is_err() {
            continue;
        }
        let query = Query::start(index, work, pool).workers(workers);
        if let Some(slots) = place(ledger, query) {
            let amount = slots.iter().map(|s| s.amount).sum();
            if quota::allowed(ledger, work, pool, amount).is_ok() {
                return Some(slots);
            }
        }
    }
    None
}
