//! Integration tests of the server against a real PostgreSQL: a fresh database per test.

mod fixture;
mod pages;
mod fleet;
mod scheduler;
mod schema;
