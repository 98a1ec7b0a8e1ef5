//! A look for room beside starts that are kept: as if what is free of theirs were taken.

use std::rc::Rc;

use domain::sharing::SharingMode;

use crate::index::bit;
use crate::ledger::{Ledger, Part, Sight, Slot};
use crate::mig::Cut;
use crate::place::devices_free;

/// Looks at a ledger in which what is free of these slots is taken; it is as before after that.
pub(crate) fn beside_slots<'i, 'w, T>(
    ledger: &mut Ledger<'i, 'w>,
    (work, slots): (usize, &[Rc<Slot>]),
    sight: Sight,
    look: impl FnOnce(&mut Ledger<'i, 'w>) -> T,
) -> T {
    let mark = ledger.mark();
    for slot in slots {
        for part in &slot.parts {
            take_free(ledger, work, slot.node, part, sight);
        }
    }
    let seen = look(ledger);
    ledger.rollback(mark);
    seen
}

fn take_free(ledger: &mut Ledger<'_, '_>, work: usize, node: usize, part: &Part, sight: Sight) {
    let whole = part.slice.is_none() && part.mode == SharingMode::Exclusive;
    if whole && devices_free(ledger, node, sight) & bit(part.index) != 0 {
        take(ledger, work, node, part.clone(), sight);
    }
    let (Some(slice), Some(model)) = (part.slice, ledger.index.nodes[node].model) else {
        return;
    };
    // The largest instances that are free within it; one with engines of its own would take these, too.
    let mut profiles: Vec<_> = model.profiles.values().collect();
    profiles.retain(|profile| !profile.name.contains('+'));
    profiles.sort_by_key(|profile| std::cmp::Reverse(profile.size));
    let places = profiles.into_iter().flat_map(|profile| profile.places());
    for place in places.filter(|place| place.bits() & !slice.bits() == 0) {
        let loads = |view: &crate::ledger::View| {
            &ledger.spaces[node].loads[*view as usize][part.index as usize]
        };
        let cut = sight.views().iter().map(loads);
        let cut = cut.fold(Cut::default(), |all, load| all.or(load.cut));
        if cut.admits(place) {
            take(ledger, work, node, Part::instance(part.index, place), sight);
        }
    }
}

fn take(ledger: &mut Ledger<'_, '_>, work: usize, node: usize, part: Part, sight: Sight) {
    let slot = Slot::of(ledger.index, work, node, vec![part], 0);
    // Cores and memory are not told apart by device.
    let slot = Rc::new(Slot {
        cpus: 0,
        memory: 0,
        ..slot
    });
    for &view in sight.views() {
        ledger.occupy(view, work, &slot);
    }
}
