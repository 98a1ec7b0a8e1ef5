//! Topology domains: nodes that share the value of a label.

use std::cmp::Reverse;
use std::rc::Rc;

use super::{Query, able, devices_free, host_free, slices_free};
use crate::index::{Index, Need};
use crate::ledger::Ledger;
use crate::world::Strategy;

/// The nodes by the value of a label, in the order of the values; nodes without it are in no domain.
pub(crate) fn domains_of(index: &Index<'_>, nodes: &[usize], label: &str) -> Vec<Vec<usize>> {
    let mut domains: Vec<Vec<usize>> = Vec::new();
    let Some(of) = index.domains.get(label) else {
        return domains;
    };
    for &node in nodes {
        if let Some(domain) = of[node] {
            if domains.len() <= domain {
                domains.resize(domain + 1, Vec::new());
            }
            domains[domain].push(node);
        }
    }
    domains.retain(|domain| !domain.is_empty());
    domains
}

/// The domains in the order in which they are tried: the tightest first, where the pool packs.
/// Those with too few free devices for all workers are left out.
pub(super) fn within(
    ledger: &mut Ledger<'_, '_>,
    query: Query<'_>,
    nodes: &Rc<Vec<usize>>,
    label: &str,
) -> Vec<Rc<Vec<usize>>> {
    let least = match ledger.index.works[query.work].need {
        Need::Whole(count) => i64::from(count) * i64::from(query.workers),
        _ => i64::MIN,
    };
    let spread = ledger.index.pools[query.pool].row.strategy == Strategy::Spread;
    let all = able::nodes(ledger, query.work, query.pool);
    let domains = if Rc::ptr_eq(&all, nodes) {
        able::domains(ledger, query.work, query.pool, label)
    } else {
        Rc::new(
            domains_of(ledger.index, nodes, label)
                .into_iter()
                .map(Rc::new)
                .collect(),
        )
    };
    let mut ranked: Vec<(i64, &Rc<Vec<usize>>)> = domains
        .iter()
        .map(|domain| (free(ledger, query, domain), domain))
        .filter(|(free, _)| *free >= least)
        .collect();
    ranked.sort_by_key(|(free, _)| if spread { -free } else { *free });
    ranked
        .into_iter()
        .map(|(_, domain)| Rc::clone(domain))
        .collect()
}

/// The domains with the most room first, then what is in no domain.
pub(super) fn emptiest_first(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    nodes: &[usize],
    label: &str,
) -> Vec<Vec<usize>> {
    let mut domains = domains_of(ledger.index, nodes, label);
    domains.sort_by_cached_key(|domain| Reverse(free(ledger, query, domain)));
    let of = ledger.index.domains.get(label);
    let without = |&node: &usize| of.is_none_or(|of| of[node].is_none());
    domains.push(nodes.iter().copied().filter(without).collect());
    domains
}

/// What is free in a domain: devices, or cores for work without GPUs.
fn free(ledger: &Ledger<'_, '_>, query: Query<'_>, domain: &[usize]) -> i64 {
    let need = ledger.index.works[query.work].need;
    let of = |&node: &usize| match need {
        Need::Nothing => host_free(ledger, node, query.sight).0,
        Need::Instances { .. } => slices_free(ledger, node, query.sight),
        _ => i64::from(devices_free(ledger, node, query.sight).count_ones()),
    };
    domain.iter().map(of).sum()
}
