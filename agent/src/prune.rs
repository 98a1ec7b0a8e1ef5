//! Keeps what jobs wrote and left within its bounds of age and size.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use domain::ids::AssignmentId;

use crate::config::{Config, SECONDS_PER_DAY};
use crate::folders::Folders;
use crate::{logs, removal};

/// How often logs are looked at.
const LOOK: Duration = Duration::from_secs(600);

/// Prunes for ever.
pub async fn run(config: Config, folders: Folders) {
    loop {
        let (config, folders) = (config.clone(), folders.clone());
        let pruned = tokio::task::spawn_blocking(move || prune(&config, &folders));
        if let Ok(Err(error)) = pruned.await {
            tracing::warn!(%error, "old logs cannot be removed");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What is left of a job: its log, or its results.
struct Left {
    path: PathBuf,
    bytes: u64,
    written_at: SystemTime,
}

/// Removes logs and results that are too old, and the oldest of those that are too much. What belongs to a
/// job that is still here stays.
fn prune(config: &Config, folders: &Folders) -> std::io::Result<()> {
    prune_folder(
        &folders.logs(),
        folders,
        config.logs_days_max,
        config.logs_bytes_max,
    )?;
    prune_folder(
        &folders.all_results(),
        folders,
        config.results_days_max,
        config.results_bytes_max,
    )
}

fn prune_folder(
    folder: &Path,
    folders: &Folders,
    days_max: u32,
    bytes_max: u64,
) -> std::io::Result<()> {
    let mut all: Vec<Left> = fs::read_dir(folder)?
        .filter_map(|entry| left(&entry.ok()?.path(), folders))
        .collect();
    all.sort_by_key(|left| std::cmp::Reverse(left.written_at));
    let age_max = Duration::from_secs(u64::from(days_max) * SECONDS_PER_DAY);
    let mut kept_bytes: u64 = 0;
    for left in all {
        let age = left.written_at.elapsed().unwrap_or_default();
        if age > age_max || kept_bytes + left.bytes > bytes_max {
            removal::remove(&left.path)?;
        } else {
            kept_bytes += left.bytes;
        }
    }
    Ok(())
}

fn left(path: &Path, folders: &Folders) -> Option<Left> {
    let id: AssignmentId = path.file_name()?.to_str()?.parse().ok()?;
    if folders.run(id).exists() {
        return None;
    }
    let (bytes, written_at) = logs::size(path).ok()?;
    Some(Left {
        path: path.to_owned(),
        bytes,
        written_at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_logs_go_first_and_those_of_jobs_that_run_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let folders = Folders::prepare(folder.path(), None).expect("made");
        let ids: Vec<AssignmentId> = (0..4).map(|_| AssignmentId::new()).collect();
        let now = SystemTime::now();
        for (at, id) in ids.iter().enumerate() {
            let segment = folders.log(*id).join("0.log");
            fs::create_dir(folders.log(*id)).expect("made");
            fs::write(&segment, [0; 100]).expect("written");
            let age = Duration::from_secs(3600 * (4 - at as u64));
            for path in [segment, folders.log(*id)] {
                let file = fs::File::open(path).expect("opened");
                file.set_modified(now - age).expect("dated");
            }
        }
        folders.run(ids[0]).create().expect("made");
        let config = Config {
            logs_bytes_max: 200,
            ..Config::default()
        };
        prune(&config, &folders).expect("pruned");
        let left: Vec<bool> = ids.iter().map(|id| folders.log(*id).exists()).collect();
        assert_eq!(left, [true, false, true, true]);
    }
}
