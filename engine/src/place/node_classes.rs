//! Nodes that look alike to a placement: they are scored once for each shape of work, not one by one.
//!
//! A class is what a worker can tell of a node: its make, and what stands on it. Labels and
//! names are not part of it; work that asks for them is tried node by node, with the same
//! scores. Nodes change their class when something is put on them or taken away, which is
//! looked up when the next worker is placed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::look::{self, Look};
use super::ranking::{Known, Ranking, Scored};
use super::score::{Merit, merit, together};
use super::{Field, Query, apart, device, fit};
use crate::fragmentation::ROOM_TAKEN;
use crate::index::{Index, Need};
use crate::ledger::{Ledger, Part, Sight};
use crate::world::Strategy;

/// A node that is in no class yet.
const NONE: usize = usize::MAX;
/// Scores that are kept at most; each takes some hundred bytes.
const SCORES_MAX: usize = 4_000_000;
/// Classes that are kept for each node, those that no node is in any more among them.
const CLASSES_EACH: usize = 16;

/// The classes of a ledger's nodes, and what is known of them.
#[derive(Debug, Default)]
pub(crate) struct NodeClasses {
    /// The make of each node: all that does not change in a cycle, but for names and labels.
    makes: Vec<usize>,
    /// The class of each node, as of when it was last looked up.
    of: Vec<usize>,
    /// Nodes to be looked up again.
    changed: Vec<usize>,
    stale: Vec<bool>,
    ids: FxHashMap<Look, usize>,
    /// Where the words of a node are written that is looked up.
    words: Vec<u64>,
    classes: Vec<Class>,
    /// The classes that have nodes, by pool.
    live: Vec<BTreeSet<usize>>,
    /// Classes that have come to have nodes, in that order, by pool.
    news: Vec<Vec<usize>>,
    rankings: FxHashMap<Asked, Ranking>,
    /// Scores that are kept.
    scores: usize,
    /// Room for requests for several devices, and idle thousandths, by pool.
    room: Vec<Vec<i64>>,
    idle: Vec<i64>,
}

#[derive(Debug, Default)]
struct Class {
    nodes: BTreeSet<usize>,
    room: Vec<i64>,
    idle: i64,
}

impl Class {
    /// The first of its nodes, but for some.
    fn first(&self, but: Option<&FxHashSet<usize>>) -> Option<usize> {
        let mut nodes = self.nodes.iter();
        nodes
            .find(|node| but.is_none_or(|but| !but.contains(node)))
            .copied()
    }
}

/// What makes two queries alike.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Asked {
    form: usize,
    pool: usize,
    /// Where devices are shared within a team only.
    team: Option<usize>,
    sight: Sight,
    relaxed: bool,
}

/// What decides between nodes, the larger the better: no replicas of the same service, merit, name.
type Rank = (Reverse<usize>, Merit, Reverse<usize>);

/// Whether a query looks at nothing that nodes of one class differ in.
pub(super) fn suit(index: &Index<'_>, query: Query<'_>) -> bool {
    let row = index.works[query.work].row;
    let bound = row.topology.require.is_some()
        || row.topology.prefer.is_some() && query.workers > 1
        || apart(index, query.work).is_some();
    let replica = row.service.is_some() && index.pools[query.pool].row.strategy == Strategy::Spread;
    query.only.is_none() && !by_node(index, query.work) && (query.relaxed || !bound) && !replica
}

/// Whether work asks for labels or a name.
fn by_node(index: &Index<'_>, work: usize) -> bool {
    let row = index.works[work].row;
    !row.selector.is_empty() || row.node.is_some()
}

/// The best node for one worker, and its devices there.
pub(super) fn best(
    ledger: &mut Ledger<'_, '_>,
    query: Query<'_>,
    field: Field<'_>,
    free: &dyn Fn(usize) -> bool,
) -> Option<(usize, Vec<Part>)> {
    let mut classes = std::mem::take(&mut ledger.classes);
    classes.refresh(ledger);
    let found = classes.best(ledger, query, field, free);
    ledger.classes = classes;
    found
}

/// Whether a node could take one worker as things stand.
pub(crate) fn holds_one(ledger: &Ledger<'_, '_>, query: Query<'_>, node: usize) -> bool {
    ledger.index.nodes[node].pool == query.pool
        && fit(ledger.index, query.work, node, ledger.is_bare()).is_ok()
        && device::room(ledger, query, node)
        && device::choose(ledger, query, node).is_some()
}

impl NodeClasses {
    /// Notes that something was put on a node or taken from it.
    pub fn mark(&mut self, node: usize) {
        if let Some(stale) = self.stale.get_mut(node)
            && !*stale
        {
            *stale = true;
            self.changed.push(node);
        }
    }

    /// Notes that a node itself is another: it is of a make of its own from then on.
    pub fn remake(&mut self, node: usize) {
        let fresh = self.makes.iter().max().map_or(0, |most| most + 1);
        if let Some(make) = self.makes.get_mut(node) {
            *make = fresh;
        }
        self.mark(node);
    }

    fn best(
        &mut self,
        ledger: &Ledger<'_, '_>,
        query: Query<'_>,
        field: Field<'_>,
        free: &dyn Fn(usize) -> bool,
    ) -> Option<(usize, Vec<Part>)> {
        let asked = Asked::of(ledger, query);
        let mut ranking = self.rankings.remove(&asked).unwrap_or_default();
        let before = ranking.len();
        let found = match field {
            // What a placement costs may change with what is left elsewhere.
            Field::Pool if ledger.costs[query.pool].is_some() => {
                let live = self.live[query.pool].iter();
                let nodes = live.filter_map(|&class| self.classes[class].first(query.but));
                self.best_of(ledger, query, &mut ranking, nodes)
            }
            Field::Pool => self.first_ranked(ledger, query, &mut ranking),
            Field::Nodes(nodes) => {
                let free = nodes.iter().copied().filter(|&node| free(node));
                self.best_of(ledger, query, &mut ranking, free)
            }
        };
        // Classes without nodes that were met on the way are known no more.
        self.scores = (self.scores + ranking.len()).saturating_sub(before);
        self.rankings.insert(asked, ranking);
        found
    }

    /// The best of these nodes.
    fn best_of(
        &self,
        ledger: &Ledger<'_, '_>,
        query: Query<'_>,
        ranking: &mut Ranking,
        nodes: impl Iterator<Item = usize>,
    ) -> Option<(usize, Vec<Part>)> {
        let costs = ledger.costs[query.pool].as_ref();
        let scarce = costs.map_or(0, |p| {
            p.scarce(&self.room[query.pool], self.idle[query.pool])
        });
        let mut best: Option<(Rank, Rc<Scored>)> = None;
        for node in nodes {
            let known = ranking.known(self.of[node], || scored(ledger, query, node));
            let Known::Fit(scored) = known else {
                continue;
            };
            let mut merit = scored.merit;
            merit.points -= ROOM_TAKEN * i64::from((scored.takes & scarce).count_ones());
            let key = (Reverse(together(ledger, query, node)), merit, Reverse(node));
            if best.as_ref().is_none_or(|(least, _)| key > *least) {
                best = Some((key, Rc::clone(scored)));
            }
        }
        let ((_, _, Reverse(node)), scored) = best?;
        Some((node, scored.parts.clone()))
    }

    /// The first node of the best class, where merit alone decides.
    fn first_ranked(
        &self,
        ledger: &Ledger<'_, '_>,
        query: Query<'_>,
        ranking: &mut Ranking,
    ) -> Option<(usize, Vec<Part>)> {
        let first = |class: usize| self.classes[class].first(None);
        let tells = !by_node(ledger.index, query.work);
        let make = |node: usize| tells.then(|| self.makes[node]);
        ranking.hear(&self.news[query.pool], |class, makes| {
            let node = first(class)?;
            let fits = makes.fits(make(node), || {
                !tells || fit(ledger.index, query.work, node, ledger.is_bare()).is_ok()
            });
            if !fits || !device::room(ledger, query, node) {
                return None;
            }
            let told = device::tell(ledger, query, node)?;
            Some(merit(ledger, query, node, &told))
        });
        let node = match query.but {
            None => ranking.best(first),
            Some(_) => ranking.best_among(|class| self.classes[class].first(query.but)),
        }?;
        let chosen = device::choose(ledger, query, node)?;
        Some((node, chosen.parts))
    }

    /// Looks up the nodes that have changed.
    fn refresh(&mut self, ledger: &Ledger<'_, '_>) {
        let nodes = ledger.index.nodes.len();
        // A world without nodes has pools all the same.
        let fresh = self.of.len() != nodes || self.live.len() != ledger.index.pools.len();
        if fresh || self.classes.len() > CLASSES_EACH * nodes + 1000 || self.scores > SCORES_MAX {
            let makes = std::mem::take(&mut self.makes);
            *self = Self {
                makes: if makes.len() == nodes {
                    makes
                } else {
                    makes_of(ledger.index)
                },
                of: vec![NONE; nodes],
                changed: (0..nodes).collect(),
                stale: vec![true; nodes],
                live: vec![BTreeSet::new(); ledger.index.pools.len()],
                news: vec![Vec::new(); ledger.index.pools.len()],
                room: vec![Vec::new(); ledger.index.pools.len()],
                idle: vec![0; ledger.index.pools.len()],
                ..Self::default()
            };
        }
        for node in std::mem::take(&mut self.changed) {
            self.stale[node] = false;
            let class = self.class(ledger, node);
            let before = std::mem::replace(&mut self.of[node], class);
            if before != class {
                if before != NONE {
                    self.leave(ledger.index.nodes[node].pool, before, node);
                }
                self.enter(ledger.index.nodes[node].pool, class, node);
            }
        }
    }

    /// The class of a node as it is now.
    fn class(&mut self, ledger: &Ledger<'_, '_>, node: usize) -> usize {
        let costs = ledger.costs[ledger.index.nodes[node].pool].as_ref();
        let set = costs.map_or(0, |costs| costs.set(node));
        look::write(&mut self.words, ledger, node, self.makes[node], set);
        if let Some(&class) = self.ids.get(&self.words[..]) {
            return class;
        }
        let class = self.classes.len();
        self.ids.insert(self.words.as_slice().into(), class);
        self.classes.push(Class {
            nodes: BTreeSet::new(),
            room: costs.map_or(Vec::new(), |costs| costs.room(ledger, node)),
            idle: costs.map_or(0, |costs| costs.idle(ledger, node)),
        });
        class
    }

    fn enter(&mut self, pool: usize, class: usize, node: usize) {
        let entered = &mut self.classes[class];
        if entered.nodes.is_empty() {
            self.live[pool].insert(class);
            self.news[pool].push(class);
        }
        entered.nodes.insert(node);
        self.idle[pool] += entered.idle;
        self.room[pool].resize(entered.room.len(), 0);
        for (sum, room) in self.room[pool].iter_mut().zip(&entered.room) {
            *sum += room;
        }
    }

    fn leave(&mut self, pool: usize, class: usize, node: usize) {
        let left = &mut self.classes[class];
        left.nodes.remove(&node);
        if left.nodes.is_empty() {
            self.live[pool].remove(&class);
        }
        self.idle[pool] -= left.idle;
        for (sum, room) in self.room[pool].iter_mut().zip(&left.room) {
            *sum -= room;
        }
    }
}

impl Asked {
    fn of(ledger: &Ledger<'_, '_>, query: Query<'_>) -> Self {
        let facts = &ledger.index.works[query.work];
        Self {
            form: facts.form,
            pool: query.pool,
            team: team_apart(ledger.index, query),
            sight: query.sight,
            relaxed: query.relaxed,
        }
    }
}

/// The team of a workload, where devices are shared within a team only.
pub(super) fn team_apart(index: &Index<'_>, query: Query<'_>) -> Option<usize> {
    let facts = &index.works[query.work];
    let apart = matches!(facts.need, Need::Part { .. }) && index.pools[query.pool].teams_apart;
    apart.then_some(facts.team)
}

fn scored(ledger: &Ledger<'_, '_>, query: Query<'_>, node: usize) -> Known {
    let any_state = ledger.is_bare();
    // What asks for labels comes with nodes that were found to have them.
    let unfit = !by_node(ledger.index, query.work)
        && fit(ledger.index, query.work, node, any_state).is_err();
    if unfit || !device::room(ledger, query, node) {
        return Known::Unfit;
    }
    let Some(chosen) = device::choose(ledger, query, node) else {
        return Known::Unfit;
    };
    let costs = ledger.costs[query.pool].as_ref();
    Known::Fit(Rc::new(Scored {
        merit: merit(ledger, query, node, &chosen.told()),
        takes: costs.map_or(0, |costs| {
            costs.takes_room(ledger, query, node, &chosen.parts)
        }),
        parts: chosen.parts,
    }))
}

/// Numbers for what nodes are made of.
fn makes_of(index: &Index<'_>) -> Vec<usize> {
    let mut found = BTreeMap::new();
    let mut makes = Vec::with_capacity(index.nodes.len());
    for node in &index.nodes {
        let row = node.row;
        let host = (row.cpus, row.memory_mib, row.state as u8, node.pool);
        let devices = (row.gpus, &row.gpu_model, row.gpu_memory_mib, node.failed);
        let layout = (&row.nvlink, &row.numa, &row.mig);
        let driven = (&row.drives, row.mps_across_teams, &row.mig_layout);
        let fresh = found.len();
        let make = (host, devices, layout, driven);
        makes.push(*found.entry(make).or_insert(fresh));
    }
    makes
}
