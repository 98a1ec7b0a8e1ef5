//! Metering and money: segments become ledger entries, usage becomes reports.

pub mod capacity;
pub mod meter;
pub mod rating;
pub mod usage;
