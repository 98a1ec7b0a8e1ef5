//! What every team has of every pool: guaranteed, used, borrowed, lent, and what it would
//! have if everybody took what is theirs.

use domain::MilliGpu;

use crate::cycle::Cycle;
use crate::index::{Amount, Index};
use crate::ledger::Standing;
use crate::plan::Share;
use crate::quota::weights;

/// The shares of all teams after the plan, pool by pool, in the order of the names.
pub(crate) fn all(cycle: &Cycle<'_, '_>) -> Vec<Share> {
    let index = cycle.index;
    (0..index.pools.len())
        .flat_map(|pool| of_pool(cycle, pool))
        .collect()
}

fn of_pool(cycle: &Cycle<'_, '_>, pool: usize) -> Vec<Share> {
    let index = cycle.index;
    let facts = &index.pools[pool];
    let used = used(cycle, pool);
    let lent = lent(index, pool, &used);
    let fair = entitlements(index, pool, &demands(cycle, pool, &used));
    let member = |&t: &usize| has_row(index, pool, t);
    let gpus = |amount: Amount| MilliGpu::from_milli(facts.milli(amount));
    let share = |t: usize| Share {
        team: index.teams[t].row.name.clone(),
        pool: facts.row.name.clone(),
        guaranteed: gpus(facts.rows[t].guaranteed),
        used: gpus(used[t]),
        borrowed: gpus((used[t] - facts.rows[t].guaranteed).max(0)),
        lent: gpus(lent[t]),
        fair_share: gpus(fair[t]),
    };
    (0..index.teams.len()).filter(member).map(share).collect()
}

/// Whether a team, or one below it, has a row for a pool.
pub(crate) fn has_row(index: &Index<'_>, pool: usize, team: usize) -> bool {
    index.pools[pool].rows[team].written
        || index.teams[team]
            .children
            .iter()
            .any(|&c| has_row(index, pool, c))
}

/// What teams hold, without room that is only kept.
fn used(cycle: &Cycle<'_, '_>, pool: usize) -> Vec<Amount> {
    let index = cycle.index;
    let mut used: Vec<Amount> = (0..index.teams.len())
        .map(|t| cycle.ledger.held(pool, t).gpu)
        .collect();
    for &work in cycle.engaged() {
        let slots = cycle.ledger.slots(work);
        let here = slots
            .first()
            .is_some_and(|s| index.nodes[s.node].pool == pool);
        if here && cycle.ledger.standing(work) == Standing::Nominated {
            let kept: Amount = slots.iter().map(|s| s.amount).sum();
            for &team in &index.teams[index.works[work].team].path {
                used[team] -= kept;
            }
        }
    }
    used
}

/// What teams hold and wait for, limited.
fn demands(cycle: &Cycle<'_, '_>, pool: usize, used: &[Amount]) -> Vec<Amount> {
    let index = cycle.index;
    let mut own: Vec<Amount> = (0..index.teams.len())
        .map(|team| cycle.lines().asked(pool, team))
        .collect();
    for &work in cycle.engaged() {
        let facts = &index.works[work];
        if cycle.ledger.standing(work) == Standing::Started && facts.pools.contains(&pool) {
            own[facts.team] -= index.charge_least(work, pool) * Amount::from(facts.row.workers);
        }
    }
    let mut demand = vec![0; index.teams.len()];
    for team in deepest_first(index) {
        let children = &index.teams[team].children;
        let below: Amount = children
            .iter()
            .map(|&c| demand[c])
            .fold(0, Amount::saturating_add);
        let direct = used[team] - children.iter().map(|&c| used[c]).sum::<Amount>();
        let wanted = below.saturating_add(own[team]).saturating_add(direct);
        demand[team] = index.pools[pool].rows[team]
            .limit
            .map_or(wanted, |limit| wanted.min(limit));
    }
    demand
}

fn deepest_first(index: &Index<'_>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..index.teams.len()).collect();
    order.sort_by_key(|&t| std::cmp::Reverse(index.teams[t].path.len()));
    order
}

fn roots(index: &Index<'_>) -> Vec<usize> {
    (0..index.teams.len())
        .filter(|&t| index.teams[t].parent.is_none())
        .collect()
}

/// What each team would have: its guarantee as far as it wants it, then its part of the
/// spare by weight, down the tree.
pub(crate) fn entitlements(index: &Index<'_>, pool: usize, demand: &[Amount]) -> Vec<Amount> {
    let mut fair = vec![0; index.teams.len()];
    let mut groups = vec![(roots(index), index.pools[pool].capacity)];
    while let Some((siblings, amount)) = groups.pop() {
        for (&team, part) in siblings
            .iter()
            .zip(pour(index, pool, &siblings, demand, amount))
        {
            fair[team] = part;
            if !index.teams[team].children.is_empty() {
                groups.push((index.teams[team].children.clone(), part));
            }
        }
    }
    fair
}

/// Deals an amount among siblings: min(guarantee, demand) first, then by rounds and weight.
fn pour(
    index: &Index<'_>,
    pool: usize,
    siblings: &[usize],
    demand: &[Amount],
    amount: Amount,
) -> Vec<Amount> {
    let facts = &index.pools[pool];
    let mut parts: Vec<Amount> = siblings
        .iter()
        .map(|&t| facts.rows[t].guaranteed.min(demand[t]))
        .collect();
    let kept: Amount = siblings
        .iter()
        .zip(&parts)
        .map(|(&t, part)| {
            let row = &facts.rows[t];
            row.lend_limit
                .map_or(0, |lent| (row.guaranteed - part - lent).max(0))
        })
        .sum();
    let mut spare = (amount - parts.iter().sum::<Amount>() - kept).max(0);
    let claims = weights(index, pool, siblings, |t| {
        demand[t] > facts.rows[t].guaranteed
    });
    loop {
        let open: Vec<usize> = (0..siblings.len())
            .filter(|&i| parts[i] < demand[siblings[i]] && claims[i] > 0)
            .collect();
        let total: i128 = open.iter().map(|&i| claims[i]).sum();
        if spare <= 0 || open.is_empty() {
            return parts;
        }
        let offer = |i: usize| times(spare, claims[i], total);
        let sated: Vec<usize> = open
            .iter()
            .copied()
            .filter(|&i| demand[siblings[i]] - parts[i] <= offer(i).0)
            .collect();
        if sated.is_empty() {
            deal(&mut parts, &open, spare, facts.unit, &offer);
            return parts;
        }
        // All offers of a round are of what was there when it began.
        for i in sated {
            let want = demand[siblings[i]] - parts[i];
            parts[i] += want;
            spare -= want;
        }
    }
}

/// Gives everybody its offer in whole thousandths, the rest to the largest fractions.
fn deal(
    parts: &mut [Amount],
    open: &[usize],
    spare: Amount,
    unit: Amount,
    offer: &dyn Fn(usize) -> (Amount, i128),
) {
    let mut rest = spare;
    let mut fractions: Vec<(Amount, i128, usize)> = Vec::new();
    for &i in open {
        let (whole, fraction) = offer(i);
        let down = whole / unit * unit;
        parts[i] += down;
        rest -= down;
        fractions.push((whole % unit, fraction, i));
    }
    fractions.sort_by(|a, b| (b.0, b.1).cmp(&(a.0, a.1)).then(a.2.cmp(&b.2)));
    for (.., i) in fractions {
        let more = rest.min(unit);
        parts[i] += more;
        rest -= more;
    }
}

/// `amount · claim / total`, with the remainder, without overflow.
fn times(amount: Amount, claim: i128, total: i128) -> (Amount, i128) {
    let (mut claim, mut total) = (claim, total.max(1));
    while amount > 0 && claim > i128::MAX / amount {
        claim >>= 1;
        total >>= 1;
    }
    let total = total.max(1);
    (amount * claim / total, amount * claim % total)
}

/// What others use of each team's idle guarantee: what siblings borrow beyond what nobody
/// is guaranteed, dealt over the idle in proportion.
fn lent(index: &Index<'_>, pool: usize, used: &[Amount]) -> Vec<Amount> {
    let rows = &index.pools[pool].rows;
    let mut lent = vec![0; index.teams.len()];
    let mut groups = vec![(roots(index), index.pools[pool].capacity, 0)];
    while let Some((siblings, space, from_above)) = groups.pop() {
        let guaranteed: Amount = siblings.iter().map(|&t| rows[t].guaranteed).sum();
        let borrowed: Amount = siblings
            .iter()
            .map(|&t| (used[t] - rows[t].guaranteed).max(0))
            .sum();
        // No more of what is idle is lent than its team lets.
        let idle: Vec<Amount> = siblings
            .iter()
            .map(|&t| (rows[t].guaranteed - used[t]).max(0))
            .zip(&siblings)
            .map(|(idle, &t)| rows[t].lend_limit.map_or(idle, |most| idle.min(most)))
            .collect();
        let all_idle: Amount = idle.iter().sum();
        let taken = (borrowed - (space - guaranteed).max(0)).max(0) + from_above;
        let taken = taken.min(all_idle);
        let mut rest = taken;
        for (i, &team) in siblings.iter().enumerate() {
            let part = if all_idle > 0 {
                times(taken, idle[i], all_idle).0
            } else {
                0
            };
            lent[team] = part;
            rest -= part;
        }
        for (i, &team) in siblings.iter().enumerate() {
            let more = rest.min(idle[i] - lent[team]).max(0);
            lent[team] += more;
            rest -= more;
        }
        for &team in &siblings {
            if !index.teams[team].children.is_empty() {
                let space = rows[team].guaranteed.max(used[team]);
                groups.push((index.teams[team].children.clone(), space, lent[team]));
            }
        }
    }
    lent
}
