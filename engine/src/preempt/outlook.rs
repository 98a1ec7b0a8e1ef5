//! What a pool may give to gangs on whole devices, counted once for all who ask while nothing moves.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::search::Search;
use super::{Herd, Right, Rules};
use crate::ledger::{Ledger, Sight, Slot};
use crate::place::{self, Gang, Query, devices_free};

/// A node that is in no domain.
const NONE: usize = usize::MAX;

/// Room for the workers of one gang, by the whole devices of the nodes that could do.
#[derive(Debug)]
pub(super) struct Outlook {
    /// Devices of a worker.
    count: u32,
    /// By node: its domain, and what is free on it.
    nodes: Vec<(usize, u64)>,
    /// By domain: workers that have room.
    sums: Vec<i64>,
    /// The most workers that a domain held, were all gone that may be disturbed.
    pub emptied: i64,
}

impl Outlook {
    pub fn of(ledger: &Ledger<'_, '_>, herd: &Herd, domains: &[Vec<usize>], count: u32) -> Self {
        let mut outlook = Self {
            count,
            nodes: vec![(NONE, 0); ledger.index.nodes.len()],
            sums: vec![0; domains.len()],
            emptied: 0,
        };
        for (at, domain) in domains.iter().enumerate() {
            let mut emptied = 0;
            for &node in domain {
                let free = devices_free(ledger, node, Sight::Later);
                outlook.nodes[node] = (at, free);
                outlook.sums[at] += outlook.workers(free);
                emptied += outlook.workers(free | herd.devices_on(node));
            }
            outlook.emptied = outlook.emptied.max(emptied);
        }
        outlook
    }

    /// Workers that so many devices hold.
    fn workers(&self, devices: u64) -> i64 {
        i64::from(devices.count_ones() / self.count)
    }

    /// The most workers that a domain held, were some devices of some nodes free beside what is.
    pub fn with(&self, gone: &FxHashMap<usize, u64>) -> i64 {
        let mut sums = self.sums.clone();
        for (&node, devices) in gone {
            let (domain, free) = self.nodes[node];
            if domain != NONE {
                sums[domain] += self.workers(free | devices) - self.workers(free);
            }
        }
        sums.into_iter().max().unwrap_or(0)
    }
}

/// Who asks in vain for room by one right that no priority has a part in: gang, team, whether it
/// may be preempted, right.
type Asked = (Gang, usize, bool, Right);

/// What was counted, as long as all stands where it does.
#[derive(Debug, Default)]
pub(crate) struct Outlooks {
    /// The numbers of what teams held and of what stood where.
    seen: (u64, u64),
    /// By pool and frame.
    of: FxHashMap<(usize, usize), Rc<Outlook>>,
    /// By pool, frame and workers: whether more steps than are taken are needed anyhow.
    too_many: FxHashMap<(usize, usize, u32), bool>,
    roomless: FxHashSet<Asked>,
    /// By pool: after how many seconds who is protected is so no longer.
    pub(super) waits: FxHashMap<usize, Rc<Vec<i64>>>,
}

impl Outlooks {
    /// What holds now: nothing, where anything was moved since.
    pub(super) fn now<'l>(ledger: &'l mut Ledger<'_, '_>) -> &'l mut Self {
        let now = (ledger.version(), ledger.stands());
        if ledger.outlooks.seen != now {
            ledger.outlooks = Self {
                seen: now,
                ..Self::default()
            };
        }
        &mut ledger.outlooks
    }
}

impl Search<'_> {
    /// What the pool may give to the newcomer, of so many devices for each worker.
    pub(super) fn outlook(&self, ledger: &mut Ledger<'_, '_>, count: u32) -> Rc<Outlook> {
        let (work, pool) = (self.newcomer.work, self.newcomer.pool);
        let key = (pool, ledger.index.works[work].frame);
        if let Some(known) = Outlooks::now(ledger).of.get(&key) {
            return Rc::clone(known);
        }
        let able = place::nodes_able(ledger, work, pool);
        let domains = self.domains(ledger.index, &able);
        let outlook = Rc::new(Outlook::of(ledger, &self.herd, &domains, count));
        ledger.outlooks.of.insert(key, Rc::clone(&outlook));
        outlook
    }

    /// Whether more steps than are taken over a pool are needed anyhow.
    pub(super) fn too_many(&self, ledger: &mut Ledger<'_, '_>) -> bool {
        let facts = &ledger.index.works[self.newcomer.work];
        let key = (self.newcomer.pool, facts.frame, self.newcomer.workers);
        if let Some(&known) = Outlooks::now(ledger).too_many.get(&key) {
            return known;
        }
        let found = self.counts_too_many(ledger);
        ledger.outlooks.too_many.insert(key, found);
        found
    }

    /// Whether all who are like the newcomer are known to find no room with every rule lifted. Its
    /// priority has no part in that where it takes nothing from its own team.
    pub(super) fn is_roomless(&self, ledger: &mut Ledger<'_, '_>) -> bool {
        let asked = self.asked(ledger);
        asked.is_some_and(|asked| Outlooks::now(ledger).roomless.contains(&asked))
    }

    /// Keeps in mind that it finds none.
    pub(super) fn finds_no_room(&self, ledger: &mut Ledger<'_, '_>) {
        if let Some(asked) = self.asked(ledger) {
            Outlooks::now(ledger).roomless.insert(asked);
        }
    }

    fn asked(&self, ledger: &Ledger<'_, '_>) -> Option<Asked> {
        let (index, newcomer) = (ledger.index, self.newcomer);
        let facts = &index.works[newcomer.work];
        let &[right] = newcomer.rights else {
            return None;
        };
        if right == Right::Priority
            || index.teams[facts.team].by_user
            || *self.rules != Rules::lifted()
        {
            return None;
        }
        let query = Query::start(index, newcomer.work, newcomer.pool).workers(newcomer.workers);
        let gang = place::gang(index, query)?;
        Some((gang, facts.team, facts.preemptible, right))
    }
}

/// Room in workers, were all of a set of victims gone.
pub(super) struct Supply {
    outlook: Rc<Outlook>,
    /// What is free by now on nodes where that is another than the outlook has it.
    changed: FxHashMap<usize, u64>,
    sums: Vec<i64>,
}

impl Supply {
    pub fn of(outlook: Rc<Outlook>) -> Self {
        Self {
            changed: FxHashMap::default(),
            sums: outlook.sums.clone(),
            outlook,
        }
    }

    /// The domain of a node, and what is free there.
    fn at(&self, node: usize) -> Option<(usize, u64)> {
        let (domain, free) = self.outlook.nodes[node];
        let free = self.changed.get(&node).copied().unwrap_or(free);
        (domain != NONE).then_some((domain, free))
    }

    /// Whether some domain may hold so many workers.
    pub fn may_hold(&self, workers: u32) -> bool {
        self.sums.iter().any(|&sum| sum >= i64::from(workers))
    }

    /// Looks again at the nodes of some slots, as the ledger stands.
    pub fn look_again(&mut self, ledger: &Ledger<'_, '_>, slots: &[Rc<Slot>]) {
        for slot in slots {
            let Some((domain, before)) = self.at(slot.node) else {
                continue;
            };
            let now = devices_free(ledger, slot.node, Sight::Later);
            self.changed.insert(slot.node, now);
            self.sums[domain] += self.outlook.workers(now) - self.outlook.workers(before);
        }
    }

    /// Whether so many workers may still have room if these devices of some nodes were not free.
    pub fn spares(&self, stays: FxHashMap<usize, u64>, workers: u32) -> bool {
        let mut lost = vec![0; self.sums.len()];
        for (node, devices) in stays {
            let Some((domain, free)) = self.at(node) else {
                continue;
            };
            lost[domain] += self.outlook.workers(free) - self.outlook.workers(free & !devices);
        }
        let mut left = self.sums.iter().zip(lost);
        left.any(|(sum, lost)| sum - lost >= i64::from(workers))
    }
}
