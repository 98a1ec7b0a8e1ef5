//! What pages and REST have in common: the listener, a request's id, its log line, its numbers, and the headers that guard a browser.

pub mod body;
pub mod context;
pub mod headers;
pub mod health;
pub mod listener;
pub mod logs;
pub mod metrics;

pub use context::RequestContext;
