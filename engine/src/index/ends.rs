//! Running work by the moment at which its limit ends it, once somebody has asked for that.

use std::collections::BTreeSet;

use domain::Timestamp;

use super::Index;

impl Index<'_> {
    /// Running work that its limit ends between two moments, these included, the first first.
    pub fn bounded_between(
        &self,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = usize> + '_ {
        let all = self.bounded.get_or_init(|| self.all_bounded());
        let between = (from <= to).then(|| all.range((from, 0)..=(to, usize::MAX)));
        between.into_iter().flatten().map(|&(_, work)| work)
    }

    fn all_bounded(&self) -> BTreeSet<(Timestamp, usize)> {
        let works = self.works.iter().enumerate();
        works
            .filter_map(|(work, facts)| Some((facts.stint.bounded?, work)))
            .collect()
    }

    /// A workload that its limit ends then has this number.
    pub(super) fn bind(&mut self, work: usize, end: Option<Timestamp>) {
        if let (Some(all), Some(end)) = (self.bounded.get_mut(), end) {
            all.insert((end, work));
        }
    }

    /// It has it no more.
    pub(super) fn unbind(&mut self, work: usize) {
        let end = self.works[work].stint.bounded;
        if let (Some(all), Some(end)) = (self.bounded.get_mut(), end) {
            all.remove(&(end, work));
        }
    }
}
