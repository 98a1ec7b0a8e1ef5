//! The quota tree of a pool: guarantees as shrunk to what is there, limits, and what a start may not do.

use domain::quantity::MILLI;

use crate::index::{Amount, Index, TeamFacts, bit};
use crate::ledger::{Ledger, Slot, Standing};
use crate::world::{Pool, Stopped, WEIGHT_MILLI_DEFAULT};

/// A team's row for a pool, in the pool's units.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// Whether the team has a row of its own.
    pub written: bool,
    /// The guarantee, shrunk in proportion where the pool has too little.
    pub guaranteed: Amount,
    /// The guarantee as it was given, to which it grows again.
    pub given: Amount,
    pub limit: Option<Amount>,
    pub lend_limit: Option<Amount>,
    pub max_per_user: Option<Amount>,
    /// The claim on spare capacity, in thousandths.
    pub weight: i128,
    /// GPU-seconds of the past, in thousandths.
    pub past_use: i128,
    /// What bookings of the team itself add to the guarantee now.
    pub booked: Amount,
}

/// The rows of all teams for one pool; `booked` is what each team has booked now, in thousandths.
pub(crate) fn rows(
    pool: &Pool,
    teams: &[TeamFacts<'_>],
    booked: &[i64],
    capacity: Amount,
    unit: Amount,
) -> Vec<Row> {
    let mut rows: Vec<Row> = teams
        .iter()
        .zip(booked)
        .map(|(team, &booked)| {
            let quota = team.row.quotas.get(&pool.name);
            let units = |amount: domain::MilliGpu| Amount::from(amount.milli()) * unit;
            Row {
                written: quota.is_some(),
                guaranteed: quota.map_or(0, |q| units(q.guaranteed)),
                given: 0,
                limit: quota.and_then(|q| q.limit).map(units),
                lend_limit: quota.and_then(|q| q.lend_limit).map(units),
                max_per_user: team.row.max_per_user.get(&pool.name).copied().map(units),
                weight: quota
                    .map_or(WEIGHT_MILLI_DEFAULT, |q| q.weight_milli)
                    .into(),
                past_use: team
                    .row
                    .past_use
                    .get(&pool.name)
                    .copied()
                    .unwrap_or(0)
                    .into(),
                booked: Amount::from(booked) * unit,
            }
        })
        .collect();
    // What is booked is added to the guarantees of its team and of all above it.
    for team in 0..teams.len() {
        let more = rows[team].booked;
        for &above in &teams[team].path {
            rows[above].guaranteed += more;
        }
    }
    // Deepest first, so that a parent without a row finds its children's sums.
    let mut order: Vec<usize> = (0..teams.len()).collect();
    order.sort_by_key(|&t| std::cmp::Reverse(teams[t].path.len()));
    for &team in &order {
        if !rows[team].written {
            let below: Amount = teams[team]
                .children
                .iter()
                .map(|&c| rows[c].guaranteed)
                .sum();
            rows[team].guaranteed = below + rows[team].booked;
        }
        if !teams[team].row.past_use.contains_key(&pool.name) {
            rows[team].past_use = teams[team].children.iter().map(|&c| rows[c].past_use).sum();
        }
    }
    for row in &mut rows {
        row.given = row.guaranteed;
    }
    shrink(&mut rows, teams, capacity, unit);
    rows
}

/// Shrinks all guarantees in proportion where those of the roots are above the capacity.
fn shrink(rows: &mut [Row], teams: &[TeamFacts<'_>], capacity: Amount, unit: Amount) {
    let roots: Vec<usize> = (0..teams.len())
        .filter(|&t| teams[t].parent.is_none())
        .collect();
    let total: Amount = roots.iter().map(|&t| rows[t].guaranteed).sum();
    if total <= capacity {
        return;
    }
    // In thousandths, exactly: units cancel out of the proportion.
    let (have, asked) = (capacity / unit, total / unit);
    let nominal: Vec<Amount> = rows.iter().map(|r| r.guaranteed / unit).collect();
    let part = |team: usize| nominal[team] * have / asked;
    let over = |team: usize| nominal[team] * have % asked;
    let below = teams.iter().map(|team| &team.children[..]);
    for siblings in below.chain([&roots[..]]) {
        let mut rest = siblings.iter().map(|&t| nominal[t]).sum::<Amount>() * have / asked;
        for &team in siblings {
            rows[team].guaranteed = part(team) * unit;
            rest -= part(team);
        }
        let mut largest = siblings.to_vec();
        // Siblings are in the order of their names, and the sort keeps it among equals.
        largest.sort_by_key(|&t| std::cmp::Reverse(over(t)));
        for &team in largest.iter().take(usize::try_from(rest).unwrap_or(0)) {
            rows[team].guaranteed += unit;
        }
    }
}

/// What keeps a workload from holding more, in the order in which it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Block {
    Replicas { service: usize },
    Limit { team: usize, have: Amount },
    Lend { team: usize, have: Amount },
    User { team: usize, have: Amount },
    Ancestor { team: usize, have: Amount },
    NonPreemptible { have: Amount },
    Budget { team: usize },
}

/// Whether a workload of that amount is in its team's guarantee.
pub(crate) fn in_guarantee(
    ledger: &Ledger<'_, '_>,
    pool: usize,
    team: usize,
    amount: Amount,
) -> bool {
    ledger.held(pool, team).gpu + amount <= ledger.index.pools[pool].rows[team].guaranteed
}

/// Whether a workload may hold `amount` more in a pool.
pub(crate) fn allowed(
    ledger: &Ledger<'_, '_>,
    work: usize,
    pool: usize,
    amount: Amount,
) -> Result<(), Block> {
    let index = ledger.index;
    let facts = &index.works[work];
    let team = &index.teams[facts.team];
    if let Some(service) = full_service(ledger, work) {
        return Err(Block::Replicas { service });
    }
    if amount > 0 {
        let rows = &index.pools[pool].rows;
        let room = |t: usize| rows[t].limit.map(|limit| limit - ledger.held(pool, t).gpu);
        if let Some(have) = room(facts.team).filter(|have| *have < amount) {
            return Err(Block::Limit {
                team: facts.team,
                have,
            });
        }
        let inside = in_guarantee(ledger, pool, facts.team, amount);
        if !inside && let Some((team, have)) = lend(ledger, facts.team, pool, amount) {
            return Err(Block::Lend { team, have });
        }
        if let Some(user) = &facts.row.user {
            for &t in &team.path {
                let Some(most) = rows[t].max_per_user else {
                    continue;
                };
                let have = most - ledger.held_by_user(pool, t, user);
                if have < amount {
                    return Err(Block::User { team: t, have });
                }
            }
        }
        for &t in &team.path[1..] {
            if let Some(have) = room(t).filter(|have| *have < amount) {
                return Err(Block::Ancestor { team: t, have });
            }
        }
        if !inside && !facts.preemptible && !index.pools[pool].row.non_preemptible_borrowing {
            let have = rows[facts.team].guaranteed - ledger.held(pool, facts.team).gpu;
            return Err(Block::NonPreemptible { have });
        }
        if !inside && team.stopped == Stopped::Borrowing {
            return Err(stopped_by(index, facts.team, Stopped::Borrowing));
        }
    }
    if team.stopped == Stopped::All {
        Err(stopped_by(index, facts.team, Stopped::All))
    } else {
        Ok(())
    }
}

/// The service of a replica, where others of it are as many as it may have. Who leaves is none of them any
/// more, and a replica that has its place is in nobody's way.
fn full_service(ledger: &Ledger<'_, '_>, work: usize) -> Option<usize> {
    let service = ledger.index.works[work].service?;
    let facts = &ledger.index.services[service];
    let stands = |&&other: &&usize| {
        let standing = ledger.standing(other);
        other != work && !matches!(standing, Standing::Idle | Standing::Leaving)
    };
    let others = facts.replicas.iter().filter(stands).count();
    (others >= facts.max_replicas as usize).then_some(service)
}

/// The lowest team whose own budget has stopped so much of a team's work.
fn stopped_by(index: &Index<'_>, team: usize, stopped: Stopped) -> Block {
    let mut path = index.teams[team].path.iter().copied();
    let own = path.find(|&t| index.teams[t].row.stopped == stopped);
    Block::Budget {
        team: own.unwrap_or(team),
    }
}

/// The most that limits would let a workload have in a pool, were nobody else there and all of the
/// pool's devices back; nothing where none binds it.
pub(crate) fn ceiling(index: &Index<'_>, work: usize, pool: usize) -> Option<Amount> {
    let facts = &index.works[work];
    let rows = &index.pools[pool].rows;
    let path = || index.teams[facts.team].path.iter().map(|&t| &rows[t]);
    let limits = path().filter_map(|row| row.limit);
    let users = path().filter_map(|row| row.max_per_user);
    let users = users.filter(|_| facts.row.user.is_some());
    let firm = !facts.preemptible && !index.pools[pool].row.non_preemptible_borrowing;
    let own = firm.then_some(rows[facts.team].given);
    let none = facts
        .service
        .map(|service| index.services[service].max_replicas);
    let none = none.filter(|most| *most == 0).map(|_| 0);
    limits.chain(users).chain(own).chain(none).min()
}

/// Whether a borrower would use more of others' idle guarantees than they lend:
/// the team whose room it is, and what the borrower may still have.
fn lend(
    ledger: &Ledger<'_, '_>,
    borrower: usize,
    pool: usize,
    amount: Amount,
) -> Option<(usize, Amount)> {
    let index = ledger.index;
    let rows = &index.pools[pool].rows;
    if !index.pools[pool].lends {
        return None;
    }
    let roots = || (0..index.teams.len()).filter(|&t| index.teams[t].parent.is_none());
    let held: Amount = roots().map(|t| ledger.held(pool, t).gpu).sum();
    let held = held - held_elsewhere(ledger, pool);
    let kept: Amount = roots().map(|t| kept_back(ledger, pool, t, borrower)).sum();
    let have = index.pools[pool].capacity - held - kept;
    if have >= amount {
        return None;
    }
    let keeps = |t: &usize| {
        let row = &rows[*t];
        row.lend_limit
            .is_some_and(|lent| row.guaranteed - ledger.held(pool, *t).gpu > lent)
            && !index.teams[borrower].path.contains(t)
    };
    (0..index.teams.len())
        .find(keeps)
        .map(|owner| (owner, have.max(0)))
}

/// What is held of a pool's devices that are no part of its capacity, since they have failed or their
/// node does not answer.
fn held_elsewhere(ledger: &Ledger<'_, '_>, pool: usize) -> Amount {
    let index = ledger.index;
    let mut held = 0;
    for &node in &index.pools[pool].lost {
        let lost = &index.nodes[node];
        let part = |slot: &Slot| {
            let parts = || slot.parts.iter();
            let gone = parts().filter(|part| !lost.counts() || lost.failed & bit(part.index) != 0);
            let gone: Amount = gone.map(|part| Amount::from(part.milli)).sum();
            let all: Amount = parts().map(|part| Amount::from(part.milli)).sum();
            if gone == all {
                slot.amount
            } else {
                slot.amount * gone / all
            }
        };
        for &work in ledger.seated(node) {
            let there = ledger.slots(work).iter().filter(|slot| slot.node == node);
            held += there.map(|slot| part(slot)).sum::<Amount>();
        }
    }
    held
}

/// What a subtree keeps of its idle guarantee from a borrower outside it, or inside one of its teams.
fn kept_back(ledger: &Ledger<'_, '_>, pool: usize, team: usize, borrower: usize) -> Amount {
    let index = ledger.index;
    let below: Amount = index.teams[team]
        .children
        .iter()
        .map(|&c| kept_back(ledger, pool, c, borrower))
        .sum();
    if index.teams[borrower].path.contains(&team) {
        return below;
    }
    let row = &index.pools[pool].rows[team];
    let own = row.lend_limit.map_or(0, |lent| {
        row.guaranteed - ledger.held(pool, team).gpu - lent
    });
    own.max(below).max(0)
}

/// The weights of siblings on spare capacity, corrected for past use where the pool
/// remembers it; only among those that want more.
pub(crate) fn weights(
    index: &Index<'_>,
    pool: usize,
    siblings: &[usize],
    wanting: impl Fn(usize) -> bool,
) -> Vec<i128> {
    let facts = &index.pools[pool];
    let plain = siblings.iter().map(|&t| facts.rows[t].weight * SCALE);
    if facts.row.usage_half_life_seconds.is_none() {
        return plain.collect();
    }
    let wanting: Vec<usize> = siblings.iter().copied().filter(|&t| wanting(t)).collect();
    let all: i128 = wanting.iter().map(|&t| facts.rows[t].weight).sum();
    let used: i128 = wanting.iter().map(|&t| facts.rows[t].past_use).sum();
    if used == 0 || all == 0 {
        return plain.collect();
    }
    let corrected = |t: usize| {
        let row = &facts.rows[t];
        if !wanting.contains(&t) || row.weight == 0 {
            return row.weight * SCALE;
        }
        // w · max(0, 1 + w/W − u/U) / (w/W) = max(0, W + w − u·W/U)
        ((all + row.weight) * SCALE - row.past_use * all * SCALE / used).max(0)
    };
    siblings.iter().map(|&t| corrected(t)).collect()
}

/// The weight of one of some siblings, all of which want more.
pub(crate) fn weight(index: &Index<'_>, pool: usize, siblings: &[usize], team: usize) -> i128 {
    let facts = &index.pools[pool];
    if facts.row.usage_half_life_seconds.is_none() {
        return facts.rows[team].weight * SCALE;
    }
    let at = siblings.binary_search(&team);
    at.map_or(WEIGHT_ONE, |at| {
        weights(index, pool, siblings, |_| true)[at]
    })
}

/// Finer than any weight, so that corrected weights lose nothing that matters.
const SCALE: i128 = 1_000_000;
/// A weight of 1 as `weights` gives it.
pub(crate) const WEIGHT_ONE: i128 = MILLI as i128 * SCALE;
