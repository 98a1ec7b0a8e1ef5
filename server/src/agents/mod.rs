//! The listener for agents: enrolment, connections, desired sets and facts.

mod admit;
pub mod authority;
mod beats;
mod clock;
mod connection;
mod connections;
pub mod desired;
mod dispatch;
pub mod enrol;
mod facts;
mod group;
mod hello;
mod inbox;
mod inventory;
mod listen;
mod logs;
mod losses;
mod models;
mod refusals;
mod replicas;
pub mod samples;
mod terminals;
mod writer;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use authority::Authority;
use beats::Heartbeat;
use connections::Connections;
use refusals::Refusals;

pub use listen::{Listening, start};

/// What all connections of this replica share. Cheap to clone.
#[derive(Clone)]
struct Shared {
    app: App,
    authority: Authority,
    connections: Arc<Connections>,
    beats: mpsc::Sender<Heartbeat>,
    facts: mpsc::Sender<group::Told>,
    samples: mpsc::Sender<samples::Told>,
    refusals: Arc<Refusals>,
    over: CancellationToken,
}
