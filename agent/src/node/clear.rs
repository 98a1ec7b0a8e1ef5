//! Clears away what lies of an assignment on the disk, for as long as its devices may wait for that.

use std::path::PathBuf;
use std::time::Duration;

use domain::ids::AssignmentId;

use crate::removal;

/// Tries to remove a folder before it is left behind.
const TRIES: u32 = 5;
/// Wait between the first two, doubled each time.
const RETRY: Duration = Duration::from_secs(1);
/// How long an assignment waits for that before it is released: a disk removes some hundred thousand
/// files meanwhile, and how many there are is its job's choice.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Removes a folder of an assignment. Returns when it is gone, is left behind, or takes longer than its
/// devices should wait; the removal goes on then.
pub async fn clear(id: AssignmentId, folder: PathBuf) {
    let removal = tokio::spawn(remove(id, folder));
    if tokio::time::timeout(WAIT_MAX, removal).await.is_err() {
        tracing::warn!(assignment.id = %id, "a job's folder is being removed beside all else: it is large");
    }
}

async fn remove(id: AssignmentId, folder: PathBuf) {
    let mut wait = RETRY;
    for attempt in 1..=TRIES {
        let folder = folder.clone();
        let removed = tokio::task::spawn_blocking(move || removal::remove(&folder)).await;
        match removed.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) {
            Ok(()) => return,
            Err(error) if attempt == TRIES => {
                tracing::error!(assignment.id = %id, %error, "a job's folder is left behind");
            }
            Err(_) => {
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
        }
    }
}
