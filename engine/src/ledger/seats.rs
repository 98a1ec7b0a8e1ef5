//! Where work stands when a cycle begins, kept node by node: a workload or a node that changes is looked at alone.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::{Held, Ledger, Slot, Space, Standing, Step, View, slot};
use crate::index::Amount;
use crate::place::Able;
use crate::world::{Placed, WorkloadState};

impl<'w> Ledger<'_, 'w> {
    /// Makes room in the tables for work that the index has numbered since.
    pub fn widen(&mut self) {
        self.slots.resize(self.index.works.len(), Vec::new());
        self.standing.resize(self.index.works.len(), Standing::Idle);
    }

    /// All work stands as its rows say, where nothing stands yet. What waits does so already.
    pub(super) fn seat_all(&mut self) {
        let index = self.index;
        for work in 0..index.works.len() {
            let facts = &index.works[work];
            let leaves = match facts.wait.state {
                WorkloadState::Running => false,
                WorkloadState::Leaving => true,
                WorkloadState::Waiting | WorkloadState::Suspended => continue,
            };
            let slots = self.placed(work, &facts.row.placed);
            for slot in &slots {
                self.put(View::Now, work, slot, 1);
                if !leaves {
                    self.put(View::Later, work, slot, 1);
                }
                let seats = &mut self.seats[slot.node];
                if seats.last() != Some(&work) {
                    seats.push(work);
                }
            }
            if leaves {
                self.standing[work] = Standing::Leaving;
            } else {
                self.settle(work, slots, Standing::Running);
            }
        }
        self.journal.clear();
        self.stirred = 0;
    }

    /// A workload stands as its row says; its nodes are filled after that.
    pub fn seat(&mut self, work: usize) {
        let row = self.index.works[work].row;
        match row.state {
            WorkloadState::Running => {
                let slots = self.placed(work, &row.placed);
                self.settle(work, slots, Standing::Running);
            }
            WorkloadState::Leaving => self.stand(work, Standing::Leaving),
            WorkloadState::Waiting | WorkloadState::Suspended => {
                self.stand(work, Standing::Idle);
            }
        }
        self.join_herd(work);
        self.keep_seat(work);
    }

    /// What a workload stands on stays its own when a cycle begins.
    pub fn keep_seat(&mut self, work: usize) {
        for node in self.nodes_of(work) {
            let seats = &mut self.seats[node];
            if let Err(at) = seats.binary_search(&work) {
                seats.insert(at, work);
            }
        }
        self.journal.clear();
        self.stirred = 0;
    }

    /// A workload holds nothing any more, and counts for nothing; gives the nodes on which it
    /// stood, which are filled after that.
    pub fn unseat(&mut self, work: usize) -> Vec<usize> {
        let nodes = self.nodes_of(work);
        for &node in &nodes {
            self.seats[node].retain(|&there| there != work);
        }
        let slots = std::mem::take(&mut self.slots[work]);
        self.herds.leave(self.index, work, &slots);
        if let Some(first) = slots.first() {
            let amount = slots.iter().map(|s| s.amount).sum::<Amount>();
            let pool = self.index.nodes[first.node].pool;
            self.add(pool, work, -amount, -(slots.len() as i64));
        }
        self.standing[work] = Standing::Idle;
        nodes
    }

    /// A workload has another number.
    pub fn renumber(&mut self, old: usize, new: usize) {
        self.herds.forget();
        self.slots.swap(old, new);
        self.standing.swap(old, new);
        for node in self.nodes_of(new) {
            let seats = self.seats[node].iter_mut();
            seats.filter(|w| **w == old).for_each(|w| *w = new);
        }
    }

    /// Puts on a node what stands there, as a fresh state has it.
    pub fn fill(&mut self, node: usize) {
        self.spaces[node] = Space::of(&self.index.nodes[node], self.bare);
        self.classes.mark(node);
        self.nowhere.gain(node);
        self.herds.spoil(self.index.nodes[node].pool, node);
        self.placed.clear();
        for work in std::mem::take(&mut self.seats[node]) {
            let here = |slot: &&Rc<Slot>| slot.node == node;
            let leaving = self.standing[work] == Standing::Leaving;
            let slots: Vec<Rc<Slot>> = if leaving {
                let all = self.placed(work, &self.index.works[work].row.placed);
                all.iter().filter(here).cloned().collect()
            } else {
                self.slots[work].iter().filter(here).cloned().collect()
            };
            for slot in &slots {
                self.put(View::Now, work, slot, 1);
                if !leaving {
                    self.put(View::Later, work, slot, 1);
                }
            }
            self.seats[node].push(work);
        }
    }

    fn placed(&self, work: usize, placed: &[Placed]) -> Vec<Rc<Slot>> {
        let worker = |p: &Placed| {
            Some(Rc::new(slot(
                self.index,
                work,
                p,
                self.index.node(&p.node)?,
            )))
        };
        placed.iter().filter_map(worker).collect()
    }

    /// The nodes on which a workload stands, each once.
    pub fn nodes_of(&self, work: usize) -> Vec<usize> {
        let row = self.index.works[work].row;
        let mut nodes: Vec<usize> = match row.state {
            WorkloadState::Leaving => row
                .placed
                .iter()
                .filter_map(|p| self.index.node(&p.node))
                .collect(),
            _ => self.slots[work].iter().map(|s| s.node).collect(),
        };
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Work that stands on a node, in order.
    pub fn seated(&self, node: usize) -> &[usize] {
        &self.seats[node]
    }

    /// A node itself is another.
    pub fn remake(&mut self, node: usize) {
        self.classes.remake(node);
        self.able = Able::default();
        self.fill(node);
    }

    /// Work that was started and whose row does not say so yet, and where it is.
    pub fn started(&self) -> Vec<(&'w str, Vec<Rc<Slot>>)> {
        let works = (0..self.standing.len()).filter(|&w| self.standing[w] == Standing::Started);
        works
            .map(|w| (self.index.works[w].row.name.as_str(), self.slots[w].clone()))
            .collect()
    }

    /// All that teams hold, by pool.
    pub fn all_held(&self) -> &[Vec<Held>] {
        &self.held
    }

    /// All that users hold of teams that bound it, by pool and team.
    pub fn all_users(&self) -> BTreeMap<(usize, usize, &'w str), Amount> {
        let users = self.users.iter().filter(|(_, held)| **held != 0);
        users.map(|(user, held)| (*user, *held)).collect()
    }

    /// Work that stands otherwise than when the cycle began.
    pub fn changed(&self) -> Vec<usize> {
        let works = self.journal.iter().filter_map(|step| match step {
            Step::Slots(work, _) | Step::Stand(work, _) => Some(*work),
            _ => None,
        });
        let works: BTreeSet<usize> = works.collect();
        works.into_iter().collect()
    }

    /// Goes back to how things stood when the cycle began, exactly.
    pub fn go_back(&mut self) {
        self.rollback(super::Mark::START);
        for node in std::mem::take(&mut self.blurred) {
            self.fill(node);
        }
    }
}
