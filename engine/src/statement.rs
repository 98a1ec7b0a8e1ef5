//! Statements of quota: what each team has of each pool, who lends it to whom, what could be taken back now, and who is short of its own since when.
//!
//! A statement is of what runs this moment, in whole thousandths of a GPU: where a pool
//! charges the dominant part, what stands is rounded up to one for each team, and a team
//! above others has the sum of theirs.

mod flow;
mod reclaim;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use domain::{MilliGpu, Timestamp};

use crate::index::{Amount, Index};
use crate::ledger::Ledger;
use crate::world::{Pool, World};
use flow::Flow;

/// An amount with a team on the other side of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// The other team.
    pub team: String,
    /// How much, above zero.
    pub amount: MilliGpu,
}

/// What one team has of one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The team.
    pub team: String,
    /// The pool.
    pub pool: String,
    /// Its guarantee, shrunk where the pool has too little, with what is booked for it now.
    pub guaranteed: MilliGpu,
    /// The most that it may hold; `None` is no limit.
    pub limit: Option<MilliGpu>,
    /// What it and all below it hold.
    pub held: MilliGpu,
    /// What it holds beyond its guarantee: the sum of `borrows_from` and `spare`.
    pub borrowed: MilliGpu,
    /// The part of `borrowed` that is in no other team's guarantee, or in that of a team
    /// above it and of nobody below that.
    pub spare: MilliGpu,
    /// What others hold of its guarantee: the sum of `lends_to`.
    pub lent: MilliGpu,
    /// Who borrows of it, in the order of their names; for a team above others those outside.
    pub lends_to: Vec<Party>,
    /// Of whom it borrows, likewise.
    pub borrows_from: Vec<Party>,
    /// What of `lent` it could take back this instant by the rules of the pool; for work of the
    /// highest class that has waited long enough.
    pub reclaimable: MilliGpu,
    /// Since when it is under its guarantee while work of it waits.
    pub starved_since: Option<Timestamp>,
}

/// Since when teams are under their guarantees while work of them waits, by team and pool.
pub type Starved = BTreeMap<(String, String), Timestamp>;

/// The statements of all teams that have a part in a pool, pool by pool, in the order of the
/// names. `known` is what `starved` gave for the same teams before; who is short since then
/// still is since then.
pub fn statements(world: &World, known: &Starved) -> Vec<Statement> {
    let index = Index::of(world);
    let ledger = Ledger::of(&index);
    let pools = 0..index.pools.len();
    pools
        .flat_map(|pool| of_pool(&ledger, pool, known))
        .collect()
}

/// What is to be known when the next statements are made.
pub fn starved(statements: &[Statement]) -> Starved {
    let since = |s: &Statement| Some(((s.team.clone(), s.pool.clone()), s.starved_since?));
    statements.iter().filter_map(since).collect()
}

fn of_pool(ledger: &Ledger<'_, '_>, pool: usize, known: &Starved) -> Vec<Statement> {
    let index = ledger.index;
    let facts = &index.pools[pool];
    let flow = Flow::of(ledger, pool);
    let wanting = wanting(index, pool);
    let gpus = |amount: Amount| MilliGpu::from_milli(i64::try_from(amount).unwrap_or(i64::MAX));
    let parties = |parts: BTreeMap<usize, Amount>| -> Vec<Party> {
        let told = parts.into_iter().map(|(team, amount)| Party {
            team: index.teams[team].row.name.clone(),
            amount: gpus(amount),
        });
        told.collect()
    };
    let sum =
        |parties: &[Party]| gpus(parties.iter().map(|p| Amount::from(p.amount.milli())).sum());
    let statement = |team: usize| {
        let (guaranteed, held) = (flow.guaranteed[team], flow.held[team]);
        let lends_to = parties(flow.lends_to(index, team));
        let borrows_from = parties(flow.borrows_from(index, team));
        let lent = sum(&lends_to);
        // Who borrows of several may have to give each of them all of it: of one it has its part.
        let reclaimable = gpus(reclaim::now(ledger, pool, team, &flow)).min(lent);
        Statement {
            team: index.teams[team].row.name.clone(),
            pool: facts.row.name.clone(),
            guaranteed: gpus(guaranteed),
            limit: facts.rows[team].limit.map(|l| gpus(flow::milli(facts, l))),
            held: gpus(held),
            borrowed: gpus((held - guaranteed).max(0)),
            spare: gpus(flow.spare_of(index, team)),
            lent,
            lends_to,
            borrows_from,
            reclaimable,
            starved_since: (held < guaranteed && wanting[team])
                .then(|| since(index, facts.row, team, known)),
        }
    };
    let member = |&team: &usize| crate::shares::has_row(index, pool, team);
    (0..index.teams.len())
        .filter(member)
        .map(statement)
        .collect()
}

fn since(index: &Index<'_>, pool: &Pool, team: usize, known: &Starved) -> Timestamp {
    let key = (index.teams[team].row.name.clone(), pool.name.clone());
    let now = index.world.now;
    known.get(&key).copied().unwrap_or(now).min(now)
}

/// Which teams have work, of their own or below them, that waits for devices of a pool.
fn wanting(index: &Index<'_>, pool: usize) -> Vec<bool> {
    let mut wanting = vec![false; index.teams.len()];
    for work in 0..index.works.len() {
        let facts = &index.works[work];
        if index.ready(work) && !index.plain(work) && facts.pools.contains(&pool) {
            for &team in &index.teams[facts.team].path {
                wanting[team] = true;
            }
        }
    }
    wanting
}
