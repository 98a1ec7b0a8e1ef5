//! What is told of equal work once: what binds it, and the words for that.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use domain::MilliGpu;
use rustc_hash::FxHashMap;

use super::{Verdict, counts, need_of, words};
use crate::cycle::Cycle;
use crate::index::Amount;
use crate::plan::Code;

/// What makes verdicts equal: team, shape, priority, whether it has not waited for long enough to
/// displace others, and pool.
pub(super) type Key = (usize, usize, i64, bool, usize);

/// Verdicts by what makes them equal.
pub(super) type Memo = FxHashMap<Key, Rc<Told>>;

/// What makes the words of some verdicts equal, whoever they are told: pool, form, the least and the most
/// workers, the cause, what there is, what binds.
type Alike = (usize, usize, (u32, u32), Code, Amount, Arc<str>);

/// Words that were found, by what makes them equal.
pub(super) type KnownWords = FxHashMap<Alike, Rc<Words>>;

/// What is told of equal work.
pub(super) struct Told {
    pub verdict: Verdict,
    /// The rest of it, once it is told in that pool.
    words: OnceCell<Rc<Words>>,
}

pub(super) struct Words {
    pub pool: Option<Arc<str>>,
    pub message: Arc<str>,
    pub need: MilliGpu,
    pub need_max: Option<MilliGpu>,
    pub have: MilliGpu,
    pub counts: Arc<BTreeMap<String, u64>>,
}

impl From<Verdict> for Told {
    fn from(verdict: Verdict) -> Self {
        Self {
            verdict,
            words: OnceCell::new(),
        }
    }
}

impl Told {
    pub fn words(&self, cycle: &mut Cycle<'_, '_>, work: usize, pool: Option<usize>) -> &Words {
        self.words.get_or_init(|| {
            let verdict = &self.verdict;
            let Some(pool) = pool.filter(|_| is_of_workers(verdict.code)) else {
                return Rc::new(Words::of(cycle, work, pool, verdict));
            };
            let facts = &cycle.index.works[work];
            let size = (facts.row.workers_least(), facts.row.workers);
            let scope = Arc::clone(&verdict.scope);
            let alike = (pool, facts.form, size, verdict.code, verdict.have, scope);
            if let Some(known) = cycle.counted.words.get(&alike) {
                return Rc::clone(known);
            }
            let words = Rc::new(Words::of(cycle, work, Some(pool), verdict));
            cycle.counted.words.insert(alike, Rc::clone(&words));
            words
        })
    }
}

/// Whether a cause is one of which nothing is said but of the workers, the pool and what binds.
fn is_of_workers(code: Code) -> bool {
    matches!(
        code,
        Code::Topology
            | Code::Fragmented
            | Code::PreemptionNotAllowed
            | Code::InsufficientCapacity
            | Code::HeldForReservation
            | Code::BehindInOrder
    )
}

impl Words {
    fn of(cycle: &mut Cycle<'_, '_>, work: usize, pool: Option<usize>, verdict: &Verdict) -> Self {
        let index = cycle.index;
        let row = index.works[work].row;
        let need = need_of(index, work, pool, row.workers_least());
        let most = need_of(index, work, pool, row.workers);
        let have = pool.map_or(0, |pool| index.pools[pool].milli(verdict.have.max(0)));
        let have = MilliGpu::from_milli(have);
        let counts = pool.map(|pool| counts::of(cycle, work, pool, verdict.code));
        let counts = counts.unwrap_or_default();
        let message = words::message(cycle, work, pool, verdict, (need, most), have, &counts);
        Self {
            pool: pool.map(|pool| index.pools[pool].row.name.as_str().into()),
            message: message.into(),
            need,
            need_max: (most > need).then_some(most),
            have,
            counts,
        }
    }
}
