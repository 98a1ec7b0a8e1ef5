//! Where a gang goes: hard filters, then a score per node with a derived order whose last field is the node.

mod able;
mod costs;
mod device;
mod domains;
mod exact;
mod instance;
mod look;
mod node_classes;
mod ranking;
mod score;
mod sizes;

use std::rc::Rc;

use domain::sharing::SharingMode;
use rustc_hash::FxHashSet;

use crate::index::{DEVICE, Index, Need};
use crate::ledger::{Ledger, Sight, Slot, Standing, View};
use crate::whole::Promise;
use crate::world::{MigMode, NodeState};

pub(crate) use able::{Able, nodes as nodes_able};
pub(crate) use costs::PlacementCosts;
pub(crate) use device::joins;
pub(crate) use domains::domains_of;
pub(crate) use exact::stands_free;
pub(crate) use instance::{could_have, instances_free, slices_free};
pub(crate) use node_classes::{NodeClasses, holds_one};
pub(crate) use sizes::{Sizes, Stock, gains, sizes};

/// What is asked of a placement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query<'q> {
    pub work: usize,
    pub pool: usize,
    pub workers: u32,
    pub sight: Sight,
    /// Only these nodes, where given.
    pub only: Option<&'q [usize]>,
    /// None of these nodes, where given.
    pub but: Option<&'q FxHashSet<usize>>,
    /// Without the demands on domains, links and affinity: to tell what binds.
    pub relaxed: bool,
}

impl<'q> Query<'q> {
    /// A start of all workers anywhere in a pool.
    pub fn start(index: &Index<'_>, work: usize, pool: usize) -> Self {
        Self {
            work,
            pool,
            workers: index.works[work].row.workers,
            sight: Sight::Start,
            only: None,
            but: None,
            relaxed: false,
        }
    }

    /// The same with so many workers.
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = workers;
        self
    }

    /// The same in another sight.
    pub fn sight(mut self, sight: Sight) -> Self {
        self.sight = sight;
        self
    }

    /// The same on none of some nodes.
    pub fn but(mut self, nodes: &'q FxHashSet<usize>) -> Self {
        self.but = Some(nodes);
        self
    }

    /// The same on some nodes only.
    pub fn only(mut self, nodes: &'q [usize]) -> Self {
        self.only = Some(nodes);
        self
    }
}

/// What makes two gangs have a place, or none, together: pool, frame, workers, and the team
/// where devices are shared within one.
pub(crate) type Gang = (usize, usize, u32, Option<usize>);

/// The gang that a query is for; none where a place turns on more than what is free.
pub(crate) fn gang(index: &Index<'_>, query: Query<'_>) -> Option<Gang> {
    let facts = &index.works[query.work];
    let plain = facts.service.is_none() && !index.pools[query.pool].row.whole_node_guarantees;
    let team = node_classes::team_apart(index, query);
    plain.then_some((query.pool, facts.frame, query.workers, team))
}

/// Why a node is no candidate, whatever is free on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unfit {
    Cordoned,
    Draining,
    Unhealthy,
    Unreachable,
    NotPinned,
    Selector,
    Model,
    Mode,
    DeviceMemory,
    /// The last: for all else the node would do.
    Profile,
}

impl Unfit {
    /// The word that counts of nodes use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
            Self::Unhealthy => "unhealthy",
            Self::Unreachable => "unreachable",
            Self::NotPinned => "not_the_pinned_node",
            Self::Selector => "selector_not_met",
            Self::Model => "other_gpu_model",
            Self::Mode => "mode_not_offered",
            Self::Profile => "mig_profile_not_there",
            Self::DeviceMemory => "too_little_gpu_memory",
        }
    }
}

/// Whether a node can be a candidate, whatever is free on it.
pub(crate) fn fit(
    index: &Index<'_>,
    work: usize,
    node: usize,
    any_state: bool,
) -> Result<(), Unfit> {
    let (facts, machine) = (&index.works[work], &index.nodes[node]);
    if !any_state {
        match machine.row.state {
            NodeState::Ready => {}
            NodeState::Cordoned => return Err(Unfit::Cordoned),
            NodeState::Draining => return Err(Unfit::Draining),
            NodeState::Unhealthy => return Err(Unfit::Unhealthy),
            NodeState::Unreachable => return Err(Unfit::Unreachable),
        }
    }
    if facts
        .row
        .node
        .as_ref()
        .is_some_and(|pinned| *pinned != machine.row.name)
    {
        return Err(Unfit::NotPinned);
    }
    if facts
        .row
        .selector
        .iter()
        .any(|(key, value)| machine.row.labels.get(key) != Some(value))
    {
        return Err(Unfit::Selector);
    }
    if facts.need == Need::Nothing {
        return Ok(());
    }
    let asked = &facts.row.per_worker;
    if asked.gpu_model.is_some() && asked.gpu_model != machine.row.gpu_model {
        return Err(Unfit::Model);
    }
    if modes(index, work, node).next().is_none() {
        return Err(Unfit::Mode);
    }
    if asked
        .gpu_memory_mib
        .is_some_and(|least| least > machine.row.gpu_memory_mib)
    {
        return Err(Unfit::DeviceMemory);
    }
    if let Need::Instances { profile, .. } = facts.need
        && !could_have(index, node, profile)
    {
        return Err(Unfit::Profile);
    }
    Ok(())
}

/// The modes in which a workload's devices may be given out on a node, in its own order.
pub(crate) fn modes<'a>(
    index: &'a Index<'_>,
    work: usize,
    node: usize,
) -> impl Iterator<Item = SharingMode> + 'a {
    let (facts, machine) = (&index.works[work], &index.nodes[node]);
    let policy = index.pools[machine.pool].row;
    let offered = &policy.sharing;
    let suits = |mode: SharingMode| match facts.need {
        Need::Nothing => false,
        Need::Whole(_) => mode == SharingMode::Exclusive,
        Need::Part { .. } => matches!(
            mode,
            SharingMode::TimeSlice | SharingMode::Mps | SharingMode::Vgpu
        ),
        Need::Instances { .. } => mode == SharingMode::Mig,
    };
    // Who asks for a profile accepts the mode, whether or not it says so again.
    const CUT: &[SharingMode] = &[SharingMode::Mig];
    let accepted = match facts.need {
        Need::Instances { .. } if policy.mig_mode != MigMode::Never => CUT,
        Need::Instances { .. } => &[],
        _ => &facts.row.per_worker.sharing[..],
    };
    accepted
        .iter()
        .copied()
        .filter(move |mode| suits(*mode) && offered.contains(mode) && machine.drives(*mode))
}

/// The nodes that a placement may choose from.
#[derive(Debug, Clone, Copy)]
enum Field<'f> {
    /// All of the pool, taken class by class.
    Pool,
    /// These, which have been found to fit.
    Nodes(&'f [usize]),
}

/// Finds a place for all workers, or for none. The ledger is as before when it returns.
pub(crate) fn place(ledger: &mut Ledger<'_, '_>, query: Query<'_>) -> Option<Vec<Rc<Slot>>> {
    let index = ledger.index;
    let any_state = ledger.is_bare();
    let promise = Promise::of(ledger, query);
    let promise = promise.as_ref();
    if promise.is_none() && node_classes::suit(index, query) {
        return fill(ledger, query, Field::Pool, None);
    }
    let nodes: Rc<Vec<usize>> = match query.only {
        None => able::nodes(ledger, query.work, query.pool),
        Some(only) => {
            let fits = |n: &usize| fit(index, query.work, *n, any_state).is_ok();
            Rc::new(only.iter().copied().filter(fits).collect())
        }
    };
    let nodes = match query.but {
        None => nodes,
        Some(but) => Rc::new(nodes.iter().copied().filter(|n| !but.contains(n)).collect()),
    };
    let topology = &index.works[query.work].row.topology;
    let require = topology.require.as_deref().filter(|_| !query.relaxed);
    let prefer = topology
        .prefer
        .as_deref()
        .filter(|_| !query.relaxed && query.workers > 1);
    let outer = match require {
        Some(label) => domains::within(ledger, query, &nodes, label),
        None => vec![nodes],
    };
    if let Some(label) = prefer {
        for domain in &outer {
            for inner in domains::within(ledger, query, domain, label) {
                if let Some(slots) = fill(ledger, query, Field::Nodes(&inner), promise) {
                    return Some(slots);
                }
            }
        }
    }
    for domain in &outer {
        let found = match prefer {
            // No one domain holds all: as few as possible, the emptiest first.
            Some(label) => fill_domains(ledger, query, domain, label, promise),
            None => fill(ledger, query, Field::Nodes(domain), promise),
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Places all workers on these nodes, each on the best node that is left.
fn fill(
    ledger: &mut Ledger<'_, '_>,
    query: Query<'_>,
    field: Field<'_>,
    promise: Option<&Promise>,
) -> Option<Vec<Rc<Slot>>> {
    let mark = ledger.mark();
    let placed = fill_some(ledger, query, field, query.workers, &mut promise.cloned());
    ledger.rollback(mark);
    (placed.len() == query.workers as usize).then_some(placed)
}

/// Places all workers domain by domain.
fn fill_domains(
    ledger: &mut Ledger<'_, '_>,
    query: Query<'_>,
    nodes: &[usize],
    label: &str,
    promise: Option<&Promise>,
) -> Option<Vec<Rc<Slot>>> {
    let mark = ledger.mark();
    let mut promise = promise.cloned();
    let mut placed = Vec::new();
    for domain in domains::emptiest_first(ledger, query, nodes, label) {
        let missing = query.workers - placed.len() as u32;
        placed.extend(fill_some(
            ledger,
            query,
            Field::Nodes(&domain),
            missing,
            &mut promise,
        ));
        if placed.len() == query.workers as usize {
            break;
        }
    }
    ledger.rollback(mark);
    (placed.len() == query.workers as usize).then_some(placed)
}

/// Places up to `most` workers, and leaves them in the ledger's space.
fn fill_some(
    ledger: &mut Ledger<'_, '_>,
    query: Query<'_>,
    field: Field<'_>,
    most: u32,
    promise: &mut Option<Promise>,
) -> Vec<Rc<Slot>> {
    let index = ledger.index;
    let mut placed: Vec<Rc<Slot>> = Vec::new();
    let mut taken = if query.relaxed {
        Vec::new()
    } else {
        values_taken(ledger, query.work)
    };
    let apart = if query.relaxed {
        None
    } else {
        apart(index, query.work)
    };
    while placed.len() < most as usize {
        let free = |node: usize| {
            apart.is_none_or(|label| !taken.contains(&index.nodes[node].row.labels.get(label)))
                && promise.as_ref().is_none_or(|promise| promise.admits(node))
        };
        let Some((node, parts)) = node_classes::best(ledger, query, field, &free) else {
            break;
        };
        let amount = index.charge_on(query.work, node);
        let slot = Rc::new(Slot::of(index, query.work, node, parts, amount));
        for &view in query.sight.views() {
            ledger.occupy(view, query.work, &slot);
        }
        if let Some(promise) = promise {
            promise.take(index, node);
        }
        if let Some(label) = apart {
            taken.push(index.nodes[node].row.labels.get(label));
        }
        placed.push(slot);
    }
    placed
}

/// The label whose values the replicas of the workload's service do not share.
fn apart<'w>(index: &Index<'w>, work: usize) -> Option<&'w str> {
    let facts = &index.works[work];
    facts.service.and(facts.row.anti_affinity.as_deref())
}

/// The values that other replicas of the workload's service have taken.
fn values_taken<'w>(ledger: &Ledger<'_, 'w>, work: usize) -> Vec<Option<&'w String>> {
    let index = ledger.index;
    let (Some(label), Some(service)) = (apart(index, work), index.works[work].service) else {
        return Vec::new();
    };
    let others = index.services[service].replicas.iter().filter(|&&other| {
        other != work && ledger.standing(other) != Standing::Leaving && !ledger.is_bare()
    });
    others
        .flat_map(|&other| ledger.slots(other))
        .map(|slot| index.nodes[slot.node].row.labels.get(label))
        .collect()
}

/// Cores and memory that are free in all views of a sight.
pub(crate) fn host_free(ledger: &Ledger<'_, '_>, node: usize, sight: Sight) -> (i64, i64) {
    let space = &ledger.spaces[node];
    let least = |of: &dyn Fn(View) -> i64| sight.views().iter().map(|&v| of(v)).min().unwrap_or(0);
    (
        least(&|v| space.cpus[v as usize]),
        least(&|v| space.memory[v as usize]),
    )
}

/// Thousandths of a node's usable devices that nothing will stand on, whole or not.
pub(crate) fn idle_milli(ledger: &Ledger<'_, '_>, node: usize) -> i64 {
    let machine = &ledger.index.nodes[node];
    let usable = i64::from(machine.row.gpus) - i64::from(machine.failed.count_ones());
    (usable * DEVICE - ledger.spaces[node].given[View::Later as usize]).max(0)
}

/// Whole devices that are free in all views of a sight, as bits.
pub(crate) fn devices_free(ledger: &Ledger<'_, '_>, node: usize, sight: Sight) -> u64 {
    sight.views().iter().fold(u64::MAX, |all, &v| {
        all & ledger.spaces[node].free[v as usize]
    })
}
