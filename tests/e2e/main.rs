//! End-to-end and fault tests over real processes: PostgreSQL, servers, agents and jobs.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of a test fail as the test itself does"
)]

mod arrays;
mod command_line;
mod containers;
mod drains;
mod elastic;
mod evictions;
mod faults;
mod golden_month;
mod health;
mod many_jobs;
mod moments;
mod one_job;
mod partitions;
mod plain_user;
mod policies;
mod races;
mod rules;
mod slices;
mod support;
mod terminals;
mod up;
mod up_refusals;
