//! The nodes that can be candidates for one form of worker, whatever is free on them: found once in a cycle.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::domains::domains_of;
use super::fit;
use crate::ledger::Ledger;

/// Nodes by domain.
type Domains = Rc<Vec<Rc<Vec<usize>>>>;

/// What is known of candidates, by pool and form.
#[derive(Debug, Default)]
pub(crate) struct Able {
    nodes: FxHashMap<(usize, usize), Rc<Vec<usize>>>,
    domains: FxHashMap<(usize, usize, String), Domains>,
}

/// The nodes of a pool that fit a workload.
pub(crate) fn nodes(ledger: &mut Ledger<'_, '_>, work: usize, pool: usize) -> Rc<Vec<usize>> {
    let index = ledger.index;
    let key = (pool, index.works[work].form);
    if let Some(known) = ledger.able.nodes.get(&key) {
        return Rc::clone(known);
    }
    let any_state = ledger.is_bare();
    let all = index.pools[pool].nodes.iter().copied();
    let able = all.filter(|&node| fit(index, work, node, any_state).is_ok());
    let able = Rc::new(able.collect());
    ledger.able.nodes.insert(key, Rc::clone(&able));
    able
}

/// The same by domain.
pub(super) fn domains(
    ledger: &mut Ledger<'_, '_>,
    work: usize,
    pool: usize,
    label: &str,
) -> Domains {
    let key = (pool, ledger.index.works[work].form, label.to_owned());
    if let Some(known) = ledger.able.domains.get(&key) {
        return Rc::clone(known);
    }
    let able = nodes(ledger, work, pool);
    let domains = domains_of(ledger.index, &able, label).into_iter();
    let domains: Domains = Rc::new(domains.map(Rc::new).collect());
    ledger.able.domains.insert(key, Rc::clone(&domains));
    domains
}
