//! Which MIG instances a worker gets: by search over each device's true table, never by sums.

use std::cmp::Reverse;

use domain::sharing::SharingMode;

use super::device::{Chosen, tightest};
use super::{Query, devices_free};
use crate::index::{DEVICE, Index, bit};
use crate::ledger::{Ledger, Part, Sight};
use crate::mig::{Cut, Profile, Slice};

/// Most devices of a node; the contract's own bound.
const DEVICES_MAX: usize = domain::quantity::DEVICES_PER_NODE_MAX as usize;

/// What has to be changed on devices before work is on them; the least is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ease {
    /// Nothing.
    Existing,
    /// An instance is made in free slices.
    Fresh,
    /// Idle instances are unmade for it.
    Unmaking,
    /// An idle device changes its mode.
    Switching,
}

/// Whether a node's devices can ever have an instance of a profile that is asked for.
pub(crate) fn could_have(index: &Index<'_>, node: usize, profile: usize) -> bool {
    let machine = &index.nodes[node];
    index.profile(profile, node).is_some_and(|profile| {
        machine.recut
            || (0..machine.row.gpus)
                .flat_map(|device| machine.instances(device).iter().chain(machine.laid(device)))
                .any(|slice| std::ptr::eq(slice.profile, profile))
    })
}

/// What is held of a device in all views of a sight; `None` when it is out or in another mode.
fn held(ledger: &Ledger<'_, '_>, node: usize, device: u32, sight: Sight) -> Option<Cut> {
    let machine = &ledger.index.nodes[node];
    let out = (machine.failed | machine.pending) & bit(device) != 0 && !ledger.is_bare();
    let laid = machine.pending & bit(device) != 0;
    let whole = machine.mig & bit(device) == 0 && !machine.recut && !laid;
    if out || whole {
        return None;
    }
    let mut cut = Cut::default();
    for &view in sight.views() {
        let load = &ledger.spaces[node].loads[view as usize][device as usize];
        if load.sharers > 0 && load.mode != Some(SharingMode::Mig) {
            return None;
        }
        cut = cut.or(load.cut);
    }
    Some(cut)
}

/// How many instances of a profile have a place on a node, as far as `most`. Those of one
/// profile are in each other's way only on the same slices or engines, so that counting one
/// by one is exact.
pub(crate) fn instances_free(
    ledger: &Ledger<'_, '_>,
    node: usize,
    profile: &'static Profile,
    sight: Sight,
    most: u32,
) -> u32 {
    let machine = &ledger.index.nodes[node];
    let mut count = 0;
    for device in 0..machine.row.gpus {
        let Some(mut cut) = held(ledger, node, device, sight) else {
            continue;
        };
        for slice in profile.places() {
            if count >= most {
                return count;
            }
            if cut.admits(slice) && machine.can_have(device, slice, ledger.is_bare()) {
                cut = cut.with(slice);
                count += 1;
            }
        }
    }
    count
}

/// Thousandths of devices that are free for instances: in slices that nobody holds, or where
/// nothing is cut anew in idle instances.
pub(crate) fn slices_free(ledger: &Ledger<'_, '_>, node: usize, sight: Sight) -> i64 {
    let machine = &ledger.index.nodes[node];
    let Some(model) = machine.model else {
        return 0;
    };
    let devices = (0..machine.row.gpus).filter_map(|device| {
        let cut = held(ledger, node, device, sight)?;
        let idle = machine.instances(device).iter();
        Some(if machine.recut {
            let free = (model.whole() & !cut.bits).count_ones();
            DEVICE * i64::from(free) / i64::from(model.slices.max(1))
        } else {
            idle.filter(|slice| cut.admits(**slice))
                .map(|slice| slice.profile.milli())
                .sum()
        })
    });
    devices.sum()
}

/// A place for an instance; the least is taken: with the least change, with the fewest idle
/// slices unmade, on the fullest device, breaking no clique for it, where most other sets of
/// instances stay within reach, the lowest device, the lowest start.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    ease: Ease,
    unmade: u32,
    held: Reverse<u32>,
    breaks: bool,
    reach: Reverse<u32>,
    device: u32,
    start: u32,
}

/// The best instances of a node for one worker, on one device or several.
pub(super) fn choose(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    node: usize,
    profile: &'static Profile,
    count: u32,
) -> Option<Chosen> {
    let machine = &ledger.index.nodes[node];
    let model = machine.model?;
    let bare = ledger.is_bare();
    let whole = devices_free(ledger, node, query.sight) & !machine.mig;
    let tight = tightest(&machine.row.nvlink, whole, 1).unwrap_or(whole);
    // What this worker takes itself, beside what is held already.
    let mut own = [Cut::default(); DEVICES_MAX];
    let mut parts: Vec<Part> = Vec::new();
    let mut ease = Ease::Existing;
    for _ in 0..count {
        let devices = 0..machine.row.gpus.min(DEVICES_MAX as u32);
        let options = devices.filter_map(|device| {
            let cut = held(ledger, node, device, query.sight)?.or(own[device as usize]);
            let uncut = machine.mig & bit(device) == 0 && cut == Cut::default();
            let idle = machine.instances(device);
            let best = profile
                .places()
                .filter(|slice| cut.admits(*slice) && machine.can_have(device, *slice, bare));
            best.map(|slice| {
                let unmade = unmade(idle, cut, slice);
                let ease = match (idle.contains(&slice), uncut) {
                    (true, _) => Ease::Existing,
                    (false, true) => Ease::Switching,
                    (false, false) if unmade > 0 => Ease::Unmaking,
                    (false, false) => Ease::Fresh,
                };
                let choice = Choice {
                    ease,
                    unmade,
                    held: Reverse(cut.bits.count_ones()),
                    breaks: ease == Ease::Switching && tight & bit(device) == 0,
                    reach: Reverse(model.reach(model.whole() & !(cut.bits | slice.bits()))),
                    device,
                    start: slice.start,
                };
                (choice, slice)
            })
            .min_by(|a, b| a.0.cmp(&b.0))
        });
        let (choice, slice) = options.min_by(|a, b| a.0.cmp(&b.0))?;
        own[choice.device as usize] = own[choice.device as usize].with(slice);
        ease = ease.max(choice.ease);
        parts.push(Part::instance(choice.device, slice));
    }
    parts.sort_unstable_by_key(|part| (part.index, part.slice.map(|s| s.start)));
    Some(Chosen {
        parts,
        linked: false,
        ease,
    })
}

/// Slices of idle instances that an instance takes the place of.
fn unmade(instances: &[Slice], cut: Cut, slice: Slice) -> u32 {
    let idle = instances.iter().filter(|i| cut.admits(**i));
    idle.filter(|i| **i != slice && !slice.beside(**i))
        .map(|i| i.profile.size)
        .sum()
}
