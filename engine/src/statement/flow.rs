//! Who lends to whom: what is borrowed beyond what nobody else is guaranteed, dealt over those whose guarantees are idle, the nearest in the tree first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::index::{Amount, Index, PoolFacts};
use crate::ledger::Ledger;

/// The loans of one pool, in thousandths of a GPU.
pub(super) struct Flow {
    pub guaranteed: Vec<Amount>,
    pub held: Vec<Amount>,
    /// By lender and borrower, teams on which work stands or may.
    loans: BTreeMap<(usize, usize), Amount>,
    /// By borrower: what it has that nobody else is guaranteed, and the team above it whose
    /// guarantee it is in; of none where it is in nobody's.
    spare: Vec<(usize, Option<usize>, Amount)>,
}

/// What is still idle, and still borrowed of nobody, of the teams of a subtree.
#[derive(Debug, Clone, Default)]
struct Open {
    idle: Vec<(usize, Amount)>,
    wanted: Vec<(usize, Amount)>,
}

/// An amount in thousandths, rounded up.
pub(super) fn milli(facts: &PoolFacts<'_>, amount: Amount) -> Amount {
    Amount::from(facts.milli(amount))
}

impl Flow {
    pub fn of(ledger: &Ledger<'_, '_>, pool: usize) -> Self {
        let index = ledger.index;
        let facts = &index.pools[pool];
        let count = index.teams.len();
        let mut deepest: Vec<usize> = (0..count).collect();
        deepest.sort_by_key(|&t| Reverse(index.teams[t].path.len()));
        let mut flow = Self {
            guaranteed: facts
                .rows
                .iter()
                .map(|r| milli(facts, r.guaranteed))
                .collect(),
            held: vec![0; count],
            loans: BTreeMap::new(),
            spare: Vec::new(),
        };
        let mut open: Vec<Open> = vec![Open::default(); count];
        for team in deepest {
            let children = &index.teams[team].children;
            let below: Amount = children.iter().map(|&c| ledger.held(pool, c).gpu).sum();
            let own = milli(facts, ledger.held(pool, team).gpu - below);
            flow.held[team] = own + children.iter().map(|&c| flow.held[c]).sum::<Amount>();
            let promised: Amount = children.iter().map(|&c| flow.guaranteed[c]).sum();
            // What is the team's own and of none below it, it has first.
            let left = (flow.guaranteed[team] - promised).max(0);
            let mut here = Open::default();
            for &child in children {
                here.idle.append(&mut open[child].idle);
                here.wanted.append(&mut open[child].wanted);
            }
            here.wanted.push((team, (own - left).max(0)));
            let left = flow.give_spare(&mut here, Some(team), (left - own).max(0));
            flow.lend(&mut here);
            here.idle.push((team, left));
            open[team] = here;
        }
        let mut all = Open::default();
        for &root in &index.roots {
            all.idle.append(&mut open[root].idle);
            all.wanted.append(&mut open[root].wanted);
        }
        let promised: Amount = index.roots.iter().map(|&t| flow.guaranteed[t]).sum();
        let left = (milli(facts, facts.capacity) - promised).max(0);
        flow.give_spare(&mut all, None, left);
        flow.lend(&mut all);
        // Work on devices that are no capacity any more is of nobody either.
        flow.give_spare(&mut all, None, Amount::MAX);
        flow
    }

    /// Gives of what is in nobody else's guarantee; what is left of it.
    fn give_spare(&mut self, open: &mut Open, of: Option<usize>, amount: Amount) -> Amount {
        let wanted: Amount = open.wanted.iter().map(|(_, want)| want).sum();
        let given = amount.min(wanted);
        for (team, part) in take(&mut open.wanted, given) {
            if Some(team) != of {
                self.spare.push((team, of, part));
            }
        }
        amount - given
    }

    /// Lends as much as is both idle and wanted.
    fn lend(&mut self, open: &mut Open) {
        let wanted: Amount = open.wanted.iter().map(|(_, want)| want).sum();
        let idle: Amount = open.idle.iter().map(|(_, idle)| idle).sum();
        for (lender, amount) in take(&mut open.idle, wanted.min(idle)) {
            for (borrower, part) in take(&mut open.wanted, amount) {
                *self.loans.entry((lender, borrower)).or_default() += part;
            }
        }
    }

    /// What others outside hold of the guarantees of a team and all below it.
    pub fn lends_to(&self, index: &Index<'_>, team: usize) -> BTreeMap<usize, Amount> {
        self.across(index, team, |(lender, borrower)| (lender, borrower))
    }

    /// Of whom outside a team and all below it borrow.
    pub fn borrows_from(&self, index: &Index<'_>, team: usize) -> BTreeMap<usize, Amount> {
        self.across(index, team, |(lender, borrower)| (borrower, lender))
    }

    fn across(
        &self,
        index: &Index<'_>,
        team: usize,
        sides: impl Fn((usize, usize)) -> (usize, usize),
    ) -> BTreeMap<usize, Amount> {
        let inside = |t: usize| index.teams[t].path.contains(&team);
        let mut parts = BTreeMap::new();
        for (&pair, &amount) in &self.loans {
            let (own, other) = sides(pair);
            if inside(own) && !inside(other) {
                *parts.entry(other).or_default() += amount;
            }
        }
        parts
    }

    /// What a team and all below it have beyond its guarantee that nobody else is guaranteed.
    pub fn spare_of(&self, index: &Index<'_>, team: usize) -> Amount {
        let inside = |t: usize| index.teams[t].path.contains(&team);
        let beyond = self
            .spare
            .iter()
            .filter(|(borrower, of, _)| inside(*borrower) && of.is_none_or(|of| !inside(of)));
        beyond.map(|(.., amount)| amount).sum()
    }
}

/// Takes an amount from these in proportion, the rest by whole thousandths in their order;
/// each loses what it gives. There must be as much.
fn take(from: &mut [(usize, Amount)], amount: Amount) -> Vec<(usize, Amount)> {
    let all: Amount = from.iter().map(|(_, part)| part).sum();
    debug_assert!(amount <= all, "nobody gives what is not there");
    if all == 0 {
        return Vec::new();
    }
    let mut parts: Vec<Amount> = from.iter().map(|(_, part)| amount * part / all).collect();
    let mut rest = amount - parts.iter().sum::<Amount>();
    for (part, (_, most)) in parts.iter_mut().zip(from.iter()) {
        let more = rest.min(most - *part).min(1);
        *part += more;
        rest -= more;
    }
    let mut taken = Vec::new();
    for ((team, left), part) in from.iter_mut().zip(parts) {
        *left -= part;
        if part > 0 {
            taken.push((*team, part));
        }
    }
    taken
}
