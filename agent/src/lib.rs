//! The node agent: holds what the server wants held, runs it, and reports what happened.
//!
//! Three processes share a node: the agent, which may be killed and replaced at any time;
//! a supervisor per job, which outlives it ([`supervise`]); and the job. What agent and
//! supervisor tell one another lies in the job's run folder (`runs`), what the server
//! must learn lies in the journal ([`journal`]) until it is acknowledged.

pub mod check;
pub mod config;
pub mod containers;
pub mod enrol;
pub mod folders;
pub mod gpus;
pub mod identity;
pub mod inventory;
pub mod journal;
pub mod points;
pub mod run;
pub mod supervise;
pub mod terminal;

mod checkpoints;
mod checksum;
mod clock;
mod connection;
mod exporter;
mod files;
mod lease;
mod logs;
mod mps;
mod node;
mod proc;
mod prune;
mod removal;
mod results;
mod runs;
mod telemetry;
