//! What is done to a database before servers serve it: migrate, check, a first administrator, the demo organisation.

pub mod admin;
pub mod check;
pub mod demo;
pub mod migrate;
mod reach;
