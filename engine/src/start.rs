//! Where a workload can start this moment, and where one that moves can go, within its limits.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::index::{Amount, Index};
use crate::ledger::{Ledger, Sight, Slot};
use crate::place::{Query, Stock, place, sizes};
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
    sizes(ledger, work, pool, Stock::Free).largest(|workers| room_of(ledger, work, pool, workers))
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
    let slots = ledger.place_to_start(query)?;
    within(ledger, query, slots)
}

/// A place for all workers within their limits.
pub(crate) fn place_within(ledger: &mut Ledger<'_, '_>, query: Query<'_>) -> Option<Vec<Rc<Slot>>> {
    let slots = place(ledger, query)?;
    within(ledger, query, slots)
}

/// The place that was found, if limits let work have it; else one where it counts for less. A part
/// asked for by memory counts for more on a smaller device.
fn within(
    ledger: &mut Ledger<'_, '_>,
    query: Query<'_>,
    slots: Vec<Rc<Slot>>,
) -> Option<Vec<Rc<Slot>>> {
    if lets(ledger, query, &slots) {
        return Some(slots);
    }
    let nodes = affordable(ledger, query)?;
    let slots = place(ledger, query.only(&nodes))?;
    lets(ledger, query, &slots).then_some(slots)
}

fn lets(ledger: &Ledger<'_, '_>, query: Query<'_>, slots: &[Rc<Slot>]) -> bool {
    let amount = slots.iter().map(|s| s.amount).sum();
    quota::allowed(ledger, query.work, query.pool, amount).is_ok()
}

/// The nodes on each of which all workers would be within their limits; nothing where these are all
/// nodes or none.
pub(crate) fn affordable(ledger: &Ledger<'_, '_>, query: Query<'_>) -> Option<Vec<usize>> {
    let index = ledger.index;
    let all = query.only.unwrap_or(&index.pools[query.pool].nodes);
    let mut known: BTreeMap<Amount, bool> = BTreeMap::new();
    let mut affordable = |node: &usize| {
        let each = index.charge_on(query.work, *node);
        *known.entry(each).or_insert_with(|| {
            let amount = each * Amount::from(query.workers);
            quota::allowed(ledger, query.work, query.pool, amount).is_ok()
        })
    };
    let nodes: Vec<usize> = all.iter().copied().filter(|n| affordable(n)).collect();
    (!nodes.is_empty() && nodes.len() < all.len()).then_some(nodes)
}

/// Room elsewhere for work that has been taken from these slots. A part asked for by memory
/// counts for more on a smaller device: where limits do not let it, it goes where it counts
/// for no more than it did.
pub(crate) fn room_elsewhere(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
    from: &[Rc<Slot>],
    sight: Sight,
) -> Option<Vec<Rc<Slot>>> {
    let index = ledger.index;
    let amount = |slots: &[Rc<Slot>]| slots.iter().map(|s| s.amount).sum::<Amount>();
    let before = amount(from);
    let query = Query::start(index, work, pool)
        .workers(from.len() as u32)
        .sight(sight);
    let there = place(ledger, query)?;
    if amount(&there) <= before || quota::allowed(ledger, work, pool, amount(&there)).is_ok() {
        return Some(there);
    }
    let each = before / Amount::from(from.len().max(1) as u32);
    let nodes: Vec<usize> = index.pools[pool]
        .nodes
        .iter()
        .copied()
        .filter(|&node| index.charge_on(work, node) <= each)
        .collect();
    place(ledger, query.only(&nodes))
}
