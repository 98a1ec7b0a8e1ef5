//! When work would start that has no start of its own, as it is told of.

use domain::Timestamp;

use super::Cycle;
use crate::backfill::{self, NEVER, Reserved};
use crate::world::Backfill;

/// Where no starts are kept, what is told of a pool to those in front.
#[derive(Debug, Default)]
pub(crate) struct ToldStarts {
    /// Their starts, in the order of the line.
    starts: Vec<Reserved>,
    /// Before this none of those behind starts.
    first: Option<Timestamp>,
    /// Whether nobody knows when one in front starts that nobody passes.
    unknown: bool,
}

impl Cycle<'_, '_> {
    /// When a workload that has no start of its own would start behind those that have; where no starts are kept,
    /// behind those in front of it.
    pub fn told_start(&mut self, work: usize, pool: usize) -> Option<Timestamp> {
        match self.index.pools[pool].row.backfill {
            Backfill::None | Backfill::Strict => self.start_in_line(work, pool),
            Backfill::Easy | Backfill::Conservative => self.start_behind_kept(work, pool),
        }
    }

    fn start_behind_kept(&mut self, work: usize, pool: usize) -> Option<Timestamp> {
        let row = self.index.works[work].row;
        let key = (
            pool,
            self.index.works[work].team,
            self.index.works[work].shape,
            row.length_seconds(),
        );
        if let Some(known) = self.told.get(&key) {
            return *known;
        }
        let found = self.earliest(work, pool, backfill::TOLD);
        let start = found.map(|found| found.start());
        let start = start.filter(|start| *start != NEVER);
        self.told.insert(key, start);
        start
    }

    /// In the order in which it is asked: that of the line.
    fn start_in_line(&mut self, work: usize, pool: usize) -> Option<Timestamp> {
        let strict = self.is_strict(pool);
        let told = &self.told_in_line[pool];
        if told.starts.len() == backfill::RESERVED_MAX || told.unknown {
            return None;
        }
        let (front, from) = (told.starts.clone(), told.first);
        self.timeline(pool);
        let before = self.timelines[pool].as_ref()?.kept();
        for start in front.into_iter().filter(|start| start.work != work) {
            self.timeline(pool).keep(start);
        }
        let bounds = backfill::Bounds {
            from: from.unwrap_or(backfill::TOLD.from),
            ..backfill::TOLD
        };
        let found = self.earliest(work, pool, bounds);
        if let Some(timeline) = self.timelines[pool].as_mut() {
            timeline.keep_as(before);
        }
        let found = found.filter(|found| found.start() != NEVER);
        let told = &mut self.told_in_line[pool];
        let Some(found) = found else {
            told.unknown = strict;
            return None;
        };
        // Nothing passes a blocked head: behind it nobody starts sooner.
        let start = found.start();
        told.first = strict.then_some(start);
        told.starts.push(found);
        Some(start)
    }
}
