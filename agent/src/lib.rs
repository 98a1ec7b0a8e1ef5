//! The node agent: holds what the server wants held, runs it, and reports what happened.

pub mod config;
pub mod enrol;
pub mod folders;
pub mod gpus;
pub mod identity;
pub mod journal;
pub mod supervise;

mod checksum;
mod clock;
mod files;
mod lease;
mod proc;
mod runs;
