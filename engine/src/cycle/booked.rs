//! What bookings that have begun take back, for work of their team that waits.

use super::Cycle;
use crate::bookings;
use crate::preempt::{self, Room, Rules};
use crate::quota;
use crate::world::Booking;

impl<'w> Cycle<'_, 'w> {
    /// Room for a workload by the pool's rules, or by those of a booking of its team: what is
    /// the team's own by its guarantee is taken back by the pool's rules first.
    pub(super) fn room_for(
        &mut self,
        work: usize,
        pool: usize,
        rules: &Rules,
    ) -> Option<(Room, Option<&'w Booking>)> {
        let team = self.index.works[work].team;
        let own = bookings::lasting(self.index, pool)
            .into_iter()
            .find(|(_, of)| *of == team)
            .map(|(booking, _)| booking);
        let by_pool = |this: &mut Self| {
            let room = preempt::make_room(&mut this.ledger, work, pool, rules);
            room.map(|room| (room, None))
        };
        let Some(booking) = own else {
            return by_pool(self);
        };
        let workers = self.index.works[work].row.workers_least();
        let amount = self.index.charge_least(work, pool) * i128::from(workers);
        let booked = self.index.pools[pool].rows[team].booked;
        // As if what is booked were held: what is left then is the team's own.
        let plain = quota::in_guarantee(&self.ledger, pool, team, amount + booked);
        let by_booking = |this: &mut Self| {
            let room = preempt::make_room(&mut this.ledger, work, pool, &Rules::booked());
            room.map(|room| (room, Some(booking)))
        };
        if plain {
            by_pool(self).or_else(|| by_booking(self))
        } else {
            by_booking(self).or_else(|| by_pool(self))
        }
    }
}
