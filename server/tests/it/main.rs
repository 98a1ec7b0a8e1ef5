//! Integration tests of the server against a real PostgreSQL: a fresh database per test.

mod fixture;
mod fleet;
mod pages;
mod scheduler;
mod schema;
