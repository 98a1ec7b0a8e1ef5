//! The borrower shares of all teams of a pool, kept while nothing that they depend on changes.

use super::{Borrowed, Starters, borrowed_over, coarse, dominant, over_weight, siblings};
use crate::ledger::{Held, Ledger};
use crate::quota::{WEIGHT_ONE, weights};

/// What decides between borrowers at one level of the tree; the lowest is first.
pub(crate) type Claim = (i128, i128);

/// So many teams are looked at with those above them; for more all are.
const FEW: usize = 8;

/// The shares of one pool's teams, as of when they were last looked at.
#[derive(Debug, Default)]
pub(crate) struct KeptShares {
    /// The state of the ledger then.
    version: Option<u64>,
    /// What each team held then, whether it could start something, and whether it wanted to.
    seen: Vec<(Held, bool, bool)>,
    borrowed: Vec<Borrowed>,
    claims: Vec<Claim>,
    /// Teams before those above them.
    upward: Vec<usize>,
}

impl KeptShares {
    /// What decides about a team, once [`refresh`](Self::refresh) has been called.
    pub fn claim(&self, team: usize) -> Claim {
        self.claims[team]
    }

    /// Looks again at what has changed. `same` says that who can start or wants to is as before, and
    /// `more` then which teams alone hold more than when it was last looked at.
    pub fn refresh(
        &mut self,
        ledger: &Ledger<'_, '_>,
        pool: usize,
        starters: &dyn Starters,
        same: bool,
        more: Option<&[usize]>,
    ) {
        let version = Some(ledger.version());
        if same && self.version == version {
            return;
        }
        let index = ledger.index;
        let first = self.version.is_none();
        if first {
            let mut upward: Vec<usize> = (0..index.teams.len()).collect();
            upward.sort_by_key(|&t| std::cmp::Reverse(index.teams[t].path.len()));
            self.upward = upward;
            self.seen = vec![(Held::default(), false, false); index.teams.len()];
            self.borrowed = vec![Borrowed::default(); index.teams.len()];
            self.claims = vec![(0, 0); index.teams.len()];
        }
        self.version = version;
        // With memory of the past each share depends on who else wants more.
        let all = first || index.pools[pool].row.usage_half_life_seconds.is_some();
        let few = more.filter(|more| same && !all && more.len() <= FEW);
        let some: Vec<usize> = match few {
            Some(more) => {
                let paths = more.iter().flat_map(|&team| &index.teams[team].path);
                let mut some: Vec<usize> = paths.copied().collect();
                some.sort_by_key(|&team| (std::cmp::Reverse(index.teams[team].path.len()), team));
                some.dedup();
                some
            }
            None => self.upward.clone(),
        };
        let mut stale = vec![all; index.teams.len()];
        for team in some {
            let now = (
                *ledger.held(pool, team),
                starters.can_start(team),
                starters.wants(team),
            );
            let before = std::mem::replace(&mut self.seen[team], now);
            if !stale[team] && before == now {
                continue;
            }
            let own = borrowed_over(ledger, pool, team, starters, &|child| self.borrowed[child]);
            self.borrowed[team] = own;
            let beside = siblings(index, team);
            let weights = weights(index, pool, beside, |t| starters.wants(t));
            let weight = beside
                .binary_search(&team)
                .map_or(WEIGHT_ONE, |at| weights[at]);
            self.claims[team] = (
                coarse(over_weight(own.dominant(), weight)),
                coarse(dominant(ledger, pool, team)),
            );
            if let Some(parent) = index.teams[team].parent {
                stale[parent] = true;
            }
        }
    }
}
