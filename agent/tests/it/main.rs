//! The agent as it is: the real program and real processes against a server of the tests' own.

mod certificates;
mod check;
mod deaths;
mod escapes;
mod fake_server;
mod gpus;
mod health;
mod layouts;
mod lease;
mod life;
mod logs;
mod mig;
mod mps;
mod remains;
mod restart;
mod rig;
mod running;
mod shares;
mod starts;
mod stopping;
mod walls;
