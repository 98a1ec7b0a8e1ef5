//! Integration tests of the server against a real PostgreSQL: a fresh database per test.

mod agents;
mod authorisation;
mod authorisation_pages;
mod bad_input;
mod crossings;
mod faults;
mod feed;
mod fixture;
mod fleet;
mod fleet_rest;
mod idempotency;
mod jobs;
mod logs;
mod machine;
mod metering;
mod nodes;
mod openapi;
mod pages;
mod people;
mod scheduler;
mod schema;
mod sessions;
mod setup;
mod simulated;
mod slow;
mod walls;
