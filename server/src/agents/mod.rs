//! The listener for agents: enrolment, sessions, desired sets and facts.

mod admit;
pub mod authority;
mod beats;
pub mod desired;
mod dispatch;
pub mod enrol;
mod facts;
mod hello;
mod inbox;
mod inventory;
mod listen;
mod logs;
mod losses;
mod models;
mod refusals;
mod replicas;
mod session;
mod sessions;
mod writer;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use authority::Authority;
use beats::Heartbeat;
use refusals::Refusals;
use sessions::Sessions;

pub use listen::{Listening, start};

/// What all sessions of this replica share. Cheap to clone.
#[derive(Clone)]
struct Shared {
    app: App,
    authority: Authority,
    sessions: Arc<Sessions>,
    beats: mpsc::Sender<Heartbeat>,
    refusals: Arc<Refusals>,
    over: CancellationToken,
}
