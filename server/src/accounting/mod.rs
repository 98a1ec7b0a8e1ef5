//! Metering and money: segments become ledger entries, usage becomes reports.

pub mod meter;
