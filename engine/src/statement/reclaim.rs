//! What a team could take back this instant: of teams that borrow, work that nothing protects, as far as guarantees reach.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::flow::{self, Flow};
use crate::index::{Amount, Index};
use crate::ledger::{Ledger, Standing};
use crate::preempt::Rules;

/// A workload that nothing protects.
struct Open {
    amount: Amount,
    service: Option<usize>,
}

/// Thousandths of a GPU.
pub(super) fn now(ledger: &Ledger<'_, '_>, pool: usize, team: usize, flow: &Flow) -> Amount {
    let index = ledger.index;
    let path = &index.teams[team].path;
    let gap = |t: usize| (flow.guaranteed[t] - flow.held[t]).max(0);
    let mut by_team: BTreeMap<usize, Vec<Open>> = BTreeMap::new();
    if gap(team) == 0 {
        return 0;
    }
    let rules = Rules::of(index, pool);
    for work in 0..index.works.len() {
        let facts = &index.works[work];
        let Some(first) = ledger.slots(work).first() else {
            continue;
        };
        let outside = !index.teams[facts.team].path.contains(&team);
        if outside
            && ledger.standing(work) == Standing::Running
            && index.nodes[first.node].pool == pool
            && rules.reclaimable(ledger, work, highest(index))
        {
            let amount: Amount = ledger.slots(work).iter().map(|s| s.amount).sum();
            by_team.entry(facts.team).or_default().push(Open {
                amount: flow::milli(&index.pools[pool], amount),
                service: facts.service,
            });
        }
    }
    // By how far up the tree the victim's branch and the team's own part: what is taken beyond
    // a team above must fit in the guarantee of that team too.
    let mut levels: Vec<Amount> = vec![0; path.len() + 1];
    for (victim, works) in by_team {
        let shared = &index.teams[victim].path;
        let level = path.iter().take_while(|t| !shared.contains(t)).count();
        let borrowed = (flow.held[victim] - flow.guaranteed[victim]).max(0);
        levels[level] += borrowed.min(most(ledger, pool, victim, works, &rules));
    }
    let mut left: Vec<Amount> = path.iter().map(|&t| gap(t)).collect();
    let mut all = 0;
    for (level, there) in levels.into_iter().enumerate().skip(1) {
        let room = left[..level].iter().min().copied().unwrap_or(0);
        let taken = there.min(room);
        left[..level].iter_mut().for_each(|gap| *gap -= taken);
        all += taken;
    }
    all
}

/// The highest priority that work can have.
fn highest(index: &Index<'_>) -> i64 {
    let classes = index.world.classes.iter().map(|class| class.priority);
    classes.max().unwrap_or(0)
}

/// The most that one team can lose: as many as the hour and its services allow, the largest first.
fn most(
    ledger: &Ledger<'_, '_>,
    pool: usize,
    team: usize,
    mut works: Vec<Open>,
    rules: &Rules,
) -> Amount {
    let index = ledger.index;
    works.sort_by_key(|work| Reverse(work.amount));
    let mut lost: HashMap<usize, u32> = HashMap::new();
    let (mut all, mut taken) = (0, 0);
    for work in works {
        if !rules.team_can_lose(index, pool, team, taken) {
            break;
        }
        if let Some(service) = work.service {
            let facts = &index.services[service];
            let running = facts
                .replicas
                .iter()
                .filter(|&&r| ledger.standing(r) == Standing::Running);
            let lost = lost.entry(service).or_default();
            if running.count() as u32 - *lost <= facts.min_replicas {
                continue;
            }
            *lost += 1;
        }
        taken += 1;
        all += work.amount;
    }
    all
}
