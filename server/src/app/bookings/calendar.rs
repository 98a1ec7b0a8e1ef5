//! What is promised of a pool when: guarantees as they hold then, and what is booked beside them.

use std::collections::BTreeMap;

use domain::MilliGpu;
use domain::Timestamp;
use domain::ids::PoolId;
use domain::name::Name;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::AppError;
use super::super::quotas::tree::Promises;
use super::super::quotas::warning;
use crate::scheduler::windows;
use crate::store::bookings::{self as rows, Booking};
use crate::store::{self, Tx};

/// A time in which a pool is promised to more than it has: then all guarantees there, with what is
/// booked, shrink in proportion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Conflict {
    /// When it begins.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// When it ends.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// How much more is promised than the pool has.
    pub excess: MilliGpu,
    /// What the pool has: devices that have not failed, on registered nodes that are not lost.
    pub capacity: MilliGpu,
    /// What is guaranteed then.
    pub guaranteed: MilliGpu,
    /// What is booked then, this booking with it.
    pub booked: MilliGpu,
    /// The other bookings of that time that the asker may know.
    pub with: Vec<Name>,
}

/// What is promised of one pool from now on.
#[derive(Debug)]
pub struct Calendar {
    /// The database's time.
    pub now: Timestamp,
    capacity_milli: i64,
    /// What all roots are guaranteed together, from each moment on.
    guaranteed: Vec<(Timestamp, i64)>,
    bookings: Vec<Booking>,
}

impl Calendar {
    /// Loads it for as long as these bookings last, in a transaction that sees every team.
    pub async fn load(
        tx: &mut Tx,
        (pool, name): (PoolId, &Name),
        of: &[Booking],
    ) -> Result<Self, AppError> {
        let now = store::clock(tx).await?;
        let end = of.iter().map(|b| b.ends_at).max().unwrap_or(now).max(now);
        let promises = Promises::load(tx, (pool, name)).await?;
        let capacity_milli = warning::capacity(tx, pool).await?.milli();
        let bookings = rows::standing(tx, Some(pool), now).await?;
        Ok(Self::of(&promises, capacity_milli, bookings, (now, end)))
    }

    /// What these promises and these bookings, of all of the pool's teams, come to between two
    /// moments.
    pub fn of(
        promises: &Promises,
        capacity_milli: i64,
        bookings: Vec<Booking>,
        (now, end): (Timestamp, Timestamp),
    ) -> Self {
        let steps = windows::timeline(&promises.windows, now, end);
        // The same few sets of windows come again each week.
        let mut known: BTreeMap<Vec<usize>, i64> = BTreeMap::new();
        let guaranteed = steps.into_iter().map(|(at, open)| {
            let sum = known
                .entry(open)
                .or_insert_with_key(|open| promises.sum(open));
            (at, *sum)
        });
        Self {
            now,
            capacity_milli,
            guaranteed: guaranteed.collect(),
            bookings,
        }
    }

    /// The bookings that have not ended, in the order in which they begin.
    pub fn bookings(&self) -> &[Booking] {
        &self.bookings
    }

    /// When more is promised than there is while a booking lasts, from now on, in order.
    pub fn conflicts(&self, booking: &Booking) -> Vec<Conflict> {
        let (from, to) = (booking.starts_at.max(self.now), booking.ends_at);
        let beside: Vec<&Booking> = self
            .bookings
            .iter()
            .filter(|b| b.id != booking.id && b.starts_at < to && from < b.ends_at)
            .collect();
        let mut edges: Vec<Timestamp> = beside
            .iter()
            .flat_map(|b| [b.starts_at, b.ends_at])
            .chain(self.guaranteed.iter().map(|(at, _)| *at))
            .filter(|at| from < *at && *at < to)
            .chain([from, to])
            .collect();
        edges.sort_unstable();
        edges.dedup();
        let mut conflicts: Vec<Conflict> = Vec::new();
        for span in edges.windows(2) {
            let Some(found) = self.conflict(booking, &beside, (span[0], span[1])) else {
                continue;
            };
            match conflicts.last_mut() {
                Some(last) if last.goes_on(&found) => last.to = found.to,
                _ => conflicts.push(found),
            }
        }
        conflicts
    }

    fn conflict(
        &self,
        booking: &Booking,
        beside: &[&Booking],
        (from, to): (Timestamp, Timestamp),
    ) -> Option<Conflict> {
        let others = || {
            beside
                .iter()
                .filter(|b| b.starts_at <= from && from < b.ends_at)
        };
        let booked = booking.gpus_milli + others().map(|b| b.gpus_milli).sum::<i64>();
        let step = self.guaranteed.partition_point(|(at, _)| *at <= from);
        let guaranteed = step.checked_sub(1).map_or(0, |i| self.guaranteed[i].1);
        let excess = booked + guaranteed - self.capacity_milli;
        (excess > 0).then(|| Conflict {
            from,
            to,
            excess: MilliGpu::from_milli(excess),
            capacity: MilliGpu::from_milli(self.capacity_milli),
            guaranteed: MilliGpu::from_milli(guaranteed),
            booked: MilliGpu::from_milli(booked),
            with: others().map(|b| b.name.clone()).collect(),
        })
    }
}

impl Conflict {
    /// Whether another begins where this one ends, and is the same.
    fn goes_on(&self, next: &Self) -> bool {
        let what = |c: &Self| (c.excess, c.guaranteed, c.with.clone());
        self.to == next.from && what(self) == what(next)
    }
}

#[cfg(test)]
mod tests {
    use domain::ids::{BookingId, TeamId};

    use super::*;

    fn at(hour: u32) -> Timestamp {
        format!("2026-01-05T{hour:02}:00:00Z")
            .parse()
            .expect("a time")
    }

    fn booking(name: &str, gpus: i64, from: u32, to: u32) -> Booking {
        Booking {
            id: BookingId::new(),
            name: name.parse().expect("a name"),
            pool: "h100".parse().expect("a name"),
            team_id: TeamId::new(),
            team: "vision".parse().expect("a name"),
            gpus_milli: gpus * 1000,
            starts_at: at(from),
            ends_at: at(to),
            conflict_since: None,
            version: 1,
        }
    }

    #[test]
    fn a_conflict_says_when_how_much_and_with_which_booking() {
        let demo = booking("demo", 4, 9, 17);
        let calendar = Calendar {
            now: at(8),
            capacity_milli: 8000,
            // By night, until 10 and from 16 on, less is guaranteed.
            guaranteed: vec![(at(8), 0), (at(10), 3000), (at(16), 0)],
            bookings: vec![
                demo.clone(),
                booking("other", 2, 12, 14),
                booking("later", 8, 17, 18),
            ],
        };
        let found = calendar.conflicts(&demo);
        let told: Vec<_> = found
            .iter()
            .map(|c| (c.from, c.to, c.excess.milli(), c.with.len()))
            .collect();
        assert_eq!(told, [(at(12), at(14), 1000, 1)]);
        assert_eq!(found[0].with[0].as_str(), "other");
        let more = booking("more", 6, 9, 17);
        let told: Vec<_> = calendar
            .conflicts(&more)
            .iter()
            .map(|c| (c.from, c.to, c.excess.milli()))
            .collect();
        assert_eq!(
            told,
            [
                (at(9), at(10), 2000),
                (at(10), at(12), 5000),
                (at(12), at(14), 7000),
                (at(14), at(16), 5000),
                (at(16), at(17), 2000),
            ]
        );
    }
}
