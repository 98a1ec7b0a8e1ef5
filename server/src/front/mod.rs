//! What pages and REST have in common: a request's id, its log line, its numbers, and the headers that guard a browser.

pub mod context;
pub mod headers;
pub mod health;
pub mod logs;
pub mod metrics;

pub use context::RequestContext;
