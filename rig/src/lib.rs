//! Starts the whole product as real processes on one machine: `./dev up`, and the tests that kill parts of it.
//!
//! A [`Cluster`] is a private PostgreSQL, one server or more and the node agents, each a
//! process of its own with a log file, below one state folder. Nothing here decides
//! anything for the product: it writes configuration files, calls the product's own
//! commands and REST, and watches processes.

pub mod agent;
pub mod agents_file;
pub mod api;
pub mod child;
pub mod cluster;
pub mod demo;
pub mod examples;
pub mod leftovers;
pub mod measure;
pub mod netns;
pub mod paths;
pub mod ports;
pub mod postgres;
pub mod proxy;
pub mod server;
pub mod stage;
mod toml;
pub mod up;
pub mod up_file;
pub mod wait;
pub mod who;

pub use cluster::{Cluster, Options};
