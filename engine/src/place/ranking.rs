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

/// What one kind of worker knows of classes.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    known: FxHashMap<usize, Known>,
    /// How many of the news of classes have been heard.
    heard: usize,
    /// Classes that fit by merit; some may have no node any more.
    best: BTreeMap<Merit, Vec<usize>>,
}

impl Ranking {
    /// How many classes are known.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// What is known of a class, or is found out.
    pub fn known(&mut self, class: usize, find: impl FnOnce() -> Known) -> &Known {
        self.known.entry(class).or_insert_with(find)
    }

    /// Hears which classes have come to have nodes: those that fit are ranked. `find` tells of
    /// a class that has nodes still.
    pub fn hear(&mut self, news: &[usize], find: impl Fn(usize) -> Option<Known>) {
        for &class in &news[self.heard..] {
            let known = match self.known.get(&class) {
                Some(known) => known.clone(),
                None => match find(class) {
                    Some(found) => {
                        self.known.insert(class, found.clone());
                        found
                    }
                    None => continue,
                },
            };
            if let Known::Fit(scored) = known {
                let alike = self.best.entry(scored.merit).or_default();
                if !alike.contains(&class) {
                    alike.push(class);
                }
            }
        }
        self.heard = news.len();
    }

    /// The first node of the best classes, and what is known of its class. `first` tells the
    /// first node of a class.
    pub fn best(&mut self, first: impl Fn(usize) -> Option<usize>) -> Option<(usize, &Scored)> {
        let (node, class) = loop {
            let mut last = self.best.last_entry()?;
            let alike = last.get_mut();
            alike.retain(|&class| first(class).is_some());
            let nodes = alike
                .iter()
                .filter_map(|&class| Some((first(class)?, class)));
            match nodes.min() {
                Some(found) => break found,
                None => {
                    last.remove();
                }
            }
        };
        match self.known.get(&class) {
            Some(Known::Fit(scored)) => Some((node, scored)),
            _ => None,
        }
    }
}
