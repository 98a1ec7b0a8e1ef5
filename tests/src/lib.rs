//! What the end-to-end tests share: jobs that leave traces, and laws that hold after every test.

pub mod acknowledged;
pub mod journals;
pub mod laws;
pub mod traces;
