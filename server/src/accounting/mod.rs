//! Metering and money: segments become ledger entries, usage becomes reports.

pub mod capacity;
pub mod closing;
pub mod meter;
pub mod rating;
pub mod reconciling;
pub mod rerating;
pub mod usage;
