//! End-to-end and fault tests over real processes: PostgreSQL, servers, agents and jobs.

mod command_line;
mod faults;
mod many_jobs;
mod one_job;
mod partitions;
mod races;
mod support;
mod up;
