//! Topology domains: nodes that share the value of a label.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Query, devices_free, host_free, slices_free};
use crate::index::{Index, Need};
use crate::ledger::Ledger;
use crate::world::Strategy;

/// The nodes by the value of a label, in the order of the values; nodes without it are in no domain.
pub(crate) fn domains_of(index: &Index<'_>, nodes: &[usize], label: &str) -> Vec<Vec<usize>> {
    let mut domains: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for &node in nodes {
        if let Some(value) = index.nodes[node].row.labels.get(label) {
            domains.entry(value).or_default().push(node);
        }
    }
    domains.into_values().collect()
}

/// The domains in the order in which they are tried: the tightest first, where the pool packs.
pub(super) fn within(
    ledger: &Ledger<'_, '_>,
    query: Query<'_>,
    nodes: &[usize],
    label: &str,
) -> Vec<Vec<usize>> {
    let mut domains = domains_of(ledger.index, nodes, label);
    let spread = ledger.index.pools[query.pool].row.strategy == Strategy::Spread;
    domains.sort_by_cached_key(|domain| {
        let free = free(ledger, query, domain);
        if spread { -free } else { free }
    });
    domains
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
    let without = |&node: &usize| !ledger.index.nodes[node].row.labels.contains_key(label);
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
