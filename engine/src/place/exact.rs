//! Whether exactly these devices are free.

use std::rc::Rc;

use super::{host_free, joins};
use crate::ledger::{Ledger, Sight, Slot};

/// Whether all workers can stand on their devices in a sight. The ledger is as before when
/// it returns.
pub(crate) fn stands_free(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    slots: &[Rc<Slot>],
    sight: Sight,
) -> bool {
    let index = ledger.index;
    let mark = ledger.mark();
    let free = slots.iter().all(|slot| {
        let (cpus, memory) = host_free(ledger, slot.node, sight);
        let facts = &index.works[work];
        let fits = cpus >= facts.cpus
            && memory >= facts.memory
            && slot.parts.iter().all(|part| {
                sight.views().iter().all(|&view| {
                    let load = &ledger.spaces[slot.node].loads[view as usize][part.index as usize];
                    joins(ledger, work, slot.node, load, part)
                })
            });
        // What does not fit is not put there: two instances on one slice cannot be told apart again.
        for &view in sight.views().iter().filter(|_| fits) {
            ledger.occupy(view, work, slot);
        }
        fits
    });
    ledger.rollback(mark);
    free
}
