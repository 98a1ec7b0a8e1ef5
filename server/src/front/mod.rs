//! What pages and REST have in common: the listener, how a query is read, a request's id and origin, its log line, its numbers, and the headers that guard a browser.

pub mod body;
pub mod context;
pub mod fields;
pub mod gate;
pub mod headers;
pub mod health;
pub mod listener;
pub mod logs;
pub mod metrics;
mod origin;

pub use context::RequestContext;
