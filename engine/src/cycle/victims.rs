//! Room made by victims, in the order of a pool.

use std::rc::Rc;

use super::Cycle;
use super::coming::Coming;
use super::turn::Making;
use crate::backfill;
use crate::bookings;
use crate::ledger::Slot;
use crate::order::Picker;
use crate::plan::{Nomination, Preemption, Reason};
use crate::preempt;
use crate::start;
use crate::world::Booking;

impl Cycle<'_, '_> {
    /// Whether work may displace other work in a pool.
    pub(super) fn displaces(&self, pool: usize) -> bool {
        let any = preempt::Rules::of(self.index, pool).any();
        any || !bookings::lasting(self.index, pool).is_empty()
    }

    /// Makes room for waiting work by victims, in order.
    pub(super) fn displace_in(&mut self, pool: usize, mut picker: Picker) -> Vec<usize> {
        if !self.displaces(pool) || self.is_strict(pool) {
            return picker.rest();
        }
        let mut given_back = Vec::new();
        let mut making = self.making(pool);
        let booked = !bookings::lasting(self.index, pool).is_empty();
        // Who is not in its guarantee has nothing to take back.
        let only_inside = making.rules.only_reclaims() && !booked;
        self.behind = self.reserved_of(pool);
        self.behind.retain(|&work| picker.holds(self.index, work));
        loop {
            let next = picker.next_inside(&self.ledger);
            let next = next.or_else(|| match only_inside {
                true => None,
                false => picker.next_borrower(&self.ledger),
            });
            let Some(work) = next else {
                break;
            };
            self.behind.remove(&work);
            if !self.displace_for(work, pool, &mut making) {
                given_back.push(work);
            }
        }
        self.making[pool] = Some(making);
        given_back.extend(picker.rest());
        given_back
    }

    /// Gives a workload room by victims, or what comes by itself, if it may have it.
    pub(super) fn displace_for(&mut self, work: usize, pool: usize, making: &mut Making) -> bool {
        let key = making.asks(self.index, work);
        if making.hopeless.contains(&key) || !self.formable(work, pool) {
            return false;
        }
        match self.coming(work, pool, &making.rules) {
            Coming::Nothing => {}
            Coming::Now(slots) => {
                self.start(work, slots);
                return true;
            }
            Coming::Later(slots) => {
                let victims = Vec::new();
                self.displace(work, preempt::Room { slots, victims }, None);
                return true;
            }
        }
        let Some(room) = self.room_for(work, pool, &making.rules) else {
            making.hopeless.insert(key);
            return false;
        };
        self.displace_into(work, pool, room, making)
    }

    /// Gives a workload that room, if it leaves kept starts and bookings alone.
    pub(super) fn displace_into(
        &mut self,
        work: usize,
        pool: usize,
        (room, booking): (preempt::Room, Option<&Booking>),
        making: &mut Making,
    ) -> bool {
        let leaving: Vec<(usize, usize)> = room.victims.iter().map(|v| (v.work, v.keep)).collect();
        if !self.room_holds(work, pool, &room.slots, &leaving, &[]) {
            return false;
        }
        making.hopeless.clear();
        if booking.is_none() {
            making.rules.took(&room.victims);
        }
        self.displace(work, room, booking);
        true
    }

    fn displace(&mut self, work: usize, room: preempt::Room, booking: Option<&Booking>) {
        let gainer = self.index.works[work].row.name.clone();
        let (by, reason) = match booking {
            Some(booking) => (&booking.name, Some(Reason::Reservation)),
            None => (&gainer, None),
        };
        let mut waits_for = Vec::new();
        for victim in &room.victims {
            let workload = self.index.works[victim.work].row.name.clone();
            self.take(victim, by, reason.unwrap_or(victim.reason()));
            waits_for.push(workload);
        }
        if waits_for.is_empty() {
            waits_for = self.leavers_on(&room.slots, work);
        }
        let pool = self.index.nodes[room.slots[0].node].pool;
        let idle = match room.victims.is_empty() {
            true => None,
            false => self.idle_by_now(work, pool, room.slots.len()),
        };
        let slots = idle.unwrap_or(room.slots);
        let placement = self.places(&slots);
        self.keep_for(work, pool, slots);
        if std::mem::take(&mut self.met_behind[pool]) {
            self.mend(pool);
        }
        self.plan.nominations.push(Nomination {
            workload: gainer,
            placement,
            waits_for,
        });
    }

    /// Idle devices for so many workers of work whose victims count in no quota any more: where it was a limit that kept it
    /// from these, it need not wait until the others are free.
    fn idle_by_now(&mut self, work: usize, pool: usize, workers: usize) -> Option<Vec<Rc<Slot>>> {
        let workers = u32::try_from(workers).ok()?;
        let slots = start::room_of(&mut self.ledger, work, pool, workers)?;
        let end = backfill::end_from(self.index, work, self.index.world.now);
        self.let_pass(work, pool, slots, end)
    }

    /// A victim gives way; what gave way to another in this plan already gives way further.
    fn take(&mut self, victim: &preempt::Victim, by: &str, reason: Reason) {
        let slots = self.ledger.slots(victim.work).to_vec();
        let facts = &self.index.works[victim.work];
        let lost = preempt::lost_gpu_seconds(self.index, victim.work, &slots[victim.keep..]);
        let told = &mut self.plan.preemptions;
        let at = match told.iter().position(|p| p.workload == facts.row.name) {
            Some(at) => at,
            None => {
                told.push(Preemption {
                    workload: facts.row.name.clone(),
                    gainer: Some(by.to_owned()),
                    reason,
                    lost_gpu_seconds: 0,
                    to_workers: 0,
                    released: Vec::new(),
                });
                told.len() - 1
            }
        };
        let told = &mut told[at];
        told.reason = reason;
        told.lost_gpu_seconds += lost;
        told.to_workers = victim.keep as u32;
        told.released = (told.to_workers..facts.row.placed.len() as u32).collect();
        self.ledger.release(victim.work, victim.keep);
        self.lost.push(self.index.works[victim.work].team);
    }
}
