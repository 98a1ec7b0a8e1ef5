//! Integration tests of the server against a real PostgreSQL: a fresh database per test.

mod authorisation;
mod bad_input;
mod feed;
mod fixture;
mod fleet;
mod idempotency;
mod jobs;
mod openapi;
mod pages;
mod people;
mod scheduler;
mod schema;
mod sessions;
mod setup;
mod walls;
