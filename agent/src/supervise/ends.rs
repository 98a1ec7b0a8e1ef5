//! The words for how a job ended, whatever carried it.

use crate::runs::{Exit, Orders};

/// What is known of an end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct End {
    /// The exit code of the first process.
    pub code: Option<i32>,
    /// Or the signal that ended it.
    pub signal: Option<i32>,
    /// Whether the kernel killed one of its processes for want of memory.
    pub out_of_memory: bool,
    /// Whether somebody had begun to stop it.
    pub asked: bool,
    /// Whether that was for the node's lease.
    pub lease_over: bool,
}

/// That end as it is told; its time is yet to be put in.
pub fn told(orders: &Orders, end: End) -> Exit {
    let failed = end.code != Some(0);
    Exit {
        code: end.code,
        signal: end.signal,
        out_of_memory: end.out_of_memory && failed,
        asked: end.asked,
        lease_over: end.lease_over,
        message: message(orders.limits.memory_mib, end, failed),
        ..Exit::default()
    }
}

fn message(memory_mib: i64, end: End, failed: bool) -> String {
    match (end.lease_over, end.out_of_memory, failed) {
        (true, ..) => "the node could not reach the server until its lease ended".to_owned(),
        (_, true, true) if memory_mib == 0 => {
            "killed for want of memory: it has no limit of its own, and the jobs of the node had together all that they may have"
                .to_owned()
        }
        (_, true, true) => format!("killed for using more than its {memory_mib} MiB of memory"),
        (_, true, false) => {
            "one of its processes was killed for want of memory, yet it ended well".to_owned()
        }
        _ => String::new(),
    }
}
