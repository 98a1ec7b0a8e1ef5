//! The rows that an index numbers, whoever holds them.

use domain::Timestamp;

use crate::world::{Booking, Class, Node, Past, Pool, QuotasAhead, Service, Team, Workload, World};

/// What a cycle knows beside the rows that are numbered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'w> {
    pub now: Timestamp,
    pub cycle_seconds: i64,
    pub classes: &'w [Class],
    pub bookings: &'w [Booking],
    pub services: &'w [Service],
    pub history: &'w [Past],
    pub ahead: &'w [QuotasAhead],
}

/// The rows of a world.
pub(crate) struct Rows<'w> {
    pub moment: Moment<'w>,
    pub pools: Vec<&'w Pool>,
    pub nodes: Vec<&'w Node>,
    pub teams: Vec<&'w Team>,
    pub works: Vec<&'w Workload>,
}

impl<'w> Rows<'w> {
    /// Those of a world.
    pub fn of(world: &'w World) -> Self {
        Self {
            moment: Moment {
                now: world.now,
                cycle_seconds: world.cycle_seconds,
                classes: &world.classes,
                bookings: &world.bookings,
                services: &world.services,
                history: &world.history,
                ahead: &world.ahead,
            },
            pools: world.pools.iter().collect(),
            nodes: world.nodes.iter().collect(),
            teams: world.teams.iter().collect(),
            works: world.workloads.iter().collect(),
        }
    }

    /// A world of copies of them.
    pub fn to_world(&self) -> World {
        let Moment {
            now,
            cycle_seconds,
            classes,
            bookings,
            services,
            history,
            ahead,
        } = self.moment;
        World {
            now,
            cycle_seconds,
            pools: self.pools.iter().copied().cloned().collect(),
            nodes: self.nodes.iter().copied().cloned().collect(),
            classes: classes.to_vec(),
            teams: self.teams.iter().copied().cloned().collect(),
            workloads: self.works.iter().copied().cloned().collect(),
            services: services.to_vec(),
            bookings: bookings.to_vec(),
            history: history.to_vec(),
            ahead: ahead.to_vec(),
        }
    }

    /// Puts each kind in the order of its names.
    pub fn sort(&mut self) {
        self.pools.sort_by(|a, b| a.name.cmp(&b.name));
        self.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        self.teams.sort_by(|a, b| a.name.cmp(&b.name));
        self.works.sort_by(|a, b| a.name.cmp(&b.name));
    }
}
