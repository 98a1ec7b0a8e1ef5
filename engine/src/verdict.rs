//! One verdict for every workload that waits: the binding cause, in the order of the contract.

mod ahead;
mod alone;
mod counts;
mod expected;
mod kept;
mod remedies;
mod told;
mod words;

pub(crate) use ahead::Starts;
pub use alone::{Bound, alone};
pub(crate) use counts::Counted;

use std::rc::Rc;
use std::sync::Arc;

use domain::MilliGpu;
use domain::spec::NvlinkRule;
use rustc_hash::FxHashMap;

use crate::cycle::{Cycle, Keeps};
use crate::index::{Amount, Index, Need};
use crate::ledger::{Ledger, Sight, Standing};
use crate::place::{self, Query, Unfit, place};
use crate::plan::{Code, Waiting};
use crate::preempt::{self, Rules};
use crate::quota::{self, Block};
use crate::world::{PoolState, WorkloadState};

use told::{Memo, Told};

/// Begins the scope of what is kept for bookings rather than for a start; the pool follows.
const BOOKINGS: &str = "bookings of";
/// Begins the scope of what has as many replicas as it may; the name of the service follows.
const REPLICAS: &str = "max_replicas of service";

/// What binds a workload in one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub code: Code,
    pub scope: Arc<str>,
    /// What there is for it where it binds, in the pool's units.
    pub have: Amount,
}

/// The verdicts on all work that waits after a cycle's decisions, in the order in which it was looked at.
pub(crate) fn all(cycle: &mut Cycle<'_, '_>) -> Vec<Waiting> {
    let index = cycle.index;
    let mut ranks = Ranks::default();
    let mut order: Vec<(usize, Option<Rank>)> = Vec::new();
    let kept = kept::first(cycle);
    for (pool, passed) in cycle.passed.iter().enumerate() {
        let mut rank = 0;
        let kept = kept.iter().filter(|(_, there)| *there == pool);
        for &work in kept.map(|(work, _)| work).chain(passed) {
            if cycle.ledger.standing(work) == Standing::Idle
                || cycle.ledger.standing(work) == Standing::Nominated
            {
                rank += 1;
                order.push((work, Some((pool, rank))));
                if index.works[work].pools.len() > 1 {
                    ranks.entry((work, pool)).or_insert(rank);
                }
            }
        }
    }
    let looked_at = order.len();
    let mut seen = vec![false; index.works.len()];
    let mut memo = Memo::default();
    let mut waiting = Vec::with_capacity(looked_at);
    let rest = (0..index.works.len()).map(|work| (work, None));
    for (work, rank) in order.into_iter().chain(rest) {
        // Whoever runs is told so without a look at its row.
        let idle = matches!(
            cycle.ledger.standing(work),
            Standing::Idle | Standing::Nominated
        );
        let waits = || {
            matches!(
                index.works[work].wait.state,
                WorkloadState::Waiting | WorkloadState::Suspended
            )
        };
        if idle && !std::mem::replace(&mut seen[work], true) && waits() {
            waiting.push(one(cycle, work, rank, &ranks, &mut memo));
        }
    }
    waiting
}

/// A pool, and where in its order work was looked at.
type Rank = (usize, u64);

/// Where in the order of each pool work was looked at that may start in several.
type Ranks = FxHashMap<(usize, usize), u64>;

/// The verdict on a workload, that comes with where it was first looked at.
fn one(
    cycle: &mut Cycle<'_, '_>,
    work: usize,
    first: Option<Rank>,
    ranks: &Ranks,
    memo: &mut Memo,
) -> Waiting {
    let index = cycle.index;
    let facts = &index.works[work];
    let (pool, told) = match before_pools(cycle, work) {
        // What binds is no want of GPUs; how many are free is told all the same.
        Some(verdict) => {
            let pool = facts.pools.first().copied();
            let have = pool.map_or(0, |pool| counts::free(cycle, work, pool));
            (pool, Rc::new(Verdict { have, ..verdict }.into()))
        }
        None => {
            // The pool that brings it nearest to a start; among equals one in which it can ever start.
            let mut best: Option<(usize, Rc<Told>)> = None;
            for &pool in facts.pools.iter() {
                let told = in_pool(cycle, work, pool, memo);
                let better = |(other, b): &(usize, Rc<Told>)| {
                    let ends_help = |pool: usize| remedies::never(index, work, pool).is_none();
                    told.verdict.code > b.verdict.code
                        || told.verdict.code == b.verdict.code
                            && ends_help(pool)
                            && !ends_help(*other)
                };
                if best.as_ref().is_none_or(better) {
                    best = Some((pool, told));
                }
            }
            match best {
                Some((pool, told)) => (Some(pool), told),
                None => (None, Rc::new(plain(Code::NeverFits, "no pool").into())),
            }
        }
    };
    cycle.explained += 1;
    let Verdict { code, scope, .. } = &told.verdict;
    let expected = pool.and_then(|pool| expected::start_of(cycle, work, pool, *code));
    let words = told.words(cycle, work, pool);
    Waiting {
        workload: index.name(work).to_owned(),
        pool: words.pool.clone(),
        code: *code,
        message: Arc::clone(&words.message),
        scope: Arc::clone(scope),
        need: words.need,
        need_max: words.need_max,
        have: words.have,
        rank: pool.and_then(|pool| match first {
            Some((there, rank)) if there == pool => Some(rank),
            _ => ranks.get(&(work, pool)).copied(),
        }),
        expected_start: expected.map(|expected| expected.at),
        expected_once: expected.and_then(|expected| expected.once),
        remedies: pool
            .map(|pool| remedies::of(cycle, work, pool, *code))
            .unwrap_or_default(),
        counts: Arc::clone(&words.counts),
    }
}

fn plain(code: Code, scope: impl Into<Arc<str>>) -> Verdict {
    Verdict {
        code,
        scope: scope.into(),
        have: 0,
    }
}

/// The GPUs that so many workers need.
fn need_of(index: &Index<'_>, work: usize, pool: Option<usize>, workers: u32) -> MilliGpu {
    match pool {
        Some(pool) => {
            let amount = index.charge_least(work, pool) * Amount::from(workers);
            MilliGpu::from_milli(index.pools[pool].milli(amount))
        }
        None => MilliGpu::from_milli(
            index.works[work].row.per_worker.gpus().milli() * i64::from(workers),
        ),
    }
}

/// What binds whatever the pool.
fn before_pools(cycle: &Cycle<'_, '_>, work: usize) -> Option<Verdict> {
    let index = cycle.index;
    let facts = &index.works[work];
    if cycle.ledger.standing(work) == Standing::Nominated {
        let node = cycle.ledger.slots(work)[0].node;
        let pool = index.nodes[node].pool;
        return Some(plain(
            Code::WaitingForVictims,
            format!("pool {}", index.pools[pool].row.name),
        ));
    }
    if let Some(pool) = kept::in_closed(index, work) {
        return Some(plain(Code::WaitingForVictims, format!("pool {pool}")));
    }
    if facts.wait.state == WorkloadState::Suspended {
        return Some(plain(Code::Suspended, "workload"));
    }
    if !facts.wait.bound {
        return None;
    }
    let row = facts.row;
    if let Some(at) = row.not_before.filter(|at| *at > index.world.now) {
        return Some(plain(Code::NotYet, domain::time::format(at)));
    }
    let first = row.after.iter().find(|name| index.work(name).is_some());
    first.map(|name| plain(Code::Dependency, format!("workload {name}")))
}

fn in_pool(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize, memo: &mut Memo) -> Rc<Told> {
    let index = cycle.index;
    let facts = &index.works[work];
    let delayed = Rules::of(index, pool).delayed(index, work);
    let head = cycle.waits_for_time(work, pool);
    let key = (facts.team, facts.shape, facts.priority, delayed, pool);
    if let Some(known) = memo.get(&key).filter(|_| !head) {
        return Rc::clone(known);
    }
    let told = Rc::new(judge(cycle, work, pool, head).into());
    if !head {
        memo.insert(key, Rc::clone(&told));
    }
    told
}

fn judge(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize, head: bool) -> Verdict {
    let index = cycle.index;
    let facts = &index.works[work];
    let pool_row = index.pools[pool].row;
    let scope = scope_of(cycle, pool);
    if pool_row.state == PoolState::Closed {
        return plain(Code::PoolClosed, scope);
    }
    let hardware = no_hardware(&mut cycle.ledger, work, pool);
    if hardware.is_none() && !cycle.formable(work, pool) {
        return plain(Code::NeverFits, scope);
    }
    if !index.pools[pool].rows[facts.team].written {
        return plain(
            Code::NoQuota,
            format!("team {}", index.teams[facts.team].row.name),
        );
    }
    if let Some(scope) = hardware {
        return plain(Code::NoSuchHardware, scope);
    }
    let least = facts.stint.least;
    let amount = index.charge_least(work, pool) * Amount::from(least);
    if let Err(block) = quota::allowed(&cycle.ledger, work, pool, amount) {
        return blocked(index, block);
    }
    let have = counts::free(cycle, work, pool);
    let here = |code: Code| Verdict {
        code,
        scope: Arc::clone(&scope),
        have,
    };
    let query = Query::start(index, work, pool).workers(least);
    if has_place(cycle, query) {
        return match cycle.held_back(work, pool) {
            Some(Keeps::Start) => here(Code::HeldForReservation),
            Some(Keeps::Booking) => Verdict {
                scope: format!("{BOOKINGS} {scope}").into(),
                ..here(Code::HeldForReservation)
            },
            None => here(Code::BehindInOrder),
        };
    }
    let relaxed = Query {
        relaxed: true,
        ..query
    };
    // What keeps promises of whole nodes is relaxed with them, and is no demand of the work.
    let demands = facts.row.topology.require.is_some()
        || facts.row.anti_affinity.is_some()
        || facts.row.nvlink == NvlinkRule::Require;
    if demands && has_place(cycle, relaxed) {
        let label = facts
            .row
            .topology
            .require
            .as_deref()
            .or(facts.row.anti_affinity.as_deref());
        let scope = label.map_or("links".to_owned(), |label| format!("label {label}"));
        return Verdict {
            scope: scope.into(),
            ..here(Code::Topology)
        };
    }
    if counts::enough_in_sum(cycle, work, pool, least) {
        return here(Code::Fragmented);
    }
    if !head && preempt::could_make_room(&mut cycle.ledger, work, pool, &Rules::lifted()) {
        return Verdict {
            scope: rules_of(cycle, work, pool).map_or(scope, Arc::from),
            have,
            code: Code::PreemptionNotAllowed,
        };
    }
    if has_place(cycle, query.sight(Sight::Now)) && keeps_room(cycle, pool) {
        return here(Code::HeldForReservation);
    }
    here(Code::InsufficientCapacity)
}

/// Whether room in a pool is kept for work that waits: where a mover goes nothing is reserved.
fn keeps_room(cycle: &Cycle<'_, '_>, pool: usize) -> bool {
    let index = cycle.index;
    let mut kept = cycle.plan.nominations.iter();
    kept.any(|kept| {
        let node = kept
            .placement
            .first()
            .and_then(|place| index.node(&place.node));
        node.is_some_and(|node| index.nodes[node].pool == pool)
    })
}

/// A pool as what binds.
fn scope_of(cycle: &mut Cycle<'_, '_>, pool: usize) -> Arc<str> {
    let name = &cycle.index.pools[pool].row.name;
    let scope = cycle.counted.scopes.entry(pool);
    Arc::clone(scope.or_insert_with(|| format!("pool {name}").into()))
}

/// The rules of a pool that keep a workload from making room, for those that are told more of.
fn rules_of(cycle: &mut Cycle<'_, '_>, work: usize, pool: usize) -> Option<String> {
    if cycle.explained > remedies::RANKED_MAX {
        return None;
    }
    let rules = preempt::binding_rules(&mut cycle.ledger, work, pool);
    let name = &cycle.index.pools[pool].row.name;
    (!rules.is_empty()).then(|| format!("{} of pool {name}", rules.join(", ")))
}

/// Whether there is a place; equal gangs are told the same.
fn has_place(cycle: &mut Cycle<'_, '_>, query: Query<'_>) -> bool {
    let Some(gang) = place::gang(cycle.index, query) else {
        return place(&mut cycle.ledger, query).is_some();
    };
    let key = (gang, query.sight, query.relaxed);
    if let Some(&known) = cycle.places.get(&key) {
        return known;
    }
    let found = place(&mut cycle.ledger, query).is_some();
    cycle.places.insert(key, found);
    found
}

/// What there is none of in a pool: the model, or a node that offers the mode.
fn no_hardware(ledger: &mut Ledger<'_, '_>, work: usize, pool: usize) -> Option<String> {
    let index = ledger.index;
    if index.works[work].need == Need::Nothing {
        return None;
    }
    if !place::nodes_able(ledger, work, pool).is_empty() {
        return None;
    }
    let reasons: Vec<Option<Unfit>> = index.pools[pool]
        .nodes
        .iter()
        .map(|&node| place::fit(index, work, node, true).err())
        .collect();
    let lacks = |unfit: Unfit| reasons.iter().all(|r| *r == Some(unfit));
    let row = index.works[work].row;
    if reasons.is_empty() {
        None
    } else if lacks(Unfit::Model) {
        Some(format!(
            "gpu_model {}",
            row.per_worker.gpu_model.as_deref().unwrap_or("")
        ))
    } else if reasons
        .iter()
        .all(|r| matches!(r, Some(Unfit::Mode | Unfit::Model | Unfit::Profile)))
    {
        if let Some(profile) = &row.per_worker.mig_profile
            && reasons.contains(&Some(Unfit::Profile))
        {
            return Some(format!("mig_profile {profile}"));
        }
        if row.per_worker.mig_profile.is_some() {
            return Some("sharing mig".to_owned());
        }
        let modes: Vec<&str> = row.per_worker.sharing.iter().map(|m| m.as_str()).collect();
        Some(format!("sharing {}", modes.join(", ")))
    } else {
        None
    }
}

fn blocked(index: &Index<'_>, block: Block) -> Verdict {
    let team = |t: usize| &index.teams[t].row.name;
    match block {
        Block::Replicas { service } => {
            let name = index.services[service].name;
            plain(Code::OverLimit, format!("{REPLICAS} {name}"))
        }
        Block::Limit { team: t, have } => Verdict {
            have,
            ..plain(Code::OverLimit, format!("team {}", team(t)))
        },
        Block::Lend { team: t, have } => Verdict {
            have,
            ..plain(Code::OverLimit, format!("lend_limit of team {}", team(t)))
        },
        Block::User { team: t, have } => Verdict {
            have,
            ..plain(Code::OverLimit, format!("max_per_user of team {}", team(t)))
        },
        Block::Ancestor { team: t, have } => Verdict {
            have,
            ..plain(Code::AncestorOverLimit, format!("team {}", team(t)))
        },
        Block::NonPreemptible { have } => Verdict {
            have,
            ..plain(Code::NonPreemptibleOverGuarantee, "guarantee")
        },
        Block::Budget { team: t } => plain(Code::OverBudget, format!("team {}", team(t))),
    }
}
