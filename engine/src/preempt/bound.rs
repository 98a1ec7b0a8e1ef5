//! What room would cost at least, and whether there could be any: cheap tests before a search.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::Right;
use super::search::{Search, UNITS_MAX, Unit};
use crate::index::{Need, bit};
use crate::ledger::{Ledger, Sight, Slot};
use crate::place::{self, devices_free};

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
        let mut missing = i128::from(devices - free);
        if missing <= 0 {
            return 0;
        }
        let here = self.herd.on(node).iter();
        let mut steps: Vec<(i128, i128)> = here
            .map(|&work| {
                let held = held_on(ledger.slots(work), node).count_ones();
                (self.herd.cost_of(work), i128::from(held.max(1)))
            })
            .collect();
        // The dearer for each device is later; no product of these comes near a limit.
        steps.sort_unstable_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)));
        let mut least = 0;
        for (cost, held) in steps {
            let taken = missing.min(held);
            least += cost * taken / held;
            missing -= taken;
            if missing == 0 {
                break;
            }
        }
        least
    }

    /// Whether there may be room if all candidates left at once, by counting whole devices. Each
    /// right must have a candidate, else the set is that of another way.
    pub(super) fn may_do(&self, ledger: &Ledger<'_, '_>) -> bool {
        let rights = self.newcomer.rights;
        rights
            .iter()
            .all(|&right| self.has_candidate(ledger, right))
            && self.enough(ledger)
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

    fn enough(&self, ledger: &Ledger<'_, '_>) -> bool {
        let Some(count) = self.devices(ledger) else {
            return true;
        };
        let index = ledger.index;
        let nodes = &index.pools[self.newcomer.pool].nodes;
        let need = u64::from(self.newcomer.workers);
        // As if of all teams everything left that may be disturbed at all.
        let emptied =
            |node: usize| devices_free(ledger, node, Sight::Later) | self.herd.devices_on(node);
        if self.newcomer.rights != [Right::Priority] {
            return match need {
                1 => count <= self.herd.emptied_most,
                _ => self.domains(index, nodes).iter().any(|domain| {
                    let workers = domain.iter().map(|&n| emptied(n).count_ones() / count);
                    workers.map(u64::from).sum::<u64>() >= need
                }),
            };
        }
        let mut gone: FxHashMap<usize, u64> = FxHashMap::default();
        for work in self.own_lower(ledger) {
            for slot in ledger.slots(work) {
                let there = gone.entry(slot.node).or_default();
                *there |= devices_of(slot);
                let free = devices_free(ledger, slot.node, Sight::Later) | *there;
                if need == 1 && free.count_ones() >= count {
                    return true;
                }
            }
        }
        if need == 1 {
            return false;
        }
        let workers = |node: usize| {
            let free = devices_free(ledger, node, Sight::Later);
            let free = free | gone.get(&node).copied().unwrap_or(0);
            free.count_ones() / count
        };
        self.domains(index, nodes).iter().any(|domain| {
            let sum = domain.iter().map(|&node| u64::from(workers(node)));
            sum.sum::<u64>() >= need
        })
    }

    /// Whether more steps than are taken over a pool are needed anyhow, by counting the devices
    /// that are missing in the domain that has most of them free.
    pub(super) fn too_many(&self, ledger: &Ledger<'_, '_>) -> bool {
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
        let able = match site.filter(|site| site.len() < all) {
            None => place::nodes_able(ledger, work, pool),
            Some(site) => {
                let fit = |node: &usize| place::fit(index, work, *node, false).is_ok();
                Rc::new(site.iter().copied().filter(fit).collect())
            }
        };
        let domains = self.domains(index, &able);
        let mut supply = Supply {
            count,
            free: vec![None; index.nodes.len()],
            sums: vec![0; domains.len()],
        };
        for (at, domain) in domains.iter().enumerate() {
            for &node in domain {
                let free = devices_free(ledger, node, Sight::Later);
                supply.free[node] = Some((at, free));
                supply.sums[at] += i64::from(free.count_ones() / count);
            }
        }
        Some(supply)
    }
}

/// Room in workers, were all of a set of victims gone.
pub(super) struct Supply {
    count: u32,
    /// The domain of each node of the site, and what is free on it.
    free: Vec<Option<(usize, u64)>>,
    sums: Vec<i64>,
}

impl Supply {
    /// Whether some domain may hold so many workers.
    pub fn may_hold(&self, workers: u32) -> bool {
        self.sums.iter().any(|&sum| sum >= i64::from(workers))
    }

    /// Looks again at the nodes of some slots, as the ledger stands.
    pub fn look_again(&mut self, ledger: &Ledger<'_, '_>, slots: &[Rc<Slot>]) {
        for slot in slots {
            let Some((domain, before)) = &mut self.free[slot.node] else {
                continue;
            };
            let now = devices_free(ledger, slot.node, Sight::Later);
            let before = std::mem::replace(before, now).count_ones() / self.count;
            self.sums[*domain] += i64::from(now.count_ones() / self.count) - i64::from(before);
        }
    }

    /// Whether so many workers may still have room if the last step were not taken of a victim that
    /// keeps `before` workers without it.
    pub fn spares(
        &self,
        ledger: &Ledger<'_, '_>,
        unit: &Unit,
        before: usize,
        workers: u32,
    ) -> bool {
        let mut lost = vec![0; self.sums.len()];
        let mut stays: FxHashMap<usize, u64> = FxHashMap::default();
        for slot in &ledger.slots(unit.victim)[unit.keep..before] {
            *stays.entry(slot.node).or_default() |= devices_of(slot);
        }
        for (node, devices) in stays {
            let Some((domain, free)) = self.free[node] else {
                continue;
            };
            let less = free & !devices;
            lost[domain] += i64::from(free.count_ones() / self.count);
            lost[domain] -= i64::from(less.count_ones() / self.count);
        }
        let mut left = self.sums.iter().zip(lost);
        left.any(|(sum, lost)| sum - lost >= i64::from(workers))
    }
}

pub(super) fn devices_of(slot: &Slot) -> u64 {
    slot.parts.iter().fold(0, |all, part| all | bit(part.index))
}

fn held_on(slots: &[Rc<Slot>], node: usize) -> u64 {
    let here = slots.iter().filter(|slot| slot.node == node);
    here.fold(0, |all, slot| all | devices_of(slot))
}
