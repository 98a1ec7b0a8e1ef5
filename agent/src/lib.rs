//! The node agent: holds what the server wants held, runs it, and reports what happened.

pub mod gpus;
pub mod journal;
pub mod supervise;

mod checksum;
mod clock;
mod files;
mod lease;
mod proc;
mod runs;
