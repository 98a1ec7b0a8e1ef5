//! Decisions: from a world, its policies and a moment to a plan; no I/O, clock, async, randomness or floats.

mod backfill;
mod bookings;
mod consolidate;
mod cycle;
mod dry_run;
mod explain;
mod fragmentation;
mod index;
mod ledger;
mod mig;
mod place;
mod planner;
mod preempt;
mod quota;
mod share;
mod shares;
mod shelf;
mod start;
mod verdict;
mod whole;

pub mod check;
pub mod cycles;
pub mod order;
pub mod plan;
pub mod rig;
pub mod scenario;
pub mod statement;
pub mod world;

pub use cycle::{decide, plan};
pub use dry_run::{DryRun, dry_run, dry_runs};
pub use explain::explain;
pub use mig::{alike, slices_at};
pub use planner::{Left, Planner};
pub use shares::fair_shares;
pub use shelf::Shelf;
pub use verdict::{Bound, alone};
