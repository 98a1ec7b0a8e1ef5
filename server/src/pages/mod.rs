//! The pages: handlers that call `app` and render the views of the `web` crate.

pub mod form;
pub mod words;
