//! The pages: views with ready values in, HTML out; no database, no HTTP.
//!
//! A view is a struct of plain values that the server fills and `render`s.
//! Every word a page says stands in one message file per language
//! (`messages/en.json`); amounts, times and money are written by `format`, so
//! that they look the same on every page. Nothing here needs inline style or
//! script: [`CONTENT_SECURITY_POLICY`] holds on every page.

pub use askama::{Error as RenderError, Template};

pub mod assets;
pub mod draw;
pub mod format;
pub mod log;
pub mod messages;
pub mod parts;
pub mod shell;
pub mod views;

/// The `Content-Security-Policy` that every page is made to live under.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
