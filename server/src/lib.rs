//! The control plane: REST, pages, agents, scheduler and accounts over one PostgreSQL.
//!
//! Calls go one way: `api | pages | agents | background → app → store`, and
//! `scheduler | accounting → engine + store`; `lifecycle` changes states for all of them. All SQL stands in `store`; nothing in it calls up.

pub mod accounting;
pub mod agents;
pub mod api;
pub mod app;
pub mod background;
pub mod config;
pub mod front;
pub mod lifecycle;
pub mod pages;
pub mod scheduler;
pub mod serve;
pub mod setup;
pub mod store;
