//! Whether a place may have come up with the last victim: a cheap test before one is looked for.

use std::rc::Rc;

use super::outlook::Supply;
use super::search::Search;
use crate::index::{DEVICE, Need};
use crate::ledger::{Ledger, Sight, Slot, View};
use crate::place::{self, Query, devices_free, host_free};

/// What has to come up before a place is looked for.
pub(super) enum Hope {
    /// Nothing: it is looked for after every step.
    Always,
    /// For a gang on whole devices: enough of them in one domain.
    Devices(Supply),
    /// For one worker that had no place before: something for it on a node that a victim left.
    Node,
}

impl Hope {
    pub fn of(search: &Search<'_>, ledger: &mut Ledger<'_, '_>, site: Option<&[usize]>) -> Self {
        let newcomer = search.newcomer;
        if newcomer.workers > 1 {
            return search
                .supply(ledger, site)
                .map_or(Self::Always, Self::Devices);
        }
        // Where a place turns on more than what is free on its node, any victim may open it.
        let query = Query::start(ledger.index, newcomer.work, newcomer.pool);
        let plain = place::gang(ledger.index, query).is_some();
        if plain && search.fits(ledger, newcomer.workers, site).is_none() {
            Self::Node
        } else {
            Self::Always
        }
    }

    /// Whether there may be a place now that these slots are free.
    pub fn rises(
        &mut self,
        search: &Search<'_>,
        ledger: &Ledger<'_, '_>,
        gone: &[Rc<Slot>],
    ) -> bool {
        let rises = match self {
            Self::Always => true,
            Self::Devices(supply) => {
                supply.look_again(ledger, gone);
                supply.may_hold(search.newcomer.workers)
            }
            Self::Node => gone
                .iter()
                .any(|slot| may_hold_one(ledger, search.newcomer.work, slot.node)),
        };
        // Once there is a place, only rights can be missing, and they may come with any step.
        if rises && matches!(self, Self::Node) {
            *self = Self::Always;
        }
        rises
    }
}

/// Whether a node has, by its sums, what one worker asks for.
fn may_hold_one(ledger: &Ledger<'_, '_>, work: usize, node: usize) -> bool {
    let facts = &ledger.index.works[work];
    let (cpus, memory) = host_free(ledger, node, Sight::Later);
    if cpus < facts.cpus || memory < facts.memory {
        return false;
    }
    match facts.need {
        Need::Whole(count) => devices_free(ledger, node, Sight::Later).count_ones() >= count,
        Need::Part { milli, .. } => ledger.spaces[node].loads[View::Later as usize]
            .iter()
            .any(|load| DEVICE - load.milli >= milli),
        Need::Nothing | Need::Instances { .. } => true,
    }
}
