//! The agent as it is: the real program and real processes against a server of the tests' own.

mod certificates;
mod escapes;
mod fake_server;
mod gpus;
mod lease;
mod mig;
mod mps;
mod restart;
mod rig;
mod running;
mod shares;
mod stopping;
