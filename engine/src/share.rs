//! Borrower shares: dominant-resource fairness over what is held above the guarantee, down a tree (H-DRF).

mod kept;

use crate::index::{Amount, Index};
use crate::ledger::{Held, Ledger};
use crate::quota::{WEIGHT_ONE, weight, weights};

pub(crate) use kept::KeptShares;

/// A whole pool, as a part: fine enough that no comparison of teams turns on rounding.
pub(crate) const WHOLE: i128 = 1_000_000_000_000_000;
/// Shares that differ by less than this are equal: computed in two ways, a third is a third.
const GRAIN: i128 = 1_000_000;
/// Moves the edges of the grains off the halves, quarters and eighths that shares are made of.
const OFFSET: i128 = 271_828;
/// A share that nothing is above: of a borrower without a claim on spare capacity.
const ENDLESS: i128 = i128::MAX / 4;

/// `a / b` as a part of `WHOLE`, without overflow.
pub(crate) fn ratio(a: Amount, b: Amount) -> i128 {
    if b <= 0 || a <= 0 {
        return 0;
    }
    let (mut a, mut b) = (a, b);
    while a > i128::MAX / WHOLE {
        a >>= 1;
        b >>= 1;
    }
    a * WHOLE / b.max(1)
}

/// `part · by / of`, where all are parts.
fn scaled(part: i128, by: i128, of: i128) -> i128 {
    if of == 0 {
        return 0;
    }
    let (mut by, mut of) = (by, of);
    while part > 0 && by > i128::MAX / part.max(1) {
        by >>= 1;
        of >>= 1;
    }
    part * by / of.max(1)
}

/// A share as it is compared: coarse enough that equals are equal.
pub(crate) fn coarse(share: i128) -> i128 {
    (share + OFFSET).div_euclid(GRAIN)
}

/// What a team or subtree borrows, as parts of the pool, before weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Borrowed {
    gpu: i128,
    cpus: i128,
    memory: i128,
    plain_cpus: i128,
    plain_memory: i128,
}

impl Borrowed {
    fn dominant(&self) -> i128 {
        self.gpu
            .max(self.cpus + self.plain_cpus)
            .max(self.memory + self.plain_memory)
    }

    fn plus(self, other: Self) -> Self {
        Self {
            gpu: self.gpu + other.gpu,
            cpus: self.cpus + other.cpus,
            memory: self.memory + other.memory,
            plain_cpus: self.plain_cpus + other.plain_cpus,
            plain_memory: self.plain_memory + other.plain_memory,
        }
    }

    fn times(self, by: i128, of: i128) -> Self {
        Self {
            plain_cpus: scaled(self.plain_cpus, by, of),
            plain_memory: scaled(self.plain_memory, by, of),
            ..self.devices_times(by, of)
        }
    }

    fn devices_times(self, by: i128, of: i128) -> Self {
        Self {
            gpu: scaled(self.gpu, by, of),
            cpus: scaled(self.cpus, by, of),
            memory: scaled(self.memory, by, of),
            ..self
        }
    }
}

/// Which children of a team can start something; the others are left out of its share.
pub(crate) trait Starters {
    fn can_start(&self, team: usize) -> bool;
    fn wants(&self, team: usize) -> bool;
}

/// Everybody: for comparisons outside the order.
pub(crate) struct Everybody;

impl Starters for Everybody {
    fn can_start(&self, _: usize) -> bool {
        true
    }
    fn wants(&self, _: usize) -> bool {
        true
    }
}

/// What one team or subtree borrows; work that stands at an inner team itself is its own part.
pub(crate) fn borrowed(
    ledger: &Ledger<'_, '_>,
    pool: usize,
    team: usize,
    starters: &dyn Starters,
) -> Borrowed {
    let below = |child: usize| borrowed(ledger, pool, child, starters);
    borrowed_over(ledger, pool, team, starters, &below)
}

/// The same, where what each of its children borrows is known.
fn borrowed_over(
    ledger: &Ledger<'_, '_>,
    pool: usize,
    team: usize,
    starters: &dyn Starters,
    below: &dyn Fn(usize) -> Borrowed,
) -> Borrowed {
    let index = ledger.index;
    let facts = &index.pools[pool];
    let children = &index.teams[team].children;
    if children.is_empty() {
        return leaf(
            index,
            pool,
            ledger.held(pool, team),
            facts.rows[team].guaranteed,
        );
    }
    let claims = weights(index, pool, children, |c| starters.wants(c));
    let each: Vec<(usize, Borrowed, i128)> = children
        .iter()
        .zip(&claims)
        .map(|(&child, &claim)| {
            let own = below(child);
            (child, own, over_weight(own.dominant(), claim))
        })
        .collect();
    let least = each
        .iter()
        .filter(|(c, ..)| starters.can_start(*c))
        .map(|(.., share)| *share)
        .min();
    let mut sum = Borrowed::default();
    for (child, own, share) in &each {
        let (Some(least), true) = (least, starters.can_start(*child)) else {
            continue;
        };
        sum = sum.plus(if *share == 0 {
            *own
        } else {
            own.times(least, *share)
        });
    }
    let direct = direct(ledger, pool, team);
    sum = sum.plus(leaf(index, pool, &direct, 0));
    // What its children borrow may still be within its own guarantee.
    let inside: Amount = children
        .iter()
        .map(|&c| ledger.held(pool, c).gpu.min(facts.rows[c].guaranteed))
        .sum();
    let above = sum.gpu
        - ratio(
            (facts.rows[team].guaranteed - inside).max(0),
            facts.capacity,
        );
    if sum.gpu > 0 {
        sum.devices_times(above.max(0), sum.gpu)
    } else {
        sum
    }
}

/// What stands at an inner team itself and not below it.
fn direct(ledger: &Ledger<'_, '_>, pool: usize, team: usize) -> Held {
    let mut own = *ledger.held(pool, team);
    for &child in &ledger.index.teams[team].children {
        let below = ledger.held(pool, child);
        own.gpu -= below.gpu;
        own.cpus -= below.cpus;
        own.memory -= below.memory;
        own.plain_cpus -= below.plain_cpus;
        own.plain_memory -= below.plain_memory;
    }
    own
}

fn leaf(index: &Index<'_>, pool: usize, held: &Held, guaranteed: Amount) -> Borrowed {
    let facts = &index.pools[pool];
    let above = (held.gpu - guaranteed).max(0);
    let part = |amount: i128, total: i128| ratio(amount, total);
    // CPU and memory count in the ratio of borrowed to held GPUs.
    let of_devices = Borrowed {
        gpu: part(held.gpu, facts.capacity),
        cpus: part(held.cpus, facts.cpus),
        memory: part(held.memory, facts.memory),
        ..Borrowed::default()
    };
    let borrowed = if held.gpu > 0 {
        of_devices.devices_times(above, held.gpu)
    } else {
        Borrowed::default()
    };
    Borrowed {
        gpu: part(above, facts.capacity),
        plain_cpus: part(held.plain_cpus, facts.cpus),
        plain_memory: part(held.plain_memory, facts.memory),
        ..borrowed
    }
}

fn over_weight(share: i128, weight: i128) -> i128 {
    if share == 0 {
        return 0;
    }
    if weight == 0 {
        ENDLESS
    } else {
        scaled(share, WEIGHT_ONE, weight)
    }
}

/// Whether one team's share, by what it would hold itself, is not above another's.
///
/// This is the rule between borrowers, and it takes no account of who could start what:
/// such a share falls with every victim and rises with every newcomer, so that nobody who
/// was displaced can displace in turn. Without a claim on spare capacity both shares are
/// endless, and what is borrowed decides.
pub(crate) fn not_above(
    index: &Index<'_>,
    pool: usize,
    (team, holds): (usize, &Held),
    (other, other_holds): (usize, &Held),
) -> bool {
    let of = |team: usize, held: &Held| {
        let claim = weight(index, pool, siblings(index, team), team);
        let borrowed = leaf(index, pool, held, index.pools[pool].rows[team].guaranteed);
        (over_weight(borrowed.dominant(), claim), borrowed.dominant())
    };
    let (one, two) = (of(team, holds), of(other, other_holds));
    if one.0 == ENDLESS && two.0 == ENDLESS {
        coarse(one.1) <= coarse(two.1)
    } else {
        coarse(one.0) <= coarse(two.0)
    }
}

/// The borrower shares of some siblings, in the order in which they are given.
pub(crate) fn shares(
    ledger: &Ledger<'_, '_>,
    pool: usize,
    some: &[usize],
    starters: &dyn Starters,
) -> Vec<i128> {
    let Some(&first) = some.first() else {
        return Vec::new();
    };
    let all = siblings(ledger.index, first);
    let claims = weights(ledger.index, pool, all, |c| starters.wants(c));
    let claim = |team: usize| all.binary_search(&team).map_or(WEIGHT_ONE, |at| claims[at]);
    some.iter()
        .map(|&team| {
            over_weight(
                borrowed(ledger, pool, team, starters).dominant(),
                claim(team),
            )
        })
        .collect()
}

/// The borrower share of one team among its siblings.
pub(crate) fn share(
    ledger: &Ledger<'_, '_>,
    pool: usize,
    team: usize,
    starters: &dyn Starters,
) -> i128 {
    shares(ledger, pool, &[team], starters)[0]
}

/// The team and those beside it, in the order of their names.
pub(crate) fn siblings<'a>(index: &'a Index<'_>, team: usize) -> &'a [usize] {
    match index.teams[team].parent {
        Some(parent) => &index.teams[parent].children,
        None => &index.roots,
    }
}

/// The largest part of the pool that a team holds, guaranteed or not.
pub(crate) fn dominant(ledger: &Ledger<'_, '_>, pool: usize, team: usize) -> i128 {
    let facts = &ledger.index.pools[pool];
    let held = ledger.held(pool, team);
    ratio(held.gpu, facts.capacity)
        .max(ratio(held.cpus + held.plain_cpus, facts.cpus))
        .max(ratio(held.memory + held.plain_memory, facts.memory))
}
