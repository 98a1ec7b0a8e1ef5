//! What waits in a line, in buckets of work that fits or fails together: of one team and shape.

use rustc_hash::FxHashMap;

use super::line::kin;
use crate::index::{Amount, Index};

/// What makes gangs have a place or none together, whoever they are of: frame and least workers.
pub(crate) type Kin = (usize, u32);

/// Stands where more than its kin tells whether there is a place.
const ODD: u32 = u32::MAX;

/// The buckets of a line.
#[derive(Debug, Clone, Default)]
pub(crate) struct Buckets {
    /// By team and shape.
    numbers: FxHashMap<(usize, usize), u32>,
    /// The number of the kin of each.
    kin: Vec<u32>,
    /// What each asks for at the least, and whether it may not be preempted.
    asks: Vec<(Amount, bool)>,
    /// The team of each.
    teams: Vec<usize>,
    kins: FxHashMap<Kin, u32>,
    pub(super) alike: Vec<Alike>,
}

/// Gangs of one kin in a line.
#[derive(Debug, Clone, Default)]
pub(super) struct Alike {
    pub count: usize,
    /// Some of them, and some that have left; the last is there.
    pub works: Vec<usize>,
}

impl Buckets {
    /// The number of a workload's bucket.
    pub(super) fn number(&mut self, index: &Index<'_>, pool: usize, work: usize) -> u32 {
        let facts = &index.works[work];
        let fresh = self.kin.len() as u32;
        let bucket = *self
            .numbers
            .entry((facts.team, facts.shape))
            .or_insert(fresh);
        if bucket == fresh {
            let number = kin(index, pool, work).map_or(ODD, |kin| {
                let fresh = self.alike.len() as u32;
                let number = *self.kins.entry(kin).or_insert(fresh);
                if number == fresh {
                    self.alike.push(Alike::default());
                }
                number
            });
            self.kin.push(number);
            let least = index.charge_least(work, pool);
            let least = least * Amount::from(facts.row.workers_least());
            self.asks.push((least, !facts.preemptible));
            self.teams.push(facts.team);
        }
        bucket
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.kin.len()
    }

    /// The numbers of kin.
    pub fn each_kin(&self) -> impl Iterator<Item = usize> {
        0..self.alike.len()
    }

    /// What work of a bucket asks for at the least, and whether it may not be preempted.
    pub fn asks(&self, bucket: u32) -> (Amount, bool) {
        self.asks[bucket as usize]
    }

    /// The team of a bucket.
    pub fn team_of(&self, bucket: usize) -> usize {
        self.teams[bucket]
    }

    /// The kin of a bucket; nothing where more than it tells whether there is a place.
    pub fn kin_of(&self, bucket: u32) -> Option<usize> {
        let kin = self.kin[bucket as usize];
        (kin != ODD).then_some(kin as usize)
    }
}
