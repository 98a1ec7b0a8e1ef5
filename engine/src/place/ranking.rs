//! The classes of nodes that fit one kind of worker, the best first.

use std::collections::BTreeMap;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::score::Merit;
use crate::ledger::Part;

/// What is known of a class of nodes.
#[derive(Debug, Clone)]
pub(super) enum Known {
    Unfit,
    Fit(Rc<Scored>),
}

/// The best devices of a node of the class.
#[derive(Debug)]
pub(super) struct Scored {
    pub merit: Merit,
    pub parts: Vec<Part>,
    /// The requests for several devices that it takes room from.
    pub takes: u64,
}

/// Which makes of nodes fit one kind of worker.
#[derive(Debug, Default)]
pub(super) struct Makes(Vec<Option<bool>>);

impl Makes {
    /// Whether a make fits, found out when it is first asked; each time where none is given.
    pub fn fits(&mut self, make: Option<usize>, find: impl FnOnce() -> bool) -> bool {
        let Some(make) = make else {
            return find();
        };
        if self.0.len() <= make {
            self.0.resize(make + 1, None);
        }
        *self.0[make].get_or_insert_with(find)
    }
}

/// What one kind of worker knows of classes.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    known: FxHashMap<usize, Known>,
    makes: Makes,
    /// How many of the news of classes have been heard.
    heard: usize,
    /// Classes that fit by merit; some may have no node any more.
    best: BTreeMap<Merit, Vec<usize>>,
    /// How many there are in it.
    ranked: usize,
}

impl Ranking {
    /// How many classes are known.
    pub fn len(&self) -> usize {
        self.known.len() + self.ranked
    }

    /// What is known of a class, or is found out.
    pub fn known(&mut self, class: usize, find: impl FnOnce() -> Known) -> &Known {
        self.known.entry(class).or_insert_with(find)
    }

    /// Hears which classes have come to have nodes: those that fit are ranked. `find` tells the
    /// merit of a class that has nodes still and fits.
    pub fn hear(&mut self, news: &[usize], find: impl Fn(usize, &mut Makes) -> Option<Merit>) {
        for &class in &news[self.heard..] {
            let Some(merit) = find(class, &mut self.makes) else {
                continue;
            };
            let alike = self.best.entry(merit).or_default();
            if !alike.contains(&class) {
                alike.push(class);
                self.ranked += 1;
            }
        }
        self.heard = news.len();
    }

    /// The first node of the best classes of which some may be taken. `first` tells the first such
    /// node of a class.
    pub fn best_among(&self, first: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let mut by_merit = self.best.values().rev();
        by_merit.find_map(|alike| alike.iter().filter_map(|&class| first(class)).min())
    }

    /// The first node of the best classes. `first` tells the first node of a class.
    pub fn best(&mut self, first: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        loop {
            let mut last = self.best.last_entry()?;
            let alike = last.get_mut();
            let before = alike.len();
            alike.retain(|&class| first(class).is_some());
            self.ranked -= before - alike.len();
            match alike.iter().filter_map(|&class| first(class)).min() {
                Some(node) => return Some(node),
                None => {
                    last.remove();
                }
            }
        }
    }
}
