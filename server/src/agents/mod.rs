//! The listener for agents: enrolment, sessions, desired sets and facts.

mod admit;
pub mod authority;
mod beats;
pub mod desired;
mod dispatch;
pub mod enrol;
mod facts;
mod hello;
mod inventory;
mod listen;
mod logs;
mod models;
mod replicas;
mod session;
mod sessions;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use authority::Authority;
use beats::Heartbeat;
use sessions::Sessions;

pub use listen::{Listening, start};

/// What all sessions of this replica share. Cheap to clone.
#[derive(Clone)]
struct Shared {
    app: App,
    authority: Authority,
    sessions: Arc<Sessions>,
    beats: mpsc::Sender<Heartbeat>,
    over: CancellationToken,
}
