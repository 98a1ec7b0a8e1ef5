//! One job: its page, what is done from it, and its log.

mod array;
pub mod log;
mod steer;
mod view;
pub mod why;

pub use steer::{cancel_job, change_job, read_id, resume_job, suspend_job};
pub use view::{JobQuery, show_job};
