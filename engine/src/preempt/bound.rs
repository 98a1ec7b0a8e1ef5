//! What room would cost at least, and whether there could be any: cheap tests before a search.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::Right;
use super::outlook::{Outlook, Supply};
use super::search::{Search, UNITS_MAX, Unit};
use crate::index::{Amount, Need};
use crate::ledger::{Ledger, Sight, Slot};
use crate::place::{self, devices_free};
use crate::quota;

impl Search<'_> {
    /// Whole devices that a worker asks for, where it asks for such.
    pub(super) fn devices(&self, ledger: &Ledger<'_, '_>) -> Option<u32> {
        match ledger.index.works[self.newcomer.work].need {
            Need::Whole(count) => Some(count),
            _ => None,
        }
    }

    /// What it costs at least to have so many whole devices of a node free: by the cheapest
    /// victims for each device, the last in part. One step is needed anyhow.
    pub(super) fn cost_least(&self, ledger: &Ledger<'_, '_>, node: usize, devices: i64) -> i128 {
        let free = i64::from(devices_free(ledger, node, Sight::Later).count_ones());
        let missing = i128::from(devices - free);
        if missing <= 0 {
            return 0;
        }
        let stirred = ledger.is_stirred();
        let here = self.herd.on(node).iter();
        let mut steps: Vec<(i128, i128)> = here
            .map(|berth| {
                let held = match stirred {
                    true => held_on(ledger.slots(berth.work), node),
                    false => berth.devices,
                };
                (self.herd.cost(berth), i128::from(held.count_ones().max(1)))
            })
            .collect();
        least_for(&mut steps, missing).0
    }

    /// Whether there may be room if all candidates left at once, by counting whole devices. Each
    /// right must have a candidate, else the set is that of another way.
    pub(super) fn may_do(&self, ledger: &mut Ledger<'_, '_>) -> bool {
        let rights = self.newcomer.rights;
        rights
            .iter()
            .all(|&right| self.has_candidate(ledger, right))
            && self.may_come_inside(ledger)
            && self.enough(ledger)
    }

    /// Whether its own team's work could bring the newcomer into its guarantee, where it takes
    /// back from others with that alone: what it takes of its own team's comes first then, and
    /// was not enough before.
    fn may_come_inside(&self, ledger: &Ledger<'_, '_>) -> bool {
        let (index, pool) = (ledger.index, self.newcomer.pool);
        let team = index.works[self.newcomer.work].team;
        if self.newcomer.rights != [Right::Reclaim, Right::Priority]
            || self.rules.shrunk().next().is_some()
            || !index.teams[team].children.is_empty()
        {
            return true;
        }
        let slots = self.own_lower(ledger).flat_map(|work| ledger.slots(work));
        let lower: Amount = slots.map(|slot| slot.amount).sum();
        quota::in_guarantee(ledger, pool, team, self.newcomer.amount - lower)
    }

    fn has_candidate(&self, ledger: &Ledger<'_, '_>, right: Right) -> bool {
        let own = ledger.index.works[self.newcomer.work].team;
        match right {
            Right::Priority => self.own_lower(ledger).next().is_some(),
            _ => self.herd.teams().any(|team| {
                let mut members = self.herd.team(team).iter();
                team != own && members.any(|m| self.is_candidate(ledger, m.work, right))
            }),
        }
    }

    /// The candidates of the newcomer's own team.
    fn own_lower(&self, ledger: &Ledger<'_, '_>) -> impl Iterator<Item = usize> {
        let facts = &ledger.index.works[self.newcomer.work];
        self.herd
            .team(facts.team)
            .iter()
            .take_while(|member| member.priority < facts.priority)
            .map(|member| member.work)
            .filter(|&work| self.is_candidate(ledger, work, Right::Priority))
    }

    fn enough(&self, ledger: &mut Ledger<'_, '_>) -> bool {
        let Some(count) = self.devices(ledger) else {
            return true;
        };
        let need = i64::from(self.newcomer.workers);
        // As if of all teams everything left that may be disturbed at all.
        if self.newcomer.rights != [Right::Priority] {
            return match need {
                1 => self.herd.may_empty(ledger, self.newcomer.pool, count),
                _ => self.outlook(ledger, count).emptied >= need,
            };
        }
        let mut gone: FxHashMap<usize, u64> = FxHashMap::default();
        for work in self.own_lower(ledger) {
            for slot in ledger.slots(work) {
                let there = gone.entry(slot.node).or_default();
                *there |= slot.devices;
                let free = devices_free(ledger, slot.node, Sight::Later) | *there;
                if need == 1 && free.count_ones() >= count {
                    return true;
                }
            }
        }
        need > 1 && self.outlook(ledger, count).with(&gone) >= need
    }

    /// Whether more steps than are taken over a pool are needed anyhow, by counting the devices
    /// that are missing in the domain that has most of them free.
    pub(super) fn counts_too_many(&self, ledger: &Ledger<'_, '_>) -> bool {
        let Some(count) = self.devices(ledger).map(i64::from) else {
            return false;
        };
        let workers = self.newcomer.workers as usize;
        let most = UNITS_MAX as i64 * self.herd.devices_most;
        if count * workers as i64 <= most {
            return false;
        }
        let index = ledger.index;
        let missing = |domain: &Vec<usize>| -> i64 {
            let free =
                |&node: &usize| i64::from(devices_free(ledger, node, Sight::Later).count_ones());
            let mut lacking: Vec<i64> = domain.iter().map(|n| (count - free(n)).max(0)).collect();
            // A node may hold several workers, so that none but the first lack is sure.
            lacking.sort_unstable();
            let alone = domain
                .iter()
                .all(|&n| i64::from(index.nodes[n].row.gpus) < 2 * count);
            let nodes = if alone { workers } else { 1 };
            lacking.iter().take(nodes).sum()
        };
        let domains = self.domains(index, &index.pools[self.newcomer.pool].nodes);
        domains.iter().all(|domain| missing(domain) > most)
    }

    /// How many workers each node of a site could hold by its free devices as the ledger stands,
    /// by domain; nothing where that is not how room is told.
    pub(super) fn supply(
        &self,
        ledger: &mut Ledger<'_, '_>,
        site: Option<&[usize]>,
    ) -> Option<Supply> {
        let count = self.devices(ledger)?;
        let index = ledger.index;
        let (work, pool) = (self.newcomer.work, self.newcomer.pool);
        let all = index.pools[pool].nodes.len();
        let outlook = match site.filter(|site| site.len() < all) {
            None => self.outlook(ledger, count),
            Some(site) => {
                let fit = |node: &usize| place::fit(index, work, *node, false).is_ok();
                let able: Vec<usize> = site.iter().copied().filter(fit).collect();
                let domains = self.domains(index, &able);
                Rc::new(Outlook::of(ledger, &self.herd, &domains, count))
            }
        };
        Some(Supply::of(outlook))
    }

    /// Whether so many workers may still have room if the last step were not taken of a victim that
    /// keeps `before` workers without it.
    pub(super) fn spares(
        &self,
        ledger: &Ledger<'_, '_>,
        supply: &Supply,
        unit: &Unit,
        before: usize,
    ) -> bool {
        let mut stays: FxHashMap<usize, u64> = FxHashMap::default();
        for slot in &ledger.slots(unit.victim)[unit.keep..before] {
            *stays.entry(slot.node).or_default() |= slot.devices;
        }
        supply.spares(stays, self.newcomer.workers)
    }
}

/// The least that steps cost that free so much, each given by its cost and what it frees, the last in
/// part; and how much is lacking after all of them.
pub(super) fn least_for(steps: &mut Vec<(i128, i128)>, missing: i128) -> (i128, i128) {
    let mut missing = missing.max(0);
    steps.retain(|(_, frees)| *frees > 0);
    // The dearer for what it frees is later; no product of these comes near a limit.
    steps.sort_unstable_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)));
    let mut least = 0;
    for &(cost, frees) in steps.iter() {
        if missing == 0 {
            break;
        }
        let taken = missing.min(frees);
        least += cost * taken / frees;
        missing -= taken;
    }
    (least, missing)
}

fn held_on(slots: &[Rc<Slot>], node: usize) -> u64 {
    let here = slots.iter().filter(|slot| slot.node == node);
    here.fold(0, |all, slot| all | slot.devices)
}

#[cfg(test)]
mod tests {
    use super::least_for;

    #[test]
    fn the_last_step_counts_in_part_and_what_is_lacking_is_told() {
        let steps = [(40, 4), (0, 1), (6, 2), (9, 0)];
        for (missing, least, lacking) in [(-1, 0, 0), (1, 0, 0), (3, 6, 0), (5, 26, 0), (9, 46, 2)]
        {
            let told = least_for(&mut steps.to_vec(), missing);
            assert_eq!(told, (least, lacking), "for {missing}");
        }
    }
}
