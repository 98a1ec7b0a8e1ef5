//! Changes of an index: work comes, changes and goes, and keeps the order of the names; nodes and teams change in place.

use std::rc::Rc;
use std::sync::LazyLock;

use domain::Timestamp;

use super::{Index, Need, NodeFacts, PoolFacts, Rows, Stint, Wait, WorkFacts, teams};
use crate::world::{Charge, Node, Team, Workload, WorkloadState};

/// How far a vacant number is looked for: beyond that numbering anew is no dearer than moving
/// what lies between again and again.
const SHIFT_MAX: usize = 64;

/// Stands where nobody has the number: no step of a cycle looks at what leaves nothing.
static VACANT: LazyLock<Workload> = LazyLock::new(|| Workload {
    state: WorkloadState::Leaving,
    workers: 0,
    ..Workload::waiting("", "", 0, Timestamp::MIN_UTC)
});

impl WorkFacts<'_> {
    /// Nobody.
    pub(super) fn vacant() -> Self {
        Self {
            row: &VACANT,
            stint: Stint::default(),
            wait: Wait::of(&VACANT),
            team: 0,
            service: None,
            priority: 0,
            preemptible: false,
            pools: Rc::new([]),
            need: Need::Nothing,
            cpus: 0,
            memory: 0,
            shape: 0,
            form: 0,
            frame: 0,
        }
    }

    /// Whether nobody has the number.
    pub fn is_vacant(&self) -> bool {
        std::ptr::eq(self.row, &*VACANT)
    }
}

/// Where new work is numbered, and which of those that were there move for it.
pub(crate) struct Place {
    pub work: usize,
    /// Old and new numbers, in an order in which each new one is vacant.
    pub moved: Vec<(usize, usize)>,
}

impl<'w> Index<'w> {
    /// Whether a workload's team is there: else it is not taken in.
    pub fn takes(&self, row: &Workload) -> bool {
        self.numbers.teams.contains_key(row.team.as_str())
    }

    /// A vacant number for a new name, in the order of the names; nothing where all beside it
    /// are taken.
    pub fn place(&mut self, name: &'w str) -> Option<Place> {
        let at = self.names.partition_point(|there| *there < name);
        let vacant = |work: usize| self.works.get(work).is_none_or(WorkFacts::is_vacant);
        let hole = (0..SHIFT_MAX).find_map(|far| {
            let below = at.checked_sub(far + 1).filter(|&work| vacant(work));
            below.or_else(|| Some(at + far).filter(|&work| vacant(work)))
        })?;
        let (work, moved): (usize, Vec<(usize, usize)>) = if hole < at {
            (at - 1, (hole + 1..at).map(|old| (old, old - 1)).collect())
        } else {
            (at, (at..hole).rev().map(|old| (old, old + 1)).collect())
        };
        while self.works.len() <= hole {
            self.works.push(WorkFacts::vacant());
            self.names.push(name);
        }
        for &(old, new) in &moved {
            self.renumber(old, new);
        }
        self.names[work] = name;
        Some(Place { work, moved })
    }

    fn renumber(&mut self, old: usize, new: usize) {
        let facts = std::mem::replace(&mut self.works[old], WorkFacts::vacant());
        if let Some(service) = facts.service {
            let replicas = self.services[service].replicas.iter_mut();
            replicas.filter(|r| **r == old).for_each(|r| *r = new);
        }
        self.unlist(old);
        self.list(new, facts.row);
        self.names[new] = self.names[old];
        self.works[new] = facts;
    }

    /// A workload has this vacant number.
    pub fn settle(&mut self, work: usize, row: &'w Workload) {
        if let Some(facts) = self.facts(row) {
            self.fill(work, facts);
        }
    }

    /// Nobody has this number any more.
    pub fn vacate(&mut self, work: usize) {
        let facts = std::mem::replace(&mut self.works[work], WorkFacts::vacant());
        if let Some(service) = facts.service {
            self.services[service].replicas.retain(|&r| r != work);
        }
        self.unlist(work);
        self.count -= usize::from(!facts.is_vacant());
    }

    /// Takes a node's row in place of the one of that name; false where more than the node itself
    /// would change.
    pub fn change_node(&mut self, row: &'w Node) -> bool {
        let Some(node) = self.node(&row.name) else {
            return false;
        };
        let before = &self.nodes[node];
        let pool = before.pool;
        let same = before.row.pool == row.pool
            && before.row.gpus == row.gpus
            && before.row.gpu_model == row.gpu_model
            && before.row.gpu_memory_mib == row.gpu_memory_mib
            && before.row.mps_across_teams == row.mps_across_teams
            && before.row.labels == row.labels;
        if !same {
            return false;
        }
        let after = NodeFacts::of(row, pool, self.pools[pool].row);
        let counts = (before.capacity(), after.capacity());
        let drains = (before.drains(), after.drains());
        self.draining = self.draining + usize::from(drains.1) - usize::from(drains.0);
        let before = std::mem::replace(&mut self.nodes[node], after);
        let (world, teams) = (self.world, &self.teams);
        let lost = &mut self.pools[pool].lost;
        lost.retain(|&other| other != node);
        if self.nodes[node].lost() {
            lost.push(node);
        }
        if self.pools[pool].recount(world, teams, counts.0, counts.1) {
            return true;
        }
        let facts = PoolFacts::of(
            self.world,
            self.pools[pool].row,
            pool,
            &self.nodes,
            &self.teams,
        );
        if !self.takes_pool(pool, &facts) {
            self.nodes[node] = before;
            self.draining = self.draining + usize::from(drains.0) - usize::from(drains.1);
            return false;
        }
        self.pools[pool] = facts;
        true
    }

    /// Whether work counts for as much by these facts of a pool as by those that are there.
    fn takes_pool(&self, pool: usize, facts: &PoolFacts<'_>) -> bool {
        let before = &self.pools[pool];
        let amounts = |of: &PoolFacts<'_>| (of.unit, of.capacity, of.cpus, of.memory);
        facts.row.charge == Charge::Gpus || amounts(before) == amounts(facts)
    }

    /// Takes a team's row in place of the one of that name; false where the tree changes, or whose
    /// users are told apart.
    pub fn change_team(&mut self, row: &'w Team) -> bool {
        let Some(&team) = self.numbers.teams.get(row.name.as_str()) else {
            return false;
        };
        let mut rows: Vec<&'w Team> = self.teams.iter().map(|team| team.row).collect();
        let parent = rows[team].parent == row.parent;
        rows[team] = row;
        let after = teams(&rows);
        let by_user = |a: &[super::TeamFacts<'_>], b: &[super::TeamFacts<'_>]| {
            a.iter().zip(b).all(|(a, b)| a.by_user == b.by_user)
        };
        if !parent || !by_user(&self.teams, &after) {
            return false;
        }
        self.teams = after;
        self.count_pools();
        true
    }

    /// Moves time on; what is booked now may be other than before.
    pub fn turn(&mut self, now: Timestamp) {
        let before = std::mem::replace(&mut self.world.now, now);
        let moved = |at: Timestamp| (at <= before) != (at <= now);
        let mut edges = self.world.bookings.iter().flat_map(|b| [b.from, b.to]);
        if edges.any(moved) {
            self.count_pools();
        }
    }

    /// Works out the teams' rows anew.
    fn count_pools(&mut self) {
        for pool in 0..self.pools.len() {
            let row = self.pools[pool].row;
            self.pools[pool] = PoolFacts::of(self.world, row, pool, &self.nodes, &self.teams);
        }
    }

    /// The rows as they are now.
    pub fn rows(&self) -> Rows<'w> {
        let works = self.works.iter().filter(|work| !work.is_vacant());
        Rows {
            moment: self.world,
            pools: self.pools.iter().map(|pool| pool.row).collect(),
            nodes: self.nodes.iter().map(|node| node.row).collect(),
            teams: self.teams.iter().map(|team| team.row).collect(),
            works: works.map(|work| work.row).collect(),
        }
    }
}
