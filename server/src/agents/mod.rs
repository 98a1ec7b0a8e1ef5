//! The listener for agents: enrolment, sessions, desired sets and facts.

pub mod authority;
pub mod desired;
