//! Whether the node's disk has room for jobs to start: refused here, and told to the server as a state of
//! the node, which ends by itself once there is room again.

use std::io;
use std::sync::Arc;

use protocol::wire;
use tokio::sync::watch;

use super::Node;
use crate::clock::Steps;
use crate::folders::Folders;

const BYTES_PER_MIB: u64 = 1024 * 1024;
/// A disk that is full has room again only with so small a part more than is needed, so that one at the
/// edge does not come and go with each line of a log.
const MORE: u64 = 8;

/// The disk with the agent's state and its jobs' files.
pub struct Disk {
    folders: Folders,
    needed: u64,
    full: watch::Sender<Option<wire::DiskFull>>,
}

impl Disk {
    /// The disk below these folders, of which a start needs so many bytes.
    pub fn new(folders: Folders, needed: u64) -> Self {
        let (full, _) = watch::channel(None);
        Self {
            folders,
            needed,
            full,
        }
    }

    /// Looks at it now; what was free when it was found to be full, where it is.
    pub fn look(&self) -> io::Result<Option<wire::DiskFull>> {
        let free = self.folders.free_bytes()?;
        self.full.send_if_modified(|full| {
            let before = full.is_some();
            let now = is_full(before, free, self.needed);
            if now && !before {
                *full = Some(wire::DiskFull {
                    free_mib: mib(free),
                    needed_mib: mib(self.needed),
                });
                tracing::warn!(
                    free,
                    needed = self.needed,
                    "the disk is full: no job starts"
                );
            } else if before && !now {
                *full = None;
                tracing::info!(free, "the disk has room again");
            }
            now != before
        });
        Ok(self.full())
    }

    /// What was free when it was found to be full, where it is.
    pub fn full(&self) -> Option<wire::DiskFull> {
        *self.full.borrow()
    }

    /// Sees each change between full and not.
    pub fn changes(&self) -> watch::Receiver<Option<wire::DiskFull>> {
        self.full.subscribe()
    }
}

/// Looks as often as at the devices, until the agent ends: at the disk, and at the clock.
pub async fn watch(node: Arc<Node>) {
    let steps = Steps::since_now();
    let mut tick = tokio::time::interval(node.config.inventory_pace());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        // What cannot be asked is told by the refusal of a start.
        let _ = node.disk.look();
        node.clock_warning.send_if_modified(|told| {
            let now = steps.warning();
            // By how much it is off now is not told again with each second.
            let changed = now.is_some() != told.is_some();
            if changed {
                now.iter().for_each(|words| tracing::warn!("{words}"));
                *told = now;
            }
            changed
        });
    }
}

fn is_full(before: bool, free: u64, needed: u64) -> bool {
    let enough = if before {
        needed.saturating_add(needed / MORE)
    } else {
        needed
    };
    free < enough
}

fn mib(bytes: u64) -> i64 {
    i64::try_from(bytes / BYTES_PER_MIB).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_at_the_edge_does_not_come_and_go() {
        assert!(!is_full(false, 800, 800));
        assert!(is_full(false, 799, 800));
        assert!(is_full(true, 899, 800));
        assert!(!is_full(true, 900, 800));
        assert!(!is_full(false, 0, 0), "who needs nothing finds room");
    }
}
