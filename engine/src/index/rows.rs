//! The rows that an index numbers, whoever holds them.

use domain::Timestamp;

use crate::world::{Booking, Class, Node, Past, Pool, Service, Team, Workload, World};

/// What a cycle knows beside the rows that are numbered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'w> {
    pub now: Timestamp,
    pub cycle_seconds: i64,
    pub classes: &'w [Class],
    pub bookings: &'w [Booking],
    pub services: &'w [Service],
    pub history: &'w [Past],
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
            },
            pools: world.pools.iter().collect(),
            nodes: world.nodes.iter().collect(),
            teams: world.teams.iter().collect(),
            works: world.workloads.iter().collect(),
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
